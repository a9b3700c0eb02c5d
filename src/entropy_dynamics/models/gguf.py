"""Models in the GGUF format: one file with weights, which may be quantized, config and tokenizer."""

import importlib.util
from pathlib import Path

from entropy_dynamics.errors import UserError
from entropy_dynamics.models.storage import save_policy


def gguf_file(directory: Path) -> Path | None:
    """The GGUF file of a directory that has no model in another format, or None. Raises UserError if it has several."""
    files = [] if (directory / "config.json").is_file() else sorted(directory.glob("*.gguf"))
    if len(files) > 1:
        raise UserError(f"{directory} has {len(files)} GGUF files, for example {files[0].name}; a model is one of them")
    return files[0] if files else None


def convert_gguf(file: Path, directory: Path) -> None:
    """Write the model in `file` into `directory`, in transformers' format: fp32 safetensors, config and tokenizer.

    Raises:
        UserError: a package is missing, or transformers cannot read the file.
    """
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{file} needs the package {package}: pip install 'entropy-dynamics[gguf]'")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **read)
        model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **read)
    except Exception as error:  # many classes: an unknown architecture or quantization, a damaged file
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{file}: transformers cannot read it ({reason})") from error
    del model.config.quantization_config  # describes the file; the weights are dequantized
    save_policy(model, tokenizer, directory)
