"""What the runs of a scale need before anything is started: GPU and host memory, tokens, hours, disk.

Everything is reckoned from the config: memory from what trainer and engine hold at one time (footprint.py), hours from
the throughput that the `plan` section states or gives as measured. Sizes are in bytes, and in GiB in what is printed.
No torch here: Snakemake asks for `resources`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from entropy_dynamics.analysis.claims import load_claims
from entropy_dynamics.analysis.experiments import EXPERIMENTS, Run, known_experiments, load_experiment
from entropy_dynamics.config import BASE, CONFIGS, Config, StageConfig, load_config
from entropy_dynamics.config.schema import ShapeConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.planning.footprint import (
    BYTES,
    GIB,
    checkpoint_bytes,
    kv_bytes,
    misfit,
    parameters,
    ranks_of,
    sampling_memory,
    training_memory,
)
from entropy_dynamics.sampling import PROMPTS_HELD

HELD_TOKEN = 70  # bytes of a sampled token and its log p as Python objects in a rollout
HOST_OF_A_RANK = 8 * GIB  # Python, torch with CUDA, vLLM with its pinned buffers [ours]
HOST_ON_A_CPU = 4 * GIB  # the same, where a stand-in runs on the CPU [ours]: 0.9 to 1.7 GiB measured
DOWNLOAD = 20e6  # bytes a second [ours]: for the time limit of a download, not for the plan
CPU_MINUTES = 240  # time limit of a job on a CPU [ours]: a laptop run takes one to two minutes


@dataclass(frozen=True)
class Job:
    """One kind of job: a step on a model, as often as `count` says.

    `sampling` and `training` are what a GPU holds in that phase, in bytes, by part; `training` is empty for a step
    that only samples. `tokens_sampled`, `tokens_trained` and `hours` are those of one job.
    """

    step: str  # pass_rates | train | evaluate
    model: str
    ran: str  # what the name stands for, where a smaller model runs in its place
    family: str  # what kind of method, for `train`
    example: str  # one of its methods
    count: int
    gpus: int
    sampling: dict[str, float]
    training: dict[str, float]
    host: float
    tokens_sampled: float
    tokens_trained: float
    hours: float

    @property
    def name(self) -> str:
        return {"pass_rates": "pass rates", "train": f"train, {self.family}", "evaluate": "evaluate"}[self.step]

    @property
    def label(self) -> str:
        return f"{self.model} ({self.ran})" if self.ran else self.model


@dataclass(frozen=True)
class Plan:
    config: Config
    jobs: tuple[Job, ...]
    disk: dict[str, float]  # bytes, by what it is for
    on_cpu: tuple[int, int] | None = field(default=None)  # training runs and evaluations of a scale without GPUs

    @property
    def gpu_hours(self) -> float:
        return sum(job.count * job.gpus * job.hours for job in self.jobs)

    @property
    def hours(self) -> float:
        """One job after the other on the GPUs of one of them."""
        return sum(job.count * job.hours for job in self.jobs)


def make_plan(
    scale: str, overrides: Sequence[str] = (), configs: Path = CONFIGS, experiments: Path = EXPERIMENTS
) -> Plan:
    """The plan of all that a scale's experiments and claims need.

    Raises UserError for a mistake in the configs; whether the plan fits its GPUs is for `check_fits`.
    """
    bare = load_config(scale, overrides=overrides, configs=configs)
    trained, evaluated = _runs(bare, experiments)
    if bare.hardware.device == "cpu":
        return Plan(bare, (), {}, on_cpu=(len(trained), len(evaluated)))
    groups: dict[tuple[str, str], list[tuple[Run, Config]]] = {}
    loaded: dict[tuple[str, str], Config] = {}
    for run in trained:
        key = (run.model, run.method)
        if key not in loaded:
            loaded[key] = load_config(scale, run.model, run.method, overrides, configs)
        groups.setdefault((run.model, _family(loaded[key])), []).append((run, loaded[key]))
    of_model = {name: load_config(scale, name, overrides=overrides, configs=configs) for name in bare.models}
    jobs = []
    if trained:
        jobs.append(_job("pass_rates", of_model[bare.pass_rates.model], "", "", 1))
    for (_, family), runs in groups.items():
        jobs.append(_job("train", runs[0][1], family, runs[0][0].method, len(runs)))
    for model in dict.fromkeys(run.model for run in evaluated):
        count = sum(run.model == model for run in evaluated)
        jobs.append(_job("evaluate", of_model[model], "", "", count))
    jobs.sort(key=lambda job: list(of_model).index(job.model))  # stable: a model's jobs stay in their order
    return Plan(bare, tuple(jobs), _disk(of_model, trained, evaluated, loaded))


def _runs(config: Config, experiments: Path) -> tuple[list[Run], list[Run]]:
    """The runs to train and those to evaluate, each once, in a fixed order."""
    trained, evaluated = {}, {}
    for name in config.experiments or known_experiments(experiments):
        experiment = load_experiment(name, config.scale, dict(config.seeds), experiments)
        trained |= dict.fromkeys(experiment.runs)
        evaluated |= dict.fromkeys(experiment.runs if experiment.evaluations else ())
    if config.experiments is None:
        for claim in load_claims(config.scale, dict(config.seeds), experiments):
            runs = [run for run in claim.all_runs() if run.model in config.models]
            trained |= dict.fromkeys(runs)
            evaluated |= dict.fromkeys(runs if claim.evaluations else ())
    unknown = [run.model for run in trained if run.model not in config.models]
    if unknown:
        raise UserError(
            f"scale {config.scale} has no model {unknown[0]!r}, which its experiments need: add it to `models` or list "
            "in `experiments` those that do without"
        )
    return [run for run in trained if run.method != BASE], list(evaluated)


def _family(config: Config) -> str:
    if config.training.advantage == "gae":
        return "PPO"
    return "GRPO" if config.training.updates_per_batch == 1 else "several updates"


def host_memory(config: Config, step: str) -> float:
    """Bytes in the host's memory for all ranks of a job together."""
    ranks, count = ranks_of(config), parameters(config.model.shape)
    responses = max(_calls(config, step))
    if step == "pass_rates":
        responses = min(responses, PROMPTS_HELD * config.pass_rates.samples)
    held = responses * config.sampling.max_new_tokens * HELD_TOKEN / 2  # half of the limit, on average
    total = ranks * (HOST_OF_A_RANK + held)  # gathered on every rank
    if step == "train":
        total += ranks * count * BYTES[config.engine.dtype]  # the sleeping engine's weights
        if config.training.checkpoint_every:
            total += checkpoint_bytes(config)  # a checkpoint on its way to the disk
    return total


# Tokens and hours


def _problems(config: Config, name: str) -> int:
    source = config.data.train if name == "train" else config.data.evaluation[name]
    count = source.size if source.size is not None else config.plan.problems.get(name)
    if count is None:
        raise UserError(f"plan.problems has no {name!r}: say about how many problems it has")
    return count


def _calls(config: Config, step: str) -> list[int]:
    """How many responses each kind of call to the engine samples."""
    training = config.training
    if step == "pass_rates":
        return [_problems(config, "train") * config.pass_rates.samples]
    if step == "evaluate":
        return [_problems(config, name) * config.evaluation.samples[name] for name in config.data.evaluation]
    return [training.prompts_per_step * training.group_size, training.validation_problems * training.validation_samples]


def sampling_seconds(config: Config, responses: int, trains: bool) -> float:
    """Seconds of one call to the engines of all ranks.

    A decoding step reads the weights and the KV cache of all running sequences, or computes, whichever takes longer.
    When most responses have ended the longest go on alone, step by step, up to the limit of new tokens.
    """
    plan, shape, engine = config.plan, config.model.shape, config.engine
    mean = min(plan.response_tokens, config.sampling.max_new_tokens)
    share = math.ceil(responses / ranks_of(config))
    measured = plan.measured.get(config.model.name)
    if measured is not None:
        return share * mean / measured.sampled
    fitting = sampling_memory(config, trains)["KV cache"] // (
        (plan.prompt_tokens + mean) * kv_bytes(shape, engine.dtype)
    )
    running = max(1, min(config.sampling.batch_size, share, fitting))

    def step_seconds(sequences: float) -> float:
        # On average a running sequence is at the middle of its response.
        read = parameters(shape) * BYTES[engine.dtype]
        read += sequences * (plan.prompt_tokens + mean / 2) * kv_bytes(shape, engine.dtype)
        memory = read / (plan.bandwidth_gb_s * 1e9 * plan.decoding_mbu)
        compute = 2 * sequences * _multiplied(shape) / (plan.tflops * 1e12 * plan.training_mfu)
        return plan.decode_step_ms / 1e3 + max(memory, compute)

    alone = config.sampling.max_new_tokens - mean
    return share * mean / running * step_seconds(running) + alone * step_seconds(1)


def training_seconds(config: Config) -> float:
    """Seconds of scoring and updating in one step."""
    plan, shape, training = config.plan, config.model.shape, config.training
    length = plan.prompt_tokens + min(plan.response_tokens, config.sampling.max_new_tokens)
    tokens = training.prompts_per_step * training.group_size * length
    backward = 3 if training.activation_checkpointing else 2  # forward passes that it is worth
    grpo = 1 + 1 + backward  # score, then update
    passes = grpo
    if training.updates_per_batch > 1:
        passes += 1  # some methods weigh anew before every update
    if training.entropy_change_every:
        passes += 1 / training.entropy_change_every
    if training.advantage == "gae":
        passes += grpo
    measured = plan.measured.get(config.model.name)
    if measured is not None:
        return tokens / ranks_of(config) / measured.trained * passes / grpo
    attention = 2 * shape.layers * shape.heads * shape.head_size * length  # causal: half of the square
    forward = 2 * _multiplied(shape) + attention
    return tokens * passes * forward / (plan.tflops * 1e12 * plan.training_mfu * ranks_of(config))


def _multiplied(shape: ShapeConfig) -> int:
    """Parameters that every token is multiplied with: an embedding of its own is only looked up."""
    return parameters(shape) - (0 if shape.tied_embeddings else shape.vocabulary * shape.hidden_size)


def _validations(config: Config) -> int:
    every = config.training.validation_every
    return math.ceil(config.training.steps / every) if every else 0


def _job(step: str, config: Config, family: str, example: str, count: int) -> Job:
    training, plan = config.training, config.plan
    for key in ("gpu_memory_gib", "tflops", "bandwidth_gb_s"):
        if getattr(plan, key) <= 0:
            raise UserError(f"plan.{key} is {getattr(plan, key):g}: say in the scale's config what its GPUs have")
    mean = min(plan.response_tokens, config.sampling.max_new_tokens)
    trains = step == "train"
    calls = _calls(config, step)
    times = [training.steps, _validations(config)] if trains else [1] * len(calls)
    seconds = 60 * plan.startup_minutes
    seconds += sum(n * sampling_seconds(config, responses, trains) for n, responses in zip(times, calls, strict=True))
    seconds += training.steps * training_seconds(config) if trains else 0
    return Job(
        step,
        config.model.name,
        config.model.pretrained.rpartition("/")[2] if config.model.substitute else "",
        family,
        example,
        count,
        ranks_of(config),
        sampling_memory(config, trains),
        training_memory(config) if trains else {},
        host_memory(config, step),
        tokens_sampled=mean * sum(n * responses for n, responses in zip(times, calls, strict=True)),
        tokens_trained=training.steps * calls[0] * (plan.prompt_tokens + mean) if trains else 0,
        hours=seconds / 3600,
    )


def _disk(
    of_model: dict[str, Config], trained: Sequence[Run], evaluated: Sequence[Run], loaded: dict[tuple[str, str], Config]
) -> dict[str, float]:
    """Bytes on disk at the end, and beside them the checkpoints of one run at a time."""

    def weights(config: Config) -> float:
        return parameters(config.model.shape) * BYTES[config.engine.dtype]

    needed = dict.fromkeys(run.model for run in [*trained, *evaluated])
    samples = sum(sum(_calls(of_model[run.model], "evaluate")) for run in evaluated)
    checkpoints = [
        (config.training.checkpoints_kept + 1)
        * checkpoint_bytes(config)  # the next one is written before the last one goes
        for config in loaded.values()
        if config.training.checkpoint_every
    ]
    return {
        "models": sum(weights(of_model[name]) for name in needed),
        "policies": sum(weights(of_model[run.model]) for run in trained),
        "checkpoints of a run": max(checkpoints, default=0),
        "samples": 100.0 * samples,  # a row of numbers a sample; texts are not kept
    }


# Does it fit?


def check_fits(plan: Plan, scale: str, overrides: Sequence[str] = (), configs: Path = CONFIGS) -> None:
    """Raise UserError for the first kind of job that needs more memory than a GPU has, with the knobs to turn."""
    for job in plan.jobs:
        run = (job.model, job.example) if job.example else (job.model,)
        config = load_config(scale, *run, overrides=overrides, configs=configs)
        problem = misfit(config, job.step)
        if problem is None:
            continue
        advice = []
        for verb, key, values in _remedies(config):
            value = next((one for one in values if misfit(_with(config, key, one), job.step) is None), None)
            if value is not None:
                advice.append(f"{verb} {key} to {str(value).lower()}")
        method = f" with {job.example}" if job.example else ""
        raise UserError(
            f"{job.label}{method} {problem}: {' or '.join(advice) or 'no one setting mends that; take larger GPUs'}"
        )


def _remedies(config: Config) -> list[tuple[str, str, list]]:
    """(verb, key, values to try in turn): settings that save memory, the least change first."""
    longest = config.sampling.max_prompt_tokens + config.sampling.max_new_tokens
    tokens = [2**k for k in range(20, 9, -1) if longest <= 2**k < config.training.tokens_per_micro_batch]
    cache = config.engine.kv_cache_gib
    return [
        ("set", "training.activation_checkpointing", [] if config.training.activation_checkpointing else [True]),
        ("set", "training.reduce_every_micro_batch", [] if config.training.reduce_every_micro_batch else [True]),
        ("lower", "training.tokens_per_micro_batch", tokens),
        ("set", "engine.gpu_memory_utilization", [] if cache else [share / 100 for share in range(95, 5, -5)]),
        ("set", "engine.kv_cache_gib", [2**k for k in range(6, -1, -1)] if cache else []),
        ("raise", "hardware.ranks", [ranks for ranks in (2, 4, 8) if ranks > ranks_of(config)]),  # of one machine
    ]


def _with(config: StageConfig, key: str, value: float | str) -> StageConfig:
    section, name = key.split(".")
    own = getattr(config, section).model_copy(update={name: value})
    return config.model_copy(update={section: own})


# For Snakemake


def resources(config: Config, step: str) -> dict[str, int]:
    """What a rule asks its cluster for: `gpu` (0 on a CPU), `mem_mb` (host memory), `runtime` (minutes).

    Args:
        config: of the job: with its model, and its method for `train`.
        step: model | pass_rates | train | evaluate

    `runtime` is the planned time times `plan.safety`: the job is ended there.
    """
    safety = config.plan.safety
    if config.hardware.device == "cpu":
        return {"gpu": 0, "mem_mb": _mb(ranks_of(config) * HOST_ON_A_CPU), "runtime": CPU_MINUTES}
    if step == "model":
        size = 2 * parameters(config.model.shape)
        minutes = safety * size / DOWNLOAD / 60 + config.plan.startup_minutes
        return {"gpu": 0, "mem_mb": _mb(HOST_OF_A_RANK + 2 * size), "runtime": math.ceil(minutes)}
    job = _job(step, config, "", "", 1)
    return {"gpu": job.gpus, "mem_mb": _mb(job.host), "runtime": math.ceil(safety * 60 * job.hours)}


def _mb(size: float) -> int:
    return math.ceil(size / 1e6)


# As text


def write_plan(plan: Plan, markdown: bool = False) -> str:
    """Tables for a terminal, or in Markdown."""
    config, stated = plan.config, plan.config.plan
    if plan.on_cpu is not None:
        runs, evaluations = plan.on_cpu
        return (
            f"Scale {config.scale} runs on a CPU: {runs} training runs and {evaluations} evaluations of stand-ins, "
            "which need no plan."
        )
    each = plan.jobs[0].gpus if plan.jobs else 0
    overview = [
        [
            job.label,
            job.name,
            str(job.count),
            str(job.gpus),
            f"{sum(job.sampling.values()) / GIB:.0f}",
            f"{sum(job.training.values()) / GIB:.0f}" if job.training else "",
            f"{job.host / GIB:.0f}",
            f"{job.tokens_sampled / 1e6:.0f}",
            f"{job.tokens_trained / 1e6:.0f}" if job.tokens_trained else "",
            f"{job.hours:.1f}",
            f"{job.count * job.gpus * job.hours:,.0f}",
        ]
        for job in plan.jobs
    ]
    head = ["model", "job", "how many", "GPUs", "GiB sampling", "GiB training", "host GiB"]
    head += ["M tokens sampled", "M tokens trained", "hours each", "GPU-hours in all"]
    trained = [job for job in plan.jobs if job.training]
    disk = ", ".join(f"{what} {max(size / 1e9, 1):,.0f} GB" for what, size in plan.disk.items())
    measured = f"; measured for {', '.join(plan.config.plan.measured)}" if stated.measured else ""
    parts = [
        f"Scale {config.scale} on {stated.gpu}, {stated.gpu_memory_gib:g} GiB each:",
        _table(head, overview, 2, markdown),
        f"In sum {plan.gpu_hours:,.0f} GPU-hours: {plan.hours:,.0f} hours ({plan.hours / 24:.1f} days) on {each} "
        f"GPU{'s' if each != 1 else ''}, one job after the other. Disk: {disk}.",
        "Memory of a GPU while the engine samples, in GiB:",
        _memory_table([(job, job.sampling) for job in plan.jobs if job.step != "evaluate"], markdown),
        "Memory of a GPU at the peak of an update, the engine asleep, in GiB:",
        _memory_table([(job, job.training) for job in trained], markdown),
        f"Reckoned with {stated.tflops:g} TFLOPS, of which training reaches {stated.training_mfu:.0%}, "
        f"{stated.bandwidth_gb_s:g} GB/s, of which decoding reaches {stated.decoding_mbu:.0%}, "
        f"{stated.decode_step_ms:g} ms a decoding step beside that, and responses of "
        f"{stated.response_tokens:g} tokens where a model's config says no other number{measured}.",
    ]
    return "\n\n".join(parts)


def _memory_table(rows: Sequence[tuple[Job, dict[str, float]]], markdown: bool) -> str:
    names = list(dict.fromkeys(name for _, parts in rows for name in parts))

    def total(parts: dict[str, float]) -> str:
        return f"{sum(parts.values()) / GIB:.1f}"

    cells = [
        [job.label, job.name, *(f"{parts[name] / GIB:.1f}" if name in parts else "" for name in names), total(parts)]
        for job, parts in rows
    ]
    return _table(["model", "job", *names, "sum"], cells, 2, markdown)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int, markdown: bool) -> str:
    """Columns under their heads, the first `left` of them aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return f"| {' | '.join(padded)} |" if markdown else "  ".join(padded).rstrip()

    rule = ["-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    body = [line(head), *([line(rule)] if markdown else []), *map(line, rows)]
    return "\n".join(body)
