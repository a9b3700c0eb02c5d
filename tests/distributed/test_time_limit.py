"""Training that ends before its last step, killed, on SIGURG or for its time limit, and resumes."""

import os
import re
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from conftest import ROOT
from entropy_dynamics.cli import main
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.time_limit import BYTES_PER_SECOND, MARGIN, TimeLimit, job_end
from fault_harness import differences, kill_when_there, paused
from preloaded import program

STEPS = 12


@pytest.mark.parametrize("ranks", ["null", pytest.param(2, marks=pytest.mark.long)])
def test_a_run_ended_twice_gives_the_bytes_of_an_undisturbed_one(small_results, capfd, ranks):
    """By SIGKILL, which loses the steps since the last checkpoint, then by SIGURG, at which it writes one.

    Of two ranks only the parent is signaled, as by a user who looks for the command that was typed.
    """
    run = [*small_results.train("clip_b"), "--set", f"training.steps={STEPS}", "--set", f"hardware.ranks={ranks}"]
    assert main(run) == 0
    out = small_results.run("clip_b")
    undisturbed = out.rename(small_results.folder / "undisturbed")
    checkpoints = small_results.folder / "smoke/checkpoints"
    kept = "*/clip_b/seed0/*/step"
    kill_when_there([*run, "--set", "training.checkpoint_every=1"], ROOT, checkpoints / f"{kept}2")
    assert not out.exists()
    capfd.readouterr()

    go_on = small_results.folder / "go on"
    process = subprocess.Popen(
        [program("entropy-dynamics"), *run, "--set", "training.checkpoint_every=4"],
        env=os.environ | paused(checkpoints / f"{kept}4", until=go_on),
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(checkpoints.glob(f"{kept}4")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGURG)
    go_on.touch()
    toy, first, *said = [line for line in process.stderr.read().splitlines() if f"/{STEPS} " not in line]
    assert "runs as a toy model" in toy
    assert first.endswith("resumes from the checkpoint after step 2")
    assert process.wait() == 75
    [step] = re.fullmatch(
        r"note: ends early, at a checkpoint after step (\d+); .* resumes it", "\n".join(said)
    ).groups()
    assert not out.exists()

    assert main(run) == 0
    assert 4 <= int(step) < STEPS
    assert f"resumes from the checkpoint after step {step}\n" in capfd.readouterr().err
    assert not list(checkpoints.glob("*/clip_b/**/checkpoint.json"))
    assert differences(out, undisturbed) == []


def test_the_time_limit_of_a_slurm_job(monkeypatch):
    """The run ends when another step, twice as long as the longest so far, and a checkpoint would not fit."""
    clock = iter([1000.0, 1100.0, 1300.0, 1301.0, 3000.0, 4000.0])  # steps of 100, 200 and 1 seconds
    monkeypatch.setattr("entropy_dynamics.distributed.time_limit.time", SimpleNamespace(time=clock.__next__))
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(1800 + MARGIN)))
    limit = TimeLimit(Ranks(), checkpoint_bytes=100 * BYTES_PER_SECOND)  # 100 s
    assert [limit.reached() for _ in range(3)] == [False, False, True]
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert not TimeLimit(Ranks()).reached()


@pytest.mark.parametrize(("answer", "end"), [("1795438796", 1795438796), ("Unknown", float("inf"))])
def test_before_slurm_23_scontrol_says_when_the_job_ends(fake_program, monkeypatch, answer, end):
    """A user's defaults for other commands change nothing."""
    fake_program(
        "scontrol",
        f'#!/bin/sh\n[ "$SLURM_TIME_FORMAT $*" = "%s --all --oneliner show job 7" ] || exit 1\n'
        f'[ -z "$SLURM_CLUSTERS" ] && echo "JobId=7 StartTime=1795430000 EndTime={answer} Deadline=N/A"\n',
    )
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CLUSTERS", "another")
    assert job_end() == end
