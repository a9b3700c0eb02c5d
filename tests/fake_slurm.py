#!/usr/bin/env python3
"""A fake of SLURM's commands, selected by the name it is called by. Jobs run as processes of this machine.

FAKE_SLURM names a folder with `sbatch.jsonl` and `srun.jsonl`, one line per call; and of each job `<id>.json`, what was
requested, `<id>.state`, and `<id>.pid`, its process group. A job whose comment contains the word in the file `cancel`
is canceled as soon as it runs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_SLURM"])
ACCOUNT, PARTITION = "lab", "gpu"


def note(command: str, entry: dict) -> None:
    with open(FOLDER / f"{command}.jsonl", "a") as file:
        file.write(json.dumps(entry) + "\n")


def state(job: Path) -> str:
    return job.with_suffix(".state").read_text()


def options(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """`--key=value`, `--key value`, `-k value`, `-n1` and flags up to the first other word; and the rest."""
    found, rest = {}, list(arguments)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if "=" in word:
            key, _, value = word.partition("=")
        elif not word.startswith("--") and len(word) > 2:
            key, value = word[:2], word[2:]
        else:
            key, value = word, "" if word == "--parsable" or not rest or rest[0].startswith("-") else rest.pop(0)
        found[key] = value
    return found, rest


def sbatch(arguments: list[str]) -> int:
    asked, _ = options(arguments)
    if asked.get("-A") != ACCOUNT or asked.get("-p") != PARTITION:
        print("sbatch: error: Batch job submission failed: Invalid account or partition", file=sys.stderr)
        return 1
    job = 1
    while True:
        try:
            (FOLDER / f"{job}.json").open("x").write(json.dumps(asked))
            break
        except FileExistsError:
            job += 1
    note("sbatch", asked | {"id": job})
    (FOLDER / f"{job}.state").write_text("PENDING")
    subprocess.Popen([sys.executable, __file__, "slurmd", str(job)], start_new_session=True, stdin=subprocess.DEVNULL)
    print(job)
    return 0


def slurmd(arguments: list[str]) -> int:
    """Runs one job as a compute node would."""
    job = arguments[0]
    asked = json.loads((FOLDER / f"{job}.json").read_text())
    given = {"SLURM_JOB_ID": job}
    if "--gpus" in asked:
        given |= {"SLURM_GPUS": asked["--gpus"]}
        given |= {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(int(asked["--gpus"]))))}
    with open(asked["--output"].replace("%j", job), "w") as log:
        work = subprocess.Popen(
            ["/bin/sh", "-c", asked["--wrap"]],
            cwd=asked["-D"],
            env=os.environ | given,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        (FOLDER / f"{job}.pid").write_text(str(work.pid))
        (FOLDER / f"{job}.state").write_text("RUNNING")
        code = work.wait()
    if (FOLDER / f"{job}.state").read_text() == "RUNNING":
        (FOLDER / f"{job}.state").write_text("FAILED" if code else "COMPLETED")
    return 0


def srun(arguments: list[str]) -> int:
    """A step: as many tasks as requested, else one per GPU of the job."""
    job = os.environ["SLURM_JOB_ID"]
    asked, command = options(arguments)
    batch = json.loads((FOLDER / f"{job}.json").read_text())
    limit = os.stat(FOLDER / f"{job}.json").st_mtime + 60 * int(batch["-t"])
    environment = os.environ | {"SLURM_JOB_END_TIME": str(int(limit)), "SLURM_STEP_NODELIST": "localhost"}
    count = int(asked.get("-n") or asked.get("--ntasks") or batch.get("--gpus", 1))
    tasks = [subprocess.Popen(command, env=environment) for _ in range(count)]
    note("srun", asked | {"id": int(job), "started": len(tasks)})
    cancel = FOLDER / "cancel"
    if cancel.exists() and cancel.read_text() in batch["--comment"]:
        return scancel([job])
    return max(task.wait() for task in tasks)


def squeue(arguments: list[str]) -> int:
    asked, _ = options([word for word in arguments if word != "--noheader"])
    jobs = [file for file in FOLDER.glob("*.json") if json.loads(file.read_text())["--job-name"] == asked.get("--name")]
    give_up = time.monotonic() + 50  # answer once all have ended, as the executor polls at growing intervals
    while any(state(job) in ("PENDING", "RUNNING") for job in jobs) and time.monotonic() < give_up:
        time.sleep(0.1)
    for job in jobs:
        print(f"{job.stem}|{state(job)}")
    return 0


def sacct(_: list[str]) -> int:
    """Not to be asked: about a canceled job it says "CANCELLED by <uid>", which the executor does not know."""
    print("sacct: not expected here", file=sys.stderr)
    return 1


def scancel(arguments: list[str]) -> int:
    for job in arguments:
        (FOLDER / f"{job}.state").write_text("CANCELLED")
        os.killpg(int((FOLDER / f"{job}.pid").read_text()), signal.SIGKILL)
    return 0


def sacctmgr(_: list[str]) -> int:
    print(ACCOUNT)
    return 0


def sinfo(_: list[str]) -> int:
    print(f"{PARTITION}*")
    return 0


def scontrol(_: list[str]) -> int:
    print("MaxArraySize = 1001\nMinJobAge = 300 sec")
    return 0


if __name__ == "__main__":
    name = Path(sys.argv[0]).stem
    if name == "fake_slurm":  # python fake_slurm.py slurmd <id>
        name, *sys.argv[1:] = sys.argv[1:]
    sys.exit(globals()[name](sys.argv[1:]))
