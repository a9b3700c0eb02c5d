"""Ranks as real processes: how a failure is reported, that none is left behind, and that none can be reached."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from entropy_dynamics.config import load_config
from entropy_dynamics.config.schema.hardware import HardwareConfig
from entropy_dynamics.distributed.launch import STARTER
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import UserError
from entropy_dynamics.preparation import load_torch
from fault_harness import alive, wait_until
from preloaded import program

WAIT = 120  # seconds after which a test gives up; nothing below takes long
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="prctl and /proc are Linux's")


def start(tmp_path: Path, rank: str, count: int = 2, python: str = sys.executable) -> subprocess.Popen:
    """A process that starts `count` ranks, each running the code `rank`, and ends as the command line does."""
    (tmp_path / "rank.py").write_text(
        "import os, signal, sys, time\nRANK = os.environ['RANK']\n" + textwrap.dedent(rank)
    )
    (tmp_path / "parent.py").write_text(
        textwrap.dedent(f"""
        import signal, sys
        from entropy_dynamics.errors import UserError
        from entropy_dynamics.distributed import launch
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
        launch.GRACE = 0.5
        try:
            launch.start_ranks({count}, [{python!r}, {str(tmp_path / "rank.py")!r}])
        except UserError as error:
            print(f"error: {{error}}", file=sys.stderr)
            sys.exit(2)
        except KeyboardInterrupt:
            sys.exit(130)
        """)
    )
    return subprocess.Popen(
        [sys.executable, tmp_path / "parent.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )


def ended(parent: subprocess.Popen) -> tuple[int, str, str]:
    out, err = parent.communicate(timeout=WAIT)
    return parent.returncode, out, err


def pids_in(parent: subprocess.Popen, count: int = 2) -> list[int]:
    """The ranks' process ids, from files `<rank>.pid` that they write beside their script."""
    folder = Path(parent.args[1]).parent
    while len(found := [file for file in folder.glob("*.pid") if file.read_text()]) < count:
        assert parent.poll() is None, parent.communicate()
        time.sleep(0.02)
    return [int(file.read_text()) for file in found]


JOINS = """
import torch
from entropy_dynamics.config.schema.hardware import HardwareConfig
from entropy_dynamics.distributed.ranks import Ranks
ranks = Ranks.join(HardwareConfig(device="cpu", ranks=2, nodes=1, runs_per_gpu=1))
"""
LOOPBACK = ("0100007F", "00000000000000000000000001000000")  # 127.0.0.1 and ::1 as /proc writes them

SLEEPS = """
from pathlib import Path
Path(__file__).with_name(RANK + ".pid").write_text(str(os.getpid()))
time.sleep(600)
"""


def test_ranks_know_their_number_and_only_rank_0_prints(tmp_path):
    parent = start(tmp_path, "print(RANK, os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'])", count=3)
    assert ended(parent) == (0, "0 0 3\n", "")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_user_error_on_one_rank_is_reported_once_and_ends_all(tmp_path, rank):
    code, _, err = ended(
        start(tmp_path, f"if RANK == '{rank}': sys.exit(print('error: no such model', file=sys.stderr) or 2)" + SLEEPS)
    )
    message = "rank 1: error: no such model" if rank else "error: no such model"
    assert code == 2
    assert err == f"{message}\nerror: rank {rank} of 2 ended with exit code 2 (its message is above)\n"
    assert not list(tmp_path.glob("entropy-dynamics-ranks-*"))


def test_a_killed_rank_is_named_and_the_others_are_stopped(tmp_path):
    parent = start(tmp_path, SLEEPS)
    ranks = pids_in(parent)
    os.kill(int((tmp_path / "1.pid").read_text()), signal.SIGKILL)
    code, _, err = ended(parent)
    assert code == 2
    assert err == "error: rank 1 of 2 was ended by SIGKILL (out of memory, or killed); the other ranks were stopped\n"
    assert not any(alive(pid) for pid in ranks)


def test_a_rank_that_ignores_sigterm_is_killed(tmp_path):
    """A rank may hang in a library with its own handlers. Its SIGKILL is not the cause of the failure."""
    rank = """
    if RANK == "0":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        from pathlib import Path
        while not Path(__file__).with_name("0.pid").exists():
            time.sleep(0.02)
        raise RuntimeError("a bug")
    """
    parent = start(tmp_path, textwrap.dedent(rank) + SLEEPS)
    ranks = pids_in(parent, 1)
    err = ended(parent)[2]
    assert err.endswith("RuntimeError: a bug\nerror: rank 1 of 2 ended with exit code 1 (its message is above)\n")
    assert not any(alive(pid) for pid in ranks)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_to_the_parent_ends_the_ranks(tmp_path, sent, code):
    parent = start(tmp_path, "signal.signal(signal.SIGINT, signal.SIG_DFL)" + SLEEPS)
    ranks = pids_in(parent)
    parent.send_signal(sent)
    assert ended(parent)[0] == code
    assert not any(alive(pid) for pid in ranks)
    assert not list(tmp_path.glob("entropy-dynamics-ranks-*"))


@LINUX
def test_killing_the_parent_leaves_no_rank_behind(tmp_path):
    parent = start(
        tmp_path, "from entropy_dynamics.distributed.launch import end_with_parent; end_with_parent()" + SLEEPS
    )
    ranks = pids_in(parent)
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(map(alive, ranks)))  # nothing else would end them


@LINUX
@pytest.mark.parametrize(("adopted", "code"), [(False, 0), (True, 1)])
def test_a_rank_whose_parent_died_before_it_began_ends_at_once(adopted, code):
    """Another process is its parent now."""
    rank = os.environ | {"RANK": "0", "WORLD_SIZE": "1", STARTER: "1" if adopted else str(os.getpid())}
    command = [sys.executable, "-m", "entropy_dynamics.cli", "config"]
    run = subprocess.run(command, env=rank, capture_output=True, text=True)
    assert (run.returncode, bool(run.stdout)) == (code, code == 0), run.stderr


@LINUX
def test_launches_side_by_side_do_not_meet_and_nothing_listens_beyond_this_machine(tmp_path):
    """Neither the ranks, once they have communicated, nor their parent: whoever may connect could take part."""
    rank = """
    torch.distributed.new_group(backend="gloo")
    parents = ranks.gather(os.getppid())
    assert parents[0] == parents[1]
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
                print("rank" if process == os.getpid() else "parent", local.partition(":")[0])
    sys.stdout.flush()
    ranks.barrier()
    ranks.close()
    os._exit(0)  # as the command does: in an orderly shutdown torch's threads now and then abort the process
    """
    parents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        parents.append(start(tmp_path / name, JOINS + textwrap.dedent(rank)))
    for parent in parents:
        code, out, err = ended(parent)
        assert (code, err) == (0, "")
        assert set(out.splitlines()) <= {f"rank {address}" for address in LOOPBACK}
        assert out  # gloo's own server, so that this looked at something


def test_each_rank_computes_a_share_and_gets_all(tmp_path):
    """Tensors of tokens too, where one rank has none."""
    rank = """
    from entropy_dynamics.sampling import Prompt, Rollout
    from entropy_dynamics.sampling import SharedSampler
    done = []
    assert ranks.map(lambda n: done.append(n) or str(n), range(5)) == ["0", "1", "2", "3", "4"]
    assert done == [[0, 2, 4], [1, 3]][ranks.rank]

    class Engine:
        push = sleep = logp = None
        def rollout(self, name, sample):
            tokens = [7] * sample + [ord(name)]
            return Rollout(name, sample, tokens, "stop", self.logp and [-(2.0 ** -30)] * len(tokens))
        def sample(self, prompts, samples):
            return [self.rollout(prompt.problem_id, sample) for prompt in prompts for sample in range(samples)]

    engine = Engine()
    for names in ("a", "cba"):
        for engine.logp in (None, True):
            prompts = [Prompt(name, [1]) for name in names]
            assert SharedSampler(engine, ranks).sample(prompts, samples=3) == engine.sample(prompts, samples=3)
    ranks.barrier()
    ranks.close()
    sys.stdout.flush()
    os._exit(0)
    """
    code, _, err = ended(start(tmp_path, JOINS + textwrap.dedent(rank), python=program("python")))
    assert (code, err) == (0, "")


def test_a_function_that_fails_on_one_rank_fails_on_all(tmp_path):
    """None waits for results that do not come, and whichever ends first has the message."""
    rank = """
    def grade(item):
        if item == 3:
            raise ValueError("no such answer")
        return item
    try:
        ranks.map(grade, range(4))
    except (ValueError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        ranks.barrier()  # both got here
        os._exit(1 + ranks.rank)
    """
    code, _, err = ended(start(tmp_path, JOINS + textwrap.dedent(rank), python=program("python")))
    assert code == 2
    assert err.startswith("RuntimeError: rank 1: ValueError('no such answer')\n")


def test_a_rank_of_torchrun_joins(tmp_path):
    rank = JOINS.replace("ranks=2", "ranks=1") + "print(ranks.size, ranks.mesh is not None)"
    (tmp_path / "rank.py").write_text(rank)
    command = [program("python"), "-m", "torch.distributed.run", "--standalone", tmp_path / "rank.py"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "1 True\n"), run.stderr


def test_ranks_of_torchrun_that_the_config_does_not_expect_are_refused(monkeypatch):
    """Each would believe that it is the only process, and write the same files."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    hardware = HardwareConfig(device="cpu", ranks=None, nodes=1, runs_per_gpu=1)
    with pytest.raises(UserError, match=r"torchrun started 2 ranks, but hardware\.ranks is null"):
        Ranks.join(hardware)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert Ranks.join(hardware).is_main


def test_the_command_line_runs_a_stage_on_its_ranks(tmp_path):
    """Without a base model every rank makes the same error: the parent's last line shows that there were two."""
    command = [program("entropy-dynamics"), "train", "--seed", "0", "--method", "grpo"]
    options = ["--scale", "smoke", "--model", "qwen3-4b-base", "--results", tmp_path]
    run = subprocess.run(
        [*command, *options, "--set", "hardware.ranks=2", "--set", "engine.name=vllm"], capture_output=True, text=True
    )
    assert run.returncode == 2
    expected = r"((rank 1: )?error: [^\n]+\n){1,2}error: rank [01] of 2 ended with exit code 2 [^\n]+\n"
    assert re.fullmatch(expected, run.stderr), run.stderr


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "backend:native"),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, None),
    ],
)
def test_gpu_memory_is_allocated_in_expandable_segments_unless_the_user_says_otherwise(monkeypatch, own, expected):
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    load_torch(load_config("paper"))
    assert os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == expected
