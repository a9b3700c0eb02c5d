"""Workflows and runs that are killed: the same command again gives the results of an undisturbed one.

The reference is the smoke scale of `smoke_project`. The long tests (`make test-long`) kill whole workflows, at random
moments as often as ENTROPY_DYNAMICS_KILLS says.
"""

import operator
import os
import random
import shutil
import signal
import subprocess
import time
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from fault_harness import (
    COMMANDS,
    LOCKED,
    MODEL,
    RUN,
    STAGES,
    TARGET,
    Workflow,
    differences,
    flip_a_bit,
    kill_when_there,
    members,
    truncate,
)
from project_copy import copy_project, snakemake

KILLS = int(os.environ.get("ENTROPY_DYNAMICS_KILLS", 50))
SECONDS = (3, 20)  # between a start and its kill: the smoke scale takes 90 s on two cores, a job of it 3 to 8
SEED = 6
KEEPING_TWO = [*COMMANDS["train with checkpoints"], "--set", "training.checkpoints_kept=2"]


def test_a_run_and_its_evaluation_killed_twice(unfinished, reference):
    work = Workflow(unfinished, TARGET, checkpoints=True, preloaded=True)
    work.killed_at(f"checkpoints/{MODEL}/clip_b/seed0/*/step2")
    work.killed_at(f"{RUN}/metrics.parquet")
    assert work.resumed() == 1
    assert work.run()
    assert differences(work.results, reference) == []


@pytest.mark.long
@pytest.mark.parametrize("cores", [1, 2])
def test_neither_the_number_of_cores_nor_the_order_of_jobs_matters(tmp_path, reference, cores):
    """The reference was made with all cores of the machine."""
    project = copy_project(tmp_path)
    done = snakemake(project, "--cores", str(cores))
    assert done.returncode == 0, done.stdout + done.stderr
    assert differences(project / "results" / "smoke", reference) == []


@pytest.mark.long
def test_a_kill_at_each_stage_boundary(tmp_path, reference):
    work, awaited = Workflow(copy_project(tmp_path)), dict(STAGES)

    def reached(_) -> bool:
        found = [stage for stage, pattern in awaited.items() if work.files(pattern)]
        for stage in found:
            del awaited[stage]
        return bool(found)

    while not work.run(reached):
        pass
    assert not awaited
    assert differences(work.results, reference) == []


@pytest.mark.long
def test_kills_at_random_moments(tmp_path, reference):
    """Workflows one after the other, each killed repeatedly until it finishes; every other one with checkpoints.

    After a kill that left no new file, the next moment is drawn from a longer interval, so a slow machine progresses.
    """
    moments, kills, resumed = random.Random(SEED), 0, 0
    for number in count():
        (tmp_path / str(number)).mkdir()
        work = Workflow(copy_project(tmp_path / str(number)), checkpoints=number % 2 == 0)
        files, longest, done = 0, SECONDS[1], False
        while not done:
            moment = moments.uniform(SECONDS[0], longest) if kills < KILLS else float("inf")
            done = work.run(partial(operator.lt, moment))
            before, files = files, sum(len(work.files(pattern)) for pattern in STAGES.values())
            longest = max(SECONDS[1], longest / 1.25) if files > before else 1.5 * longest
            if not done:
                kills += 1
                print(f"workflow {number}: kill {kills} after {moment:.1f} s, {files} files", flush=True)
        assert differences(work.results, reference) == []
        resumed += work.resumed()
        if kills == KILLS:
            break
    assert resumed > 0 or KILLS < 10


# ---------------------------------------------------------------- ended in other ways


def interrupt_twice(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)


def kill_the_job(process: subprocess.Popen) -> None:
    """As the kernel does when memory runs out: the stage, and neither its shell nor Snakemake."""
    jobs = [one for one in members(process) if one.pid != process.pid and "train" in one.cmdline()]
    assert len(jobs) == 1
    jobs[0].kill()


ENDS = {
    "SIGTERM to all": lambda process: os.killpg(process.pid, signal.SIGTERM),
    "SIGTERM to Snakemake": lambda process: process.terminate(),
    "Ctrl-C": lambda process: os.killpg(process.pid, signal.SIGINT),
    "Ctrl-C twice": interrupt_twice,
    "SIGKILL of the job": kill_the_job,
}


@pytest.mark.long
@pytest.mark.parametrize("how", ENDS)
def test_ended_by_a_signal_in_the_middle_of_a_run(unfinished, reference, how):
    work = Workflow(unfinished, TARGET, checkpoints=True)
    process = work.start()
    while process.poll() is None and not work.files(f"checkpoints/{MODEL}/clip_b/seed0/*/step1"):
        time.sleep(0.005)
    assert process.poll() is None, work.said()
    ENDS[how](process)
    assert process.wait(timeout=120) != 0
    assert not members(process)
    log = (work.results / f"logs/{RUN}.log").read_text()
    assert "Traceback" not in log
    assert "Traceback" not in work.said() or how == "Ctrl-C twice"  # which may interrupt Snakemake's own shutdown
    if how == "Ctrl-C":
        assert "interrupted; no half-written file is left" in log
        assert not list(work.results.rglob("*.partial"))
    if how != "SIGTERM to Snakemake":  # which lets its jobs finish
        assert not work.files(f"{RUN}/metrics.parquet")
    assert work.run()
    assert differences(work.results, reference) == []


@pytest.mark.long
def test_a_second_snakemake_is_refused_and_harms_nothing(unfinished, reference):
    work = Workflow(unfinished, TARGET)
    first = work.start()
    while first.poll() is None and not any(unfinished.glob(".snakemake/locks/*")):
        time.sleep(0.005)
    second = snakemake(unfinished, TARGET)
    assert first.poll() is None, "the first finished before the second started"
    assert second.returncode != 0
    assert LOCKED in second.stdout + second.stderr
    assert "Traceback" not in second.stdout + second.stderr
    assert first.wait() == 0, work.said()
    assert differences(work.results, reference) == []


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, smoke_project) -> Path:
    """Those of a run killed after three of its four steps: of the second and of the third."""
    project = shutil.copytree(smoke_project, tmp_path_factory.mktemp("killed") / "project")
    shutil.rmtree(project / "results/smoke" / RUN)
    folder = project / "results/smoke/checkpoints"
    kill_when_there([*KEEPING_TWO, "--scale", "smoke"], project, folder / MODEL / "clip_b/seed0/*/step3")
    return folder


@pytest.mark.parametrize("damage", [truncate, flip_a_bit])
@pytest.mark.parametrize("file", ["*.safetensors", "*.json"])
def test_a_damaged_checkpoint_is_skipped(unfinished, reference, checkpoints, stage, damage, file):
    """The run resumes from the one before."""
    copy = shutil.copytree(checkpoints, unfinished / "results/smoke/checkpoints", dirs_exist_ok=True)
    [third] = copy.glob(f"{MODEL}/clip_b/seed0/*/step3")
    damage(max(third.glob(file), key=lambda path: path.stat().st_size))
    code, text = stage(*KEEPING_TWO)
    assert code == 0, text
    said = [line for line in text.splitlines() if str(third.relative_to(unfinished)) in line]
    assert len(said) == 1
    assert "damaged" in said[0]
    assert "after step 2" in text
    run = unfinished / "results/smoke" / RUN
    assert differences(run.parent, (reference / RUN).parent) == []
    assert not list(copy.rglob("checkpoint.json"))
