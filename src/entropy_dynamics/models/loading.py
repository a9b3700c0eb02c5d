"""Loading and saving a policy: a directory as transformers writes it, with config, tokenizer and safetensors."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entropy_dynamics.config import StageConfig, settings_of
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import FACTS
from entropy_dynamics.results.provenance import other_hashes, weight_hashes

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WEIGHTS_FILE_BYTES = 4 * 2**30  # maximum size of a policy's safetensors file, which is in memory until it is written


def load_policy(directory: Path | str) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    """The model in `directory`, in evaluation mode and fp32, and its tokenizer.

    Only safetensors are read, and no code that was published with a model is run.

    Raises:
        UserError: the directory holds no model, or a damaged one.
    """
    return load_model(directory), load_tokenizer(directory)


def load_model(directory: Path | str, dtype: str = "float32") -> "PreTrainedModel":
    """See `load_policy`; `dtype` is that of the parameters, while rotary frequencies are always fp32."""
    directory = check_model_directory(directory)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, use_safetensors=True, trust_remote_code=False, local_files_only=True
        )
    except (SafetensorError, OSError) as error:
        raise UserError(f"the model in {directory} is damaged ({error}): delete and recreate it") from error
    return model.eval()


def load_tokenizer(directory: Path | str) -> "PreTrainedTokenizerBase":
    """See `load_policy`."""
    directory = Path(directory)
    if not (directory / "tokenizer_config.json").is_file():
        raise UserError(f"no tokenizer in {directory}: it has no tokenizer_config.json")
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # tokenizer.json is the whole tokenizer. AutoTokenizer would build another one from the model's type: Qwen2's for a
    # toy model of that type, and one that gives other ids for R1-Distill-Llama.
    if (directory / "tokenizer.json").is_file():
        try:
            return PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
        except Exception as error:  # the library has nothing narrower for a file that it cannot read
            raise UserError(f"the tokenizer in {directory} is damaged ({error}): delete and recreate it") from error
    return AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)


def check_model_directory(directory: Path | str) -> Path:
    """`directory` as a Path. Raises UserError if it lacks a config, a tokenizer or safetensors."""
    directory = Path(directory)
    for part, files in (("model", "config.json"), ("tokenizer", "tokenizer_config.json"), ("weights", "*.safetensors")):
        if not any(directory.glob(files)):
            raise UserError(f"no {part} in {directory}: it has no {files}")
    return directory


def write_facts(directory: Path, config: StageConfig, model: "PreTrainedModel", **more: Any) -> None:
    """Write the description of the base model in `directory`, with the hashes of its files, to its model.json."""
    spec, toy = config.model, config.model.name in config.toy_models
    facts = {
        "name": spec.name,
        "label": spec.label,
        "toy": toy,
        "substitute": toy or spec.substitute,
        "pretrained": None if toy else spec.pretrained,
        "revision": None if toy or spec.path is not None else spec.revision,  # a directory's is unknown
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
    """Write a directory for `load_policy`.

    Args:
        weights: name and tensor of each parameter, consumed one by one; by default the model's own.

    Raises:
        UserError: they cannot be written, for example because the disk is full.
    """
    if weights is None:
        weights = ((name, parameter.detach()) for name, parameter in model.named_parameters())
    dtype = save_weights(weights, directory)
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], dtype
    config.save_pretrained(directory)
    if model.can_generate():
        model.generation_config.save_pretrained(directory)
    try:
        tokenizer.save_pretrained(directory)
    except OSError:
        raise
    except Exception as error:  # the library's own for a full disk
        raise UserError(f"{directory}: the tokenizer cannot be written ({error})") from error


def save_weights(
    weights: Iterable[tuple[str, "Tensor"]], directory: Path, file_bytes: int = WEIGHTS_FILE_BYTES
) -> "torch.dtype":
    """Write weights as safetensors, with the file names and the index of transformers; return their dtype.

    A file is written as soon as it is full, so a model is never held whole. Tied weights come once.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    files: list[list[str]] = []  # names of the weights in each
    held: dict[str, torch.Tensor] = {}
    total = 0

    def write() -> None:
        files.append(list(held))
        try:
            save_file(held, directory / f"part{len(files)}.safetensors", metadata={"format": "pt"})
        except SafetensorError as error:  # such as a full disk
            raise UserError(f"{directory}: the weights cannot be written ({error})") from error
        held.clear()

    for name, tensor in weights:
        if held and sum(weight.nbytes for weight in held.values()) + tensor.nbytes > file_bytes:
            write()
        held[name] = tensor.cpu().contiguous()
        total += tensor.nbytes
    write()

    where: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        final = "model.safetensors" if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        (directory / f"part{number}.safetensors").rename(directory / final)
        where |= dict.fromkeys(names, final)
    if len(files) > 1:
        write_json(directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})
    return tensor.dtype
