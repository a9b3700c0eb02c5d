"""A run on two nodes: through srun and torchrun, with a fake of srun that starts all tasks on this machine."""

import os
import signal
import subprocess
import sys

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from entropy_dynamics.cli import main
from entropy_dynamics.config.schema.hardware import HardwareConfig
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.torchrun import address, endpoint
from entropy_dynamics.errors import UserError
from fault_harness import wait_until
from preloaded import program

WAIT = 120  # seconds after which a test gives up
SRUN = """#!/usr/bin/env python3
import os, subprocess, sys
[start] = [number for number, word in enumerate(sys.argv) if word.endswith("/python")]
options, command = sys.argv[1:start], sys.argv[start:]
print("srun", *options, file=sys.stderr, flush=True)
[tasks] = [int(word.removeprefix("--ntasks=")) for word in options if word.startswith("--ntasks=")]
environment = os.environ | {"SLURM_STEP_NODELIST": "localhost"}
tasks = [subprocess.Popen(command, env=environment) for _ in range(tasks)]
sys.exit(max(task.wait() for task in tasks))
"""
SHOWS = '#!/bin/sh\n[ "$1 $2" = "show node" ] && echo "%s"\n'  # a node


@pytest.fixture
def srun(fake_program, monkeypatch):
    fake_program("srun", SRUN)
    monkeypatch.setattr(sys, "executable", program("python"))
    monkeypatch.setenv("SLURM_JOB_ID", "4242")


def test_two_nodes_train_the_policy_of_one_node_and_resume(small_results, srun, monkeypatch, capfd):
    """Up to rounding: the norm of a gradient is summed over other parts of it."""
    run = [*small_results.train("clip_b"), "--set", "training.steps=3", "--set", "hardware.ranks=2"]
    assert main(run) == 0
    out = small_results.run("clip_b")
    one_node = out.rename(small_results.folder / "one-node")
    run += ["--set", "hardware.nodes=2"]
    capfd.readouterr()

    monkeypatch.setenv("SLURM_JOB_END_TIME", "0")
    assert main(run) == 75
    said = capfd.readouterr().err
    assert said.startswith("srun --nodes=2 --ntasks=2 --ntasks-per-node=1 ")
    assert "ends early, at a checkpoint after step 1; the same command resumes it" in said
    assert "Traceback" not in said
    assert "error:" not in said

    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert main(run) == 0
    assert "resumes from the checkpoint after step 1\n" in capfd.readouterr().err
    policy, expected = (load_file(run / "policy" / "model.safetensors") for run in (out, one_node))
    for name, values in expected.items():
        torch.testing.assert_close(policy[name], values, rtol=1e-5, atol=1e-6)
    metrics, wanted = (pd.read_parquet(run / "metrics.parquet").filter(regex="^(?!seconds)") for run in (out, one_node))
    pd.testing.assert_frame_equal(metrics, wanted, rtol=1e-5, atol=1e-6)
    assert metrics["grad_norm"].max() > 1


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("gpu7", "gpu7"), ("gpu[03-05,07],cpu1", "gpu03"), ("rack[1-2]n[01-04]-ib,login", "rack1n01-ib")],
)
def test_the_ranks_meet_at_the_first_host_of_the_step(hosts, first, monkeypatch):
    """Not at the caller's, which under salloc may be the login node."""
    monkeypatch.setenv("SLURM_STEP_NODELIST", hosts)
    monkeypatch.setenv("SLURM_JOB_ID", "1234567")
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])  # all names resolve
    monkeypatch.setenv("PATH", "")  # there is no scontrol
    assert endpoint() == f"{first}:24567"


@pytest.mark.parametrize("node", ["g1.invalid", "localhost"])
def test_ranks_meet_at_the_address_by_which_slurm_reaches_a_node(fake_program, node):
    """Where the node's name resolves, too: on the node itself it does, and perhaps on no other."""
    fake_program("scontrol", SHOWS % f"NodeName={node} NodeAddr=127.0.0.7 NodeHostName={node} Port=6818")
    assert address(node) == "127.0.0.7"


@pytest.mark.parametrize("shown", ["NodeName=localhost NodeAddr=addr.invalid", ""])
def test_a_node_without_an_address_that_resolves_has_its_name(fake_program, shown):
    fake_program("scontrol", SHOWS % shown)
    assert address("localhost") == "localhost"
    with pytest.raises(SystemExit, match=r"^error: .* first node, g1\.invalid, does not resolve on"):
        address("g1.invalid")


@pytest.mark.skipif(sys.platform != "linux", reason="prctl and /proc are Linux's")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)])
def test_srun_is_told_to_end_when_the_command_is_ended(tmp_path, fake_program, sent, code):
    """It ends the ranks of all nodes: killed, it would leave them."""
    fake_program(
        "srun",
        f"#!/usr/bin/env python3\nimport os, signal, time\n"
        f"def end(*_):\n    open({str(tmp_path / 'told')!r}, 'w').close()\n    os._exit(1)\n"
        f"signal.signal(signal.SIGTERM, end)\n"
        f"open({str(tmp_path / 'started')!r}, 'w').close()\ntime.sleep(600)\n",
    )
    start = "from entropy_dynamics.distributed.launch import _run_on_nodes; _run_on_nodes(2, 1, ['train'])"
    environment = os.environ | {"SLURM_JOB_ID": "4242"}
    command = subprocess.Popen([sys.executable, "-c", start], env=environment)
    wait_until((tmp_path / "started").exists, command)
    command.send_signal(sent)
    assert command.wait(WAIT) == code
    wait_until((tmp_path / "told").exists)


def test_several_nodes_need_a_slurm_job(small_results, monkeypatch, capfd):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main([*small_results.train("clip_b"), "--set", "hardware={ranks: 2, nodes: 2}"]) == 2
    assert "error: hardware.nodes is 2, but this is no SLURM job" in capfd.readouterr().err


def test_ranks_that_torchrun_divides_in_another_way_are_refused(monkeypatch):
    """Shards would cross nodes."""
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"4 ranks on this node, but hardware\.ranks / nodes is 2"):
        Ranks.join(HardwareConfig(device="cpu", ranks=4, nodes=2, runs_per_gpu=1))
