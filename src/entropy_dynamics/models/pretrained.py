"""Pretrained models: downloaded at a pinned revision, or taken from a directory, and checked before anything runs."""

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entropy_dynamics.config import StageConfig
from entropy_dynamics.config.schema import ModelConfig, ShapeConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.internlm3 import (
    PROBES,
    check_tokenizer,
    convert_tokenizer,
    llama_config,
    read_settings,
    turn_end,
)
from entropy_dynamics.models.loading import load_tokenizer, write_facts
from entropy_dynamics.results.files import write_json, written_whole

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
TOKENIZER_CODE = "tokenization*.py"  # downloaded, and run, with model.remote_tokenizer only
INDEX = "model.safetensors.index.json"
WEIGHTS = ("model*.safetensors", INDEX)
SHAPE = {  # the name in model.shape -> the name in config.json
    "architecture": "model_type",
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "vocabulary": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
}


def prepare_pretrained(config: StageConfig, out: Path, texts: Iterable[str]) -> None:
    """Write the model that `config.model` names into `out`, whole or not at all, with its `model.json`.

    It comes from `model.path` or, at `model.revision`, from the Hugging Face Hub. An interrupted download resumes.

    Args:
        texts: those on which a converted tokenizer has to agree with the published one.

    Raises:
        UserError: the model is not available, not in safetensors, incomplete, or not of the shape in `model.shape`.
    """
    model = config.model
    if model.path is not None:
        source = Path(model.path)
        if not source.is_dir():
            raise UserError(f"model.path: no directory {source}")
        _assemble(model, source, out, texts)
        return
    if not re.fullmatch(r"[0-9a-f]{40}", model.revision):
        raise UserError(
            f"model.revision is {model.revision!r}; it should be a commit of {model.pretrained}, 40 hex digits"
        )
    # Beside `out`, so that the files can be hard-linked; with the revision, so that two never mix.
    download = out.with_name(f".{out.name}.{model.revision}.download")
    code = [TOKENIZER_CODE] if model.remote_tokenizer else []
    _download(model, download, [*CONFIGURATION, *TOKENIZER, *code])
    _check_shape(_transformers_config(_read_config(download), download), model.shape, download)  # before the weights
    _download(model, download, list(WEIGHTS))
    _assemble(model, download, out, texts)
    shutil.rmtree(download)


def _download(model: ModelConfig, directory: Path, patterns: list[str]) -> None:
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            model.pretrained,
            revision=model.revision,
            local_dir=directory,
            allow_patterns=patterns,
            ignore_patterns="*/*",  # some repositories hold a second copy of the weights, in a folder
        )
    except Exception as error:  # of the network, the Hub or the disk: of many classes
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{model.pretrained} at {model.revision[:8]} cannot be downloaded from the Hugging Face Hub ({reason}); "
            "rerunning downloads only what is missing, and model.path can name a directory with the model"
        ) from error


def _assemble(model: ModelConfig, source: Path, out: Path, texts: Iterable[str]) -> None:
    """Check `source` and assemble `out` from it; `source` stays unchanged."""
    published = _read_config(source)
    weights = _weight_files(source)
    if not any((source / name).is_file() for name in TOKENIZER):
        raise UserError(f"no tokenizer in {source}")
    internlm3 = published.get("model_type") == "internlm3"
    if model.remote_tokenizer and not internlm3:
        raise UserError(f"model.remote_tokenizer is for InternLM3 only; {model.pretrained} needs no code of its own")
    configuration = _transformers_config(published, source)
    _check_shape(configuration, model.shape, source)
    skeleton = _skeleton(configuration)
    _check_weights(skeleton, weights, tied=configuration.tie_word_embeddings)
    with written_whole(out) as directory:
        directory.mkdir()
        for file in [*weights, *([source / INDEX] if (source / INDEX).is_file() else [])]:
            _link(file, directory / file.name)
        _copy(source, directory, CONFIGURATION)
        if internlm3:
            configuration.save_pretrained(directory)
            _write_internlm3_tokenizer(source, directory, texts, remote=model.remote_tokenizer)
        else:
            _copy(source, directory, TOKENIZER)
        facts = {
            "name": model.name,
            "label": model.label,
            "toy": False,
            "substitute": model.substitute,
            "pretrained": model.pretrained,
            "revision": model.revision if model.path is None else None,  # a directory's is unknown
            "architecture": configuration.model_type,
            "parameters": skeleton.num_parameters(),
            "remote_tokenizer": model.remote_tokenizer,
        }
        write_facts(directory, facts)
        _check_tokenizer_loads(directory, source)


def _read_config(source: Path) -> dict[str, Any]:
    path = source / "config.json"
    if not path.is_file():
        raise UserError(f"no model in {source}: it has no config.json")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None


def _transformers_config(published: dict[str, Any], source: Path) -> "PreTrainedConfig":
    """The config completed with transformers' defaults; InternLM3's becomes a Llama's."""
    from transformers import CONFIG_MAPPING

    if published.get("model_type") == "internlm3":
        published = llama_config(published, source / "config.json")
    kind = published.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise UserError(
            f"{source / 'config.json'}: model_type {kind!r} is not in transformers, and no other code is run"
        )
    return CONFIG_MAPPING[kind].from_dict(published)


def _check_shape(configuration: "PreTrainedConfig", shape: ShapeConfig, source: Path) -> None:
    found = {name: getattr(configuration, key, None) for name, key in SHAPE.items()}
    if found["head_size"] is None:
        found["head_size"] = configuration.hidden_size // configuration.num_attention_heads
    wrong = [
        f"{name} is {value}, not {getattr(shape, name)}"
        for name, value in found.items()
        if value != getattr(shape, name)
    ]
    if wrong:
        raise UserError(f"{source / 'config.json'} differs from model.shape: {'; '.join(wrong)}")


def _weight_files(source: Path) -> list[Path]:
    """The model's safetensors files: those that its index names, or the only one."""
    index = source / INDEX
    names = {"model.safetensors"}
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    files = [source / name for name in sorted(names)]
    missing = [file.name for file in files if file.parent != source or not file.is_file()]
    if not missing:
        return files
    if index.is_file():
        raise UserError(
            f"{source}: {len(missing)} of the {len(files)} weights files in {INDEX} are missing: {missing[0]}"
        )
    raise UserError(f"no model.safetensors in {source}: a model is loaded from safetensors only")


def _skeleton(configuration: "PreTrainedConfig") -> "PreTrainedModel":
    """The model without its weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(configuration, trust_remote_code=False)


def _check_weights(skeleton: "PreTrainedModel", files: list[Path], *, tied: bool) -> None:
    """Raise UserError unless the files hold exactly the model's tensors.

    transformers would only warn, initialize missing ones at random and ignore unknown ones.
    """
    from safetensors import SafetensorError, safe_open

    found: dict[str, list[int]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                found |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise UserError(f"{file}: not a complete safetensors file ({error})") from None
    expected = {name: list(tensor.shape) for name, tensor in skeleton.state_dict().items()}
    optional = {"lm_head.weight"} if tied else set()
    missing = expected.keys() - found.keys() - optional
    unknown = {name for name in found.keys() - expected.keys() if not name.endswith("rotary_emb.inv_freq")}
    reshaped = {name for name in found.keys() & expected.keys() if found[name] != expected[name]}
    for names, fault in (
        (missing, "are missing"),
        (unknown, "do not belong to the model"),
        (reshaped, "have another shape than in config.json"),
    ):
        if names:
            raise UserError(f"{files[0].parent}: {len(names)} weights {fault}, for example {min(names)}")


def _write_internlm3_tokenizer(source: Path, out: Path, texts: Iterable[str], *, remote: bool) -> None:
    settings = read_settings(source)
    generation = source / "generation_config.json"
    ends = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id") if generation.is_file() else None
    end = turn_end(settings, ends)
    if remote:
        _copy(source, out, ["tokenizer.model", *(file.name for file in source.glob(TOKENIZER_CODE))])
        write_json(out / "tokenizer_config.json", settings | {"eos_token": end})
        return
    tokenizer = convert_tokenizer(source, end, settings)
    prompts = (
        tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        for text in PROBES
    )
    check_tokenizer(tokenizer, source, settings, [*PROBES, *prompts, *texts])
    tokenizer.save_pretrained(out)


def _check_tokenizer_loads(directory: Path, source: Path) -> None:
    try:
        tokenizer = load_tokenizer(directory)
    except Exception as error:  # of many classes: a broken file, or published code that fits another transformers
        raise UserError(f"{source}: its tokenizer does not load ({type(error).__name__}: {error})") from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"{source / 'tokenizer_config.json'}: the tokenizer has no eos_token, so no response would end")


def _copy(source: Path, out: Path, names: Iterable[str]) -> None:
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)


def _link(file: Path, target: Path) -> None:
    """A hard link, which takes no disk space and outlives its source; a copy across file systems."""
    try:
        os.link(file.resolve(), target)  # the Hub's cache holds symbolic links
    except OSError:
        shutil.copyfile(file, target)
