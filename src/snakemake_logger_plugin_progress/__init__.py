"""A short log of Snakemake: one line per finished job, with the number of training runs done and the time left.

Chosen by `logger: progress` in the profiles. Warnings, errors and the logs of failed jobs appear as Snakemake formats
them; a dry run shows everything.
"""

import logging
import sys
import time
from collections import Counter, defaultdict
from statistics import fmean

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

COUNTED = "train"  # the rule whose jobs are the training runs


class LogHandler(LogHandlerBase):
    writes_to_stream = has_filter = True
    writes_to_file = has_formatter = needs_rulegraph = False

    def __post_init__(self) -> None:
        self.left: Counter[str] = Counter()  # jobs to do, by rule
        self.seconds: dict[str, list[float]] = defaultdict(list)  # durations of finished jobs, by rule
        self.running: dict[int, tuple[str, str, float]] = {}  # job id -> rule, name, start
        self.concurrent = 1
        self.runs = 0

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if record.levelno < logging.WARNING and "all" in map(str, self.common_settings.quiet or ()):
            return
        if self.common_settings.dryrun:
            if event not in (LogEvent.WORKFLOW_STARTED, LogEvent.SHELLCMD) and record.levelno >= logging.INFO:
                _print(self.format(record))
        elif event == LogEvent.RUN_INFO:
            self.left = Counter({rule: count for rule, count in record.stats.items() if rule != "total"})
            self.runs = self.left[COUNTED]
            _print(f"{self.left.total()} jobs, {self.runs} of them training runs")
        elif event == LogEvent.JOB_INFO:
            name = " ".join([record.rule_name, *map(str, record.wildcards.values())])
            self.running[record.jobid] = (record.rule_name, name, time.monotonic())
            self.concurrent = max(self.concurrent, len(self.running))
        elif event == LogEvent.JOB_FINISHED and record.job_id in self.running:
            self._finished(*self.running.pop(record.job_id))
        elif event in (LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR, LogEvent.ERROR) or record.levelno >= logging.WARNING:
            if event == LogEvent.JOB_ERROR and (job := self.running.pop(record.jobid, None)):
                self.left[job[0]] -= 1
            _print(self.format(record))

    def _finished(self, rule: str, name: str, start: float) -> None:
        self.left[rule] -= 1
        self.seconds[rule].append(time.monotonic() - start)
        run = f"  run {self.runs - self.left[rule]} of {self.runs}" if rule == COUNTED else ""
        _print(f"{name}{run}  {self._minutes_left():.0f} min left")

    def _minutes_left(self) -> float:
        """At each rule's mean duration so far, spread over the jobs that run concurrently."""
        means = {rule: fmean(seconds) for rule, seconds in self.seconds.items()}
        overall = fmean(second for seconds in self.seconds.values() for second in seconds)
        return sum(count * means.get(rule, overall) for rule, count in self.left.items()) / self.concurrent / 60


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
