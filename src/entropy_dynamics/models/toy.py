"""Stand-ins: models of 0.1 to 1 M parameters from transformers' own classes, of the families that the paper uses."""

from typing import TYPE_CHECKING

from entropy_dynamics.config import StandInConfig
from entropy_dynamics.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

ARCHITECTURES = {  # name -> its configuration class and its model class in transformers
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),  # R1-Distill-Llama, and InternLM3 whose layout is Llama's
}
HEAD_SIZES = (32, 64)
ROPE_THETA = 10000.0


def build_stand_in(spec: StandInConfig, tokenizer: "PreTrainedTokenizerFast") -> "PreTrainedModel":
    """An untrained model in fp32 as `spec` describes it, the same weights for the same `spec.seed`.

    Its `save_pretrained` writes safetensors that `AutoModelForCausalLM.from_pretrained` loads. The global random state
    is left as it was. Raises UserError for a shape that cannot be.
    """
    import torch
    import transformers

    _check(spec)
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


def _check(spec: StandInConfig) -> None:
    if spec.architecture not in ARCHITECTURES:
        raise UserError(
            f"stand_ins: architecture is {spec.architecture!r}; it must be one of {', '.join(ARCHITECTURES)}"
        )
    if spec.head_size not in HEAD_SIZES:
        raise UserError(
            f"stand_ins: head_size is {spec.head_size}; it must be 32 or 64, the smallest that vLLM's attention serves"
        )
    if spec.heads * spec.head_size != spec.hidden_size:
        raise UserError(
            f"stand_ins: heads x head_size is {spec.heads} x {spec.head_size} = {spec.heads * spec.head_size}; "
            f"it must be hidden_size = {spec.hidden_size}"
        )
    if spec.kv_heads < 1 or spec.heads % spec.kv_heads:
        raise UserError(f"stand_ins: kv_heads is {spec.kv_heads}; it must divide heads = {spec.heads}")
