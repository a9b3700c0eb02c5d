"""Stages `end_to_end`, `seeds`, `smollm2` and `smollm2_alone`: runs by the commands of the package, several on one GPU.

The first two are at the scale gpu-toy, the others at smollm2-gpu, with the pretrained weights in <work>/weights.
"""

import json
import math
import shutil
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIGKILL

import numpy as np
import pandas as pd
from safetensors.torch import load_file

from entropy_dynamics import cli
from entropy_dynamics.config import RunConfig, load_config
from entropy_dynamics.planning.duration import tokens_per_step
from entropy_dynamics.planning.footprint import shape_of
from entropy_dynamics.planning.plan import Job
from entropy_dynamics.results.layout import Layout
from gpu_check_common import MODEL, START_SECONDS, Case, Check, end_of

SCALE = "gpu-toy"
METHODS = ("grpo", "clip_b", "clip_v")
SMOLLM2, SMOLLM2_MODEL = "smollm2-gpu", "smollm2-135m-instruct"
SMOLLM2_METHODS = ("grpo", "clip_b", "random_mask", "clip_v")
ALONE_METHODS, ALONE_STEPS = SMOLLM2_METHODS[:2], 10
PAUSE = 0.05  # seconds between two looks for a checkpoint
KILLED = (MODEL, "grpo", 0)
# In models this small, time goes into launching kernels: that of one layer's forward pass, beside five other processes,
# and how many such passes take as long as a backward pass, and as Muon's step [estimates].
LAYER_SECONDS = 1e-3
BACKWARD = MUON = 2
TINY_RUN = [
    *("hardware.device=cpu", "data.evaluation.validation.size=2", "pass_rates.samples=2", "pass_rates.low=null"),
    *("pass_rates.high=null", "sampling.max_new_tokens=12", "training.steps=4", "training.prompts_per_step=2"),
    *("training.group_size=4", "training.checkpoint_every=1", "training.validation_problems=2"),
    "training.validation_samples=1",
]
TINY_MODEL = [
    *("hidden_size=32", "layers=1", "head_size=32", "heads=1", "kv_heads=1", "intermediate_size=48"),
    *("warm_start.steps=2", "warm_start.batch_size=2"),
]
TINY = {  # settings of each scale for a rehearsal
    SCALE: [
        *TINY_RUN,
        *("data.train.size=24", "data.evaluation.aime24.size=2", "data.evaluation.aime25.size=2"),
        *("data.evaluation.dapo500.size=4", "evaluation.samples={aime24: 2, aime25: 2, dapo500: 2}"),
        *(f"toy_models[{model}].{entry}" for model in load_config(SCALE).models for entry in TINY_MODEL),
    ],
    SMOLLM2: [
        *TINY_RUN,
        *("data.train.size=8", "data.evaluation.countdown3.size=2", "data.evaluation.countdown4.size=2"),
        *("evaluation.samples={countdown3: 2, countdown4: 2}", "cold_start.steps=2", "cold_start.batch_size=2"),
        *("training.steps=2", "training.keep_steps=[]"),
        "gate={pass_rate: null, mixed_groups: null, entropy: null, formatted: null, truncated: null}",
    ],
}
Arguments = Sequence[str]


@dataclass
class Command:
    """`entropy-dynamics <arguments>` in a process of its own."""

    arguments: Arguments
    process: BaseProcess
    log: Path
    started: float
    seconds: float = 0.0

    def end(self) -> None:
        """Kill it, unless it has ended by itself."""
        self.process.kill()
        self.process.join()
        self.seconds = time.monotonic() - self.started

    def record(self) -> Case:
        code, failed = self.process.exitcode, {"log": end_of(self.log)} if self.process.exitcode else {}
        return {"command": " ".join(self.arguments), "seconds": self.seconds, "exit_code": code} | failed


class Commands:
    """The commands of a scale in one results folder."""

    def __init__(self, check: Check, scale: str = SCALE, settings: Sequence[str] = ()):
        self.check, self.scale, self.results = check, scale, check.work / "runs"
        self.layout, self.models = Layout.of(scale, self.results), load_config(scale).models
        self.settings = [f"--set={entry}" for entry in [*settings, *(TINY[scale] if check.tiny else ())]]
        self.longest: dict[str, float] = defaultdict(float)  # seconds, by stage

    def start(self, arguments: Arguments) -> Command:
        stage, *others = arguments
        command = [stage, "--scale", self.scale, "--results", str(self.results), *self.settings, *others]
        log = self.results / "logs" / f"{'-'.join(arguments).replace('/', '_')}-{time.monotonic_ns()}.log"
        return Command(arguments, self.check.start(cli.main, command, log=log), log, time.monotonic())

    def ended(self, waiting: deque[Arguments]) -> Iterator[Command]:
        """Run commands, at most `processes` at a time and while there is time for another; yield each that has ended.

        When the time is over, those that still run are killed.
        """
        running: list[Command] = []
        while True:
            while waiting and len(running) < self.check.processes and self._has_time_for(waiting[0][0]):
                running.append(self.start(waiting.popleft()))
            if not running:
                return
            wait([command.process.sentinel for command in running], self.check.left())
            for command in [each for each in running if self.check.left() == 0 or not each.process.is_alive()]:
                command.end()
                running.remove(command)
                stage = command.arguments[0]
                self.longest[stage] = max(self.longest[stage], command.seconds)
                yield command

    def _has_time_for(self, stage: str) -> bool:
        return self.longest[stage] < self.check.left()

    def run(self, *commands: Arguments) -> bool:
        """Run commands side by side and record them. False if one failed or time ran out."""
        ended = list(self.ended(deque(commands)))
        self.check.write(commands=[*self.check.record.get("commands", []), *(command.record() for command in ended)])
        return len(ended) == len(commands) and not any(command.process.exitcode for command in ended)

    def problems(self) -> bool:
        """Build the problem sets, unless they are there."""
        return self.layout.problems_report.is_file() or self.run(["problems"])

    def next_of_seed(self, model: str, methods: Sequence[str], seed: int) -> list[Arguments]:
        """What a seed needs next: its untrained model, then its pass rates, then its runs, which evaluate."""
        of_seed = ["--seed", str(seed)]
        if not self.layout.facts(model, "base", seed).is_file():
            return [["model", "--model", model, *of_seed]]
        if not self.layout.pass_rates(seed).is_file():
            return [["pass_rates", *of_seed]]
        runs = [(model, method, seed) for method in methods]
        return [of_run("train", *run) for run in runs if not self.evaluated(*run)]

    def evaluated(self, model: str, method: str, seed: int) -> bool:
        return any(self.layout.evaluation(model, method, seed).glob("*.parquet"))

    def beside(self, name: str) -> Path:
        """Another results folder, with the data, untrained models and pass rates of this one."""
        folder = self.results / name
        other = Layout.of(self.scale, folder)
        shutil.rmtree(folder, ignore_errors=True)
        other.root.mkdir(parents=True)
        for shared in ("data", "models", "pass_rates"):
            (other.root / shared).symlink_to((self.layout.root / shared).resolve())
        return folder


def command_seconds(stage: str, config: RunConfig) -> float:
    """Estimate for a command: to start it, and to launch the passes through the model that its config asks for."""
    toy, training = config.toy_models.get(config.model.name), config.training
    layers = shape_of(config).layers
    if stage == "model":
        passes = (toy.warm_start if toy else config.cold_start).steps * (1 + BACKWARD + MUON)
        return START_SECONDS + LAYER_SECONDS * layers * passes
    passes = sum(
        times * math.ceil(responses / config.sampling.batch_size) * config.sampling.max_new_tokens
        for times, responses in Job(stage, (config,)).calls
    )
    if stage == "train":
        scored = config.method.params.needs_scores(training.updates_per_batch)
        measured = 1 / training.entropy_change_every if training.entropy_change_every else 0
        micro_batches = math.ceil(tokens_per_step(config) / training.tokens_per_micro_batch)
        passes += training.steps * micro_batches * (1 + BACKWARD + scored + measured)
    return START_SECONDS + LAYER_SECONDS * layers * passes


def wave_seconds(commands: Sequence[tuple[str, RunConfig]], processes: int) -> float:
    """Estimate for commands, of which as many as `processes` run at a time."""
    waves = math.ceil(len(commands) / processes)
    return waves * max(command_seconds(stage, config) for stage, config in commands)


def end_to_end_seconds(processes: int) -> float:
    """Estimate: problems and Table 1 take little more than a start each; the killed run counts as a whole one."""
    configs = {model: load_config(SCALE, model, METHODS[0]) for model in load_config(SCALE).models}
    runs = [load_config(SCALE, model, method) for model in configs for method in METHODS]
    waves = [
        [("model", config) for config in configs.values()],
        [("pass_rates", configs[MODEL])],
        [("train", configs[MODEL])],  # killed
        [("train", configs[MODEL])] * 2,  # resumed and undisturbed
        [("train", config) for config in runs[1:]],
        [("evaluate", config) for config in configs.values()],
    ]
    return 2 * START_SECONDS + sum(wave_seconds(wave, processes) for wave in waves)


def seeds_seconds(processes: int, scale: str = SCALE, model: str = MODEL, methods: Sequence[str] = METHODS) -> float:
    """Estimate for the problems and one seed, the least that the stage can show."""
    runs = [load_config(scale, model, method) for method in methods]
    waves = [
        [("model", runs[0])],
        [("pass_rates", runs[0])],
        [("train", run) for run in runs],
    ]
    return START_SECONDS + sum(wave_seconds(wave, processes) for wave in waves)


def smollm2_seconds(processes: int) -> float:
    return seeds_seconds(processes, SMOLLM2, SMOLLM2_MODEL, SMOLLM2_METHODS)


def smollm2_alone_seconds() -> float:
    settings = [f"training.steps={ALONE_STEPS}", "training.keep_steps=[]"]
    runs = [load_config(SMOLLM2, SMOLLM2_MODEL, method, settings) for method in ALONE_METHODS]
    return sum(command_seconds("train", run) for run in runs)


def of_run(stage: str, model: str, method: str, seed: int) -> list[str]:
    return [stage, "--model", model, "--method", method, "--seed", str(seed)]


def end_to_end(check: Check) -> None:
    """From problems to Table 1; one run is killed and resumed, and repeated undisturbed in another folder."""
    shutil.rmtree(check.work / "runs", ignore_errors=True)
    commands = Commands(check)
    runs = [(model, method, 0) for model in commands.models for method in METHODS]
    complete = (
        commands.problems()
        and commands.run(*(["model", "--model", model] for model in commands.models))
        and commands.run(["pass_rates"])
        and kill_and_resume(commands)
        and commands.run(*(of_run("train", *run) for run in runs if run != KILLED))
        and commands.run(*(of_run("evaluate", model, "base", 0) for model in commands.models))
        and commands.run(["draw", "table1"])
    )
    trained = [run for run in runs if commands.layout.metrics(*run).is_file()]
    check.write(complete=complete, runs=[summary(commands.layout, *run) for run in trained])
    if (table := commands.layout.table("table1", "csv")).is_file():
        check.write(table1=json.loads(pd.read_csv(table).to_json(orient="records")))


def kill_and_resume(commands: Commands) -> bool:
    """Kill a run by SIGKILL after its first checkpoint, resume it, and compare it with an undisturbed one."""
    check, layout, command = commands.check, commands.layout, of_run("train", *KILLED)
    killed = commands.start(command)
    while not any(layout.checkpoints(*KILLED).glob("*/step*")) and killed.process.is_alive() and check.left() > 0:
        time.sleep(PAUSE)
    killed.end()
    check.write(killed=killed.record())
    results = commands.beside("undisturbed")
    complete = commands.run(command, [*command, "--results", str(results)])
    if complete:
        check.write(resumed_against_undisturbed=difference(layout, Layout.of(SCALE, results)))
    return complete and killed.process.exitcode == -SIGKILL


def difference(resumed: Layout, undisturbed: Layout) -> Case:
    """Largest differences between two runs that should be equal: of a weight, and of a step's entropy in nats."""
    ours, theirs = (load_file(layout.policy(*KILLED) / "model.safetensors") for layout in (resumed, undisturbed))
    entropy = [pd.read_parquet(layout.metrics(*KILLED))["entropy"] for layout in (resumed, undisturbed)]
    return {
        "steps": len(entropy[0]),
        "weights": max((ours[name] - theirs[name]).abs().max().item() for name in ours),
        "entropy_nats": float((entropy[0] - entropy[1]).abs().max()),
    }


def summary(layout: Layout, model: str, method: str, seed: int) -> Case:
    """Entropy, accuracy and speed of a run, and its Avg@K where it is evaluated."""
    rows = pd.read_parquet(layout.metrics(model, method, seed))
    phases = [name for name in rows if name.startswith("seconds_") and name != "seconds_training"]
    evaluated = sorted(layout.evaluation(model, method, seed).glob("*.parquet"))
    return {
        "model": model,
        "method": method,
        "seed": seed,
        "entropy_nats": rows["entropy"].round(4).tolist(),
        "accuracy": rows["accuracy"].round(4).tolist(),
        "avg_at_k": {path.stem: float(pd.read_parquet(path)["correct"].mean()) for path in evaluated},
        "engine_logp_difference_nats": float(rows["engine_logp_difference"].max()),
        "median_seconds_per_step": {name.removeprefix("seconds_"): float(rows[name].median()) for name in phases},
        "response_tokens_per_second": float((rows["tokens"] / rows[phases].sum(axis=1)).median()),
    }


def seeds(check: Check) -> None:
    """As many seeds of GRPO, Clip_B and Clip_V as the time allows.

    Runs that `end_to_end` left in the same folder count.
    """
    train_seeds(check, Commands(check), MODEL, METHODS)


def smollm2(check: Check) -> None:
    """Like `seeds`, with SmolLM2-135M-Instruct and the methods of its study; <work>/weights has its GGUF file."""
    train_seeds(check, smollm2_commands(check), SMOLLM2_MODEL, SMOLLM2_METHODS)


def smollm2_commands(check: Check) -> Commands:
    return Commands(check, SMOLLM2, [f"model.path={(check.work / 'weights').resolve()}"])


def smollm2_alone(check: Check) -> None:
    """Seconds per step of GRPO and Clip_B with the GPU to themselves, from the untrained model that `smollm2` left."""
    commands = smollm2_commands(check)
    results, steps = commands.beside("alone"), 2 if check.tiny else ALONE_STEPS
    settings = ["--results", str(results), f"--set=training.steps={steps}", "--set=training.keep_steps=[]"]
    runs = [(SMOLLM2_MODEL, method, 0) for method in ALONE_METHODS]
    complete = all(commands.run([*of_run("train", *run), *settings]) for run in runs)
    layout = Layout.of(SMOLLM2, results)
    check.write(complete=complete, runs=[summary(layout, *run) for run in runs if layout.metrics(*run).is_file()])


def train_seeds(check: Check, commands: Commands, model: str, methods: Sequence[str]) -> None:
    """Train as many seeds as the time allows; each result is recorded at once.

    As many seeds are begun as fill the processes, another one when a training ends and nothing waits. After a failure,
    what runs is waited for, and nothing starts.
    """
    layout, summaries, unbegun = commands.layout, [], iter(range(check.seeds))
    if not commands.problems():
        return

    def begin() -> list[Arguments]:
        for seed in unbegun:
            runs = [(model, method, seed) for method in methods]
            summaries.extend(summary(layout, *run) for run in runs if commands.evaluated(*run))
            if waiting := commands.next_of_seed(model, methods, seed):
                return waiting
        return []

    waiting = deque(command for _ in range(max(1, check.processes // len(methods))) for command in begin())
    for command in commands.ended(waiting):
        stage, seed = command.arguments[0], int(command.arguments[-1])
        if command.process.exitcode:
            kind = "failed" if check.left() > 0 else "unfinished"
            check.write(**{kind: [*check.record.get(kind, []), command.record()]})
        elif stage in ("model", "pass_rates"):
            waiting.extend(commands.next_of_seed(model, methods, seed))
        else:
            summaries.append(summary(layout, model, command.arguments[4], seed))
        if "failed" in check.record:
            waiting.clear()
        elif not waiting:
            waiting.extend(begin())
        check.write(runs=summaries, commands=[*check.record.get("commands", []), command.record()])
    complete = "failed" not in check.record and bool(summaries)
    check.write(complete=complete, runs=summaries, final_entropy_nats=by_method(summaries))


def by_method(summaries: list[Case]) -> Case:
    """Mean and standard deviation over seeds of the entropy in the last tenth of the steps."""
    final = pd.Series([np.mean(run["entropy_nats"][-max(1, len(run["entropy_nats"]) // 10) :]) for run in summaries])
    by = final.groupby([run["method"] for run in summaries])
    return json.loads(by.agg(["mean", "std", "count"]).to_json(orient="index"))
