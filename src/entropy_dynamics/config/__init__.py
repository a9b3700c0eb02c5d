"""Loads configs, YAML read by OmegaConf: merges the files and the command line, and validates the result by `schema`.

    base.yaml <- scale/<scale>.yaml <- model/<model>.yaml <- method/<method>.yaml <- machine.yaml <- --set key=value

A scale or method may extend another one, whose file is then merged before its own; an empty mapping (`toy_models: {}`)
replaces the lower section. A file may end with `overrides`, a list of `{for: {scale|toy|model|method: ...}, ...}`
entries; those whose `for` matches the run are merged over the rest of the file. A scale in `for` also matches the
scales that extend it, except in machine.yaml, which would override what they set themselves; `toy` is a scale, too, and
matches only if the model that runs is a toy model. A method may have parameters: `clip_b@mu=1.2,apply_to=both` is
method/clip_b.yaml with these values, and `grpo@training.updates_per_batch=4` sets a key of another section.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, reduce
from itertools import chain
from pathlib import Path
from typing import Any, cast, overload

from omegaconf import OmegaConf
from pydantic import BaseModel

from entropy_dynamics.config.layers import CONFIGS as CONFIGS
from entropy_dynamics.config.layers import Choice, Layer, chain_of, layers_of, merge, read_file, sets, setting, stacked
from entropy_dynamics.config.layers import config_file as config_file
from entropy_dynamics.config.layers import known_names as known_names
from entropy_dynamics.config.layers import method_label as method_label
from entropy_dynamics.config.layers import read_yaml as read_yaml
from entropy_dynamics.config.layers import released_settings as released_settings
from entropy_dynamics.config.layers import scale_names as scale_names
from entropy_dynamics.config.layers import split_method as split_method
from entropy_dynamics.config.schema import Config as Config
from entropy_dynamics.config.schema import RunConfig as RunConfig
from entropy_dynamics.config.schema import StageConfig as StageConfig
from entropy_dynamics.config.schema import later_keys, marked_keys
from entropy_dynamics.config.schema.data import TRAIN as TRAIN
from entropy_dynamics.config.schema.data import DataConfig
from entropy_dynamics.config.schema.training import BASE as BASE
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.methods import SHARE_REPLACES
from entropy_dynamics.results.files import read_json
from entropy_dynamics.results.layout import CONFIG, PROVENANCE
from entropy_dynamics.results.versions import first_versions, version_of
from entropy_dynamics.sections import LOCATION, PER_MACHINE, Key, NonNegativeInt, PositiveInt, Section, dotted, parse
from entropy_dynamics.tasks import GeneratedSet, find_task

PROMPTS = ("model.prompt_format", "model.chat_template_kwargs")
SAMPLED = (*PROMPTS, "sampling.max_prompt_tokens", "sampling.max_new_tokens", "engine")
FILTER = ("pass_rates.low", "pass_rates.high")  # applied to the measured rates when a run begins
EVALUATED = ("evaluation.temperature", "evaluation.samples")
USED = {  # stage -> the sections and keys that it reads, except those already recorded in its input files
    "problems": ("data", "versions.generators"),
    "model": ("model", "cold_start", "sampling.max_new_tokens", "versions.solutions"),
    "pass_rates": (*SAMPLED, "sampling.temperature", "pass_rates.model", "pass_rates.samples", "versions.graders"),
    "train": (
        *(*SAMPLED, "sampling.temperature", *FILTER, "method.name", "method.params", "training", *EVALUATED),
        *("versions.graders", "versions.methods"),
    ),
    "evaluate": (*SAMPLED, *EVALUATED, "versions.graders"),
    "theory": (*PROMPTS, "sampling"),
}


@overload
def load_config(scale: str, *, overrides: Iterable[str] = (), configs: Path = CONFIGS) -> Config: ...
@overload
def load_config(scale: str, model: str, *, overrides: Iterable[str] = (), configs: Path = CONFIGS) -> StageConfig: ...
@overload
def load_config(
    scale: str, model: str, method: str, overrides: Iterable[str] = (), configs: Path = CONFIGS
) -> RunConfig: ...
def load_config(
    scale: str,
    model: str | None = None,
    method: str | None = None,
    overrides: Iterable[str] = (),
    configs: Path = CONFIGS,
) -> Config:
    """Load the config of a scale, of a model at that scale, or of a run.

    Raises UserError if a file is missing or not YAML, a key or name is unknown, or a value has the wrong type or is out
    of bounds.
    """
    return _loaded(scale, model, method, overrides, configs)[0]


def _loaded(
    scale: str,
    model: str | None,
    method: str | None,
    overrides: Iterable[str],
    configs: Path,
    kind: type[Config] | None = None,
) -> tuple[Config, list[tuple[str, Layer]]]:
    """The config, as a `kind` or as its arguments say, and the layers it was merged from."""
    merged, layers, files = _merged(scale, model, method, overrides, configs)
    kind = kind or (Config if model is None else StageConfig if method is None else RunConfig)
    if kind is not RunConfig:
        merged.pop("method", None)

    def source(key: Key) -> str:
        """The file to name in an error: the last that set `key` or, if none did, the section around it."""
        own = str(files.get(str(key[0]), files["scale"])[-1]) if key else ""
        shortest = 2 if len(key) > 1 and key[0] in files else 1  # of `model`, base.yaml sets some keys
        parts = (key[:length] for length in range(len(key), shortest - 1, -1))
        return next((name for part in parts for name, layer in reversed(layers) if sets(layer, part)), own)

    config: Config = parse(kind, merged, source)
    machine, allowed = str(configs / "machine.yaml"), marked_keys(PER_MACHINE, LOCATION)
    of_machine = [key for name, layer in layers if name.startswith(machine) for key, _ in flatten(layer)]
    if wrong := [key for key in of_machine if not is_within(key, allowed)]:
        raise UserError(
            f"{machine}: {wrong[0]} changes results, so it belongs in the file of its scale, model or method; here "
            f"only {', '.join(allowed)} may be set"
        )
    if config.scale != scale:  # results are stored under this name
        raise UserError(f"{source(('scale',))}: scale is {config.scale!r}; it should be {scale!r}, like its file")
    if model is not None and model not in config.models:
        raise UserError(f"scale {scale} has no model {model!r}{nearest(model, config.models)}")
    if isinstance(config, StageConfig) and config.model.name != model:
        where = source(("model", "name"))
        raise UserError(f"{where}: model.name is {config.model.name!r}; it should be {model!r}")
    large = {str(file) for file in (configs / "base.yaml", *files.get("method", ()))}  # for models of the paper's sizes
    setters = [name for name, layer in layers if sets(layer, ("training", "optimizer", "learning_rate"))]
    if isinstance(config, RunConfig) and model in config.toy_models and large.issuperset(setters):
        raise UserError(
            f"{files['scale'][-1]}: the toy model {model} needs a training.optimizer.learning_rate of its own: "
            f"{config.training.optimizer.learning_rate:g} of {setters[-1]} is for billions of parameters"
        )
    return config, layers


def check_name(scale: str, model: str, method: str, overrides: Iterable[str], configs: Path = CONFIGS) -> None:
    """Raise UserError if `overrides` set another method than the name of the run, or other values than those in it."""
    files, given = (_merged(scale, model, method, entries, configs)[0] for entries in ((), overrides))
    said, now = {"method.name": files["method"]["name"]}, dict(flatten(given))
    for entry in settings_in(method):
        said |= flatten(setting(entry))
    for key, value in said.items():
        if now.get(key) != value:
            remedy = "give it in --method" if key == "method.name" else "leave it out, or write it in the name"
            raise UserError(f"--set {key}={now.get(key)}: the run is stored as {method}, with {value}; {remedy}")


def settings_in(method: str | None) -> list[str]:
    """The parameters in a method's name, as entries of `--set`."""
    return [] if method is None else [_dotted(entry) for entry in split_method(method)[1]]


def _merged(
    scale: str, model: str | None, method: str | None, overrides: Iterable[str], configs: Path
) -> tuple[dict[str, Any], list[tuple[str, Layer]], dict[str, list[Path]]]:
    """The merged layers, not validated; the layers with their names in messages; the files by kind."""
    files = {"scale": chain_of(configs, "scale", scale)}
    if model is not None:
        files["model"] = chain_of(configs, "model", model)
    name = None
    if method is not None:
        files["method"] = chain_of(configs, "method", name := split_method(method)[0])
    base, names = configs / "base.yaml", [file.stem for file in files["scale"]]
    settings = [(f"--set {entry}", setting(entry)) for entry in (*settings_in(method), *overrides)]
    toys = stacked([*map(read_file, [base, *files["scale"]]), *(layer for _, layer in settings)]).get("toy_models")
    is_toy = isinstance(toys, dict) and toys.get(model) is not None
    chosen: Choice = {"scale": names, "toy": names if is_toy else [], "model": [model], "method": [name]}
    every = [base, *chain.from_iterable(files.values())]
    layers = [each for file in every for each in layers_of(file, chosen, configs)]
    if (machine := configs / "machine.yaml").is_file():
        chosen |= {"scale": [scale], "toy": [scale] if is_toy else []}
        layers += layers_of(machine, chosen, configs)
    layers += settings
    merged = stacked(layer for _, layer in layers)
    given = {key for _, layer in settings for key, value in flatten(layer) if value is not None}
    bounds = [name for name in SHARE_REPLACES if {"method.params.share", f"method.params.{name}"} <= given]
    if bounds:
        raise UserError(f"method {method}: give share or {bounds[0]}, not both")
    for section in {"model", "method"} - files.keys():  # base.yaml and scales set keys for all of them
        merged.pop(section, None)
    # OmegaConf takes 15 ms for a whole config, and Snakemake loads hundreds; few sections refer to others.
    refers = re.search(r"\$\{(?!oc\.env:)", str(merged))
    sections = {name: value for name, value in merged.items() if refers or "${" in str(value)}
    try:
        if sections:
            merged |= cast(Layer, OmegaConf.to_container(OmegaConf.create(sections), resolve=True))
    except Exception as error:  # an unknown interpolation
        raise UserError(f"config of scale {scale}: {' '.join(str(error).split())}") from None
    return merged, layers, files


def stored_as(scale: str, model: str, method: str, configs: Path = CONFIGS) -> str:
    """The method without the parameters that change nothing, so that a run is not trained twice.

    At a scale where mu is 2, `clip_b@mu=2.0` is stored as `clip_b`.
    """
    name, parameters = split_method(method)
    if not parameters or not (config_file("method", name, configs) and config_file("model", model, configs)):
        return method
    plain = _plain_run(scale, model, name, configs).items()
    kept = [entry for entry in parameters if not _settings(entry).items() <= plain]
    return f"{name}@{','.join(kept)}" if kept else name


def shorter_runs(method: str, training: Mapping[str, Any]) -> dict[str, int]:
    """The runs to which a run with this `training` section leaves its policies (`keep_steps`): method -> steps."""
    kept = [] if split_method(method)[1] else training.get("keep_steps", [])
    return {f"{method}@training.steps={steps}": steps for steps in kept if steps < training["steps"]}


def configured_shorter_runs(
    scale: str, model: str, method: str, overrides: Iterable[str] = (), configs: Path = CONFIGS
) -> dict[str, int]:
    """The `shorter_runs` of a run that has not been trained, without importing torch."""
    if split_method(method)[1]:
        return {}
    return shorter_runs(method, dict(_loaded(scale, model, method, overrides, configs, StageConfig)[0].training))


@cache
def _plain_run(scale: str, model: str, method: str, configs: Path) -> dict[str, Any]:
    return dict(flatten(_merged(scale, model, method, (), configs)[0]))


@cache  # a command may name the same run thousands of times
def _settings(parameter: str) -> dict[str, Any]:
    return dict(flatten(setting(_dotted(parameter))))


def _dotted(parameter: str) -> str:
    """'mu=2.0' -> 'method.params.mu=2.0'; a key of another section has a dot already."""
    return parameter if "." in parameter.partition("=")[0] else f"method.params.{parameter}"


def versions_of(config: Config) -> dict[str, str]:
    """The versions of the code that a config runs and a user edits, by kind and name."""
    versions = versions_of_generators(config.data)
    for source in config.data.sets.values():
        if name := getattr(source, "task", source.source if isinstance(source, GeneratedSet) else None):
            versions[f"graders.{name}"] = version_of(type(find_task(name)), ("generated", "solutions"))
    if isinstance(config, StageConfig):
        toy = config.toy_models.get(config.model.name)
        if start := toy.warm_start if toy else config.cold_start:
            versions[f"solutions.{start.solutions.task}"] = version_of(type(start.solutions))
    if isinstance(config, RunConfig):
        versions[f"methods.{config.method.name}"] = version_of(type(config.method.params))
    return versions


def versions_of_generators(data: DataConfig) -> dict[str, str]:
    sources = [source for source in data.sets.values() if isinstance(source, GeneratedSet)]
    return {f"generators.{source.source}": version_of(type(source)) for source in sources}


def settings_of(stage: str, config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a stage uses, by dotted key. Its results depend only on these and on its input files."""
    sections = config if isinstance(config, Mapping) else config.model_dump() | {"versions": versions_of(config)}
    used = USED[stage]
    if stage == "model" and (name := sections["model"]["name"]) in (toys := sections["toy_models"]):
        used = ("model.name", "model.label", "toy_models", "sampling.max_new_tokens", "versions.solutions")
        sections = {**sections, "toy_models": {name: toys[name]}}
    rounding = marked_keys(PER_MACHINE)
    chosen = [(key, value) for key, value in flatten(sections) if is_within(key, used)]
    later = later_keys().items()
    kept = [(key, value) for key, value in chosen if not is_within(key, rounding) and (key, value) not in later]
    settings = {key: value for key, value in kept if not (key.startswith("versions.") and value in first_versions())}
    if stage == "problems":  # the order matters: a problem that two sets share stays in the first
        settings["data.evaluation"] = list(sections["data"]["evaluation"])
    return settings


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """'key old -> new' for each setting whose value differs."""
    keys = [key for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]
    code = {key: f"made by another version of {key.removeprefix('versions.')}" for key in keys if "versions." in key}
    return [code.get(key, f"{key} {was.get(key)} -> {now.get(key)}") for key in keys]


def settings_of_run(folder: Path) -> dict[str, Any]:
    """The settings with which a finished run was trained: its config, and the versions of its code."""
    record = folder / PROVENANCE
    versions = read_json(record).get("versions", {}) if record.is_file() else {}
    content = read_yaml(folder / CONFIG, resolve=True)
    return settings_of("train", (content if isinstance(content, dict) else {}) | {"versions": versions})


def is_within(key: str, sections: Iterable[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def flatten(section: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for nested mappings; a list is a value, and a tuple becomes one."""
    for key, value in _leaves(section):
        yield ".".join(map(str, key)), value


def _leaves(section: Mapping[Any, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), list(value) if isinstance(value, tuple) else value


def origins(
    key: str, scale: str, model: str | None, method: str | None, overrides: Iterable[str], configs: Path = CONFIGS
) -> Iterator[str]:
    """Lines that say which file or setting gives `key` its value, and which values below this one overrides.

    Of a section, all of its keys. Raises UserError if there is no such key.
    """
    config, layers = _loaded(scale, model, method, overrides, configs)
    values = {dotted(path): (path, value) for path, value in _leaves(config.model_dump())}
    names = [name for name in values if name == key or name.startswith((f"{key}.", f"{key}["))]
    if not names and key.partition(".")[0] in ("model", "method") and method is None:
        raise UserError(f"{key} is a key of a run: give its --model and --method")
    if not names:
        raise UserError(f"unknown key {key!r}{nearest(key, values)}")
    for name in names:
        path, value = values[name]
        merged: dict[Any, Any] = {}
        setters: list[tuple[Any, str]] = []
        for layer_name, layer in layers:
            merged = merge(merged, layer)
            if sets(layer, path):
                setters.append((reduce(lambda section, part: section[part], path, cast(Any, layer)), layer_name))
            elif not sets(merged, path):  # the section was replaced
                setters.clear()
        yield f"{name} is {value}, from {setters[-1][1] if setters else 'the default of its class'}"
        yield from (f"    instead of {value}, from {layer_name}" for value, layer_name in reversed(setters[:-1]))


def to_yaml(config: BaseModel) -> str:
    """The resolved config as YAML, in which `\\${` stands for a literal `${`, as in the files of configs/."""
    return OmegaConf.to_yaml(_escaped(config.model_dump()))


def _escaped(value: Any) -> Any:
    """`value` with its texts as OmegaConf reads them back; it halves the backslashes before an interpolation."""
    if isinstance(value, Mapping):
        return {key: _escaped(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(each) for each in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


class Selection(Section):
    """The keys of `snakemake --config`. The numbers of seeds are those of the scale unless given."""

    scale: str = "laptop"
    seeds: PositiveInt = 0
    """Number of seeds of the tables."""
    extra_seeds: PositiveInt = 0
    """Number of seeds of ablations, sweeps and extras."""
    first_seed: NonNegativeInt = 0

    @property
    def overrides(self) -> list[str]:
        keys = {"seeds": "seeds.tables", "extra_seeds": "seeds.extras", "first_seed": "seeds.first"}
        return [f"{key}={getattr(self, name)}" for name, key in keys.items() if name in self.model_fields_set]
