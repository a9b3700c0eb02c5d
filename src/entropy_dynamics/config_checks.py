"""What config values may be where their type alone does not say it; config.py merges and types them."""

import math
import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from entropy_dynamics.errors import UserError

LARGEST = 2**63 - 1  # what a whole number of PyTorch and of a file holds
OTHER_FILES = ("train", "pass_rates")  # <name>.parquet beside the evaluation sets

# (key, test, what would be right)
_CHECKS = [
    ("threads", lambda v: v >= 1, "1 or more"),
    ("threads", lambda v: v <= 4096, "4096 or less: PyTorch ends the process at a million"),
    ("seeds.tables", lambda v: v >= 1, "1 or more"),
    ("seeds.extras", lambda v: v >= 1, "1 or more"),
    ("sampling.temperature", lambda v: v > 0, "above 0"),
    ("sampling.max_prompt_tokens", lambda v: v >= 1, "1 or more"),
    ("sampling.max_new_tokens", lambda v: v >= 1, "1 or more"),
    ("sampling.batch_size", lambda v: v >= 1, "1 or more"),
    ("pass_rates.samples", lambda v: v >= 1, "1 or more"),
    ("hardware.device", lambda v: v in ("cpu", "cuda"), "'cpu' or 'cuda'"),
    ("hardware.ranks", lambda v: v >= 1, "a number of processes, or null for one without torchrun"),
    ("trackers", lambda v: set(v) <= {"tensorboard", "wandb"}, "a list of 'tensorboard' and 'wandb'"),
    ("engine.name", lambda v: v in ("native", "vllm"), "'native' or 'vllm'"),
    ("engine.dtype", lambda v: v in ("float32", "bfloat16"), "'float32' or 'bfloat16'"),
    ("engine.memory_share", lambda v: 0 < v < 1, "a share from 0 to 1"),
    ("engine.kv_cache_gib", lambda v: v > 0, "above 0"),
    ("engine.tolerance", lambda v: v > 0, "above 0"),
    ("pass_rates.low", lambda v: 0 <= v < 1, "a share from 0 to 1"),
    ("pass_rates.high", lambda v: 0 < v <= 1, "a share from 0 to 1"),
    ("training.steps", lambda v: v >= 1, "1 or more"),
    ("training.prompts_per_step", lambda v: v >= 1, "1 or more"),
    ("training.group_size", lambda v: v >= 2, "2 or more: a group of one has no baseline"),
    ("training.updates_per_batch", lambda v: v >= 1, "1 or more"),
    ("training.reward", lambda v: v in ("paper", "binary"), "'paper' or 'binary'"),
    ("training.precision", lambda v: v in ("float32", "bfloat16"), "'float32' or 'bfloat16'"),
    ("training.bounds_from", lambda v: v in ("batch", "previous_step"), "'batch' or 'previous_step'"),
    ("training.importance_truncation", lambda v: v > 0, "above 0, or null for none"),
    ("training.checkpoint_every", lambda v: v >= 0, "0 (never) or more"),
    ("training.checkpoints_kept", lambda v: v >= 1, "1 or more"),
    ("training.advantage", lambda v: v in ("group", "gae"), "'group' (GRPO) or 'gae' (PPO)"),
    ("training.critic.learning_rate", lambda v: v > 0, "above 0"),
    ("training.critic.weight_decay", lambda v: v >= 0, "0 or more"),
    ("training.critic.gamma", lambda v: 0 <= v <= 1, "in [0, 1]"),
    ("training.critic.lam", lambda v: 0 <= v <= 1, "in [0, 1]"),
    ("training.critic.value_clip", lambda v: v > 0, "above 0"),
    ("training.critic.max_grad_norm", lambda v: v > 0, "above 0"),
    ("training.tokens_per_micro_batch", lambda v: v >= 1, "1 or more"),
    ("training.held_tokens", lambda v: v >= 0, "0 (hold none) or more"),
    ("training.entropy_change_every", lambda v: v >= 0, "0 (never) or more"),
    ("training.validation_every", lambda v: v >= 0, "0 (never) or more"),
    ("training.validation_problems", lambda v: v >= 1, "1 or more"),
    ("training.validation_samples", lambda v: v >= 1, "1 or more"),
    ("training.optimizer.learning_rate", lambda v: v > 0, "above 0"),
    ("training.optimizer.eps", lambda v: v > 1e-38, "above 1e-38"),  # fp32 has nothing smaller
    ("training.optimizer.weight_decay", lambda v: v >= 0, "0 or more"),
    ("training.optimizer.max_grad_norm", lambda v: v > 0, "above 0"),
    ("training.optimizer.betas", lambda v: len(v) == 2 and all(0 <= beta < 1 for beta in v), "two numbers in [0, 1)"),
    ("training.objective.clip_low", lambda v: 0 < v <= 1, "in (0, 1]"),
    ("training.objective.clip_high", lambda v: v > 0, "above 0"),
    ("training.objective.dual_clip", lambda v: v > 1, "above 1"),
    ("training.objective.loss_scope", lambda v: v in ("global_token", "per_group"), "'global_token' or 'per_group'"),
    ("evaluation.cross_checked", lambda v: v >= 0, "0 (none) or more"),
    ("evaluation.temperature", lambda v: v > 0, "above 0"),
    ("evaluation.samples", lambda v: all(k >= 1 for k in v.values()), "1 or more for every data set"),
    ("plan.gpu_memory_gib", lambda v: v >= 0, "0 (not said) or more"),
    ("plan.tflops", lambda v: v >= 0, "0 (not said) or more"),
    ("plan.bandwidth_gb_s", lambda v: v >= 0, "0 (not said) or more"),
    ("plan.decode_step_ms", lambda v: v >= 0, "0 or more"),
    ("plan.engine_gib", lambda v: v >= 0, "0 or more"),
    ("plan.process_gib", lambda v: v >= 0, "0 or more"),
    ("plan.startup_minutes", lambda v: v >= 0, "0 or more"),
    ("plan.problems", lambda v: all(count >= 1 for count in v.values()), "1 or more for every data set"),
    ("plan.training_share", lambda v: 0 < v <= 1, "a share above 0, at most 1"),
    ("plan.bandwidth_share", lambda v: 0 < v <= 1, "a share above 0, at most 1"),
    ("plan.prompt_tokens", lambda v: v >= 1, "1 or more"),
    ("plan.response_tokens", lambda v: v >= 1, "1 or more"),
    ("plan.safety", lambda v: v >= 1, "1 or more"),
    (
        "plan.measured",
        lambda v: all(rate > 0 for one in v.values() for rate in one.values()),
        "tokens a second, above 0, for each model",
    ),
    ("model.shape", lambda v: all(size >= 1 for size in v.values() if type(size) is int), "1 or more for every size"),
    ("model.prompt_format", lambda v: v in ("chat", "base"), "'chat' or 'base'"),
]


# Where no bound is a value like any other; that no other number may be infinite, or none at all, is checked for all.
_MAY_BE_INFINITE = {
    "engine.tolerance",
    "training.importance_truncation",
    "training.optimizer.max_grad_norm",
    "training.objective.clip_high",
    "training.objective.dual_clip",
    "training.critic.max_grad_norm",
    "training.critic.value_clip",
}


# What YAML takes for a text: parameters of methods have no type here that would read it as a number.
_NO_NUMBER = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


def check_values(config: DictConfig, scale: str, model: str | None = None, method: str | None = None) -> None:
    """Raise UserError for the first value that is missing, leads nowhere, is out of range or contradicts another.

    The sections of a run may be unset where it has no `model` or no `method`.
    """
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except (OmegaConfBaseException, RecursionError) as error:  # an interpolation that leads nowhere, or to itself
        raise UserError(f"{getattr(error, 'full_key', None) or 'the config'}: {str(error).splitlines()[0]}") from None
    of_a_run = {"model": model, "method": method, "training.group_size": method}  # comes with a model or a method
    unset = [section for section, chosen in of_a_run.items() if chosen is None]
    missing = [key for key in OmegaConf.missing_keys(config) if not _stands_in(key, unset)]
    if missing:
        raise UserError(f"no value for {min(missing)}: set it in the scale's config")
    for key, value in plain_values(values):  # before all others, as Python does not even print one of many digits
        if type(value) is int and abs(value) > LARGEST:
            raise UserError(f"{key} has to be a whole number of at most {LARGEST}, or -{LARGEST}")
    _check_stand_ins(config)
    for key, test, right in _CHECKS:
        value = OmegaConf.select(config, key)
        if value is not None and not test(value):
            raise UserError(f"{key} is {value}; it has to be {right}")
    for key, value in plain_values(values):
        if isinstance(value, str) and "\0" in value:
            raise UserError(f"{key} is {value!r}; it has to be a text without null characters")
        infinite = isinstance(value, float) and not math.isfinite(value) and key not in _MAY_BE_INFINITE
        if infinite or (isinstance(value, str) and _stands_in(key, ["method.params"]) and _NO_NUMBER.fullmatch(value)):
            raise UserError(f"{key} is {value}; it has to be a finite number")
    low, high = config.pass_rates.low, config.pass_rates.high
    if low is not None and high is not None and low >= high:
        raise UserError(f"pass_rates.low is {low} and pass_rates.high {high}: no rate lies between them")
    if config.scale != scale:  # reports and trackers name results by it, whose folder has the name of the file
        raise UserError(f"scale is {config.scale!r}; it has to be that of its file, {scale!r}")
    if model is not None and config.model.name != model:  # results are written into a folder of that name
        raise UserError(f"model.name is {config.model.name!r}; it has to be that of its file, {model!r}")
    _check_ranks(config)
    if config.training.importance_truncation is not None and config.engine.name == "native":
        raise UserError("training.importance_truncation goes with engine.name=vllm: the native engine is the policy")
    for name in [*config.data.evaluation, *config.evaluation.samples]:
        check_set_name(name)
    unsampled = set(config.data.evaluation) - set(config.evaluation.samples)
    if unsampled:
        raise UserError(f"evaluation.samples has no {min(unsampled)!r}, a set of data.evaluation: say how many samples")


def check_set_name(name: str) -> None:
    """Raise UserError for what cannot name an evaluation set."""
    if name in OTHER_FILES or not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(
            f"data.evaluation: {name!r} cannot name a set, since its file is <name>.parquet, beside those of "
            f"{' and '.join(OTHER_FILES)}"
        )


def _stands_in(key: str, sections: list[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def plain_values(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that is neither a mapping nor a list."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from plain_values(one, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for one in value:
            yield from plain_values(one, key)
    else:
        yield key, value


def _check_ranks(config: DictConfig) -> None:
    """What goes with ranks only, and whether the rollouts of an update can be dealt to them evenly."""
    ranks, training = config.hardware.ranks, config.training
    if ranks is None:
        if training.precision == "bfloat16":
            raise UserError("training.precision=bfloat16 goes with FSDP2: set hardware.ranks, 1 for a single GPU")
        return
    if config.engine.name == "native" and config.hardware.device == "cuda":
        raise UserError("hardware.ranks on GPUs go with engine.name=vllm; with the native engine set it to null")
    if OmegaConf.is_missing(training, "group_size"):
        return
    check_dealing(training.prompts_per_step, training, ranks)


def check_dealing(prompts: int, training: DictConfig, ranks: int) -> None:
    """Raise UserError if the rollouts of some update of a step with so many prompts cannot be dealt to ranks evenly."""
    least, more = divmod(prompts, training.updates_per_batch)
    rollouts = {size * training.group_size for size in ({least, least + 1} if more else {least})}
    if any(count % ranks for count in rollouts):
        raise UserError(
            f"an update of {max(rollouts)} rollouts cannot be divided among {ranks} ranks evenly: change "
            "training.group_size or training.prompts_per_step to make it a multiple of hardware.ranks"
        )


def _check_stand_ins(config: DictConfig) -> None:
    """Positive sizes; of warm starts also two bounds for `terms`, and habits that are chances."""
    for name, stand_in in config.stand_ins.items():
        if stand_in.seed < 0 or any(type(size) is int and size < 1 for key, size in stand_in.items() if key != "seed"):
            raise UserError(f"stand_ins[{name}]: sizes have to be 1 or more, the seed 0 or more")
        start, where = stand_in.warm_start, f"stand_ins[{name}].warm_start"
        if not (start.steps >= 1 and start.batch_size >= 1 and start.learning_rate > 0):
            raise UserError(f"{where}: steps, batch_size and learning_rate have to be above 0")
        if len(start.terms) != 2:
            raise UserError(f"{where}.terms is {list(start.terms)}; it has to be [fewest, most]")
        for habit, chance in start.habits.items():
            if not 0 <= chance <= 1:
                raise UserError(f"{where}.habits.{habit} is {chance}; it has to be a chance from 0 to 1")
