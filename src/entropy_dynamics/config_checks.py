"""What config values may be where their type alone does not say it; config.py merges and types them."""

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from entropy_dynamics.errors import UserError

# (key, test, what would be right)
_CHECKS = [
    ("threads", lambda v: v >= 1, "1 or more"),
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
    ("training.optimizer.eps", lambda v: v >= 0, "0 or more"),
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
    ("plan.training_share", lambda v: 0 < v <= 1, "a share above 0, at most 1"),
    ("plan.bandwidth_share", lambda v: 0 < v <= 1, "a share above 0, at most 1"),
    ("plan.prompt_tokens", lambda v: v >= 1, "1 or more"),
    ("plan.response_tokens", lambda v: v >= 1, "1 or more"),
    ("plan.safety", lambda v: v >= 1, "1 or more"),
    ("plan.measured", lambda v: all(_rates(one) for one in v.values()), "tokens a second, above 0, for each model"),
    ("model.prompt_format", lambda v: v in ("chat", "base"), "'chat' or 'base'"),
]


def _rates(throughput: DictConfig) -> bool:
    given = [key for key in throughput if not OmegaConf.is_missing(throughput, key)]  # those are named elsewhere
    return all(throughput[key] > 0 for key in given)


def check_values(config: DictConfig) -> None:
    """Raise UserError for the first value that is out of range, contradicts another, or is missing."""
    _check_stand_ins(config)
    for key, test, right in _CHECKS:
        if OmegaConf.is_missing(config, key.split(".")[0]):
            continue
        try:
            value = OmegaConf.select(config, key)
        except OmegaConfBaseException as error:  # an interpolation that leads nowhere
            raise UserError(f"{key}: {str(error).splitlines()[0]}") from None
        if value is not None and not test(value):
            raise UserError(f"{key} is {value}; it has to be {right}")
    of_a_run = {"method", "training.group_size"}  # come with a model or a method
    missing = OmegaConf.missing_keys(config) - of_a_run
    if OmegaConf.is_missing(config.model, "name"):
        missing = {key for key in missing if not key.startswith("model.")}
    if missing:
        raise UserError(f"no value for {min(missing)}: set it in the scale's config")
    _check_ranks(config)
    if config.training.importance_truncation is not None and config.engine.name == "native":
        raise UserError("training.importance_truncation goes with engine.name=vllm: the native engine is the policy")
    unsampled = set(config.data.evaluation) - set(config.evaluation.samples)
    if unsampled:
        raise UserError(f"evaluation.samples has no {min(unsampled)!r}, a set of data.evaluation: say how many samples")


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
    """Warm starts: positive sizes, two bounds for `terms`, and habits that are chances."""
    for name, stand_in in ({} if OmegaConf.is_missing(config, "stand_ins") else config.stand_ins).items():
        if OmegaConf.missing_keys(stand_in):
            continue  # named with all other missing values
        start, where = stand_in.warm_start, f"stand_ins[{name}].warm_start"
        if start.steps < 1 or start.batch_size < 1 or start.learning_rate <= 0:
            raise UserError(f"{where}: steps, batch_size and learning_rate have to be above 0")
        if len(start.terms) != 2:
            raise UserError(f"{where}.terms is {list(start.terms)}; it has to be [fewest, most]")
        for habit, chance in start.habits.items():
            if not 0 <= chance <= 1:
                raise UserError(f"{where}.habits.{habit} is {chance}; it has to be a chance from 0 to 1")
