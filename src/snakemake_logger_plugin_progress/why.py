"""The summary of a dry run by cause: what has changed, and which jobs that repeats."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

CHANGED = re.compile(r"Params have changed .*?: before: (.*) now: (.*?) *(?:;|$)")  # in Snakemake's reason of a job
UPDATED = re.compile(r"Updated input files: ([^;]*)")
CAUSES = {  # the start of any other reason of a job's own
    "Missing output files": "not there yet",
    "Incomplete output files": "interrupted",
    "Forced execution": "forced",
    "Code has changed": "the command in workflow/rules has changed",
    "Software environment": "environment.yml has changed",
}

Changes = Callable[[str, Sequence[str]], list[str]]
"""From a parameter of a job, such as the fingerprint of its settings, and its outputs to what is new in it."""


def by_cause(jobs: Mapping[int, logging.LogRecord], changes: Changes) -> dict[str, list[logging.LogRecord]]:
    """The jobs that each cause repeats. The causes of a job are its own and those of the jobs that it follows from."""
    made_by = {file: job for job in jobs.values() for file in job.output}
    new: dict[tuple[str, ...], list[str]] = {}  # by the parameters before and now, which many jobs share

    @cache
    def causes(number: int) -> Iterable[str]:
        job = jobs[number]
        own = [cause for start, cause in CAUSES.items() if start in job.reason]
        if updated := UPDATED.search(job.reason):
            own += [f"{file} has changed" for file in updated[1].split(", ")]
        if changed := CHANGED.search(job.reason):
            params = changed.groups()
            new[params] = new.get(params) or _new_params(*params, job.output, changes)
            own += new[params]
        before = {made_by[file].jobid: None for file in job.input if file in made_by}
        own += [cause for earlier in before for cause in causes(earlier)]
        return dict.fromkeys(own or ["made from other files"])

    found: dict[str, list[logging.LogRecord]] = {}
    for number, job in jobs.items():
        for cause in causes(number) if job.output else ():  # without outputs: a name for the files of others
            found.setdefault(cause, []).append(job)
    return found


def _new_params(before: str, now: str, outputs: Sequence[str], changes: Changes) -> list[str]:
    named = [change for word in re.findall(r"\w+", now) for change in changes(word, outputs)]
    old, new = _params(before), _params(now)
    gone, come = ([param for param in these if param not in others] for these, others in ((old, new), (new, old)))
    return named or [f"{', '.join(gone)} -> {', '.join(come)}"]


def _params(text: str) -> list[str]:
    """The parameters in Snakemake's list of them, those of lists and of --set one by one."""
    params = re.findall(r"<[^>]*>|'[^']*'|[\w.]+", text)
    return [word for param in params for word in (re.findall(r"[\w.]+=[^\s']+", param) or [param])]
