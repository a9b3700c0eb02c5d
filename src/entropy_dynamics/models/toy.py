"""Toy models of 0.1 to 1 M parameters, in transformers' classes of the paper's architectures."""

from typing import TYPE_CHECKING, Any

from entropy_dynamics.config.schema.model import Shape, ToyModelConfig
from entropy_dynamics.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

ROPE_THETA = 10000.0
SIZES = {  # key of a shape -> key of transformers' config
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "vocabulary": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
}


def build_toy_model(spec: ToyModelConfig, tokenizer: "PreTrainedTokenizerFast") -> "PreTrainedModel":
    """An untrained fp32 model whose weights depend only on `spec.seed`; the global random state is unchanged."""
    import torch
    from transformers import AutoModelForCausalLM

    config = transformers_config(
        spec,
        vocab_size=len(tokenizer),
        max_position_embeddings=tokenizer.model_max_length,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        initializer_range=0.5 * spec.hidden_size**-0.5,  # transformers' 0.02 is meant for widths of thousands
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        return AutoModelForCausalLM.from_config(config).float()


def transformers_config(shape: Shape, **more: Any) -> "PreTrainedConfig":
    """transformers' config for a model of this shape; `more` are its other entries.

    Raises UserError if transformers does not know the architecture.
    """
    from transformers import CONFIG_MAPPING, __version__

    if (family := shape.architecture) not in CONFIG_MAPPING:
        raise UserError(f"architecture is {family!r}, which transformers {__version__} does not know")

    sizes = {key: getattr(shape, name) for name, key in SIZES.items() if name in type(shape).model_fields}
    return CONFIG_MAPPING[family](**sizes, **more)
