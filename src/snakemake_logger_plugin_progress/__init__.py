"""A concise Snakemake log: one line per finished job, with the time left and the table or figure that is ready.

Selected by `logger: progress` in the profiles. Warnings, errors and the logs of failed jobs are shown as Snakemake
formats them. A dry run shows how many jobs there are and why, and with --verbose everything. Once the Snakefile has
called `expect`, job durations are recorded too.
"""

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from entropy_dynamics.distributed.attempts import began, ended_early
from entropy_dynamics.results.files import read_jobs
from entropy_dynamics.results.progress import trained_steps
from snakemake_logger_plugin_progress.why import Changes, by_cause

PAGE = "report"  # the rule that writes the page of all results
PAGE_THERE = f"output files of rule {PAGE} were not present when the DAG was created"  # Snakemake's warning about it
NO_RULE = re.compile(r"^MissingRuleException.*No rule to produce (.+) \(if you use", re.DOTALL)
LOCKED = "Directory cannot be locked"  # Snakemake's error
UNLOCK = "error: another snakemake makes these files, or one was killed; if none runs, type: snakemake --unlock"
SAID = (NOTHING_TO_BE_DONE_MSG, "Unlocked working directory.")  # shown as they are
PAGE_SECONDS = 180.0  # after so long, any finished job rewrites the page, as every table and figure does
PAGE_SECONDS_AT_END = 60.0  # timeout of its command at the end: Snakemake waits, and the file system may hang
PAGE_SECONDS_TO_END = 10.0  # timeout of the command after SIGTERM
COUNTED = "train"  # the rule whose jobs are the training runs
# Prior of the estimate of the time left, so that it is not dominated by the first jobs: a fraction of all work, and a
# number of jobs of each rule, that count as having taken as long as expected.
AS_EXPECTED, JOBS_AS_EXPECTED = 0.1, 5
SHOWN = (".md", ".png")  # suffixes of the file that is named when a table or figure is ready


@dataclass
class Expectation:
    """The Snakefile's information about its jobs."""

    record: Path | None = None  # JSON lines, one per finished job; existing ones give the expected durations
    results: Collection[str] = ()  # rules that write a table or figure
    seconds: Mapping[str, float] = field(default_factory=dict)  # expected duration by rule, if not in `record`
    threads: int | None = None  # per job; None if the number of concurrent jobs is not limited by cores
    no_rule_for: Callable[[str], str] | None = None  # returns the message about a target that no rule makes
    # The command that rewrites the page of all results, as long as `results` are to come and `PAGE` has not started.
    page: Sequence[str] = ()
    changes: Changes = lambda *_: []


expected = Expectation()


def expect(record: Path, *arguments: Any, **more: Any) -> None:
    """Set the `Expectation` of these arguments. Called by the Snakefile, which runs in the process of the logger."""
    global expected
    expected = Expectation(record, *arguments, **more)
    past: dict[str, list[float]] = defaultdict(list)
    for job in read_jobs(record):
        past[job["rule"]].append(job["seconds"])
    expected.seconds = {**expected.seconds, **{rule: fmean(seconds) for rule, seconds in past.items()}}


@dataclass
class Job:
    rule: str
    name: str
    log: str | None
    shown: str | None
    start: float
    remote: bool  # submitted to a cluster

    @property
    def begun(self) -> float | None:
        """When the job began, in Unix time (s); None while it is pending."""
        if not self.remote:
            return self.start
        begun = began(self.log) if self.log else None
        return begun if begun and begun >= int(self.start) else None  # an earlier time is that of an earlier attempt


class LogHandler(LogHandlerBase):
    writes_to_stream = has_filter = True
    writes_to_file = has_formatter = needs_rulegraph = False

    def __post_init__(self) -> None:
        self.planned_jobs: dict[int, logging.LogRecord] = {}  # of a dry run, by job id
        self.left: Counter[str] = Counter()  # number of remaining jobs, by rule
        self.seconds: dict[str, list[float]] = defaultdict(list)  # durations of finished jobs, by rule
        self.running: dict[int, Job] = {}  # by job id
        self.failed: set[int] = set()  # ids of jobs that Snakemake may retry
        self.concurrent, self.remote = 1, False
        self.jobs = self.results = 0
        self.planned = 0.0  # expected seconds of all jobs
        self.page: subprocess.Popen | None = None
        self.page_over, self.page_is_old = True, False  # must not be rewritten anymore; lacks a table or figure
        self.page_time = time.time()

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if record.levelno < logging.WARNING and "all" in map(str, self.common_settings.quiet or ()):
            return
        message = record.getMessage()
        if expected.no_rule_for and (missing := NO_RULE.search(message)):
            _print(f"error: {expected.no_rule_for(missing[1])}")
        elif LOCKED in message:
            _print(UNLOCK)
        elif message in SAID:
            _print(message)
        elif self.common_settings.dryrun:
            self._dry_run(record, event)
        elif event == LogEvent.RESOURCES_INFO and hasattr(record, "cores") and expected.threads:
            self.concurrent = max(1, record.cores // expected.threads)
        elif event == LogEvent.RESOURCES_INFO and hasattr(record, "nodes"):
            self.remote = True
        elif event == LogEvent.RUN_INFO:
            self.left = Counter({rule: count for rule, count in record.stats.items() if rule != "total"})
            self.jobs, self.results = self.left.total(), self._results_left()
            self.page_over = not (self.results and expected.page)
            self.planned = sum(expected.seconds.get(rule, 0.0) * count for rule, count in self.left.items())
            estimate = f"  {self._time_left()}" if expected.seconds else ""
            _print(f"{_counted(self.left)}{estimate}")
        elif event == LogEvent.JOB_INFO:
            if record.rule_name == PAGE:
                self._end_page()
            if record.jobid in self.failed:
                self.failed.remove(record.jobid)
                self.left[record.rule_name] += 1
            self.running[record.jobid] = Job(
                rule=record.rule_name,
                name=_named(record.rule_name, dict(record.wildcards)),
                log=next(iter(record.log), None),
                shown=next((path for path in record.output if path.endswith(SHOWN)), None),
                start=time.time(),
                remote=self.remote and not record.local,
            )
            self.concurrent = max(self.concurrent, self._begun())
        elif event == LogEvent.JOB_FINISHED and record.job_id in self.running:
            self._finished(self.running.pop(record.job_id))
        elif event in (LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR, LogEvent.ERROR) or record.levelno >= logging.WARNING:
            if event == LogEvent.JOB_ERROR and (job := self.running.pop(record.jobid, None)):
                self.left[job.rule] -= 1
                self.failed.add(record.jobid)
                if job.log and ended_early(job.log):
                    _print(f"{job.name}: ends early, at a checkpoint; the same command resumes it")
                    return
            if PAGE_THERE not in record.getMessage():
                _print(self.format(record))

    def _dry_run(self, record: logging.LogRecord, event: LogEvent | None) -> None:
        """Show Snakemake's table of jobs, and at the end their causes."""
        again = event == LogEvent.RUN_INFO and bool(self.planned_jobs)
        shown = (event == LogEvent.RUN_INFO and not again) or record.levelno >= logging.WARNING
        verbose = self.common_settings.verbose and record.levelno >= logging.INFO
        if shown or (verbose and event not in (LogEvent.WORKFLOW_STARTED, LogEvent.SHELLCMD)):
            _print(self.format(record))
        if event == LogEvent.JOB_INFO:
            self.planned_jobs[record.jobid] = record
        elif again:
            self.concurrent = max(1, (os.cpu_count() or 1) // expected.threads) if expected.threads else 1
            causes = by_cause(self.planned_jobs, expected.changes)
            every = {job.jobid: job for jobs in causes.values() for job in jobs}
            for cause, jobs in [*causes.items(), ("in all", every.values())]:
                rules = Counter(job.rule_name for job in jobs)
                seconds = sum(expected.seconds.get(rule, 0.0) * count for rule, count in rules.items())
                estimate = f"  {self._minutes(seconds)}" if expected.seconds else ""
                _print(f"{cause}: {_counted(rules)}{estimate}")

    def _finished(self, job: Job) -> None:
        seconds = time.time() - (job.begun or job.start)
        self.left[job.rule] -= 1
        self.seconds[job.rule].append(seconds)
        self._record(job, seconds)
        parts = [f"[{self.jobs - self.left.total()}/{self.jobs}] {job.name}"]
        for *_, entropy, accuracy in trained_steps(Path(job.log or ""))[-1:] if job.rule == COUNTED else ():
            parts.append(f"entropy {entropy:.2f}  accuracy {accuracy:.0%}")
        if job.rule in expected.results:
            parts[0] += f" is ready: {job.shown}"
        if self.results:
            parts.append(f"{self.results - self._results_left()}/{self.results} tables and figures")
        if self.remote:
            begun = self._begun()
            self.concurrent = max(self.concurrent, 1 + begun)
            parts.append(f"{begun} running, {len(self.running) - begun} pending")
        _print("  ".join([*parts, self._time_left()]))
        if not self.page_over and (job.rule in expected.results or time.time() - self.page_time >= PAGE_SECONDS):
            self.page_is_old = True
            self._rewrite_page()

    def _rewrite_page(self) -> None:
        if self.page is None or self.page.poll() is not None:
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self.page, self.page_is_old = subprocess.Popen(expected.page, **quiet), False
            self.page_time = time.time()

    def _end_page(self) -> None:
        """Stop rewriting the page, as its rule now writes it from all results. (It is written atomically.)"""
        if self.page is not None:
            self._written(0)
        self.page, self.page_over = None, True  # whether the command succeeded does not matter

    def _written(self, seconds: float) -> bool:
        """Whether the command succeeds within this time; otherwise it is terminated."""
        with suppress(subprocess.TimeoutExpired):
            return self.page.wait(seconds) == 0
        self.page.terminate()
        with suppress(subprocess.TimeoutExpired):  # a process blocked in a hanging file system may not even end
            self.page.wait(PAGE_SECONDS_TO_END)
        return False

    def close(self) -> None:
        """At the end of Snakemake, finish the page: write it once more if it lacks a table or figure."""
        if self.page is not None and (not self._written(PAGE_SECONDS_AT_END) or self.page_is_old):
            self._rewrite_page()  # only once; Ctrl-C also sends SIGINT to the command
            self._written(PAGE_SECONDS_AT_END)
        self.page = None
        super().close()

    def _begun(self) -> int:
        return sum(job.begun is not None for job in self.running.values())

    def _record(self, job: Job, seconds: float) -> None:
        if expected.record is None or job.log is None:
            return
        line = {"rule": job.rule, "log": job.log, "start": round(job.start, 3), "seconds": round(seconds, 3)}
        expected.record.parent.mkdir(parents=True, exist_ok=True)
        with expected.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _results_left(self) -> int:
        return sum(self.left[rule] for rule in expected.results)

    def _time_left(self) -> str:
        """Estimate from the mean duration of each rule, with JOBS_AS_EXPECTED jobs of the expected one as a prior."""
        known = [rule for rule in self.seconds if rule in expected.seconds]
        took = sum(sum(self.seconds[rule]) for rule in known)
        planned = sum(expected.seconds[rule] * len(self.seconds[rule]) for rule in known)
        prior = AS_EXPECTED * self.planned
        scale = (took + prior) / (planned + prior) if prior else 1.0
        overall = fmean([second for seconds in self.seconds.values() for second in seconds] or [0.0])

        def mean(rule: str) -> float:
            seconds = self.seconds.get(rule, [])
            if rule not in expected.seconds:
                return fmean(seconds) if seconds else overall
            total = sum(seconds) + JOBS_AS_EXPECTED * scale * expected.seconds[rule]
            return total / (len(seconds) + JOBS_AS_EXPECTED)

        started = [(job.begun, mean(job.rule)) for job in self.running.values()]
        passed = sum(min(time.time() - begun, expects) for begun, expects in started if begun is not None)
        left = sum(mean(rule) * count for rule, count in self.left.items()) - passed
        return f"{self._minutes(left)} left"

    def _minutes(self, seconds: float) -> str:
        """The time that jobs of so many seconds in all take together."""
        minutes = round(max(seconds, 0) / self.concurrent / 60)
        return f"{minutes} min" if minutes else "< 1 min"


def _counted(rules: Counter[str]) -> str:
    """'12 jobs, 3 of them training runs', from the number of jobs of each rule."""
    jobs, runs = rules.total(), rules[COUNTED]
    if jobs == 1:
        return f"1 job{', a training run' * runs}"
    return f"{jobs} jobs" + f", {runs} of them {'a training run' if runs == 1 else 'training runs'}" * bool(runs)


def _named(rule: str, wildcards: dict[str, str]) -> str:
    """'train clip_b seed 4 qwen3-4b-base'."""
    seed, model = wildcards.pop("seed", None), wildcards.pop("model", None)
    named = [rule, *wildcards.values(), seed is not None and f"seed {seed}", model]
    return " ".join(str(part) for part in named if part)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
