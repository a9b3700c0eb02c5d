"""What SLURM knows of a job and its cluster: the environment tells less, as the executor drops most variables."""

import os
import re
import subprocess
from contextlib import suppress

SECONDS = 60  # until a question is given up: slurmctld may be busy


def job_field(job: str, field: str) -> str | None:
    """A field of `scontrol show job`, times in seconds since 1970; "" if SLURM has no such job, None if nobody tells.

    Not `squeue`, which leaves out jobs for what a user has in SQUEUE_STATES or SQUEUE_PARTITION.
    """
    said, error = _scontrol("--all", "--oneliner", "show", "job", job)
    if "Invalid job id" in error:
        return ""
    # the number of a job array is also that of one task, so there may be lines of others
    found = re.search(rf"^JobId={job} .*?\b{field}=(\S+)", said, re.MULTILINE)
    return found[1] if found else None


def cluster() -> str | None:
    """The name of the cluster, from a login node too, where no variable has it; None if nobody tells."""
    if name := os.environ.get("SLURM_CLUSTER_NAME"):
        return name
    found = re.search(r"^ClusterName *= *(\S+)", _scontrol("show", "config")[0], re.MULTILINE)
    return found[1] if found else None


def _scontrol(*question: str) -> tuple[str, str]:
    """Its answer and its error message; both empty where it is missing or takes too long."""
    environment = os.environ | {"SLURM_TIME_FORMAT": "%s"}
    environment.pop("SLURM_CLUSTERS", None)  # where the user submits to, not where this process runs
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(
            ["scontrol", *question], env=environment, capture_output=True, text=True, timeout=SECONDS
        )
        return asked.stdout, asked.stderr
    return "", ""
