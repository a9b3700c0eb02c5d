"""Configuration: typed, merged in one order, and an unknown key is an error that names the nearest known one.

    base.yaml <- scale/<scale>.yaml <- model/<model>.yaml <- method/<method>.yaml <- machine.yaml <- --set key=value

machine.yaml is for what differs from machine to machine and changes no result but by rounding; no rule depends on it.
A scale may say that it `extends` another, whose file then comes before it.
Every value and the reason for it stands in the YAML files; this module only says which keys exist and of what
type they are. A scale, model or method file may end with `overrides`, a list of `{for: {scale|model|method: ...}, ...}`
entries; those whose `for` fits the run are merged over the rest of that file.

A method may be given with parameters, `clip_b@mu=1.2,sides=both`: the file `method/clip_b.yaml` with these values.

This module imports neither torch nor transformers, so Snakemake and the reports can use it freely.
"""

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from entropy_dynamics.config_checks import check_values, plain_values
from entropy_dynamics.errors import UserError, nearest

CONFIGS = Path("configs")
MACHINE = "machine.yaml"
DEEPEST = 50  # levels of a YAML file
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
OF_THE_MACHINE = (  # keys that machine.yaml may set, and that a checkpoint does not depend on
    "hardware",
    "threads",
    "trackers",
    "plan",
    "data.folder",
    "model.path",
    "sampling.batch_size",
    "engine.eager",
    "engine.memory_share",
    "engine.kv_cache_gib",
    "training.activation_checkpointing",
    "training.tokens_per_micro_batch",
    "training.reduce_every_micro_batch",
    "training.checkpoint_every",
    "training.checkpoints_kept",
)


@dataclass
class ProblemSetConfig:
    """Where the problems of one set come from."""

    source: str = MISSING  # arithmetic | split | file | hub
    size: int | None = None  # arithmetic, split: how many problems
    terms: list[int] | None = None  # arithmetic: [fewest, most] numbers in a sum
    path: str | None = None  # file: JSONL or parquet
    repository: str | None = None  # hub: id of the data set on the Hugging Face Hub
    revision: str | None = None  # hub: the commit, 40 hex digits
    subset: str | None = None  # hub: which of its configurations, where it has several
    hub_split: str = "train"  # hub
    id_column: str | None = "id"  # null: a hash of the problem's text
    problem_column: str = "problem"
    answer_column: str = "answer"


@dataclass
class DataConfig:
    seed: int = MISSING
    folder: str | None = MISSING  # <set>.jsonl or <set>.parquet found there take the place of a set's source
    train: ProblemSetConfig = MISSING
    evaluation: dict[str, ProblemSetConfig] = MISSING


@dataclass
class HabitsConfig:
    """The mixture of habits in the warm-start solutions (see tasks/arithmetic.py)."""

    shuffled: float = MISSING  # careful solutions: chance that the numbers are added in a shuffled order
    shortcut: float = MISSING  # chance of a bare guess instead of a careful solution
    sloppy: float = MISSING  # chance that any one running sum is off
    unboxed: float = MISSING  # chance that the answer is left without its box
    rambling: float = MISSING  # chance that a solution never ends


@dataclass
class WarmStartConfig:
    terms: list[int] = MISSING  # [fewest, most] numbers in a sum
    steps: int = MISSING
    batch_size: int = MISSING
    learning_rate: float = MISSING
    habits: HabitsConfig = MISSING


@dataclass
class StandInConfig:
    """A small model of the same architecture family as the real one, warm-started from nothing."""

    architecture: str = MISSING  # qwen2 | qwen3 | llama
    hidden_size: int = MISSING
    layers: int = MISSING
    head_size: int = MISSING  # 32 or 64, so that vLLM can serve it on a CPU
    heads: int = MISSING
    kv_heads: int = MISSING
    intermediate_size: int = MISSING
    tied_embeddings: bool = MISSING
    tokenizer: str = "characters"  # characters (those of sums) | bytes (any text)
    seed: int = MISSING
    warm_start: WarmStartConfig = MISSING


@dataclass
class ShapeConfig:
    """What `plan` reckons with before a model is there; checked against its config.json once it is."""

    architecture: str = MISSING  # qwen2 | qwen3 | llama
    layers: int = MISSING
    hidden_size: int = MISSING
    intermediate_size: int = MISSING
    heads: int = MISSING
    kv_heads: int = MISSING
    head_size: int = MISSING
    vocabulary: int = MISSING
    tied_embeddings: bool = MISSING


@dataclass
class ModelConfig:
    name: str = MISSING
    label: str = MISSING  # how the paper writes it
    pretrained: str = MISSING  # id on the Hugging Face Hub
    revision: str = MISSING  # its commit there, 40 hex digits
    path: str | None = MISSING  # a directory with the model, instead of the Hub
    stand_in: bool = MISSING  # `pretrained` is another, smaller model than the name says
    remote_tokenizer: bool = MISSING  # run the tokenizer's own code from the pinned revision
    prompt_format: str = MISSING  # chat | base
    shape: ShapeConfig = MISSING


@dataclass
class SamplingConfig:
    temperature: float = MISSING
    max_prompt_tokens: int = MISSING
    max_new_tokens: int = MISSING
    batch_size: int = MISSING  # sequences generated at a time


@dataclass
class EngineConfig:
    """What generates, for the pass-rate filter, rollouts and evaluation."""

    name: str = MISSING  # native | vllm
    dtype: str = MISSING  # float32 | bfloat16
    eager: bool = MISSING  # vllm: neither compilation nor CUDA graphs
    memory_share: float = MISSING  # vllm on a GPU: its share of the GPU's memory
    kv_cache_gib: float | None = MISSING  # vllm: size of the KV cache; null = what memory_share leaves
    tolerance: float = MISSING  # nats: a larger mean difference to the trainer's log p after a push is an error


@dataclass
class HardwareConfig:
    """Where a step runs."""

    device: str = MISSING  # cpu | cuda
    ranks: int | None = MISSING  # processes of a step under torchrun, with FSDP2; null = one plain process


@dataclass
class PassRateConfig:
    model: str = MISSING
    samples: int = MISSING
    low: float | None = MISSING  # keep low < rate < high; null = no bound
    high: float | None = MISSING


@dataclass
class OptimizerConfig:
    learning_rate: float = MISSING
    betas: list[float] = MISSING
    eps: float = MISSING
    weight_decay: float = MISSING
    max_grad_norm: float = MISSING


@dataclass
class ObjectiveConfig:
    clip_low: float = MISSING
    clip_high: float = MISSING
    dual_clip: float = MISSING
    loss_scope: str = MISSING  # global_token | per_group


@dataclass
class CriticConfig:
    """PPO's critic; unused where advantages are group-normalised."""

    learning_rate: float = MISSING
    weight_decay: float = MISSING
    max_grad_norm: float = MISSING
    gamma: float = MISSING
    lam: float = MISSING
    value_clip: float = MISSING


@dataclass
class TrainingConfig:
    steps: int = MISSING
    prompts_per_step: int = MISSING
    group_size: int = MISSING
    updates_per_batch: int = MISSING
    reward: str = MISSING  # paper | binary
    advantage: str = MISSING  # group (GRPO) | gae (PPO)
    bounds_from: str = MISSING  # batch | previous_step: of methods that have bounds (Clip_B, Clip_V)
    importance_truncation: float | None = MISSING  # weigh tokens by p(trainer)/p(engine), at most so much; null = off
    precision: str = MISSING  # float32 | bfloat16: what is computed in; master weights and reductions are float32
    activation_checkpointing: bool = MISSING
    checkpoint_every: int = MISSING  # steps between checkpoints; 0 = never
    checkpoints_kept: int = MISSING
    tokens_per_micro_batch: int = MISSING  # padding counted
    reduce_every_micro_batch: bool = MISSING  # else after an update's last one; until then each rank holds all in fp32
    held_tokens: int = (
        MISSING  # a batch of at most so many tokens keeps its forward graphs: one forward for score and update
    )
    entropy_change_every: int = MISSING  # steps between measurements of the entropy change; 0 = never
    validation_every: int = MISSING  # steps between validations; 0 = never
    validation_problems: int = MISSING
    validation_samples: int = MISSING
    optimizer: OptimizerConfig = MISSING
    objective: ObjectiveConfig = MISSING
    critic: CriticConfig = MISSING


@dataclass
class EvaluationConfig:
    temperature: float = MISSING
    cross_checked: int = MISSING  # responses of each set that Math-Verify grades too, for comparison only
    samples: dict[str, int] = MISSING  # data set -> K


@dataclass
class MethodConfig:
    name: str = MISSING
    label: str = MISSING  # how tables and figures write it
    params: dict[str, Any] = MISSING


@dataclass
class SeedsConfig:
    tables: int = MISSING
    extras: int = MISSING


@dataclass
class ThroughputConfig:
    """Tokens a second on each GPU, as measured in runs (see `seconds_*` in their metrics)."""

    sampled: float = MISSING  # of responses
    trained: float = MISSING  # of prompts and responses, scored and updated in a run of GRPO


@dataclass
class PlanConfig:
    """What `plan` reckons with."""

    gpu: str = MISSING  # name of the GPU that the figures are for
    gpu_memory_gib: float = MISSING
    tflops: float = MISSING  # its peak, dense bf16
    bandwidth_gb_s: float = MISSING  # of its memory
    training_share: float = MISSING  # of the peak that training reaches
    bandwidth_share: float = MISSING  # of the bandwidth that decoding reaches
    decode_step_ms: float = MISSING  # of a decoding step beside reading weights and KV cache: scheduling, sampling
    engine_gib: float = MISSING  # the engine beside weights and KV cache: CUDA graphs, activations
    process_gib: float = MISSING  # CUDA context, communication buffers, fragments
    startup_minutes: float = MISSING  # of a job: imports, weights, engine
    prompt_tokens: int = MISSING  # mean length
    response_tokens: int = MISSING  # mean length
    problems: dict[str, int] = MISSING  # of the sets whose size the config does not say
    safety: float = MISSING  # time limit of a job over its planned time
    measured: dict[str, ThroughputConfig] = MISSING  # model -> throughput, instead of the stated one


@dataclass
class Config:
    scale: str = MISSING
    threads: int = MISSING
    hardware: HardwareConfig = MISSING
    trackers: list[str] = MISSING  # of tensorboard, wandb
    seeds: SeedsConfig = MISSING
    experiments: list[str] | None = MISSING  # the tables and figures of this scale; null = all of experiments/
    data: DataConfig = MISSING
    models: list[str] = MISSING
    stand_ins: dict[str, StandInConfig] = MISSING
    model: ModelConfig = MISSING
    sampling: SamplingConfig = MISSING
    engine: EngineConfig = MISSING
    pass_rates: PassRateConfig = MISSING
    training: TrainingConfig = MISSING
    evaluation: EvaluationConfig = MISSING
    method: MethodConfig = MISSING
    plan: PlanConfig = MISSING


def load_config(
    scale: str,
    model: str | None = None,
    method: str | None = None,
    overrides: Iterable[str] = (),
    configs: Path = CONFIGS,
) -> Config:
    """Merge the files of one run and the `key=value` overrides into a typed Config.

    Without `model` or `method` those sections stay unset, which is what steps that belong to no run need.

    Raises:
        UserError: a file that is not there, broken YAML, an unknown key, a value of the wrong type or out of range.
    """
    chosen = {"scale": scale, "model": model, "method": method and split_method(method)[0]}
    config = OmegaConf.structured(Config)
    layers = [configs / "base.yaml", *scale_files(scale, configs)]
    for kind in ("model", "method"):
        if chosen[kind] is not None:
            layers.append(_named(configs / kind, kind, chosen[kind]))
    for path in layers:
        config = _merge(config, _layer(path, chosen), str(path))
    if (configs / MACHINE).is_file():
        config = _merge(config, _machine_layer(configs / MACHINE, chosen), str(configs / MACHINE))
    params = split_method(method)[1] if method else []
    dotlist = [f"method.params.{param}" for param in params] + list(overrides)
    for entry in dotlist:
        config = _merge_entry(config, entry)
    check_values(config, scale, model, method)
    if model is not None and model not in config.models:
        raise UserError(f"scale {scale} has no model {model!r}{nearest(model, config.models)}")
    return config


def identity(config: Config) -> dict[str, Any]:
    """What a run's result depends on: its config without what is the machine's."""
    return {key: value for key, value in _leaves(config) if not _of_the_machine(key)}


def scale_files(scale: str, configs: Path = CONFIGS) -> list[Path]:
    """The file of a scale, after the one that it `extends`, if it does."""
    path = _named(configs / "scale", "scale", scale)
    parent = _read(path).get("extends")
    if parent is None:
        return [path]
    if parent == scale or _read(_named(configs / "scale", "scale", parent)).get("extends") is not None:
        raise UserError(f"{path}: extends {parent!r}, which has to be another scale that extends none")
    return [configs / "scale" / f"{parent}.yaml", path]


def check_scale_file(scale: str, given: dict[str, Any], configs: Path = CONFIGS) -> None:
    """Raise UserError if `given`, keys of a scale's config, is not what the file of that scale says.

    Steps read the file itself, so an edited copy would be ignored without a word.
    """
    content = _read(_named(configs / "scale", "scale", scale))
    for key in set(given) - {"scale", "seeds", "extra_seeds"}:
        if given[key] != content.get(key):
            raise UserError(
                f"{key} differs from configs/scale/{scale}.yaml, which is what runs; edit that file, or save yours "
                "beside it under the name of its own `scale`"
            )


def split_method(name: str) -> tuple[str, list[str]]:
    """'clip_b@mu=1.2,apply_to=both' -> ('clip_b', ['mu=1.2', 'apply_to=both'])."""
    base, _, params = name.partition("@")
    entries = params.split(",") if params else []
    if not re.fullmatch(r"\w+", base) or not all(re.fullmatch(r"\w+=[\w.+-]+", entry) for entry in entries):
        raise UserError(f"method {name!r} is not of the form name or name@parameter=value,...")
    if len({entry.partition("=")[0] for entry in entries}) < len(entries):
        raise UserError(f"method {name!r} gives a parameter twice")
    return base, entries


def known_names(kind: str, configs: Path = CONFIGS) -> list[str]:
    """The names of all scales, models or methods: the YAML files in that folder."""
    return sorted(path.stem for path in (configs / kind).glob("*.yaml"))


def to_yaml(config: Config) -> str:
    """The resolved config as YAML, without the sections that are unset."""
    return OmegaConf.to_yaml(config)


def _named(folder: Path, kind: str, name: str) -> Path:
    known = known_names(kind, folder.parent)
    if not re.fullmatch(r"[\w.-]+", str(name)) or str(name) not in known:
        if not folder.is_dir():
            raise UserError(f"no folder {folder}: run this from the root of the repository")
        raise UserError(f"unknown {kind} {name!r}{nearest(str(name), known)}")
    return folder / f"{name}.yaml"


def read_yaml(path: Path) -> Any:
    """What stands in a YAML file, as plain containers; an interpolation is still the text that it is there.

    Raises:
        UserError: no such file, or not valid YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        _check_nesting(text)
        root = next((event for event in yaml.parse(text, Loader=_Loader) if isinstance(event, yaml.NodeEvent)), None)
        if isinstance(root, yaml.ScalarEvent):
            _check_nesting(root.value)  # a file that is one text is YAML once more to OmegaConf
        return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    except FileNotFoundError:
        raise UserError(f"no file {path}: run this from the root of the repository") from None
    except Exception as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def _read(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: a config is a mapping of keys to values")
    return content


def _check_nesting(text: str) -> None:
    """Raise ValueError for YAML that is nested too deep: the parser in C recurses until the process ends."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")


def _layer(path: Path, chosen: dict[str, str | None]) -> DictConfig:
    """One YAML file with those of its `overrides` merged in that are for the chosen scale, model and method."""
    content = _read(path)
    content.pop("extends", None)
    extra = content.pop("overrides", None) or []
    if not isinstance(extra, list) or not all(isinstance(entry, dict) for entry in extra):
        raise UserError(f"{path}: overrides is a list of entries, each `- for: ...` and the keys to override")
    layer = OmegaConf.create(content)
    for entry in extra:
        condition = entry.pop("for", {})
        if not isinstance(condition, dict):
            raise UserError(f"{path}: overrides are `for` a mapping such as {{scale: laptop}}, not {condition!r}")
        unknown = sorted(set(condition) - set(chosen), key=str)
        if unknown:
            raise UserError(f"{path}: overrides are `for` a scale, model or method, not {unknown[0]!r}")
        if all(chosen[key] in (value if isinstance(value, list) else [value]) for key, value in condition.items()):
            layer = _merge(layer, OmegaConf.create(entry), str(path))
    return layer


def _machine_layer(path: Path, chosen: dict[str, str | None]) -> DictConfig:
    layer = _layer(path, chosen)
    for key, _ in _leaves(layer):
        if not _of_the_machine(key):
            raise UserError(
                f"{path}: {key} changes results, so it belongs into the file of its scale, model or method; "
                f"here may stand {', '.join(OF_THE_MACHINE)}"
            )
    return layer


def _of_the_machine(key: str) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in OF_THE_MACHINE)


def _leaves(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that is set; lists are values."""
    for key in config:
        if OmegaConf.is_missing(config, key):
            continue
        if OmegaConf.is_dict(value := config._get_node(key)) and not value._is_none():
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", OmegaConf.to_container(value) if OmegaConf.is_list(value) else value._value()


def _merge_entry(config: DictConfig, entry: str) -> DictConfig:
    key, equals, value = entry.partition("=")
    if not equals or not re.fullmatch(r"[\w.\-\[\]]+", key):  # brackets: stand_ins[qwen2.5-7b-instruct].seed
        raise UserError(f"--set {entry!r} is not of the form key=value")
    try:
        _check_nesting(value)
        parsed = OmegaConf.from_dotlist([entry])
    except Exception as error:
        raise UserError(f"--set {entry}: {' '.join(str(error).split())}") from None
    if any(one == "???" for _, one in plain_values(OmegaConf.to_container(parsed))):
        raise UserError(f"--set {entry}: ??? stands for no value, and would be passed over")
    return _merge(config, parsed, f"--set {entry}")


def _merge(config: DictConfig, layer: DictConfig, where: str) -> DictConfig:
    try:
        return OmegaConf.unsafe_merge(config, layer)  # into `config` itself: a copy of it takes half of the time
    except ConfigKeyError as error:
        key = str(error.full_key or error.key)
        raise UserError(f"{where}: unknown key {key!r}{nearest(str(error.key), list(error.parent_node))}") from None
    except (OmegaConfBaseException, TypeError, ValueError, OverflowError) as error:  # it lets some of Python's through
        key, message = getattr(error, "full_key", None), str(error).split("\n")[0]
        raise UserError(f"{where}: {f'{key}: ' if key else ''}{message}") from None
