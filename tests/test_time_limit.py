"""Training that ends before its last step, for its time limit or on SIGURG, and resumes: to the same bytes."""

import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from conftest import ROOT
from entropy_dynamics.cli import main
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.training.time_limit import MARGIN, TimeLimit
from fault_harness import differences

STEPS = 12


@pytest.mark.parametrize("ranks", [None, 2])
def test_sigurg_ends_a_run_at_a_checkpoint(small_results, monkeypatch, capfd, ranks):
    """On two ranks only their parent is signalled, as by a user who looks for the command that was typed."""
    monkeypatch.chdir(ROOT)
    run = [*small_results.train("clip_b"), "--set", f"training.steps={STEPS}"]
    run += ["--set", f"hardware.ranks={ranks}"] if ranks else []
    assert main(run) == 0
    out = small_results.run("clip_b")
    undisturbed = out.rename(small_results.folder / "undisturbed")
    capfd.readouterr()

    process = subprocess.Popen([sys.executable, "-m", "entropy_dynamics.cli", *run], stderr=subprocess.PIPE, text=True)
    first = process.stderr.readline()
    assert " 1/12 " in first
    process.send_signal(signal.SIGURG)
    said = [line for line in process.stderr.read().splitlines() if not re.search(r" \d+/12 ", line)]
    assert process.wait() == 75
    [step] = re.fullmatch(
        r"note: ends early, at a checkpoint after step (\d+); .* resumes it", "\n".join(said)
    ).groups()
    assert not out.exists()

    assert main(run) == 0
    assert int(step) < STEPS
    assert f"resumes from the checkpoint after step {step}\n" in capfd.readouterr().err
    assert not list(small_results.folder.rglob("checkpoint.json"))
    assert differences(out, undisturbed) == []


def test_the_time_limit_of_a_slurm_job(monkeypatch):
    """The run ends when another step, twice as long as the longest so far, and a checkpoint would not fit."""
    clock = iter([1000.0, 1100.0, 1300.0, 1301.0, 3000.0, 4000.0])  # steps of 100, 200 and 1 seconds
    monkeypatch.setattr("entropy_dynamics.training.time_limit.time", SimpleNamespace(time=clock.__next__))
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(1700 + MARGIN)))
    limit = TimeLimit(Ranks())
    assert [limit.reached() for _ in range(3)] == [False, False, True]
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert not TimeLimit(Ranks()).reached()
