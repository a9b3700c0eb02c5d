"""Queries SLURM about a job and its cluster; environment variables are not enough, as the executor drops most."""

import os
import re
import subprocess
from contextlib import suppress

SECONDS = 60  # timeout of a query, as slurmctld may be busy


def job_field(job: str, field: str) -> str | None:
    """A field of `scontrol show job`, with times in Unix time (s); "" if SLURM has no such job, None if unknown.

    Does not use `squeue`, which omits jobs according to a user's SQUEUE_STATES and SQUEUE_PARTITION.
    """
    output, error = _scontrol("--all", "--oneliner", "show", "job", job)
    if "Invalid job id" in error:
        return ""
    # the id of a job array is also that of one of its tasks, so the output may have lines of other tasks
    found = re.search(rf"^JobId={job} .*?\b{field}=(\S+)", output, re.MULTILINE)
    return found[1] if found else None


def cluster() -> str | None:
    """The name of the cluster, also on a login node, where no variable has it; None if unknown."""
    if name := os.environ.get("SLURM_CLUSTER_NAME"):
        return name
    found = re.search(r"^ClusterName *= *(\S+)", _scontrol("show", "config")[0], re.MULTILINE)
    return found[1] if found else None


def _scontrol(*arguments: str) -> tuple[str, str]:
    """Standard output and standard error of scontrol; both empty if it is missing or times out."""
    environment = os.environ | {"SLURM_TIME_FORMAT": "%s"}
    environment.pop("SLURM_CLUSTERS", None)  # where the user submits to, not where this process runs
    with suppress(OSError, subprocess.TimeoutExpired):
        result = subprocess.run(
            ["scontrol", *arguments], env=environment, capture_output=True, text=True, timeout=SECONDS
        )
        return result.stdout, result.stderr
    return "", ""
