"""Snakemake's log as a person wants to read it: one line a finished job, with which run of how many and the time left.

Chosen by `logger: progress` in the default profile (`snakemake --logger` names another). Warnings, errors and the logs
of failed jobs are shown as Snakemake formats them; a dry run shows all.
"""

import logging
import statistics
import sys
import time

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

COUNTED = "train"  # the rule whose jobs are the runs


class LogHandler(LogHandlerBase):
    def __post_init__(self) -> None:
        self.left: dict[str, int] = {}  # rule -> jobs still to be done
        self.seconds: dict[str, list[float]] = {}  # rule -> how long its finished jobs took
        self.running: dict[int, tuple[str, str, float]] = {}  # job id -> rule, name, start
        self.side_by_side = 1
        self.runs = 0

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if record.levelno < logging.WARNING and "all" in map(str, self.common_settings.quiet or ()):
            return
        if self.common_settings.dryrun:
            if event not in (LogEvent.WORKFLOW_STARTED, LogEvent.SHELLCMD) and record.levelno >= logging.INFO:
                self._print(self.format(record))
        elif event == LogEvent.RUN_INFO:
            self.left = {rule: count for rule, count in record.stats.items() if rule != "total"}
            self.runs = self.left.get(COUNTED, 0)
            self._print(f"{sum(self.left.values())} jobs, {self.runs} of them training runs")
        elif event == LogEvent.JOB_INFO:
            name = " ".join([record.rule_name, *(str(value) for value in record.wildcards.values())])
            self.running[record.jobid] = (record.rule_name, name, time.monotonic())
            self.side_by_side = max(self.side_by_side, len(self.running))
        elif event == LogEvent.JOB_FINISHED:
            self._finished(record.job_id)
        elif event in (LogEvent.JOB_ERROR, LogEvent.GROUP_ERROR, LogEvent.ERROR) or record.levelno >= logging.WARNING:
            if event == LogEvent.JOB_ERROR and (job := self.running.pop(record.jobid, None)):
                self.left[job[0]] -= 1
            self._print(self.format(record))

    def _finished(self, job: int) -> None:
        if job not in self.running:
            return
        rule, name, start = self.running.pop(job)
        self.left[rule] = self.left.get(rule, 1) - 1
        self.seconds.setdefault(rule, []).append(time.monotonic() - start)
        parts = [name]
        if rule == COUNTED:
            parts.append(f"run {self.runs - self.left[rule]} of {self.runs}")
        self._print("  ".join([*parts, f"{self._minutes_left():.0f} min left"]))

    def _minutes_left(self) -> float:
        """What is left at the mean duration of each rule so far, spread over as many jobs as run side by side."""
        known = statistics.fmean(second for seconds in self.seconds.values() for second in seconds)
        total = sum(
            count * (statistics.fmean(self.seconds[rule]) if rule in self.seconds else known)
            for rule, count in self.left.items()
        )
        return total / self.side_by_side / 60

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    @property
    def writes_to_stream(self) -> bool:
        return True

    @property
    def writes_to_file(self) -> bool:
        return False

    @property
    def has_filter(self) -> bool:
        return True  # what is shown is decided above

    @property
    def has_formatter(self) -> bool:
        return False

    @property
    def needs_rulegraph(self) -> bool:
        return False
