"""The lock of a run: one process at a time, and none after the holder has ended."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from entropy_dynamics.distributed.lock import held
from entropy_dynamics.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from entropy_dynamics.distributed.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time(tmp_path):
    file = tmp_path / "locks" / "seed0"
    refused = pytest.raises(UserError, match=f"another job is writing this run: process {os.getpid()} on .+, since")
    with held(file), held(tmp_path / "locks" / "seed1"), refused, held(file):
        pass
    with held(file):
        assert list(file.parent.iterdir()) == [file]
    assert not file.exists()


def test_a_process_that_is_killed_releases_it(tmp_path):
    file = tmp_path / "seed0"
    environment = os.environ | {"SLURM_JOB_ID": "41"}
    process = subprocess.Popen([sys.executable, "-c", HOLD, file], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"SLURM job 41, process {process.pid} on"), held(file):
        pass
    process.kill()
    process.wait()
    assert file.exists()
    with held(file):
        assert f"process {os.getpid()} on" in file.read_text()
    assert not file.exists()


def test_a_holder_whose_file_was_deleted_leaves_that_of_the_next_one(tmp_path):
    """As its message says, for a node that seems dead."""
    file, first = tmp_path / "seed0", ExitStack()
    first.enter_context(held(file))
    file.unlink()
    with held(file):
        first.close()
        with pytest.raises(UserError, match="another job is writing this run"), held(file):
            pass
    assert not file.exists()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_of_many_that_start_together_one_gets_it(tmp_path):
    """Also while others release it, which removes the file and its folders."""
    file, active, most = tmp_path / "locks/model/seed0", [], []
    start = threading.Barrier(8)

    def take() -> None:
        start.wait()
        for _ in range(200):
            with ExitStack() as stack:
                try:
                    stack.enter_context(held(file))
                except UserError:
                    continue
                active.append(1)
                most.append(len(active))
                active.pop()

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert not file.exists()


def test_a_folder_that_another_holder_removes_meanwhile_is_created_again(tmp_path, monkeypatch):
    """Between two system calls of `mkdir`."""
    mkdir, raised = Path.mkdir, [FileExistsError, FileNotFoundError]

    def interrupted(folder: Path, **options: bool) -> None:
        if raised:
            raise raised.pop()
        mkdir(folder, **options)

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with held(tmp_path / "locks" / "seed0"):
        assert not raised


def test_a_file_system_without_locks_gets_a_note(tmp_path, monkeypatch, capsys):
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", fails)
    with held(tmp_path / "seed0"):
        pass
    assert capsys.readouterr().err == f"note: {tmp_path}/seed0 cannot be locked; start no second job of this run\n"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
def test_a_folder_that_cannot_be_created_is_an_error():
    with pytest.raises(OSError, match="/proc/results"), held(Path("/proc/results/seed0")):
        pass
