"""Toy models: 0.1 to 1 M parameters, from transformers' own classes of the architectures that the paper uses."""

from typing import TYPE_CHECKING

from entropy_dynamics.config.schema import ToyModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

ARCHITECTURES = {  # name -> its configuration class and its model class in transformers
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),  # R1-Distill-Llama, and InternLM3, whose layout is Llama's
}
ROPE_THETA = 10000.0


def build_toy_model(spec: ToyModelConfig, tokenizer: "PreTrainedTokenizerFast") -> "PreTrainedModel":
    """An untrained model in fp32, the same weights for the same `spec.seed`; the global random state is unchanged."""
    import torch
    import transformers

    config_class, model_class = (getattr(transformers, name) for name in ARCHITECTURES[spec.architecture])
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_size,
        max_position_embeddings=tokenizer.model_max_length,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=spec.tied_embeddings,
        initializer_range=spec.hidden_size**-0.5,  # transformers' 0.02 is made for widths of thousands
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        attn_implementation="sdpa",
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        return model_class(config).float()
