"""The cost of a scale, estimated from its config before anything is started: memory, tokens, hours, disk.

footprint.py computes the memory of a job, duration.py its time. Sizes are in bytes.
Snakemake calls `resources`, so torch is imported only for the methods of training runs on GPUs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from entropy_dynamics.config import BASE, TRAIN, Config, StageConfig, configured_shorter_runs, load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.claims import JUDGED, load_claims
from entropy_dynamics.experiments.load import Experiment, Run, experiment_files, load_experiment
from entropy_dynamics.planning.duration import response_tokens, sampling_seconds, tokens_per_step, training_seconds
from entropy_dynamics.planning.footprint import GIB, checkpoint_buffers, checkpoint_bytes, memory, misfits, weight_bytes
from entropy_dynamics.sampling import PROMPTS_HELD

TEMPERATURES = ("temperatures", "control_temperatures")  # keys of `evaluation`: trained policies, evaluated again
ROLLOUT_TOKEN_BYTES = 70  # bytes of a sampled token and its log p as Python objects
HOST_PER_RANK = 8 * GIB  # bytes for Python, torch with CUDA, vLLM with its pinned buffers [ours]
HOST_PER_CPU_RANK = 4 * GIB  # bytes for a rank, with a toy model [ours]; 0.9 to 1.7 GiB measured
CPU_HOURS = 4.0  # time limit of a job with a toy model, hours [ours]; a laptop run takes one to two minutes


@dataclass(frozen=True)
class Job:
    """Similar jobs of a stage on a model; numbers are per job."""

    stage: str  # pass_rates | train (with the evaluation of its policy) | evaluate (untrained) | one of `TEMPERATURES`
    configs: tuple[StageConfig, ...]  # one per job; they differ in what their methods compute

    @property
    def config(self) -> StageConfig:
        return self.configs[0]

    @property
    def count(self) -> int:
        return len(self.configs)

    @property
    def name(self) -> str:
        what = "train" if self.config.training.steps else "earlier steps"
        return f"{what}, {_family(self.config)}" if self.trains else self.stage.replace("_", " ")

    @property
    def label(self) -> str:
        """The name of the model and, if another one runs in its place, that one."""
        model = self.config.model
        if model.name in self.config.toy_models:
            return f"{model.name} (toy model)"
        source = model.path or (model.package.name if model.package else model.pretrained)
        return f"{model.name} ({Path(source or '').name})" if model.substitute else model.name

    @property
    def trains(self) -> bool:
        return self.stage == "train"

    @property
    def gpus(self) -> int:
        return self.config.hardware.processes

    @property
    def memory(self) -> dict[str, dict[str, float]]:
        """Bytes per GPU, or per process on a CPU, of each part in each phase."""
        return memory(self.config, self.stage)

    @property
    def host(self) -> float:
        """Bytes of host memory, over all ranks."""
        config = self.config
        responses = max(responses for _, responses in self.calls)
        if self.stage == "pass_rates":
            responses = min(responses, PROMPTS_HELD * config.pass_rates.samples)
        rollouts = responses * config.sampling.max_new_tokens * ROLLOUT_TOKEN_BYTES / 2  # half of the limit, on average
        on_cpu = HOST_PER_CPU_RANK + max(sum(parts.values()) for parts in self.memory.values())
        process = on_cpu if config.hardware.device == "cpu" else HOST_PER_RANK
        ranks = self.gpus * (process + rollouts)  # each has all rollouts
        saved = max(checkpoint_buffers(config), 2 * weight_bytes(config))  # the policy as tensors and as a file
        return ranks + (saved if self.trains else 0)

    @property
    def tokens_sampled(self) -> float:
        return response_tokens(self.config) * sum(times * responses for times, responses in self.calls)

    @property
    def tokens_trained(self) -> float:
        return self.config.training.steps * tokens_per_step(self.config) if self.trains else 0

    @property
    def hours(self) -> float:
        """Mean duration of the jobs, hours."""
        seconds = 60 * self.config.plan.startup_minutes
        seconds += sum(times * sampling_seconds(self.config, each, self.trains) for times, each in self.calls)
        if self.trains:
            seconds += fmean(config.training.steps * training_seconds(config) for config in self.configs)
        return seconds / 3600

    @property
    def calls(self) -> list[tuple[int, int]]:
        """(number of calls, responses per call) for each kind of engine call."""
        config, training = self.config, self.config.training
        if self.stage == "pass_rates":
            return [(1, _problems(config, TRAIN) * config.pass_rates.samples)]
        samples = config.evaluation.samples
        evaluation = [(1, _problems(config, name) * samples[name]) for name in config.data.evaluation]
        if self.stage in TEMPERATURES:
            # One greedy response per problem costs little.
            sampled = sum(each > 0 for each in getattr(config.evaluation, self.stage))
            return [(sampled, responses) for _, responses in evaluation]
        if self.stage == "evaluate":
            return evaluation
        every = training.validation_every
        validations = math.ceil(training.steps / every) if every else 0
        return [
            (training.steps, training.prompts_per_step * training.group_size),
            (validations, training.validation_problems * training.validation_samples),
            *evaluation,
        ]


@dataclass(frozen=True)
class Plan:
    config: Config
    trained: int  # number of runs
    shorter: int  # number of runs whose policy a longer one leaves (`training.keep_steps`)
    evaluated: int  # number of evaluations of untrained models
    jobs: tuple[Job, ...]  # on a CPU only those of pretrained models
    disk: dict[str, float]  # bytes, by purpose
    settings: tuple[str, ...]  # of --set
    target: str | None

    @property
    def gpu_hours(self) -> float:
        return sum(job.count * (job.gpus * job.hours) for job in self.jobs)


def make_plan(scale: str, overrides: Sequence[str] = (), target: str | None = None) -> Plan:
    """The plan for everything that a scale's experiments and claims need. See `check_fits` for GPU memory."""
    bare = load_config(scale, overrides=overrides)
    runs_of = needed_runs(bare, target)
    trained = runs_of["train"]
    pairs = dict.fromkeys((run.model, run.method) for run in trained)
    names = {pair: configured_shorter_runs(scale, *pair, overrides) for pair in pairs}
    left = {(run.model, name, run.seed) for run in trained for name in names[run.model, run.method]}
    shorter = {run.path for run in trained} & left
    jobs: list[Job] = []
    for model in bare.models:
        if bare.hardware.device == "cpu" and model in bare.toy_models:
            continue
        config = load_config(scale, model, overrides=overrides)
        if trained and model == bare.pass_rates.model:
            untrained = {bare.untrained(model, run.seed) for run in trained}
            jobs.append(Job("pass_rates", (config,) * len(untrained)))
        runs = [(stage, run) for stage, runs in runs_of.items() for run in runs if run.model == model]
        methods = dict.fromkeys(run.method for _, run in runs)
        loaded = {method: load_config(scale, model, method, overrides) for method in methods}
        groups: dict[tuple[str, str, int, bool], list[StageConfig]] = {}
        for stage, run in runs:
            own, earlier = loaded[run.method], stage == "train" and run.path in shorter
            kind = (stage, _family(own) if stage == "train" else "", own.hardware.processes, earlier)
            groups.setdefault(kind, []).append(own.changed("training", steps=0) if earlier else own)
        jobs += [Job(stage, tuple(same)) for (stage, *_), same in groups.items()]
    counts = len(trained) - len(shorter), len(shorter), len(runs_of["evaluate"])
    return Plan(bare, *counts, tuple(jobs), _disk(jobs, [model for model, *_ in left]), tuple(overrides), target)


def format_plan(plan: Plan, markdown: bool = False) -> str:
    """The plan as plain text for a terminal, or as Markdown."""
    from tabulate import tabulate

    config, stated, gpu = plan.config, plan.config.plan, plan.config.plan.hardware
    on_cpu = config.hardware.device == "cpu"
    shorter = f", {plan.shorter} policies of their earlier steps" if plan.shorter else ""
    runs = f"{plan.trained} training runs{shorter} and {plan.evaluated} evaluations of untrained models"
    if not plan.jobs:
        where = "a CPU" if on_cpu else f"{stated.gpu} GPUs"
        return f"Scale {config.scale} runs on {where}: {runs}.{' Toy models need no plan.' * bool(config.toy_models)}"
    rows = [
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
            "GPU-hours in all": f"{job.count * (job.gpus * job.hours):,.0f}",
        }
        for job in plan.jobs
    ]
    timed = not on_cpu or all(job.config.model.name in stated.measured for job in plan.jobs)
    if on_cpu:
        shown = ["model", "job", "how many", "GiB sampling", "GiB training", "host GiB", *["hours each"] * timed]
        rows = [{name: row[name] for name in shown} for row in rows]
    style, left = "pipe" if markdown else "plain", ("left", "left")
    table = tabulate(rows, "keys", style, disable_numparse=True, stralign="right", colalign=left)
    disk = ", ".join(f"{what} {max(size / 1e9, 1):,.0f} GB" for what, size in plan.disk.items())
    if on_cpu:
        hours = "How long jobs take on a CPU is not estimated."
        if timed:
            hours = f"About {plan.gpu_hours:,.0f} hours on one core at the speed in plan.measured, without cold starts."
        return f"""\
Scale {config.scale} runs on a CPU: {runs}. Memory of the jobs with pretrained models, per process and in all:

{table}

Disk: {disk}. Toy models need no plan. {hours}"""
    machine = config.hardware.processes
    measured = f"; measured for {', '.join(stated.measured)}" if stated.measured else ""
    return f"""\
Scale {config.scale} on {stated.gpu} GPUs of {gpu.memory_gib:g} GiB:

{table}

In total {plan.gpu_hours:,.0f} GPU-hours, which keep {machine} GPU{"s" if machine > 1 else ""} busy for \
{plan.gpu_hours / machine:,.0f} hours ({plan.gpu_hours / machine / 24:.1f} days). Disk: {disk}.

Estimated for {gpu.tflops:g} TFLOPS and {gpu.bandwidth_gb_s:g} GB/s (published), of which training reaches \
{gpu.training_mfu:.0%} and decoding {gpu.decoding_mbu:.0%} (assumed), {stated.decode_step_ms:g} ms per decoding step \
besides (assumed), and responses of {response_tokens(config):g} tokens (assumed) where a model's config has no other \
number{measured}."""


def check_fits(plan: Plan) -> None:
    """Raise UserError for the first job that needs more memory than a GPU has; it names a setting that helps."""
    for job in plan.jobs:
        if problems := misfits(job.config, job.stage):
            problem = next(iter(problems.values()))
            family = f" with {_family(job.config)}" if job.trains else ""
            raise UserError(f"{job.label}{family} {problem}: {_advice(plan, job)}")


def _advice(plan: Plan, job: Job) -> str:
    """The first change of one setting with which the job has fewer phases that do not fit, and so has the plan."""
    config, now = job.config, misfits(job.config, job.stage)
    tokens, share = config.training.tokens_per_micro_batch, getattr(config.engine, "gpu_memory_utilization", None)
    halvings = range(1, (tokens // config.sampling.max_tokens).bit_length())
    shares = [each / 20 for each in range(1, 20)] if share else []
    changes: dict[str, list[Any]] = {  # key -> values, the one closest to the present first
        "engine.gpu_memory_utilization": sorted(shares, key=lambda each: (each > share, abs(each - share))),
        "training.tokens_per_micro_batch": [tokens >> halved for halved in halvings],
        "training.activation_checkpointing": ["full"],
        "training.reduce_every_micro_batch": [True],
        "hardware.ranks": [config.hardware.processes << doubled for doubled in (1, 2, 3)],
        "hardware.runs_per_gpu": [each for each in (4, 2, 1) if each < config.hardware.runs_per_gpu],
        "plan.gpu": sorted(config.plan.gpus, key=lambda name: config.plan.gpus[name].memory_gib),
    }
    for key, values in changes.items():
        section, _, name = key.partition(".")
        for value in values:
            setting = f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            left = misfits(config.changed(section, **{name: value}), job.stage)
            if left.keys() < now.keys() and _helps(plan, setting):
                return f"set {setting}"
    return f"no single setting is enough; change several of {', '.join(changes)}"


def _helps(plan: Plan, setting: str) -> bool:
    """Whether the scale's configs accept a setting, with which fewer phases of the plan's jobs do not fit."""
    try:
        other = make_plan(plan.config.scale, [*plan.settings, setting], plan.target)
    except UserError:
        return False
    before, after = (sum(len(misfits(job.config, job.stage)) for job in each.jobs) for each in (plan, other))
    return after < before


def resources(config: StageConfig, stage: str) -> dict[str, Any]:
    """The resources that a rule requests, under Snakemake's names.

    `gpu` is the total over all nodes; `threads` and `mem_mb` (MB) are per node; `runtime` is the time limit in minutes.
    The others are only for jobs on several nodes: they give each node one task, and `mpi` leaves srun to the job's
    command (distributed/launch.py). `stage` is model, theory or one of a `Job`.
    """
    hardware, plan, is_toy = config.hardware, config.plan, config.model.name in config.toy_models
    if stage == "model" or (hardware.device == "cpu" and is_toy):  # pretrained models are downloaded without a GPU
        gpus = int(hardware.device == "cuda" and (is_toy or config.cold_start is not None))
        host, hours = config.hardware.per_node * HOST_PER_CPU_RANK, CPU_HOURS
    elif stage == "theory":  # evaluates a few problems in one process, which also loads the model in fp32
        job = Job("evaluate", (config.changed("hardware", ranks=1, nodes=1),))
        gpus, host, hours = 1, job.host + weight_bytes(config, "float32"), plan.safety * job.hours
    else:
        job = Job(stage, (config,))
        gpus, host, hours = job.gpus, job.host / hardware.nodes, plan.safety * job.hours
    if hardware.device == "cpu" and not is_toy and stage != "model":
        gpus, hours = 0, plan.max_job_hours  # how fast a CPU is with a pretrained model is unknown
    minutes = 60 * min(hours, plan.max_job_hours)
    needed = {"gpu": gpus, "mem_mb": math.ceil(host / 1e6), "runtime": math.ceil(minutes)}
    nodes = 1 if stage in ("model", "theory") else hardware.nodes
    needed |= {"nodes": nodes, "threads": config.threads * config.hardware.per_node}
    if nodes == 1:
        return needed
    on_each = f"--gpus-per-node={gpus // nodes}" if gpus else ""
    return needed | {"mpi": "srun", "tasks": nodes, "tasks_per_gpu": 0, "slurm_extra": on_each}


def needed_runs(config: Config, target: str | None) -> dict[str, list[Run]]:
    """The distinct runs of each stage, in a fixed order: those to train, to evaluate untrained, and of `TEMPERATURES`.

    They are those of `target` or, without a target, of the scale's `experiments` or of all experiments that are built
    by default. The target `field` consists only of claims, `controls` of experiments and claims.
    """
    seeds, experiments = dict(config.seeds), Path(config.experiments_folder)
    names = (None if target else config.experiments) or experiment_files(experiments)
    needed = [load_experiment(name, config.scale, seeds, experiments) for name in names]
    if target or config.experiments is None:
        needed = [each for each in needed if (each.folder == target if target else each.by_default)]
    models = [run.model for experiment in needed for run in experiment.runs]
    filtering = [config.pass_rates.model] if models else []
    if unknown := [model for model in (*models, *filtering) if model not in config.models]:
        instead = ", or list in `experiments` only those that do not" if target is None else ""
        raise UserError(
            f"scale {config.scale} has no model {unknown[0]!r}, which its experiments need: add it to `models`{instead}"
        )
    if target in JUDGED or (target is None and config.experiments is None):
        needed += load_claims(config.scale, seeds, experiments, folder=target)
    stages: dict[str, dict[Path, Run]] = {stage: {} for stage in ("train", "evaluate", *TEMPERATURES)}
    for item in needed:
        runs = item.runs if isinstance(item, Experiment) else item.all_runs()
        at = {*item.temperatures}
        needs = ["train", *(name for name in TEMPERATURES if at & {*getattr(config.evaluation, name)})]
        for run in runs:
            for stage in ["evaluate"] if run.method == BASE else needs:
                if run.model in config.models and (stage == "train" or item.evaluations):
                    stages[stage][run.path] = run
    return {stage: list(runs.values()) for stage, runs in stages.items()}


def _family(config: Config) -> str:
    """The family of a run; runs of a family have the same memory and number of updates."""
    if config.training.advantage == "gae":
        return "PPO"
    return "GRPO" if config.training.updates_per_batch == 1 else "several updates"


def _problems(config: Config, name: str) -> int:
    count = getattr(config.data.sets[name], "size", None) or config.plan.problems.get(name)
    if count is None:
        raise UserError(f"plan.problems has no {name!r}: state its approximate size")
    return count


def _disk(jobs: Sequence[Job], left: Sequence[str]) -> dict[str, float]:
    """Bytes by purpose; `left` has a model's name for each policy that a run leaves to a shorter one."""
    trained = [job for job in jobs if job.trains]
    kept = {job.config.model.name: weight_bytes(job.config, "float32") for job in trained}
    checkpoints = [
        (config.training.checkpoints_kept + 1) * checkpoint_bytes(config)  # plus the one being written
        for job in trained
        for config in job.configs
        if config.training.checkpoint_every
    ]
    largest = sorted(checkpoints, reverse=True)[: jobs[0].config.plan.runs_at_a_time] if jobs else []
    sizes = {
        "models": sum({job.config.model.name: weight_bytes(job.config) for job in jobs}.values()),
        "policies": sum(job.count * weight_bytes(job.config) for job in trained),
        "checkpoints of a run": max(largest, default=0),
        f"of {len(largest)} runs at a time": sum(largest),
        "policies left to shorter runs": sum(kept.get(model, 0) for model in left),
    }
    return {what: size for what, size in sizes.items() if size}
