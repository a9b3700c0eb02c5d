"""Model families: any of transformers' whose models pass `check_family`; there is no list. Torch is imported late."""

from typing import TYPE_CHECKING, Any

from entropy_dynamics.config.schema.model import ShapeConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.toy import SIZES
from entropy_dynamics.sections import parse

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

VOCABULARY = 64  # size of the random model; its blocks have the real width
TOLERANCE = 1e-3  # nats; fp32 differs by 1e-5
COUNTED = 0.02  # biases and norms that `parameters` leaves out are less of a model
CHANGED_LOGITS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def shape_in(config: dict[str, Any], where: str) -> ShapeConfig:
    """The shape in the content of a config.json. Raises UserError if a size is missing."""
    known = {key: value for key, value in config.items() if value is not None}
    heads, hidden = known.get("num_attention_heads", 1), known.get("hidden_size", 0)
    known = {"num_key_value_heads": heads, "head_dim": hidden // heads, "tie_word_embeddings": False} | known
    keys = {"architecture": "model_type"} | SIZES
    return parse(ShapeConfig, {name: known[key] for name, key in keys.items() if key in known}, where)


def parameters(shape: ShapeConfig) -> int:
    """Number of parameters of a causal language model; tied embeddings count once."""
    outside = 1 if shape.tied_embeddings else 2
    return shape.layers * block_parameters(shape) + outside * shape.vocabulary * shape.hidden_size + shape.hidden_size


def block_parameters(shape: ShapeConfig) -> int:
    """Number of parameters of a transformer block with a gated MLP; exact for the families of the paper's models."""
    hidden, query, key = shape.hidden_size, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    attention = 2 * hidden * query + 2 * hidden * key
    extra = {"qwen2": query + 2 * key, "qwen3": 2 * shape.head_size}  # biases; RMSNorm of each head of q and k
    return attention + extra.get(shape.architecture, 0) + 3 * hidden * shape.intermediate_size + 2 * hidden


def check_family(config: "PreTrainedConfig", where: str) -> None:
    """Raise UserError unless a model of `config` can be trained and sampled from, and `plan` knows its size.

    Three computations with a random model of this width are compared with transformers' own logits: log p as the
    trainer computes it, from the last hidden states and the head; hidden states over a tree of prefixes; and hidden
    states token by token with a cache, as the native engine decodes. The global random state is unchanged.
    """
    import torch
    from transformers import AutoModelForCausalLM

    refused = f"{where}: a {config.model_type} cannot be trained here"
    with torch.device("meta"):
        try:
            count = AutoModelForCausalLM.from_config(config, trust_remote_code=False).num_parameters()
        except Exception as error:  # many classes: no such language model, a missing package, an impossible size
            raise UserError(f"{refused}: transformers does not build them ({_line(error)})") from error
    planned = parameters(shape_in(config.to_dict(), where))
    if abs(count - planned) > COUNTED * count:
        kind = "with blocks of attention and one gated MLP, as `plan` counts, it would be"
        raise UserError(f"{refused}: it has {count:,} parameters; {kind} {planned:,}")
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(_small(config), dtype=torch.float32).eval()
            problem = _disagreement(model)
    except Exception as error:  # as many: attributes and arguments that other families do not have
        problem = f"the trainer's calls fail ({_line(error)})"
    if problem:
        raise UserError(f"{refused}: {problem}")


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _small(config: "PreTrainedConfig") -> "PreTrainedConfig":
    """`config` with one block of each kind and a short vocabulary."""
    values = config.to_dict()
    layers = range(values["num_hidden_layers"])
    by_layer = {key: value for key, value in values.items() if isinstance(value, list) and len(value) == len(layers)}
    kinds = {str([value[layer] for value in by_layer.values()]): layer for layer in reversed(layers)}
    chosen = sorted(kinds.values())
    values |= {key: [value[layer] for layer in chosen] for key, value in by_layer.items()}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)  # inside the vocabulary
    return type(config).from_dict(values | special | {"num_hidden_layers": len(chosen), "vocab_size": VOCABULARY})


def _disagreement(model: "PreTrainedModel") -> str | None:
    """How the trainer or the native engine differ from the model's logits, or None."""
    import torch
    from transformers import Cache
    from transformers.cache_utils import DynamicLayer

    from entropy_dynamics.core.token_stats import token_stats
    from entropy_dynamics.models.tree import Tree, fits

    for weight in model.parameters():
        if weight.ndim == 1:  # biases start at 0, where they change nothing
            weight.add_(0.1 * torch.randn_like(weight))
    ids = torch.randint(VOCABULARY, (2, 12))
    ids[1, :6] = ids[0, :6]
    head = model.lm_head.weight
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    head.mul_(8 / (hidden @ head.T).std())  # logits as far apart as a trained model's
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state  # tied embeddings have changed
    logp = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)

    def far(states: "Tensor") -> float:
        return float(((states @ head.T).log_softmax(-1) - logp).abs().max())

    rows, tokens = hidden[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
    fused = token_stats(rows, tokens, weight=head, temperature=1.0).logp
    difference = (fused - logp[:, :-1].flatten(0, 1).gather(-1, tokens[:, None])[:, 0]).abs().max()
    if not difference < TOLERANCE:
        settings = ((name, getattr(model.config, name, None)) for name in CHANGED_LOGITS)
        causes = [f"{name} is {value:g}" for name, value in settings if value not in (None, 1)]
        reason = f": {', '.join(causes)}" if causes else ""
        return f"log p from hidden states and lm_head is {difference:.2g} nats off transformers' logits{reason}"
    tree = Tree.of(ids, torch.full((2,), 12))
    if fits(model) and not far(tree.hidden(model.model)[tree.nodes]) < TOLERANCE:
        return "over a tree of prefixes its hidden states are others"
    cache, states = Cache(layers=[DynamicLayer() for _ in model.model.layers]), []
    for part in ids.split([4] + 8 * [1], dim=1):
        states.append(model.model(input_ids=part, past_key_values=cache, use_cache=True).last_hidden_state)
    return None if far(torch.cat(states, 1)) < TOLERANCE else "with a KV cache its hidden states are others"
