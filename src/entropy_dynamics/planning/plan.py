"""The cost of a scale, estimated from its config before anything is started: memory, tokens, hours, disk.

Memory follows from what trainer and engine hold at a time (footprint.py), hours from the throughput that the `plan`
section assumes or gives as measured. Sizes are in bytes. Snakemake calls `resources`, so torch is imported only with
the methods of training runs on GPUs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from entropy_dynamics.analysis.claims import load_claims
from entropy_dynamics.analysis.experiments import EXPERIMENTS, Experiment, Run, known_experiments, load_experiment
from entropy_dynamics.config import BASE, CONFIGS, TRAIN, Config, RunConfig, StageConfig, load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.planning.footprint import (
    BYTES,
    GIB,
    checkpoint_buffers,
    checkpoint_bytes,
    engine_weights,
    kv_bytes,
    longest,
    memory,
    misfit,
    multiplied,
    parameters,
    ranks_of,
    sampling_memory,
)
from entropy_dynamics.sampling import PROMPTS_HELD
from entropy_dynamics.sampling.engines import find_engine

ROLLOUT_TOKEN = 70  # bytes of a sampled token and its log p as Python objects
HOST_PER_RANK = 8 * GIB  # Python, torch with CUDA, vLLM with its pinned buffers [ours]
HOST_PER_CPU_RANK = 4 * GIB  # of a toy model [ours]: 0.9 to 1.7 GiB measured
RUN_SIZES = (1, 2, 4, 8, 16)  # GPUs of a run to compare: parts of a machine of 8, all of it, two machines
CPU_MINUTES = 240  # time limit of a job with a toy model [ours]: a laptop run takes one to two minutes


@dataclass(frozen=True)
class Job:
    """Similar jobs of one stage on one model; its numbers are those of one job."""

    stage: str  # pass_rates | train | evaluate
    configs: tuple[StageConfig, ...]  # of each job; they differ in what their methods compute

    @property
    def config(self) -> StageConfig:
        return self.configs[0]

    @property
    def count(self) -> int:
        return len(self.configs)

    @property
    def name(self) -> str:
        return f"train, {_family(self.config)}" if self.trains else self.stage.replace("_", " ")

    @property
    def label(self) -> str:
        """The model, with the smaller one that runs in its place, if any."""
        model = self.config.model
        return f"{model.name} ({model.pretrained.rpartition('/')[2]})" if model.substitute else model.name

    @property
    def trains(self) -> bool:
        return self.stage == "train"

    @property
    def gpus(self) -> int:
        return ranks_of(self.config)

    @property
    def memory(self) -> dict[str, dict[str, float]]:
        """Bytes per GPU of each part, in each phase."""
        return memory(self.config, self.stage)

    @property
    def host(self) -> float:
        """Bytes of the host for all ranks together."""
        config = self.config
        responses = max(responses for _, responses in self.calls)
        if self.stage == "pass_rates":
            responses = min(responses, PROMPTS_HELD * config.pass_rates.samples)
        rollouts = responses * config.sampling.max_new_tokens * ROLLOUT_TOKEN / 2  # half of the limit, on average
        every_rank = self.gpus * (HOST_PER_RANK + rollouts)  # each has all rollouts
        return every_rank + (checkpoint_buffers(config) if self.trains else 0)

    @property
    def tokens_sampled(self) -> float:
        return _response_tokens(self.config) * sum(times * responses for times, responses in self.calls)

    @property
    def tokens_trained(self) -> float:
        return self.config.training.steps * _tokens_per_step(self.config) if self.trains else 0

    @property
    def hours(self) -> float:
        """Mean of the jobs."""
        seconds = 60 * self.config.plan.startup_minutes
        seconds += sum(times * sampling_seconds(self.config, each, self.trains) for times, each in self.calls)
        if self.trains:
            seconds += fmean(config.training.steps * training_seconds(config) for config in self.configs)
        return seconds / 3600

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.hours

    def on(self, gpus: int) -> "Job":
        """The same jobs with another number of GPUs each."""
        return Job(self.stage, tuple(_changed(config, "hardware.ranks", gpus) for config in self.configs))

    @property
    def calls(self) -> list[tuple[int, int]]:
        """(number of calls, responses per call) of each kind of call to the engine."""
        config, training = self.config, self.config.training
        if self.stage == "pass_rates":
            return [(1, _problems(config, TRAIN) * config.pass_rates.samples)]
        if self.stage == "evaluate":
            return [(1, _problems(config, one) * config.evaluation.samples[one]) for one in config.data.evaluation]
        every = training.validation_every
        validations = math.ceil(training.steps / every) if every else 0
        return [
            (training.steps, training.prompts_per_step * training.group_size),
            (validations, training.validation_problems * training.validation_samples),
        ]


@dataclass(frozen=True)
class Plan:
    config: Config
    trained: int  # number of runs
    evaluated: int
    jobs: tuple[Job, ...] = ()  # none at a scale without GPUs
    disk: dict[str, float] = field(default_factory=dict)  # bytes, by purpose

    @property
    def gpu_hours(self) -> float:
        return sum(job.count * job.gpu_hours for job in self.jobs)


def make_plan(
    scale: str, overrides: Sequence[str] = (), configs: Path = CONFIGS, experiments: Path = EXPERIMENTS
) -> Plan:
    """The plan of all that a scale's experiments and claims need; `check_fits` checks it against the GPUs' memory.

    Raises:
        UserError: a mistake in the configs.
    """
    bare = load_config(scale, overrides=overrides, configs=configs)
    find_engine(bare.engine.name)
    trained, evaluated = _runs(bare, experiments)
    if bare.hardware.device == "cpu":
        return Plan(bare, len(trained), len(evaluated))
    jobs: list[Job] = []
    for model in bare.models:
        config = load_config(scale, model, overrides=overrides, configs=configs)
        if trained and model == bare.pass_rates.model:
            jobs.append(Job("pass_rates", (config,)))
        methods = dict.fromkeys(run.method for run in (*trained, *evaluated) if run.model == model)
        configs_of = {method: load_config(scale, model, method, overrides, configs) for method in methods}
        groups: dict[tuple[str, str, int], list[RunConfig]] = {}
        for stage, runs in (("train", trained), ("evaluate", evaluated)):
            for run in runs:
                if run.model == model:
                    of_run = configs_of[run.method]
                    kind = _family(of_run) if stage == "train" else ""
                    groups.setdefault((stage, kind, ranks_of(of_run)), []).append(of_run)
        jobs += [Job(stage, tuple(runs)) for (stage, _, _), runs in groups.items()]
    return Plan(bare, len(trained), len(evaluated), tuple(jobs), _disk(jobs))


def check_fits(plan: Plan) -> None:
    """Raise UserError for the first job that needs more memory than a GPU has, with the settings that would help."""
    for job in plan.jobs:
        problem = misfit(job.config, job.stage)
        if problem is None:
            continue
        advice = []
        for verb, key, values in _remedies(job.config):
            fitting = (value for value in values if misfit(_changed(job.config, key, value), job.stage) is None)
            if (value := next(fitting, None)) is not None:
                advice.append(f"{verb} {key} to {str(value).lower()}")
        family = f" with {_family(job.config)}" if job.trains else ""
        raise UserError(f"{job.label}{family} {problem}: {' or '.join(advice) or 'no single setting helps'}")


def resources(config: StageConfig, stage: str) -> dict[str, int]:
    """The resources that a rule requests: `gpu`, `mem_mb` of each host, and `runtime`, the time limit in minutes.

    Args:
        config: of the job: with its model, and its method for `train` and `evaluate`.
        stage: model | pass_rates | train | evaluate | theory
    """
    find_engine(config.engine.name)  # when Snakemake plans its jobs, before any of them runs
    if config.hardware.device == "cpu" or stage == "model":  # of a toy model; pretrained ones are downloaded locally
        gpus = int(config.hardware.device == "cuda" and config.model.name in config.toy_models)
        host, minutes = ranks_of(config) * HOST_PER_CPU_RANK, float(CPU_MINUTES)
    else:
        theory = stage == "theory"  # an evaluation of a few problems in one process, which loads the model in fp32
        job = Job("evaluate", (config,)).on(1) if theory else Job(stage, (config,))
        host = (
            job.host + BYTES["float32"] * parameters(config.model.shape) if theory else job.host / config.hardware.nodes
        )
        gpus, minutes = job.gpus, config.plan.safety * 60 * job.hours
    minutes = min(minutes, 60 * config.plan.max_job_hours)
    return {"gpu": gpus, "mem_mb": math.ceil(host / 1e6), "runtime": math.ceil(minutes)}


def write_plan(plan: Plan, markdown: bool = False) -> str:
    """Tables for a terminal, or in Markdown."""
    config, stated, gpu = plan.config, plan.config.plan, plan.config.plan.hardware
    if not plan.jobs:
        return (
            f"Scale {config.scale} runs on a CPU: {plan.trained} training runs and {plan.evaluated} evaluations of toy "
            "models, which need no plan."
        )
    overview = [
        {
            "model": job.label,
            "job": job.name,
            "how many": job.count,
            "GPUs": job.gpus,
            "GiB sampling": f"{sum(job.memory['sampling'].values()) / GIB:.0f}",
            "GiB training": f"{sum(job.memory['training'].values()) / GIB:.0f}" if job.trains else "",
            "host GiB": f"{job.host / GIB:.0f}",
            "M tokens sampled": f"{job.tokens_sampled / 1e6:.0f}",
            "M tokens trained": f"{job.tokens_trained / 1e6:.0f}" if job.trains else "",
            "hours each": f"{job.hours:.1f}",
            "GPU-hours in all": f"{job.count * job.gpu_hours:,.0f}",
        }
        for job in plan.jobs
    ]
    sampling = [_memory_row(job, "sampling") for job in plan.jobs if job.stage != "evaluate"]
    training = [_memory_row(job, "training") for job in plan.jobs if job.trains]
    sizes = [_size_row(job) for job in plan.jobs if job.trains]
    machine = ranks_of(config)
    disk = ", ".join(f"{what} {max(size / 1e9, 1):,.0f} GB" for what, size in plan.disk.items())
    measured = f"; measured for {', '.join(stated.measured)}" if stated.measured else ""
    return f"""\
Scale {config.scale} on {stated.gpu} GPUs of {gpu.memory_gib:g} GiB:

{_table(overview, markdown)}

In total {plan.gpu_hours:,.0f} GPU-hours, which keep {machine} GPU{"s" if machine > 1 else ""} busy for \
{plan.gpu_hours / machine:,.0f} hours ({plan.gpu_hours / machine / 24:.1f} days). Disk: {disk}.

GPU-hours of one run by its number of GPUs (-: does not fit):

{_table(sizes, markdown)}

Runs are independent, so the size with the fewest GPU-hours also finishes all of them first, while enough are left to \
keep every GPU busy: runs side by side instead of one on the whole machine, one run on each of two machines instead of \
one on both. Communication is not counted; between machines it would add to the last column.

Memory per GPU while the engine samples, in GiB:

{_table(sampling, markdown)}

Memory per GPU at the peak of an update, with the engine asleep, in GiB:

{_table(training, markdown)}

Estimated for {gpu.tflops:g} TFLOPS and {gpu.bandwidth_gb_s:g} GB/s (published), of which training reaches \
{gpu.training_mfu:.0%} and decoding {gpu.decoding_mbu:.0%} (assumed), {stated.decode_step_ms:g} ms per decoding step \
besides (assumed), and responses of {stated.response_tokens:g} tokens (assumed) where a model's config has no other \
number{measured}."""


def _memory_row(job: Job, phase: str) -> dict[str, str]:
    sizes = {"total": sum(job.memory[phase].values()), **job.memory[phase]}
    return {"model": job.label, "job": job.name} | {name: f"{size / GIB:.1f}" for name, size in sizes.items()}


def _size_row(job: Job) -> dict[str, str]:
    resized = {gpus: job.on(gpus) for gpus in RUN_SIZES}
    hours = {gpus: "-" if misfit(one.config, one.stage) else f"{one.gpu_hours:,.1f}" for gpus, one in resized.items()}
    return {"model": job.label, "job": job.name} | {str(gpus): text for gpus, text in hours.items()}


def _table(rows: Sequence[dict[str, str]], markdown: bool) -> str:
    from tabulate import tabulate

    style = "pipe" if markdown else "plain"
    return tabulate(rows, "keys", style, disable_numparse=True, stralign="right", colalign=("left", "left"))


def _runs(config: Config, experiments: Path) -> tuple[list[Run], list[Run]]:
    """The distinct runs to train and to evaluate, in a fixed order."""
    seeds, names = dict(config.seeds), config.experiments or known_experiments(experiments)
    needed = [load_experiment(name, config.scale, seeds, experiments) for name in names]
    unknown = [run.model for one in needed for run in one.runs if run.model not in config.models]
    if unknown:
        raise UserError(
            f"scale {config.scale} has no model {unknown[0]!r}, which its experiments need: add it to `models`, or "
            "list in `experiments` only those that do not"
        )
    if config.experiments is None:
        needed += load_claims(config.scale, seeds, experiments)
    trained, evaluated = {}, {}
    for one in needed:
        runs = one.runs if isinstance(one, Experiment) else one.all_runs()
        runs = dict.fromkeys(run for run in runs if run.model in config.models)
        trained |= runs
        evaluated |= runs if one.evaluations else {}
    return [run for run in trained if run.method != BASE], list(evaluated)


def _family(config: RunConfig) -> str:
    """Runs of one family have the same memory and number of updates."""
    if config.training.advantage == "gae":
        return "PPO"
    return "GRPO" if config.training.updates_per_batch == 1 else "several updates"


def sampling_seconds(config: StageConfig, responses: int, trains: bool) -> float:
    """Seconds of one call to the engines of all ranks.

    A decoding step takes as long as reading the weights and the KV cache of all running sequences, or as computing,
    whichever is longer. When most responses have ended the longest continue alone, up to the limit of new tokens.
    """
    plan, gpu, shape, engine = config.plan, config.plan.hardware, config.model.shape, config.engine
    mean = _response_tokens(config)
    share = math.ceil(responses / ranks_of(config))
    if config.model.name in plan.measured:
        return share * mean / plan.measured[config.model.name].sampled
    kv_cache = sampling_memory(config, trains)["KV cache"]
    fitting = kv_cache // ((plan.prompt_tokens + mean) * kv_bytes(shape, engine.dtype))
    running = max(1, min(config.sampling.batch_size, share, fitting))

    def step_seconds(sequences: float) -> float:
        # A running sequence is on average in the middle of its response.
        read = engine_weights(config) + sequences * (plan.prompt_tokens + mean / 2) * kv_bytes(shape, engine.dtype)
        reading = read / (gpu.bandwidth_gb_s * 1e9 * gpu.decoding_mbu)
        computing = 2 * sequences * multiplied(shape) / (gpu.tflops * 1e12 * gpu.training_mfu)
        return plan.decode_step_ms / 1e3 + max(reading, computing)

    alone = config.sampling.max_new_tokens - mean
    return share * mean / running * step_seconds(running) + alone * step_seconds(1)


def training_seconds(config: RunConfig) -> float:
    """Seconds of one training step besides sampling: scoring, updates, measurements."""
    plan, shape, training = config.plan, config.model.shape, config.training
    method, tokens = config.method.params, _tokens_per_step(config)
    update = 4 if training.activation_checkpointing == "full" else 3  # in forward passes; the 4th is recomputation
    passes = update + _needs_scoring_pass(config)
    if method.per_update:  # the tokens of all updates but the first are scored again
        passes += 1 - 1 / training.updates_per_batch
    if training.entropy_change_every:
        passes += 1 / training.entropy_change_every
    if training.advantage == "gae":
        passes += 1 + update  # the critic's values, and its update
    if config.model.name in plan.measured:
        return tokens / ranks_of(config) / plan.measured[config.model.name].trained * passes / update
    length = plan.prompt_tokens + _response_tokens(config)
    attention = 2 * shape.layers * shape.heads * shape.head_size * length  # causal: half of the square
    flops = tokens * passes * (2 * multiplied(shape) + attention)
    return flops / (plan.hardware.tflops * 1e12 * plan.hardware.training_mfu * ranks_of(config))


def _needs_scoring_pass(config: RunConfig) -> bool:
    from entropy_dynamics.training.scoring import Scoring, choose_scoring

    fits = _tokens_per_step(config) <= config.training.single_forward_tokens
    scoring = choose_scoring(config.method.params, config.training.updates_per_batch, fits_single_forward=fits)
    return scoring is Scoring.SCORING_PASS


def _response_tokens(config: Config) -> float:
    """Mean length of a response."""
    return min(config.plan.response_tokens, config.sampling.max_new_tokens)


def _tokens_per_step(config: Config) -> float:
    """Tokens of a training batch, prompts included."""
    rollouts = config.training.prompts_per_step * config.training.group_size
    return rollouts * (config.plan.prompt_tokens + _response_tokens(config))


def _problems(config: Config, name: str) -> int:
    count = getattr(config.data.sets[name], "size", None) or config.plan.problems.get(name)
    if count is None:
        raise UserError(f"plan.problems has no {name!r}: state its approximate size")
    return count


def _disk(jobs: Sequence[Job]) -> dict[str, float]:
    trained = [job for job in jobs if job.trains]
    checkpoints = [
        (job.config.training.checkpoints_kept + 1) * checkpoint_bytes(job.config)  # one more while it is written
        for job in trained
        if job.config.training.checkpoint_every
    ]
    return {
        "models": sum({job.config.model.name: engine_weights(job.config) for job in jobs}.values()),
        "policies": sum(job.count * engine_weights(job.config) for job in trained),
        "checkpoints of a run": max(checkpoints, default=0),
    }


def _remedies(config: StageConfig) -> list[tuple[str, str, Sequence[float | str]]]:
    """(verb, key, values to try in turn): settings that save memory, the smallest change first."""
    training, engine = config.training, config.engine
    tokens = [2**k for k in range(20, 9, -1) if longest(config) <= 2**k < training.tokens_per_micro_batch]
    kinds = ["none", "selective", "full"]
    shares = [share / 100 for share in range(95, 5, -5)]
    return [
        ("set", "training.activation_checkpointing", kinds[kinds.index(training.activation_checkpointing) + 1 :]),
        ("set", "training.reduce_every_micro_batch", [True] * (not training.reduce_every_micro_batch)),
        ("lower", "training.tokens_per_micro_batch", tokens),
        ("set", "engine.gpu_memory_utilization", [] if engine.kv_cache_gib else shares),
        ("set", "engine.kv_cache_gib", [2**k for k in range(6, -1, -1)] if engine.kv_cache_gib else []),
        ("raise", "hardware.ranks", [ranks for ranks in (2, 4, 8) if ranks > ranks_of(config)]),  # of one machine
    ]


def _changed(config: StageConfig, key: str, value: float | str) -> StageConfig:
    section, name = key.split(".")
    return config.model_copy(update={section: getattr(config, section).model_copy(update={name: value})})
