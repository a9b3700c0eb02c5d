"""Duration of sampling and of training steps on GPUs, estimated from the config alone.

Throughput is the measured one of the `plan` section if it has one; otherwise it follows from the size of the model and
the utilization of the GPU that the section assumes.
"""

import math

from entropy_dynamics.config import Config, RunConfig, StageConfig
from entropy_dynamics.config.schema.model import ShapeConfig
from entropy_dynamics.planning.footprint import kv_bytes, multiplied, sampling_memory, shape_of, weight_bytes


def sampling_seconds(config: StageConfig, responses: int, trains: bool) -> float:
    """Seconds of a call to the engines of all ranks.

    A decoding step takes the longer of two times: that to read the weights and the KV cache of all running sequences,
    and that to compute. After most responses have ended, the longest continue alone, up to the limit of new tokens.
    """
    plan, gpu, shape, engine = config.plan, config.plan.hardware, shape_of(config), config.engine
    prompt, mean = prompt_tokens(config), response_tokens(config)
    share = math.ceil(responses / config.hardware.processes)
    if config.model.name in plan.measured:
        return share * mean / plan.measured[config.model.name].sampled
    kv_cache = sampling_memory(config, trains)["KV cache"]
    fitting = kv_cache // ((prompt + mean) * kv_bytes(shape, engine.dtype))
    running = max(1, min(config.sampling.batch_size, share, fitting))

    def step_seconds(sequences: float) -> float:
        # A running sequence is on average in the middle of its response.
        read = weight_bytes(config) + sequences * (prompt + mean / 2) * kv_bytes(shape, engine.dtype)
        reading = read / (gpu.bandwidth_gb_s * 1e9 * gpu.decoding_mbu)
        computing = 2 * sequences * multiplied(shape) / (gpu.tflops * 1e12 * gpu.training_mfu)
        return plan.decode_step_ms / 1e3 + max(reading, computing)

    alone = config.sampling.max_new_tokens - mean
    return share * mean / running * step_seconds(running) + alone * step_seconds(1)


def training_seconds(config: RunConfig) -> float:
    """Seconds of computation per training step, without sampling: scoring and updates."""
    plan, shape, training = config.plan, shape_of(config), config.training
    tokens = tokens_per_step(config)
    update = 4 if training.activation_checkpointing == "full" else 3  # in forward passes; the 4th is recomputation
    passes = update + config.method.params.needs_scores(training.updates_per_batch)
    if training.advantage == "gae":
        passes += 1 + update  # the critic's values, and its update
    if config.model.name in plan.measured:
        return tokens / config.hardware.processes / plan.measured[config.model.name].trained * passes / update
    flops = tokens * passes * flops_per_token(shape, prompt_tokens(config) + response_tokens(config))
    return flops / (plan.hardware.tflops * 1e12 * plan.hardware.training_mfu * config.hardware.processes)


def flops_per_token(shape: ShapeConfig, length: float) -> float:
    """FLOPs per token of a forward pass over `length` tokens: matrix products and causal attention."""
    return 2 * multiplied(shape) + 2 * shape.layers * shape.heads * shape.head_size * length


def response_tokens(config: Config) -> float:
    """Mean length of a response, tokens."""
    return min(config.plan.response_tokens, config.sampling.max_new_tokens)


def prompt_tokens(config: Config) -> float:
    """Mean length of a prompt, tokens."""
    return min(config.plan.prompt_tokens, config.sampling.max_prompt_tokens)


def tokens_per_step(config: Config) -> float:
    """Number of tokens in a training batch, including prompts."""
    rollouts = config.training.prompts_per_step * config.training.group_size
    return rollouts * (prompt_tokens(config) + response_tokens(config))
