"""The files of configs/ and the entries of --set, as layers: which there are, which apply, and how they merge."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.methods import SHARE_REPLACES
from entropy_dynamics.sections import Key

CONFIGS = Path("configs")
FOLDERS = {"method": ("", "field", "field/authors")}  # the paper's, others', others' at their released settings
Layer = dict[str, Any]  # the content of a file or setting; shared by configs, so it is never changed
Choice = dict[str, Sequence[str | None]]  # scale, toy, model or method -> the names that match it in `for`
ALTERNATIVES = ("source", "task")  # a section that changes one of these keys replaces the lower section entirely
REPLACED = {"share": tuple(SHARE_REPLACES), "mu": ("share",)}  # a key -> the keys of lower sections that it replaces


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


def scale_names(scale: str, configs: Path = CONFIGS) -> list[str]:
    """The name of a scale, after the names of the scales it extends, the outermost first."""
    return [file.stem for file in chain_of(configs, "scale", scale)]


def chain_of(configs: Path, kind: str, name: str) -> list[Path]:
    """The file of a scale, model or method, after the files that it extends, the outermost first."""
    chain = [_named(configs, kind, name)]
    while (parent := read_file(chain[0]).get("extends")) is not None:
        path = _named(configs, kind, parent, chain[0], "extends")
        if path in chain:
            raise UserError(f"{chain[0]}: extends is {parent!r}, which extends this file")
        chain.insert(0, path)
    return chain


def method_label(method: str, configs: Path = CONFIGS) -> str:
    """The label in the config of the method or in the one it extends, or else the name; imports no torch."""
    section = stacked(map(read_file, chain_of(configs, "method", method))).get("method")
    return str(section.get("label", method)) if isinstance(section, dict) else method


def released_settings(scale: str, method: str, configs: Path = CONFIGS) -> str | None:
    """A note if toy models of a scale run a method with what it sets for models of billions of parameters."""
    name, parameters = split_method(method)
    files: dict[str, str] = {}  # by toy scale
    for file in chain_of(configs, "method", name):
        for names, _ in _overrides(file, configs):
            files |= dict.fromkeys(names.get("toy", []), str(file))
    if not files or parameters or files.keys() & {*scale_names(scale, configs)}:
        return None
    return (
        "this toy model runs with settings for billions of parameters: the overrides in "
        f"{', '.join(dict.fromkeys(files.values()))} are for the toy models of {', '.join(files)}, "
        f"none of which {scale} extends"
    )


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


def read_file(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: a config is a mapping of keys to values")
    return content


def layers_of(path: Path, chosen: Choice, configs: Path) -> list[tuple[str, Layer]]:
    """A file and the entries of its `overrides` whose `for` matches `chosen` in all keys, with names for messages."""
    content = {key: value for key, value in read_file(path).items() if key not in ("extends", "overrides")}
    layers = [(str(path), content)]
    for names, entry in _overrides(path, configs):
        if all(set(names[key]) & set(chosen[key]) for key in names):
            condition = ", ".join(f"{key}: {value}" for key, value in entry.get("for", {}).items()).replace("'", "")
            layers.append((f"{path}, for {{{condition}}}", {key: entry[key] for key in entry if key != "for"}))
    return layers


def _overrides(path: Path, configs: Path) -> Iterator[tuple[dict[str, list[str]], Layer]]:
    """The entries of a file's `overrides`, each after the names in its `for` by kind."""
    entries = read_file(path).get("overrides") or []
    for entry in entries if isinstance(entries, list) else [entries]:
        condition = entry.get("for", {}) if isinstance(entry, dict) else None
        if not isinstance(condition, dict) or not condition.keys() <= {"scale", "toy", "model", "method"}:
            raise UserError(f"{path}: overrides are entries like `- for: {{scale: laptop}}` and the keys to override")
        names = {key: value if isinstance(value, list) else [value] for key, value in condition.items()}
        for kind, given in names.items():
            for name in given:
                _named(configs, "scale" if kind == "toy" else kind, name, path, "for")
        scales = [*names.get("scale", []), *names.get("toy", [])] if path.parent.name == "scale" else []
        if scales and not any(path in chain_of(configs, "scale", each) for each in scales):
            raise UserError(
                f"{path}: overrides for {scales[0]} never apply, as {scales[0]} does not extend {path.stem}; if this "
                f"is a copy of {scales[0]}.yaml, let it extend {scales[0]}, so that the overrides of methods apply, too"
            )
        yield names, entry


def setting(entry: str) -> Any:
    """A `key=value` of --set as a `Layer`."""
    if not re.fullmatch(r"(?s)[\w-]+(\.[\w-]+|\[[\w.-]+\])*=.*", entry):  # toy_models[qwen2.5-7b-instruct].seed=3
        raise UserError(f"--set {entry!r} is not of the form key=value")
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([entry]))
    except Exception as error:  # PyYAML's and OmegaConf's
        raise UserError(f"--set {entry}: {_reason(error)}") from None


def stacked(layers: Iterable[Layer]) -> Layer:
    return reduce(merge, layers, {})


def merge(below: Layer, layer: Layer) -> Layer:
    replaced = {name for key, names in REPLACED.items() if layer.get(key) is not None for name in names}
    merged = {key: value for key, value in below.items() if key not in replaced}
    for key, value in layer.items():
        lower = merged.get(key)
        if isinstance(value, dict) and isinstance(lower, dict) and value and not _replaces(value, lower):
            merged[key] = merge(lower, value)
        else:
            merged[key] = value
    return merged


def _replaces(layer: Layer, below: Layer) -> bool:
    return any(key in layer and key in below and layer[key] != below[key] for key in ALTERNATIVES)


def sets(layer: Any, key: Key) -> bool:
    return not key or (isinstance(layer, dict) and key[0] in layer and sets(layer[key[0]], key[1:]))
