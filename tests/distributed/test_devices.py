"""Jobs that share a machine's GPUs: real processes, fictitious devices."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import pytest

from entropy_dynamics.cli import main
from entropy_dynamics.distributed.devices import _lock_folder, claim_devices, visible_devices
from mistakes import mistake

WAIT = 120  # seconds after which a test gives up


@pytest.fixture(autouse=True)
def lock_folder(monkeypatch):
    """The locks of a separate SLURM job, apart from those of this user's real jobs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", f"test{os.getpid()}")
    folder = _lock_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def machine(monkeypatch):
    """`machine("0", "1")`: this process sees these GPUs, whatever it has claimed."""

    def sees(*names: str) -> list[str]:
        monkeypatch.setattr("entropy_dynamics.distributed.devices.visible_devices", lambda: list(names))
        return list(names)

    return sees


def claimant(body: str, count: int, known: list[str], slots: int = 1, **options) -> subprocess.Popen:
    """A process that claims `count` of `known` and then runs `body`; `held` has the claimed ones."""
    code = f"""
    import os, sys, time
    from entropy_dynamics.distributed import devices
    devices.PAUSE = 0.02
    os.environ["CUDA_VISIBLE_DEVICES"] = {",".join(known)!r}
    with devices.claim_devices("cuda", {count}, {slots}) as held:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(held)
    """
    code = textwrap.dedent(code) + textwrap.indent(textwrap.dedent(body), "    ")
    return subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, **options)


def test_concurrent_claims_never_overlap_and_all_are_served(tmp_path):
    """A holder marks its devices by creating a file, which fails if another holder's mark is there."""
    body = f"""
    marks = [os.path.join({str(tmp_path)!r}, "held-" + name) for name in held]
    for mark in marks:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    time.sleep(0.01)
    for mark in marks:
        os.remove(mark)
    print(len(held))
    """
    claimants = [(1 + number % 3, claimant(body, 1 + number % 3, ["0", "1", "2"])) for number in range(6)]
    for count, process in claimants:
        out, _ = process.communicate(timeout=WAIT)
        assert (process.returncode, out) == (0, f"{count}\n")


def test_a_waiting_job_says_so_once_and_continues_when_the_holder_is_killed():
    holder = claimant("print('held', flush=True); time.sleep(600)", 2, ["0", "1"])
    assert holder.stdout.readline() == "held\n"
    waiting = claimant("print(held)", 1, ["0", "1"], stderr=subprocess.PIPE)
    assert waiting.stderr.readline() == "waiting for 1 of 2 GPUs; other jobs hold them\n"
    assert waiting.poll() is None
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    out, err = waiting.communicate(timeout=WAIT)
    assert (waiting.returncode, err) == (0, "")
    assert out in ("['0']\n", "['1']\n")


def test_jobs_in_slots_fill_all_gpus_before_they_share_one_and_exclude_whole_claims(machine):
    known = machine("4", "5")
    with ExitStack() as jobs:
        held = [jobs.enter_context(claim_devices("cuda", 1, 2)) for _ in range(3)]
        assert held == [["4"], ["5"], ["4"]]
        quarter = claimant("print(held)", 1, known, slots=4)  # half of GPU 5 is left for two of these
        assert quarter.communicate(timeout=WAIT)[0] == "['5']\n"
        whole = claimant("print(held)", 1, known, stderr=subprocess.PIPE)
        assert whole.stderr.readline() == "waiting for 1 of 2 GPUs; other jobs hold them\n"
        assert jobs.enter_context(claim_devices("cuda", 1, 2)) == ["5"]
        full = claimant("print(held)", 1, known, slots=2, stderr=subprocess.PIPE)
        assert full.stderr.readline() == "waiting for a slot of 2 GPUs; other jobs hold them\n"
        assert (whole.poll(), full.poll()) == (None, None)
    for process in (whole, full):
        assert process.communicate(timeout=WAIT)[0] in ("['4']\n", "['5']\n")
    with claim_devices("cuda", 2) as everything:
        assert everything == known
        eighth = claimant("print(held)", 1, known, slots=8, stderr=subprocess.PIPE)
        assert eighth.stderr.readline().startswith("waiting for a slot")
    assert eighth.communicate(timeout=WAIT)[0] in ("['4']\n", "['5']\n")  # whichever GPU is released first


def test_a_failed_attempt_holds_nothing(machine):
    """All or none: of two jobs that each waited with some of the GPUs, neither would ever get the rest."""
    known = machine("4", "5")
    with claim_devices("cuda", 1):
        waiting = claimant("print(held)", 2, known, stderr=subprocess.PIPE)
        waiting.stderr.readline()
        other = claimant("print(held)", 1, known)
        assert other.communicate(timeout=WAIT)[0] == "['5']\n"
    assert waiting.communicate(timeout=WAIT)[0] == "['4', '5']\n"


def test_children_see_the_claimed_devices_while_the_claim_lasts(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,GPU-5f")
    shown = [sys.executable, "-c", "import os, json; print(json.dumps(os.environ['CUDA_VISIBLE_DEVICES']))"]
    with claim_devices("cuda", 2):
        assert json.loads(subprocess.check_output(shown)) == "3,1"
    assert json.loads(subprocess.check_output(shown)) == "3,1,GPU-5f"


@pytest.mark.parametrize(("value", "names"), [("", []), ("1,-1,2", ["1"]), ("GPU-a, MIG-b", ["GPU-a", "MIG-b"])])
def test_the_variable_is_read_as_cuda_reads_it(monkeypatch, value, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_devices() == names


def test_without_the_variable_nvidia_smi_is_asked(fake_program, monkeypatch, tmp_path):
    fake_program(
        "nvidia-smi",
        "#!/bin/sh\n"
        "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'; echo '  MIG 1g.10gb Device 0: (UUID: MIG-1)'\n"
        "echo 'GPU 1: NVIDIA H100 (UUID: GPU-2)'\n",
    )
    assert visible_devices() == ["0", "1"]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert visible_devices() == []


def test_too_few_gpus_are_a_user_error(machine, monkeypatch):
    machine("0", "1", "2", "3")
    too_few = "GPUs needed: 8, but this machine has 4: lower hardware.ranks"
    with mistake(too_few), claim_devices("cuda", 8):
        pass
    monkeypatch.undo()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    names_none = r"CUDA_VISIBLE_DEVICES names none: .* hardware\.device to cpu"
    with mistake(match=names_none), claim_devices("cuda", 1):
        pass


def test_two_slurm_jobs_do_not_wait_for_each_others_numbers(monkeypatch):
    """Both see their own GPU as number 0, and keep the variable that SLURM set."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    another = f"test{os.getpid()}b"
    with claim_devices("cuda", 1) as held:
        assert held == ["0"]
        other = claimant("print(held)", 1, ["0"], env=dict(os.environ, SLURM_JOB_ID=another), stderr=subprocess.PIPE)
        assert other.communicate(timeout=WAIT) == ("['0']\n", "")
    monkeypatch.setenv("SLURM_JOB_ID", another)
    shutil.rmtree(_lock_folder())


@pytest.mark.parametrize("is_rank", [True, False])
def test_a_rank_claims_no_gpu_of_its_own(tmp_path, monkeypatch, capsys, is_rank):
    """Its launcher holds the claim; claimed again, a whole GPU would be waited for forever."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # a claim fails
    monkeypatch.setattr("entropy_dynamics.cli.launched", lambda: is_rank)
    monkeypatch.setattr("entropy_dynamics.preparation.launched", lambda: is_rank)
    monkeypatch.setattr("entropy_dynamics.cli.end_with_parent", lambda _: None)
    smoke = ["--scale", "smoke", "--results", str(tmp_path)]
    assert main(["theory", *smoke, "--set", "hardware.device=cuda"]) == 2  # there are no problems yet
    assert ("CUDA_VISIBLE_DEVICES names none" in capsys.readouterr().err) is not is_rank
