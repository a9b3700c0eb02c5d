"""Toy models: 0.1 to 1 M parameters, in transformers' own classes of the paper's architectures."""

from typing import TYPE_CHECKING, Any

from entropy_dynamics.config.schema import Shape, ToyModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

ROPE_THETA = 10000.0


def build_toy_model(spec: ToyModelConfig, tokenizer: "PreTrainedTokenizerFast") -> "PreTrainedModel":
    """An untrained fp32 model whose weights depend on `spec.seed` only; the global random state is unchanged."""
    import torch
    from transformers import AutoModelForCausalLM

    config = transformers_config(
        spec,
        vocab_size=len(tokenizer),
        max_position_embeddings=tokenizer.model_max_length,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        initializer_range=spec.hidden_size**-0.5,  # transformers' 0.02 is meant for widths of thousands
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        attn_implementation="sdpa",
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        return AutoModelForCausalLM.from_config(config).float()


def transformers_config(shape: Shape, **more: Any) -> "PreTrainedConfig":
    """The config that transformers builds a model of this shape from; `more` are other entries of it."""
    from transformers import AutoConfig

    return AutoConfig.for_model(
        shape.architecture,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        tie_word_embeddings=shape.tied_embeddings,
        **more,
    )
