"""What SLURM knows of a job: on a node the environment tells less, as the executor drops most variables of the job."""

import os
import re
import subprocess
from contextlib import suppress

SECONDS = 60  # until a question is given up: slurmctld may be busy


def job_field(job: str, field: str) -> str | None:
    """A field of `scontrol show job`, times in seconds since 1970; "" if SLURM has no such job, None if nobody tells.

    Not `squeue`, which leaves out jobs for what a user has in SQUEUE_STATES or SQUEUE_PARTITION.
    """
    environment = os.environ | {"SLURM_TIME_FORMAT": "%s"}
    environment.pop("SLURM_CLUSTERS", None)  # where the user submits to, not where this process runs
    command = ["scontrol", "--all", "--oneliner", "show", "job", job]
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
        if "Invalid job id" in asked.stderr:
            return ""
        # the number of a job array is also that of one task, so there may be lines of others
        if found := re.search(rf"^JobId={job} .*?\b{field}=(\S+)", asked.stdout, re.MULTILINE):
            return found[1]
    return None
