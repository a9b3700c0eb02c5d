"""The time of a finished `make reproduce`: core-seconds of a results folder by purpose.

Read from the record of all jobs (`logs/jobs.jsonl`, the last line of each) and the seconds of each phase in each run's
metrics. A job has one core, so the seconds of the jobs and of the idle cores add up to cores x wall
time. Only on an otherwise idle machine is that the cost of the run.
"""

import argparse
import os
import statistics
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pandas as pd

from entropy_dynamics.config import load_config
from entropy_dynamics.results.files import read_jobs as read_records
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import METRICS, PROVENANCE, Layout
from entropy_dynamics.results.provenance import hardware

RESULT = Path(__file__).parent / "results" / "reproduce.json"
DRAWN = ("tables", "figures", "claims", "report")
PHASES = {
    "sample": "sampling",
    "grade": "grading",
    "score": "scoring",
    "update": "updates",
    "validate": "validation",
    "evaluate": "evaluation",
}
STAGES = {  # the purpose of a stage without phases, besides start-up
    "models": "warm starts",
    "pass_rates": "pass rates",
    "evaluations": "evaluation",
    "temperatures": "evaluation",
    "theory": "theory check",
    "problems": "problem sets",
}
STARTUP = "start-up of jobs: imports, loading, writing"
DRAWING = "tables, figures, claims"
WAITING = "idle cores: a job was ready, Snakemake had yet to start it"
NOTHING = "idle cores: no job was ready"
WORK = {*PHASES.values(), "measurements", "warm starts", "pass rates"}
BARS = {  # the largest share of core-seconds
    "start-up": 0.08,
    "all but training, sampling, evaluation and warm starts": 0.10,
}
OUTSIDE = "before the first and after the last job: Snakemake's graph, the report page"


@dataclass(frozen=True)
class Job:
    """One job of the workflow; times in seconds since the epoch."""

    path: tuple[str, ...]  # its log's: ("runs", <model>, <method>, "seed0"), ("pass_rates",), ...
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def kind(self) -> str:
        return self.path[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--results", default="results")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="that the run had")
    parser.add_argument("--wall", type=float, help="seconds of the whole command, if measured")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()

    layout = Layout.of(options.scale, options.results)
    jobs = read_jobs(layout.jobs)
    pass_rate_model = load_config(options.scale).pass_rates.model
    spent = account(jobs, {job: phases(layout, job) for job in jobs}, options.cores, options.wall, pass_rate_model)
    write_json(options.out, {"what": f"make reproduce, scale {options.scale}", "hardware": hardware(), **spent})
    print(as_table(spent))


def read_jobs(file: Path) -> list[Job]:
    """All jobs with a record, in the order of their start. Raises SystemExit if there is none."""
    jobs = {}
    for record in read_records(file):
        path = Path(record["log"]).with_suffix("").parts
        path = path[path.index("logs") + 1 :]
        jobs[path] = Job(path, record["start"], record["start"] + record["seconds"])
    if not jobs:
        raise SystemExit(f"no records of jobs in {file}: is the run there, and finished?")
    return sorted(jobs.values(), key=lambda job: job.start)


def phases(layout: Layout, job: Job) -> dict[str, float]:
    """Seconds of each phase of a training run, summed over its steps, and of its evaluation; {} for any other job.

    The evaluation lasts from the end of the run's folder to the last record of samples: Snakemake touches its outputs
    when the job ends, and neither is one. A copy of results has other times.
    """
    if job.kind != "runs":
        return {}
    run = layout.root.joinpath(*job.path)
    seconds = (
        pd.read_parquet(run / METRICS).filter(like="seconds_").drop(columns="seconds_training", errors="ignore").sum()
    )
    seconds_by_phase = {name.removeprefix("seconds_"): float(total) for name, total in seconds.items()}
    evaluation = layout.evaluation(*job.path[1:3], job.path[3].removeprefix("seed"))
    ends = [file.stat().st_mtime for file in evaluation.glob(f"*.{PROVENANCE}")]
    return seconds_by_phase | {"evaluate": max(ends) - run.stat().st_mtime} if ends else seconds_by_phase


def account(
    jobs: list[Job], by_phase: dict[Job, dict[str, float]], cores: int, wall: float | None, pass_rate_model: str
) -> dict:
    """Core-seconds by purpose; they add up to `cores` x wall time.

    The start-up of a training run is the time of its job outside its phases; other stages with a model are assumed to
    take the median of those.
    """
    spent: dict[str, float] = defaultdict(float)
    starts = []
    for job in jobs:
        if job.kind == "runs":
            for phase, seconds in by_phase[job].items():
                spent[PHASES.get(phase, "measurements")] += seconds
            starts.append(job.seconds - sum(by_phase[job].values()))
    spent[STARTUP] = sum(starts)
    startup = statistics.median(starts) if starts else 0.0
    for job in jobs:
        if job.kind in DRAWN:
            spent[DRAWING] += job.seconds
        elif job.kind != "runs":
            start = min(startup, job.seconds) if job.kind != "problems" else 0.0
            spent[STARTUP] += start
            spent[STAGES.get(job.kind, job.kind)] += job.seconds - start
    spent[WAITING], spent[NOTHING] = idle(jobs, cores, pass_rate_model)
    within = jobs_wall(jobs)
    if wall is not None:
        spent[OUTSIDE] = cores * (wall - within)
    total = cores * (within if wall is None else wall)
    around = total - sum(seconds for what, seconds in spent.items() if what in WORK)
    shares = {name: round(seconds / total, 4) for name, seconds in zip(BARS, (spent[STARTUP], around), strict=True)}
    return {
        "cores": cores,
        "wall_minutes": round(total / cores / 60, 2),
        "jobs": {kind: sum(job.kind == kind for job in jobs) for kind in sorted({job.kind for job in jobs})},
        "job_seconds": round(sum(job.seconds for job in jobs), 1),
        "startup_seconds_per_job": round(startup, 2),
        "shares": shares,
        "core_seconds": {
            what: {"seconds": round(seconds, 1), "share": round(seconds / total, 4)}
            for what, seconds in sorted(spent.items(), key=lambda entry: -entry[1])
        },
    }


def jobs_wall(jobs: list[Job]) -> float:
    """Seconds from the first job's start to the last one's end."""
    return max(job.end for job in jobs) - min(job.start for job in jobs)


def idle(jobs: list[Job], cores: int, pass_rate_model: str) -> tuple[float, float]:
    """Core-seconds without a job: (while one that was ready had not been started, while none was ready)."""
    ready = ready_times(jobs, pass_rate_model)
    times = sorted({time for job in jobs for time in (job.start, job.end, ready[job])})
    waiting = nothing = 0.0
    for start, end in pairwise(times):
        if end <= jobs[0].start:
            continue
        running = sum(job.start <= start and end <= job.end for job in jobs)
        queued = sum(ready[job] <= start and end <= job.start for job in jobs)
        free = max(cores - running, 0)
        waiting += min(free, queued) * (end - start)
        nothing += (free - min(free, queued)) * (end - start)
    return waiting, nothing


def ready_times(jobs: list[Job], pass_rate_model: str) -> dict[Job, float]:
    """The time at which each job's inputs were complete; of tables and figures, the end of the last job before."""
    ends = {job.path: job.end for job in jobs}
    first = jobs[0].start

    def after(*paths: tuple[str, ...]) -> float:
        return max((ends[path] for path in paths if path in ends), default=first)

    ready = {}
    for job in jobs:
        kind, *rest = job.path
        if kind == "models":
            inputs = [("problems",)]
        elif kind == "pass_rates":
            inputs = [("models", pass_rate_model, rest[0])]
        elif kind == "theory":
            inputs = [path for path in ends if path[:2] == ("models", pass_rate_model)]
        elif kind == "runs":
            inputs = [("models", rest[0], rest[2]), ("pass_rates", rest[2])]
        elif kind == "evaluations":
            inputs = [("models", rest[0], rest[2]) if rest[1] == "base" else ("runs", *rest)]
        elif kind == "problems":
            inputs = []
        else:
            inputs = [other.path for other in jobs if other.end <= job.start and other.kind not in DRAWN]
        ready[job] = min(after(*inputs), job.start)
    return ready


def as_table(spent: dict) -> str:
    """The account as a Markdown table."""
    head = (
        f"{spent['wall_minutes']:.1f} minutes on {spent['cores']} cores, {sum(spent['jobs'].values())} jobs, "
        f"{spent['startup_seconds_per_job']:.1f} s to start one"
    )
    lines = ["| core-seconds spent on | seconds | share |", "|---|---:|---:|"]
    lines += [f"| {what} | {of['seconds']:,.0f} | {of['share']:.1%} |" for what, of in spent["core_seconds"].items()]
    shares = [f"{name}: {share:.1%}, should be at most {BARS[name]:.0%}" for name, share in spent["shares"].items()]
    return "\n".join([head, "", *lines, "", *shares])


if __name__ == "__main__":
    main()
