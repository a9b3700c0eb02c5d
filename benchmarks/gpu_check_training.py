"""Stage `training`: steps of Qwen2.5-0.5B, and of 3 and 6 layers of the 7B model, extrapolated to 28, beside `plan`'s.

python benchmarks/gpu_check_training.py CASE RESULT      # one case, JSON in and a file out, as a launched rank
"""

import json
import resource
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from entropy_dynamics.config import RunConfig, load_config
from entropy_dynamics.distributed.launch import end_with_parent
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.time_limit import BYTES_PER_SECOND
from entropy_dynamics.models.storage import load_model
from entropy_dynamics.planning.duration import flops_per_token, training_seconds
from entropy_dynamics.planning.footprint import GIB, checkpoint_bytes, parameters, training_memory
from entropy_dynamics.results.files import write_json
from entropy_dynamics.sampling.native import ReplicaSampler
from entropy_dynamics.training.checkpoints import Checkpoints
from entropy_dynamics.training.modules import load_trained_policy
from entropy_dynamics.training.trainer import Trainer
from gpu_check_common import MODEL, Case, Check, gpu_row, measured
from random_model import RandomResponses, make_prompts, make_random_trainer, write_random_model

FULL = 28  # layers of Qwen2.5-7B
DEPTHS = 3, 6  # layers that are measured
KERNELS = 15  # rows of the profile: the most expensive kernels
VARIANTS = [  # method, activation checkpointing, compilation of the blocks, depths: eight minutes have time for no more
    ("grpo", "full", "false", DEPTHS),
    ("clip_b", "full", "false", DEPTHS),
    ("grpo", "full", "true", DEPTHS[:1]),
]
STEPS = 4  # per case: a warm-up, two that are timed, and one that is profiled
CASE_SECONDS = 30  # to start a process and to write and load a model, besides the steps [estimate]
COMPILE_SECONDS = 40  # to compile the blocks, forward and backward [estimate]
DECODE_SECONDS = 25e-3  # for a token of each response that the small model samples: 24 layers [estimate]
SHARED_SECONDS = 25  # six steps of the small model in fp32, without tensor cores [estimate]
SMALL = [  # Qwen2.5-0.5B, the scale gpu's stand-in for the 7B model: a whole model
    *("model.shape.hidden_size=896", "model.shape.layers=24", "model.shape.heads=14", "model.shape.kv_heads=2"),
    *("model.shape.head_size=64", "model.shape.intermediate_size=4864", "model.shape.vocabulary=151936"),
    "model.shape.tied_embeddings=true",
]
SETTINGS = [  # the paper's scale on one GPU: 32 responses of 1,500 tokens on average
    *("hardware.ranks=1", "engine.name=native", "training.prompts_per_step=2", "sampling.max_new_tokens=2667"),
    *("training.validation_every=0", "training.entropy_change_every=0"),
]
SHARED = [  # in one process without FSDP, where a prompt is run once for all its responses: short ones
    *("hardware.ranks=null", "training.precision=float32", "training.activation_checkpointing=none"),
    *("engine.dtype=float32", "training.tokens_per_micro_batch=4096", "sampling.max_new_tokens=256"),
]
TINY = [
    *("hardware.device=cpu", "training.prompts_per_step=2", "training.group_size=2", "sampling.max_new_tokens=16"),
    *("training.tokens_per_micro_batch=400", "model.shape.hidden_size=32", "model.shape.intermediate_size=48"),
    *("model.shape.heads=2", "model.shape.kv_heads=1", "model.shape.head_size=16", "model.shape.vocabulary=500"),
]


def training(check: Check) -> None:
    cases = training_cases(gpu_row() or "A100")
    if check.tiny:
        small, shared, *_ = cases
        depths = [case | {"layers": layers} for case, layers in zip(cases[4:6], (1, 2), strict=True)]
        cases = [
            case | {"overrides": [*case["overrides"], *TINY], "repeats": 1}
            for case in (small | {"layers": 1, "sampled": 16}, shared | {"layers": 1}, *depths)
        ]
    cases = check.measure(partial(measure_steps, traces=check.work), cases)
    pairs = [(one, two) for one, two in pairwise(cases) if all(one[key] == two[key] for key in ("method", "overrides"))]
    check.write(extrapolated=[extrapolated(*pair) for pair in pairs if all(map(measured, pair))])
    with tarfile.open(
        check.file.with_name("training-traces.tar"), "w"
    ) as packed:  # few files come back from some machines
        for trace in (check.work / case["trace"] for case in cases if case.get("trace")):
            if trace.is_file():
                packed.add(trace, trace.name)


def training_cases(gpu: str) -> list[Case]:
    """The small model, which also samples and is saved; its prompts shared or not; then the variants.

    First what nothing else measures. A variant has a trace of its smallest depth.
    """
    settings = [*SETTINGS, f"plan.gpu={gpu}"]
    small = {"scale": "paper", "method": "grpo", "layers": 24, "repeats": STEPS - 2, "trace": None}
    small["overrides"] = [*settings, *SMALL]
    variants = [
        {"scale": "paper", "method": method, "layers": layers, "repeats": STEPS - 2}
        | {"overrides": [*settings, f"training.activation_checkpointing={recomputed}", f"training.compile={compiled}"]}
        | {"trace": f"{method}-{recomputed}{'-compiled' * (compiled == 'true')}.trace.json.gz" if traced else None}
        for method, recomputed, compiled, depths in VARIANTS
        for layers, traced in zip(depths, (True, False), strict=False)
    ]
    return [small | {"sampled": 256}, small | {"overrides": [*settings, *SMALL, *SHARED], "shared": True}, *variants]


def steps_seconds(gpu: str | None = None) -> float:
    """Estimate for all cases on a GPU of `plan.gpus`, by default this machine's, or an A100 where it has none."""
    cases = training_cases(gpu or gpu_row() or "A100")
    configs = [_config(case, case["layers"]) for case in cases]
    small, _, *others = configs
    saved = checkpoint_bytes(small) / (BYTES_PER_SECOND)
    compiled = COMPILE_SECONDS * sum(config.training.compile for config in configs)
    steps = STEPS * sum(map(training_seconds, (small, *others))) + SHARED_SECONDS
    return CASE_SECONDS * len(cases) + compiled + steps + saved + DECODE_SECONDS * cases[0]["sampled"]


def measure_steps(case: Case, traces: Path | None = None) -> Case:
    """Seconds, tokens per second, MFU, peak memory and the most expensive kernels of a training step.

    With `traces`, the folder for it, one step's trace is written there, for Perfetto or chrome://tracing.
    """
    config = _config(case, case.get("layers"))
    ranks, settings, shape = Ranks.join(config.hardware), config.training, config.model.shape
    sampler = RandomResponses(shape.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(shape, Path(folder))
        start = time.perf_counter()
        policy = load_trained_policy(Path(folder), settings, ranks)
        loading = time.perf_counter() - start
    trainer = make_random_trainer(config, policy, sampler, config.plan.prompt_tokens, ranks)
    on_gpu = ranks.device.type == "cuda"
    trainer.step(0)  # Adam's moments exist from the second step on
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    rows = [_timed(trainer) for _ in range(case.get("repeats", 1))]
    peak = torch.cuda.max_memory_allocated() / GIB if on_gpu else None
    reserved = torch.cuda.max_memory_reserved() / GIB if on_gpu else None
    kernels = _profiled(trainer, on_gpu, traces / case["trace"] if traces and case.get("trace") else None)
    more: Case = {}
    if "sampled" in case:
        more = {"checkpoint": _checkpoint(trainer, ranks), "sampling": _sampling(trainer, case)}
    if "shared" in case:
        more = {"not_shared": _not_shared(trainer, on_gpu)}
    ranks.close()
    responses = sampler.lengths(settings.prompts_per_step * settings.group_size, config.sampling.max_new_tokens)
    lengths = [config.plan.prompt_tokens + length for length in responses]
    seconds = median(row["train"] for row in rows)
    rate = 3 * sum(length * flops_per_token(shape, length) for length in lengths) / seconds / 1e12
    return {
        "parameters": parameters(shape),
        "tokens": sum(lengths),
        "loading_seconds": loading,
        "seconds": {name: median(row[name] for row in rows) for name in rows[0]},
        "tokens_per_second": sum(lengths) / seconds,
        "tflops": rate,
        "mfu": rate / config.plan.hardware.tflops if gpu_row() else None,
        "peak_gib": peak,
        "reserved_gib": reserved,
        "planned": _planned(config),
        "kernels": kernels,
        **more,
    }


def extrapolated(shallow: Case, deep: Case) -> Case:
    """A step of the whole model from those of two depths: time, work and memory are linear in the layers."""

    def at_full(value: Callable[[Case], float]) -> float:
        per_layer = (value(deep) - value(shallow)) / (deep["layers"] - shallow["layers"])
        return value(shallow) + per_layer * (FULL - shallow["layers"])

    config = _config(shallow, FULL)
    seconds = at_full(lambda case: case["seconds"]["train"])
    rate = at_full(lambda case: case["tflops"] * case["seconds"]["train"]) / seconds
    return {
        "method": shallow["method"],
        "activation_checkpointing": config.training.activation_checkpointing,
        "compile": config.training.compile,
        "layers": FULL,
        "train_seconds": seconds,
        "tokens_per_second": shallow["tokens"] / seconds,
        "mfu": rate / config.plan.hardware.tflops if gpu_row() else None,
        "peak_gib_on_one_gpu": None if shallow["peak_gib"] is None else at_full(lambda case: case["peak_gib"]),
        "planned": _planned(config),
    }


def _config(case: Case, layers: int | None) -> RunConfig:
    depth = [] if layers is None else [f"model.shape.layers={layers}"]
    return load_config(case["scale"], MODEL, case["method"], [*case["overrides"], *depth])


def _planned(config: RunConfig) -> Case:
    """Peak memory of the trainer and seconds of a step, as `plan` estimates them."""
    others = ("engine weights", "engine", "process")
    parts = {part: size for part, size in training_memory(config).items() if part not in others}
    return {
        "gpu": config.plan.gpu,
        "peak_gib": sum(parts.values()) / GIB,
        "train_seconds": training_seconds(config),
        "gib": {part: size / GIB for part, size in parts.items()},
    }


def _timed(trainer: Trainer) -> dict[str, float]:
    """Seconds of a step's phases; `train` is all but sampling and the push, until the GPU is done."""
    start = time.perf_counter()
    row = trainer.step(1)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    others = row["seconds_sample"] + row["seconds_push"]
    seconds = {phase: row[f"seconds_{phase}"] for phase in ("push", "score", "update")}
    return seconds | {"train": time.perf_counter() - start - others}


def _not_shared(trainer: Trainer, on_gpu: bool) -> Case:
    """Seconds and peak memory of a step that runs a prompt with each of its responses, instead of once."""
    trainer.policy.share = False
    _timed(trainer)  # other shapes: the allocator's blocks
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    return {"seconds": _timed(trainer), "peak_gib": torch.cuda.max_memory_allocated() / GIB if on_gpu else None}


def _checkpoint(trainer: Trainer, ranks: Ranks) -> Case:
    """Size and seconds of a checkpoint, and by how much it raised the peak of this process's host memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder), ranks, made_from={}, made_by={}, kept=1)
        start = time.perf_counter()
        checkpoints.save(trainer.trained(), [{}], {})
        seconds = time.perf_counter() - start
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"gib": size / GIB, "seconds": seconds, "host_gib": more * 1024 / GIB}


def _sampling(trainer: Trainer, case: Case) -> Case:
    """Tokens per second of the native engine with a bf16 replica of the policy, and the seconds of a push to it."""
    count = case["sampled"]
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(_config(case, case["layers"]).model.shape, Path(folder))
        replica = load_model(Path(folder), "bfloat16").to(trainer.ranks.device)
    sampler = ReplicaSampler(replica, end_tokens=[-1], batch_size=count)
    start = time.perf_counter()
    sampler.push(trainer.policy.weights(torch.bfloat16))
    pushed = time.perf_counter() - start
    settings = {"samples": 1, "temperature": 1.0, "max_new_tokens": count, "stream": "gpu_check"}
    sampler.sample(make_prompts(count, 16), **settings | {"max_new_tokens": 2})
    start = time.perf_counter()
    rollouts = sampler.sample(make_prompts(count, 16), **settings)
    seconds = time.perf_counter() - start
    tokens = sum(len(rollout.token_ids) for rollout in rollouts)
    return {"sequences": count, "tokens": tokens, "tokens_per_second": tokens / seconds, "push_seconds": pushed}


def _profiled(trainer: Trainer, on_gpu: bool, trace: Path | None) -> list[Case]:
    """The most expensive kernels (operators, without a GPU) of one step."""
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        _timed(trainer)
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    kind, time_of = (DeviceType.CUDA, "self_device_time_total") if on_gpu else (DeviceType.CPU, "self_cpu_time_total")
    rows = [(getattr(event, time_of), event) for event in profiler.key_averages() if event.device_type == kind]
    total = sum(spent for spent, _ in rows)
    return [
        {"name": event.key[:80], "milliseconds": spent / 1e3, "share": spent / total, "calls": event.count}
        for spent, event in sorted(rows, key=itemgetter(0), reverse=True)[:KERNELS]
    ]


if __name__ == "__main__":
    end_with_parent()
    write_json(Path(sys.argv[2]), measure_steps(json.loads(sys.argv[1])))
