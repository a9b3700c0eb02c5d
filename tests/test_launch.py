"""Ranks as real processes: which one failed, how it is said, and that none is left behind."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from entropy_dynamics.distributed.launch import launched

ROOT = Path(__file__).parents[1]
WAIT = 120  # seconds after which a test gives up; nothing below takes long


def start(tmp_path: Path, rank: str, count: int = 2) -> subprocess.Popen:
    """A process that starts `count` ranks, each running the code `rank`, and ends as the command line does."""
    (tmp_path / "rank.py").write_text(
        "import os, signal, sys, time\nRANK = os.environ['RANK']\n" + textwrap.dedent(rank)
    )
    (tmp_path / "parent.py").write_text(
        textwrap.dedent(f"""
        import sys
        from entropy_dynamics.errors import UserError
        from entropy_dynamics.distributed.launch import start_ranks
        try:
            start_ranks({count}, [sys.executable, {str(tmp_path / "rank.py")!r}])
        except UserError as error:
            print(f"error: {{error}}", file=sys.stderr)
            sys.exit(2)
        except KeyboardInterrupt:
            sys.exit(130)
        """)
    )
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [sys.executable, tmp_path / "parent.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean | {"TMPDIR": str(tmp_path)},
    )


def ended(parent: subprocess.Popen) -> tuple[int, str, str]:
    out, err = parent.communicate(timeout=WAIT)
    return parent.returncode, out, err


def alive(pid: int) -> bool:
    """Whether a process still runs; one that is dead but not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids_in(parent: subprocess.Popen, count: int = 2) -> list[int]:
    """The ranks' process ids, from files `<rank>.pid` that they write beside their script."""
    folder = Path(parent.args[1]).parent
    while len(found := [file for file in folder.glob("*.pid") if file.read_text()]) < count:
        assert parent.poll() is None, parent.communicate()
        time.sleep(0.05)
    return [int(file.read_text()) for file in found]


JOINS = """
import torch
from omegaconf import OmegaConf
from entropy_dynamics.config import HardwareConfig
from entropy_dynamics.distributed.ranks import Ranks
ranks = Ranks.join(OmegaConf.structured(HardwareConfig(device="cpu", ranks=2)))
"""
LOOPBACK = ("0100007F", "00000000000000000000000001000000")  # 127.0.0.1 and ::1 as /proc writes them

SLEEPS = """
from pathlib import Path
Path(__file__).with_name(RANK + ".pid").write_text(str(os.getpid()))
time.sleep(600)
"""


def test_ranks_know_each_other_and_only_rank_0_is_heard(tmp_path):
    code, out, err = ended(start(tmp_path, "print(RANK, os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'])", count=3))
    assert (code, out, err) == (0, "0 0 3\n", "")


def test_one_rank_is_launched_as_well(tmp_path):
    assert ended(start(tmp_path, "print(os.environ['WORLD_SIZE'])", count=1)) == (0, "1\n", "")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_users_mistake_on_one_rank_is_said_once_and_ends_all(tmp_path, rank):
    code, _, err = ended(
        start(tmp_path, f"if RANK == '{rank}': sys.exit(print('error: no such model', file=sys.stderr) or 2)" + SLEEPS)
    )
    said = "rank 1: error: no such model" if rank else "error: no such model"
    assert code == 2
    assert err == f"{said}\nerror: rank {rank} of 2 ended with exit code 2 (its message stands above)\n"
    assert not list(tmp_path.glob("entropy-dynamics-ranks-*"))


def test_a_mistake_of_all_ranks_is_not_said_by_all(tmp_path):
    code, _, err = ended(start(tmp_path, "print('error: no such model', file=sys.stderr); sys.exit(2)", count=4))
    assert code == 2
    assert err.count("no such model") <= 2  # by rank 0, and by another if that was the first to end
    assert "of 4 ended with exit code 2" in err


def test_a_killed_rank_is_named_and_the_others_are_stopped(tmp_path):
    parent = start(tmp_path, SLEEPS)
    ranks = pids_in(parent)
    victim = int((tmp_path / "1.pid").read_text())
    os.kill(victim, signal.SIGKILL)
    code, _, err = ended(parent)
    assert code == 2
    assert err == ("error: rank 1 of 2 was ended by SIGKILL (out of memory, or killed); the other ranks were stopped\n")
    assert not any(alive(pid) for pid in ranks)


def test_the_killed_rank_is_the_cause_and_not_those_that_lost_it(tmp_path):
    dies = str(tmp_path / "dies")
    rank = f"""
    if RANK == "1":
        open({dies!r}, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    while not os.path.exists({dies!r}):
        time.sleep(0.01)
    sys.exit(1)
    """
    assert "error: rank 1 of 2 was ended by SIGKILL" in ended(start(tmp_path, rank))[2]


def test_a_rank_that_does_not_stop_is_killed_within_a_minute(tmp_path):
    """As one that hangs in a collective. Its SIGKILL, half a minute later, is not the cause."""
    rank = """
    if RANK == "0":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        from pathlib import Path
        while not Path(__file__).with_name("0.pid").exists():
            time.sleep(0.05)
        raise RuntimeError("a bug")
    """
    parent = start(tmp_path, textwrap.dedent(rank) + SLEEPS)
    ranks = pids_in(parent, 1)
    _, err = parent.communicate(timeout=60)
    assert err.endswith("RuntimeError: a bug\nerror: rank 1 of 2 ended with exit code 1 (its message stands above)\n")
    assert not any(alive(pid) for pid in ranks)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_to_the_parent_ends_the_ranks(tmp_path, sent, code):
    parent = start(tmp_path, "signal.signal(signal.SIGINT, signal.SIG_DFL)" + SLEEPS)
    ranks = pids_in(parent)
    parent.send_signal(sent)
    assert ended(parent)[0] == code
    assert not any(alive(pid) for pid in ranks)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal to children of a dead process is Linux's own")
def test_killing_the_parent_leaves_no_rank_behind(tmp_path):
    parent = start(
        tmp_path, "from entropy_dynamics.distributed.launch import end_with_parent; end_with_parent()" + SLEEPS
    )
    ranks = pids_in(parent)
    parent.kill()
    parent.wait()
    while any(alive(pid) for pid in ranks):  # nothing else would end them; without the signal this never returns
        time.sleep(0.05)


def test_two_launches_side_by_side_do_not_meet(tmp_path):
    rank = """
    parents = ranks.gather(torch.tensor([os.getppid()]))
    print(parents[0] == parents[1], flush=True)
    ranks.close()
    os._exit(0)  # as the command does: taken apart in order, torch's threads now and then abort the process
    """
    parents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        parents.append(start(tmp_path / name, JOINS + textwrap.dedent(rank)))
    for parent in parents:
        assert ended(parent) == (0, "tensor([True])\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_listens_beyond_this_machine(tmp_path):
    """Neither the ranks, once they have talked to each other, nor the agent; whoever may connect could take part."""
    rank = """
    ranks.barrier()
    torch.distributed.new_group(backend="gloo")
    ranks.barrier()
    from pathlib import Path
    for process in (os.getpid(), os.getppid()):
        sockets = set()
        for file in Path(f"/proc/{process}/fd").iterdir():
            try:
                sockets.add(os.readlink(file))
            except OSError:  # closed since
                pass
        for line in [*open(f"/proc/{process}/net/tcp"), *open(f"/proc/{process}/net/tcp6")]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                print("rank" if process == os.getpid() else "agent", local.partition(":")[0])
    sys.stdout.flush()
    ranks.barrier()
    ranks.close()
    os._exit(0)
    """
    code, out, err = ended(start(tmp_path, JOINS + textwrap.dedent(rank)))
    assert (code, err) == (0, "")
    assert set(out.splitlines()) <= {f"{who} {address}" for who in ("rank", "agent") for address in LOOPBACK}
    assert "rank " in out  # gloo's own server, so that this looked at something


def test_a_rank_knows_that_it_is_one(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert not launched()
    monkeypatch.setenv("RANK", "0")
    assert not launched()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert launched()


@pytest.mark.parametrize(
    "step", [["train", "--seed", "0", "--method", "grpo"], ["evaluate", "--seed", "0", "--method", "grpo"]]
)
def test_the_command_line_hands_a_step_to_its_ranks(tmp_path, step):
    """Without a base model every rank makes the same mistake: the parent's last line shows that there were two."""
    command = [sys.executable, "-m", "entropy_dynamics.cli", *step, "--scale", "smoke", "--model", "qwen3-4b-base"]
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    run = subprocess.run(
        [*command, "--results", tmp_path, "--set", "hardware.ranks=2", "--set", "engine.name=vllm"],
        cwd=ROOT,
        env=clean,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    said = r"((rank 1: )?error: [^\n]+\n){1,2}error: rank [01] of 2 ended with exit code 2 [^\n]+\n"
    assert re.fullmatch(said, run.stderr), run.stderr
