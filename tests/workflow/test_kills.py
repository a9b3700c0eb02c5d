"""Workflows and runs that are killed: the same command again gives the results of an undisturbed one.

The reference is the smoke scale of `smoke_project`. The long tests (`make test-long`) are of whole workflows; at random
moments they kill as many processes of each kind as ENTROPY_DYNAMICS_KILLS says.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import psutil
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
    kill,
    kill_when_there,
    truncate,
)
from project_copy import copy_project, snakemake

KILLS = int(os.environ.get("ENTROPY_DYNAMICS_KILLS", 12))  # of each kind of process
SEED = 6
KEEPING_TWO = [*COMMANDS["train with checkpoints"], "--set", "training.checkpoints_kept=2"]


def test_a_run_and_its_evaluation_killed_twice(unfinished, reference):
    work = Workflow(unfinished, TARGET, checkpoints=True, preloaded=True)
    work.killed_at(f"checkpoints/{MODEL}/clip_b/seed0/*/step2")
    work.killed_at(f"{RUN}/metrics.parquet")
    assert work.resumed() == 1
    assert work.run(), work.said()
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

    def kill_when_reached(process: subprocess.Popen) -> None:
        if found := [stage for stage, pattern in awaited.items() if work.files(pattern)]:
            for stage in found:
                del awaited[stage]
            kill(process)

    reached = -1
    while not work.run(kill_when_reached):
        assert len(STAGES) - len(awaited) > reached, work.said()
        reached = len(STAGES) - len(awaited)
    assert not awaited
    assert differences(work.results, reference) == []


def victims(work: Workflow, snakemake: subprocess.Popen) -> dict[str, list[psutil.Process]]:
    """The live processes of a workflow by kind. Once the server was killed, clients run commands by themselves."""
    found = {"Snakemake": [psutil.Process(snakemake.pid)]}
    for process in work.processes():
        with suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            if "entropy_dynamics.preload" in command:
                found.setdefault("server" if process.ppid() == snakemake.pid else "child", []).append(process)
            elif "entropy-dynamics" in [Path(word).name for word in command]:
                found.setdefault("client", []).append(process)
    return found


class Killer:
    """SIGKILLs processes at random moments: of the kinds that are there, one of the kind that it killed least often."""

    def __init__(self):
        self.random = random.Random(SEED)
        self.killed = Counter(dict.fromkeys(("Snakemake", "server", "client", "child"), 0))
        self.moment = 0.0
        self.files = self.in_vain = 0

    def is_done(self) -> bool:
        return min(self.killed.values()) >= KILLS

    def __call__(self, work: Workflow, snakemake: subprocess.Popen) -> None:
        """After kills that left no new file the next one is later, so that a slow machine progresses."""
        if self.is_done() or time.monotonic() < self.moment:
            return
        there = victims(work, snakemake)
        if "child" in there or ("client" in there and "server" not in there):  # a job runs
            kind = min(there, key=lambda kind: (self.killed[kind], self.random.random()))
            with suppress(psutil.NoSuchProcess):  # it has just ended
                self.random.choice(there[kind]).kill()
                self.killed[kind] += 1
            before, self.files = self.files, sum(len(work.files(pattern)) for pattern in STAGES.values())
            self.in_vain = self.in_vain + 1 if self.files == before else 0
        self.moment = time.monotonic() + self.random.uniform(1.0, 15.0) * 1.5**self.in_vain


@pytest.mark.long
def test_kills_of_processes_at_random_moments(tmp_path, reference):
    """Workflows one after the other until enough processes of each kind were killed; each ends as if none had been.

    At named moments: above (Snakemake, jobs), in test_preload.py (server, clients, commands).
    """
    killer, resumed = Killer(), 0
    for number in count():
        work = Workflow(copy_project(tmp_path / str(number)), checkpoints=number % 2 == 0)
        done, sockets = False, 0
        while not done:
            before = killer.killed.copy()
            done = work.run(partial(killer, work))
            killed = killer.killed - before
            assert done or killed.keys() - {"server"}, work.said()  # without one the workflow goes on
            sockets += killed.keys() >= {"Snakemake", "server"}  # then nobody is left to remove it
            assert len(list(Path(work.temporary.name).glob("entropy-dynamics-*"))) <= sockets
            print(f"workflow {number}: {dict(killer.killed)} killed, {killer.files} files", flush=True)
        assert differences(work.results, reference) == []
        resumed += work.resumed()
        if killer.is_done():
            break
    assert resumed > 0


# ---------------------------------------------------------------- ended in other ways
def interrupt_twice(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)


def kill_the_job(process: subprocess.Popen) -> None:
    """As the kernel does when memory runs out: the stage, and neither its shell nor Snakemake."""
    [job] = [child for child in psutil.Process(process.pid).children(recursive=True) if "train" in child.cmdline()]
    job.kill()


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
    work.wait_until_gone()
    log = (work.results / f"logs/{RUN}.log").read_text()
    assert "Traceback" not in log
    assert "Traceback" not in work.said() or how == "Ctrl-C twice"  # which may interrupt Snakemake's own shutdown
    if how == "Ctrl-C":
        assert "interrupted; no partial file was left behind" in log
        assert not list(work.results.rglob("*.partial"))
    if how != "SIGTERM to Snakemake":  # which lets its jobs finish
        assert not work.files(f"{RUN}/metrics.parquet")
    assert work.run(), work.said()
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


@pytest.mark.parametrize(("damage", "file"), [(truncate, "*.safetensors"), (flip_a_bit, "*.json")])
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
