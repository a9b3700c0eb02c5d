"""Model size and memory during sampling and training, on a GPU or a CPU, estimated from the config alone.

The two phases of training share a GPU. While the engine samples, its weights and KV cache share memory with the
trainer's idle shards. While the trainer computes, vLLM sleeps and holds nothing (its sleep level 2), and the native
engine keeps the weights of its replica. Sizes are in bytes. Does not import torch, since Snakemake imports this module.
"""

import math
from pathlib import Path

from entropy_dynamics.config import StageConfig
from entropy_dynamics.config.schema.model import ShapeConfig
from entropy_dynamics.models.families import block_parameters, parameters
from entropy_dynamics.models.pretrained import checkpoint_shape
from entropy_dynamics.models.toy_tokenizer import VOCABULARY
from entropy_dynamics.results.layout import CHECKPOINT_FILE_BYTES

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2}
STATES = 12  # bytes per parameter: fp32 master weight and Adam's two moments
GRADIENT = 4  # reductions are fp32
BLOCK_LOGITS = 14 * 2**26  # token_stats on a GPU: a block of 2**26 logits in bf16 and three fp32 tensors of that size
ON_A_GPU = ("logits block", "engine", "process")
MEASURED = ("granite", "llama", "mistral", "qwen2", "qwen3", "smollm3")  # blocks whose activations are exact
BATCH_TENSORS = 14  # fp32 tensors [batch, token]: statistics, advantages, masks and weights, including a critic's


def shape_of(config: StageConfig) -> ShapeConfig:
    """The shape of the model that runs: the toy model's if the scale has one of that name."""
    toy = config.toy_models.get(config.model.name)
    if toy is None:
        return config.model.shape or checkpoint_shape(Path(config.model.path or ""))
    return ShapeConfig(vocabulary=VOCABULARY[toy.tokenizer], **toy.model_dump(include=set(ShapeConfig.model_fields)))


def multiplied(shape: ShapeConfig) -> int:
    """Number of parameters that multiply every token; an untied embedding is only looked up."""
    return parameters(shape) - (0 if shape.tied_embeddings else shape.vocabulary * shape.hidden_size)


def critic_parameters(shape: ShapeConfig) -> int:
    """Number of parameters of a critic: the policy's backbone with a scalar head."""
    return multiplied(shape) + shape.hidden_size + 1


def kv_bytes(shape: ShapeConfig, dtype: str) -> int:
    """Bytes of the keys and values of one token."""
    return 2 * shape.layers * shape.kv_heads * shape.head_size * BYTES[dtype]


def block_activation_bytes(shape: ShapeConfig) -> int:
    """Bytes per token that a block saves for its backward pass in bf16, in addition to its input.

    As in transformers' layers with fused attention: inputs of the seven projections; both norms, in fp32 and
    normalized; queries, keys and values; the log-sum-exp of the attention; gate, its activation, and up. Families that
    are not `MEASURED`, which have more norms or other activations, keep at most twice as much.
    """
    hidden, query, key = shape.hidden_size, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    norms_of_heads = (shape.architecture == "qwen3") * (6 * (query + key) + 4 * (shape.heads + shape.kv_heads))
    kept = 8 * shape.intermediate_size + 16 * hidden + 4 * (query + key) + 4 * shape.heads + 8 + norms_of_heads
    return kept if shape.architecture in MEASURED else 2 * kept


def weight_bytes(config: StageConfig, dtype: str | None = None) -> int:
    """Bytes of the weights in `dtype`; None: in the engine's."""
    return parameters(shape_of(config)) * BYTES[dtype or config.engine.dtype]


def shard_bytes(config: StageConfig, per_parameter: int) -> float:
    """Bytes per GPU of the trainer's shards, including a critic's, at `per_parameter` bytes per parameter."""
    shape = shape_of(config)
    critic = critic_parameters(shape) if config.training.advantage == "gae" else 0
    return per_parameter * (parameters(shape) + critic) / config.hardware.per_node


def checkpoint_bytes(config: StageConfig) -> float:
    """Bytes of a checkpoint, over all ranks."""
    return shard_bytes(config, STATES) * config.hardware.per_node


def checkpoint_buffers(config: StageConfig) -> int:
    """Bytes of host memory, over all ranks, while a checkpoint file is written.

    Each rank holds its share of the file three times: as tensors in pinned memory (which torch allocates in powers of
    two, i.e. up to twice as much), as serialized by safetensors, and as a copy in a Python bytes object. A file may
    exceed its nominal size by one tensor, of which the embedding is the largest.
    """
    shape = shape_of(config)
    return 4 * (CHECKPOINT_FILE_BYTES + BYTES["float32"] * shape.vocabulary * shape.hidden_size)


def memory(config: StageConfig, stage: str) -> dict[str, dict[str, float]]:
    """Bytes per GPU, or per process on a CPU, by part, for each phase of a stage."""
    phases = {"sampling": sampling_memory(config, trains=stage == "train")}
    phases |= {"training": training_memory(config)} if stage == "train" else {}
    left_out = ON_A_GPU if config.hardware.device == "cpu" else ()
    return {phase: {name: parts[name] for name in parts if name not in left_out} for phase, parts in phases.items()}


def sampling_memory(config: StageConfig, trains: bool) -> dict[str, float]:
    """Bytes per GPU while the engine samples, by part."""
    plan, engine = config.plan, config.engine
    is_policy = trains and engine.in_trainer and config.hardware.ranks is None  # then it is among the shards
    weights, buffers = 0 if is_policy else weight_bytes(config), plan.engine_gib * GIB
    batch = config.sampling.batch_size * config.sampling.max_tokens * kv_bytes(shape_of(config), engine.dtype)
    gpu = plan.hardware.memory_gib * GIB / config.hardware.runs_per_gpu
    return {
        "engine weights": weights,
        "KV cache": engine.kv_cache_bytes(batch, gpu, weights + buffers),
        "engine": buffers,
        **({"shards": shard_bytes(config, STATES)} if trains else {}),  # gradients have been freed
        "process": plan.process_gib * GIB,
    }


def training_memory(config: StageConfig) -> dict[str, float]:
    """Bytes per GPU at the peak of an update, by part."""
    shape, training, sampling = shape_of(config), config.training, config.sampling
    tokens = max(training.tokens_per_micro_batch, sampling.max_tokens)  # a longer sequence is a micro-batch by itself
    rollouts = training.prompts_per_step * training.group_size
    plain = config.hardware.ranks is None  # no FSDP2: a process computes with the master weights, and keeps more graphs
    if plain and training.updates_per_batch == 1:
        tokens = max(tokens, min(training.single_forward_tokens, rollouts * sampling.max_tokens))
    compute = BYTES.get(training.precision, BYTES["bfloat16"])  # auto, on a GPU
    block, count = block_parameters(shape), parameters(shape)
    root = count - shape.layers * block
    # With checkpointing: the inputs of all blocks, and the recomputed activations of one block at a time with their
    # gradients (gate, its activation and up in bf16, the residual stream in fp32). Fused attention is linear in length.
    full = training.activation_checkpointing == "full"
    blocks = (1 if full else shape.layers) * block_activation_bytes(shape)
    in_bf16 = 2 * shape.layers * shape.hidden_size + blocks + 6 * shape.intermediate_size
    activations = tokens * (compute / 2 * in_bf16 + 8 * shape.hidden_size)
    if training.reduce_every_micro_batch:
        in_flight = (compute + GRADIENT) * root  # embedding and head: the largest group reduced together
    else:  # FSDP2 holds an unsharded fp32 gradient
        in_flight = compute * root + GRADIENT * count * (1 - 1 / config.hardware.per_node)
    replica = config.engine.in_trainer and config.hardware.ranks is not None  # otherwise it samples from the policy
    first_order = training.entropy_change_every and training.entropy_change_first_order
    return {
        **({"engine weights": weight_bytes(config)} if replica else {}),
        "shards": shard_bytes(config, STATES + GRADIENT),
        **({"entropy gradient": GRADIENT * count / config.hardware.per_node} if first_order else {}),
        # The next block is gathered while the current one computes.
        **({} if plain else {"gathered weights": compute * (root + 2 * block), "gradients in flight": in_flight}),
        "activations": activations,
        "logits block": BLOCK_LOGITS,
        "batch statistics": rollouts * (4 * BATCH_TENSORS * sampling.max_new_tokens + 8 * sampling.max_tokens),
        "engine": config.plan.engine_gib * GIB,
        "process": config.plan.process_gib * GIB,
    }


def misfits(config: StageConfig, stage: str) -> dict[str, str]:
    """For each phase the requirement that a GPU does not meet; empty on a CPU."""
    if config.hardware.device == "cpu":
        return {}
    available = config.plan.hardware.memory_gib / config.hardware.runs_per_gpu
    phases = memory(config, stage)
    problems = {}
    for phase, parts in phases.items():
        if (needed := sum(parts.values()) / GIB) > available:
            problems[phase] = f"needs {math.ceil(needed)} GiB of {available:g} while {phase}"
    cache = phases["sampling"]["KV cache"] / GIB
    sequence = config.sampling.max_tokens * kv_bytes(shape_of(config), config.engine.dtype) / GIB
    if cache < sequence:
        short = f"has {cache:.1f} GiB for the KV cache, and one sequence of full length needs {sequence:.1f}"
        problems.setdefault("sampling", short)
    return problems
