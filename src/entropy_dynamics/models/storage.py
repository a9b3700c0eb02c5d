"""Loads and saves policies: directories in transformers' format, with config, tokenizer and safetensors."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entropy_dynamics.config import StageConfig, settings_of
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_json, write_json
from entropy_dynamics.results.layout import FACTS
from entropy_dynamics.results.provenance import other_hashes, weight_hashes

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_policy(directory: Path | str) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    """Load the model in `directory`, in evaluation mode and fp32, and its tokenizer.

    Only safetensors are read, and no code published with it is run. Raises UserError for a missing or damaged model.
    """
    return load_model(directory), load_tokenizer(directory)


def load_model(directory: Path | str, dtype: str = "float32") -> "PreTrainedModel":
    """See `load_policy`. `dtype` applies to the parameters; rotary frequencies are always fp32."""
    directory = check_directory(directory)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    safe = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    try:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, **safe)
    except (SafetensorError, OSError) as error:
        raise UserError(f"the model in {directory} is damaged ({error}): delete and recreate it") from error
    return model.eval()


def load_tokenizer(directory: Path | str) -> "PreTrainedTokenizerBase":
    """See `load_policy`."""
    directory = Path(directory)
    if not (directory / "tokenizer_config.json").is_file():
        raise UserError(f"no tokenizer in {directory}: it has no tokenizer_config.json")
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # tokenizer.json is the complete tokenizer. AutoTokenizer would build a different one from the model type: Qwen2's
    # for a toy model of that type, and one with different ids for R1-Distill-Llama.
    if (directory / "tokenizer.json").is_file():
        try:
            return PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
        except Exception as error:  # the library has no narrower class for an unreadable file
            raise UserError(f"the tokenizer in {directory} is damaged ({error}): delete and recreate it") from error
    return AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)


def check_directory(directory: Path | str, config: StageConfig | None = None) -> Path:
    """`directory` as a Path.

    Raises UserError if it lacks a config, a tokenizer or safetensors, or has too short a context for `config`.
    """
    directory = Path(directory)
    for part, files in (("model", "config.json"), ("tokenizer", "tokenizer_config.json"), ("weights", "*.safetensors")):
        if not any(directory.glob(files)):
            raise UserError(f"no {part} in {directory}: it has no {files}")
    if config is not None:
        check_length(directory, config)
    return directory


def check_length(directory: Path | str, config: StageConfig) -> None:
    """Raise UserError if a prompt and its response may be longer than the context of the model in `directory`."""
    longest = config.sampling.max_tokens
    limit = read_json(Path(directory, "config.json")).get("max_position_embeddings", longest)
    if longest > limit:
        raise UserError(
            f"sampling.max_prompt_tokens + sampling.max_new_tokens is {longest}; it should be at most {limit}, "
            f"max_position_embeddings in {directory}/config.json"
        )


def write_facts(directory: Path, config: StageConfig, model: "PreTrainedModel", **more: Any) -> None:
    """Write model.json into `directory`: the description of the base model there, with the hashes of its files."""
    spec, toy = config.model, config.model.name in config.toy_models
    facts = {
        "name": spec.name,
        "label": spec.label,
        "toy": toy,
        "substitute": toy or spec.substitute,
        "pretrained": None if toy else spec.pretrained,
        "revision": None if toy or spec.path or spec.package else spec.revision,  # unknown for a directory
        "architecture": model.config.model_type,
        "parameters": model.num_parameters(),
        **more,
        "config": settings_of("model", config),
        "weights_sha256": weight_hashes(directory),
        "outputs": other_hashes(directory),
    }
    write_json(directory / FACTS, facts)


def save_policy(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    directory: Path,
    weights: Iterable[tuple[str, "Tensor"]] | None = None,
) -> None:
    """Write a directory that `load_policy` can read, with `weights` (by default the model's own) by name.

    Raises UserError if the files cannot be written, for example because the disk is full.
    """
    from huggingface_hub import save_torch_state_dict
    from safetensors import SafetensorError

    directory.mkdir(parents=True, exist_ok=True)
    if weights is None:
        weights = ((name, parameter.detach()) for name, parameter in model.named_parameters())
    state = {name: tensor.cpu() for name, tensor in weights}
    try:
        save_torch_state_dict(state, directory)  # with transformers' file names, and tied weights once
    except SafetensorError as error:  # such as a full disk
        raise UserError(f"{directory}: the weights cannot be written ({error})") from error
    save_description(model, tokenizer, directory, next(iter(state.values())).dtype)


def save_description(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", directory: Path, dtype: "torch.dtype | None" = None
) -> None:
    """Write everything of a policy but its weights, whose dtype is `dtype`. Raises UserError if this fails."""
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], dtype
    try:
        config.save_pretrained(directory)
        if model.can_generate():
            model.generation_config.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    except OSError:
        raise
    except Exception as error:  # settings that transformers refuses, and the tokenizers' own class for a full disk
        reason = " ".join(str(error).split())
        source = tokenizer.name_or_path or "the model"
        raise UserError(f"{directory}: config and tokenizer of {source} cannot be written ({reason})") from error
