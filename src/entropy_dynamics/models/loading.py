"""Loading a policy: a directory with safetensors, a config and a tokenizer, as transformers writes it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_policy(directory: Path | str) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    """The model in `directory`, in evaluation mode and fp32, and its tokenizer.

    Only safetensors are read and no remote code is run. Raises UserError if the directory holds no model.
    """
    directory = Path(directory)
    if not (directory / "config.json").is_file():
        raise UserError(f"no model in {directory}: it has no config.json")
    if not (directory / "tokenizer_config.json").is_file():
        raise UserError(f"no tokenizer in {directory}: it has no tokenizer_config.json")
    if not any(directory.glob("*.safetensors")):
        raise UserError(f"no weights in {directory}: a model is loaded from safetensors only")
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype="float32", use_safetensors=True, trust_remote_code=False, local_files_only=True
    )
    # AutoTokenizer gives every model of the type qwen2 the byte-level tokenizer of Qwen2, whatever was saved beside it.
    saved = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    generic = saved.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
    tokenizer_class = PreTrainedTokenizerFast if generic else AutoTokenizer
    tokenizer = tokenizer_class.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    return model.eval(), tokenizer


def save_policy(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", directory: Path) -> None:
    """Write what `load_policy` reads."""
    model.save_pretrained(directory, safe_serialization=True)
    tokenizer.save_pretrained(directory)
