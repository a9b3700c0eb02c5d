"""Loads configs, YAML read by OmegaConf: merges the files and the command line, and validates the result by `schema`.

    base.yaml <- scale/<scale>.yaml <- model/<model>.yaml <- method/<method>.yaml <- machine.yaml <- --set key=value

A scale or method may extend another one, whose file is then merged before its own; an empty mapping (`toy_models: {}`)
replaces the lower section. A file may end with `overrides`, a list of `{for: {scale|toy|model|method: ...}, ...}`
entries; those whose `for` matches the run are merged over the rest of the file. A scale in `for` also matches the
scales that extend it, except in machine.yaml, which would override what they set themselves; `toy` is a scale, too, and
matches only if the model that runs is a toy model. A method may have parameters: `clip_b@mu=1.2,apply_to=both` is
method/clip_b.yaml with these values, and `grpo@training.updates_per_batch=4` sets a key of another section.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from itertools import chain
from pathlib import Path
from typing import Any, cast, overload

from omegaconf import OmegaConf
from pydantic import BaseModel

from entropy_dynamics.config.schema import Config as Config
from entropy_dynamics.config.schema import RunConfig as RunConfig
from entropy_dynamics.config.schema import StageConfig as StageConfig
from entropy_dynamics.config.schema import later_keys, marked_keys
from entropy_dynamics.config.schema.data import TRAIN as TRAIN
from entropy_dynamics.config.schema.training import BASE as BASE
from entropy_dynamics.config.versions import versions_of
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.methods import SHARE_REPLACES
from entropy_dynamics.results.files import read_json
from entropy_dynamics.results.layout import CONFIG, PROVENANCE
from entropy_dynamics.results.versions import first_versions
from entropy_dynamics.sections import LOCATION, PER_MACHINE, Key, NonNegativeInt, PositiveInt, Section, dotted, parse

CONFIGS = Path("configs")
FOLDERS = {"method": ("", "field", "field/authors")}  # the paper's, others', others' at their released settings
Layer = dict[str, Any]  # the content of a file or setting; shared by configs, so it is never changed
Choice = dict[str, Sequence[str | None]]  # scale, toy, model or method -> the names that match it in `for`
ALTERNATIVES = ("source", "task")  # a section that changes one of these keys replaces the lower section entirely
REPLACED = {"share": tuple(SHARE_REPLACES), "mu": ("share",)}  # a key -> the keys of lower sections that it replaces
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
        return next((name for part in parts for name, layer in reversed(layers) if _sets(layer, part)), own)

    config: Config = parse(kind, merged, source)
    machine, allowed = str(configs / "machine.yaml"), marked_keys(PER_MACHINE, LOCATION)
    of_machine = [key for name, layer in layers if name.startswith(machine) for key, _ in flatten(layer)]
    if wrong := [key for key in of_machine if not is_within(key, allowed)]:
        raise UserError(
            f"{machine}: {wrong[0]} changes results, so it belongs in the file of its scale, model or method; here "
            f"only {', '.join(allowed)} may be set"
        )
    if config.scale != scale:  # results are stored under this name
        raise UserError(f"{files['scale'][-1]}: scale is {config.scale!r}; it should be {scale!r}, like its file")
    if model is not None and model not in config.models:
        raise UserError(f"scale {scale} has no model {model!r}{nearest(model, config.models)}")
    if isinstance(config, StageConfig) and config.model.name != model:
        raise UserError(f"configs/model/{model}.yaml: model.name is {config.model.name!r}; it should be {model!r}")
    large = {str(file) for file in (configs / "base.yaml", *files.get("method", ()))}  # for models of the paper's sizes
    setters = [name for name, layer in layers if _sets(layer, ("training", "optimizer", "learning_rate"))]
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
        said |= flatten(_entry(entry))
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
    files = {"scale": _chain(configs, "scale", scale)}
    if model is not None:
        files["model"] = _chain(configs, "model", model)
    name = None
    if method is not None:
        files["method"] = _chain(configs, "method", name := split_method(method)[0])
    base, names = configs / "base.yaml", [file.stem for file in files["scale"]]
    settings = [(f"--set {entry}", _entry(entry)) for entry in (*settings_in(method), *overrides)]
    toys = _stacked([*map(_read, [base, *files["scale"]]), *(layer for _, layer in settings)]).get("toy_models")
    is_toy = isinstance(toys, dict) and toys.get(model) is not None
    chosen: Choice = {"scale": names, "toy": names if is_toy else [], "model": [model], "method": [name]}
    layers = [each for file in [base, *chain.from_iterable(files.values())] for each in _layers(file, chosen, configs)]
    if (machine := configs / "machine.yaml").is_file():
        chosen |= {"scale": [scale], "toy": [scale] if is_toy else []}
        layers += _layers(machine, chosen, configs)
    layers += settings
    merged = _stacked(layer for _, layer in layers)
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
    return dict(flatten(_entry(_dotted(parameter))))


def _dotted(parameter: str) -> str:
    """'mu=2.0' -> 'method.params.mu=2.0'; a key of another section has a dot already."""
    return parameter if "." in parameter.partition("=")[0] else f"method.params.{parameter}"


def settings_of(stage: str, config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a stage uses, by dotted key. Its results depend only on these and on its input files."""
    sections = config if isinstance(config, Mapping) else config.model_dump() | {"versions": versions_of(config)}
    used = USED[stage]
    if stage == "model" and (name := sections["model"]["name"]) in sections["toy_models"]:
        used = ("model.name", "model.label", f"toy_models.{name}", "sampling.max_new_tokens", "versions.solutions")
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
    content = read_config(folder / CONFIG)
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
            merged = _merge(merged, layer)
            if _sets(layer, path):
                setters.append((reduce(lambda section, part: section[part], path, cast(Any, layer)), layer_name))
            elif not _sets(merged, path):  # the section was replaced
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


def read_config(path: Path) -> Any:
    """The content of a run's config.yaml, which is not to be changed. Raises UserError if it is not valid YAML."""
    return read_yaml(path, resolve=True)


def scale_names(scale: str, configs: Path = CONFIGS) -> list[str]:
    """The name of a scale, after the names of the scales it extends, the outermost first."""
    return [file.stem for file in _chain(configs, "scale", scale)]


def _chain(configs: Path, kind: str, name: str) -> list[Path]:
    """The file of a scale, model or method, after the files that it extends, the outermost first."""
    chain = [_named(configs, kind, name)]
    while (parent := _read(chain[0]).get("extends")) is not None:
        path = _named(configs, kind, parent, chain[0], "extends")
        if path in chain:
            raise UserError(f"{chain[0]}: extends is {parent!r}, which extends this file")
        chain.insert(0, path)
    return chain


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


def split_method(name: str) -> tuple[str, list[str]]:
    """'clip_b@mu=1.2,apply_to=both' -> ('clip_b', ['mu=1.2', 'apply_to=both'])."""
    base, at, params = name.partition("@")
    entries = params.split(",") if at else []
    is_formed = re.fullmatch(r"[\w-]+", base) and all(re.fullmatch(r"[\w.]+=[\w.+-]+", entry) for entry in entries)
    if not is_formed or len({entry.partition("=")[0] for entry in entries}) < len(entries):
        raise UserError(f"method {name!r} is not of the form name or name@parameter=value,..., each parameter once")
    return base, entries


def known_names(kind: str, configs: Path = CONFIGS) -> list[str]:
    """The names of all scales, models or methods: the YAML files in their folders."""
    return sorted({path.stem for folder in _folders(kind, configs) for path in folder.glob("*.yaml")})


def config_file(kind: str, name: str, configs: Path = CONFIGS) -> Path | None:
    """The file of a scale, model or method, or None if there is none. Looks for one file, as runs name thousands."""
    files = (folder / f"{name}.yaml" for folder in _folders(kind, configs) if "/" not in str(name))
    return next((file for file in files if os.path.isfile(file)), None)  # False for a name that no file can have


def _folders(kind: str, configs: Path) -> list[Path]:
    return [configs / kind / folder for folder in FOLDERS.get(kind, ("",))]


def _named(configs: Path, kind: str, name: str, file: Path | None = None, key: str = "") -> Path:
    """The file of a scale, model or method. `file` and its `key` are where the name comes from, for the message."""
    if path := config_file(kind, name, configs):
        return path
    if not (known := known_names(kind, configs)):
        raise UserError(f"no files in {configs / kind}: run this from the root of the repository")
    before, after = (f"{file}: ", f" in {key}") if file else ("", "")
    raise UserError(f"{before}unknown {kind} {name!r}{after}{nearest(str(name), known)}")


def method_label(method: str, configs: Path = CONFIGS) -> str:
    """The label in the config of the method or in the one it extends, or else the name; imports no torch."""
    section = _stacked(map(_read, _chain(configs, "method", method))).get("method")
    return str(section.get("label", method)) if isinstance(section, dict) else method


def read_yaml(path: Path, resolve: bool = False) -> Any:
    """The content of a YAML file, which is not to be changed. Raises UserError if it is missing or not valid YAML."""
    try:
        return _parsed(path.read_text(encoding="utf-8"), resolve)
    except FileNotFoundError:
        raise UserError(f"no file {path}: run this from the root of the repository") from None
    except Exception as error:  # PyYAML's and OmegaConf's; of a single number, an assertion without a text
        raise UserError(f"{path}: not valid YAML: {_reason(error) or 'a single value'}") from None


def _reason(error: Exception) -> str:
    return " ".join(str(error).partition("full_key:")[0].split())  # the rest is about OmegaConf's objects


@cache  # a command may load dozens of configs, most from the same files
def _parsed(text: str, resolve: bool) -> Any:
    return OmegaConf.to_container(OmegaConf.create(text), resolve=resolve)


def _read(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: a config is a mapping of keys to values")
    return content


def _stacked(layers: Iterable[Layer]) -> Layer:
    return reduce(_merge, layers, {})


def _layers(path: Path, chosen: Choice, configs: Path) -> list[tuple[str, Layer]]:
    """A file and the entries of its `overrides` whose `for` matches `chosen` in all keys, with names for messages."""
    layers = [(str(path), {key: value for key, value in _read(path).items() if key not in ("extends", "overrides")})]
    for names, entry in _overrides(path, configs):
        if all(set(names[key]) & set(chosen[key]) for key in names):
            condition = ", ".join(f"{key}: {value}" for key, value in entry.get("for", {}).items()).replace("'", "")
            layers.append((f"{path}, for {{{condition}}}", {key: entry[key] for key in entry if key != "for"}))
    return layers


def _overrides(path: Path, configs: Path) -> Iterator[tuple[dict[str, list[str]], Layer]]:
    """The entries of a file's `overrides`, each after the names in its `for` by kind."""
    entries = _read(path).get("overrides") or []
    for entry in entries if isinstance(entries, list) else [entries]:
        condition = entry.get("for", {}) if isinstance(entry, dict) else None
        if not isinstance(condition, dict) or not condition.keys() <= {"scale", "toy", "model", "method"}:
            raise UserError(f"{path}: overrides are entries like `- for: {{scale: laptop}}` and the keys to override")
        names = {key: value if isinstance(value, list) else [value] for key, value in condition.items()}
        for kind, given in names.items():
            for name in given:
                _named(configs, "scale" if kind == "toy" else kind, name, path, "for")
        scales = [*names.get("scale", []), *names.get("toy", [])] if path.parent.name == "scale" else []
        if scales and not any(path in _chain(configs, "scale", each) for each in scales):
            raise UserError(
                f"{path}: overrides for {scales[0]} never apply, as {scales[0]} does not extend {path.stem}; if this "
                f"is a copy of {scales[0]}.yaml, let it extend {scales[0]}, so that the overrides of methods apply, too"
            )
        yield names, entry


def released_settings(scale: str, method: str, configs: Path = CONFIGS) -> str | None:
    """A note if toy models of a scale run a method with what it sets for models of billions of parameters."""
    name, parameters = split_method(method)
    files = _chain(configs, "method", name)
    toys = [name for file in files for names, _ in _overrides(file, configs) for name in names.get("toy", [])]
    if not toys or parameters or {*toys} & {*scale_names(scale, configs)}:
        return None
    return (
        f"this toy model runs with settings for billions of parameters: the overrides in {files[-1]} are for the toy "
        f"models of {', '.join(dict.fromkeys(toys))}, none of which {scale} extends"
    )


def _entry(entry: str) -> Any:
    """A `key=value` of --set as a `Layer`."""
    if not re.fullmatch(r"(?s)[\w-]+(\.[\w-]+|\[[\w.-]+\])*=.*", entry):  # toy_models[qwen2.5-7b-instruct].seed=3
        raise UserError(f"--set {entry!r} is not of the form key=value")
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([entry]))
    except Exception as error:  # PyYAML's and OmegaConf's
        raise UserError(f"--set {entry}: {_reason(error)}") from None


def _merge(below: Layer, layer: Layer) -> Layer:
    replaced = {name for key, names in REPLACED.items() if layer.get(key) is not None for name in names}
    merged = {key: value for key, value in below.items() if key not in replaced}
    for key, value in layer.items():
        lower = merged.get(key)
        if isinstance(value, dict) and isinstance(lower, dict) and value and not _replaces(value, lower):
            merged[key] = _merge(lower, value)
        else:
            merged[key] = value
    return merged


def _replaces(layer: Layer, below: Layer) -> bool:
    return any(key in layer and key in below and layer[key] != below[key] for key in ALTERNATIVES)


def _sets(layer: Any, key: Key) -> bool:
    return not key or (isinstance(layer, dict) and key[0] in layer and _sets(layer[key[0]], key[1:]))
