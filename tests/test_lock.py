"""The lock of a run: who gets it, who is refused, and what becomes of a dead process's."""

import json
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from entropy_dynamics.distributed import lock
from entropy_dynamics.distributed.lock import held
from entropy_dynamics.errors import UserError

HERE = json.loads(json.dumps(lock._myself()))
UNREACHABLE = "slurm_load_jobs error: Unable to contact slurm controller"
FORGOTTEN = "slurm_load_jobs error: Invalid job id specified"


@pytest.fixture
def ended() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left(folder, number=0, **fields):
    """A file that another process left."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number}.json").write_text(json.dumps(HERE | {"since": "2026-01-02 03:04:05"} | fields))


def slurm(monkeypatch, tmp_path, answer):
    """A scontrol of cluster hpc that answers about jobs 40 and 41, or fails with a message."""
    scontrol = tmp_path / "scontrol"
    config = '[ "$*" = "show config" ] && echo "AuthType = munge\nClusterName             = hpc\nEpilog = x"\n'
    scontrol.write_text(f'#!/bin/sh\n{config}[ "$*" = "--all --oneliner show job 41" ] && echo "{answer}"\n')
    if "error" in answer:
        scontrol.write_text(f'#!/bin/sh\necho "{answer}" >&2\nexit 1\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")  # a user's default, which hides the job


def job(state="RUNNING", restarts=0, number=41):
    """A line of `scontrol show job`; a task of a job array has another number besides."""
    return f"JobId={number} ArrayJobId=41 JobName=a b JobState={state} Reason=None Requeue=1 Restarts={restarts}"


def test_one_process_at_a_time(tmp_path):
    folder = tmp_path / "lock"
    with held(folder) as dead:
        assert dead is None
        with (
            pytest.raises(UserError, match=f"another job writes this run: process {HERE['pid']} on") as caught,
            held(folder),
        ):
            pass
        assert "delete" not in str(caught.value)  # it is known to run
        assert [file.name for file in folder.iterdir()] == ["0.json"]
    assert not folder.exists()
    with held(folder) as dead:
        assert dead is None


def test_the_lock_of_a_process_that_has_ended_is_taken_over(tmp_path, monkeypatch, ended):
    folder = tmp_path / "lock"
    left(folder, pid=ended)
    left(folder, 1, boot="the one before", machine="this one")
    (tmp_path / "machine-id").write_text("this one\n")
    monkeypatch.setattr(lock, "_MACHINE", tmp_path / "machine-id")
    with held(folder) as dead:
        assert dead == f"process {HERE['pid']} on {HERE['host']}, since 2026-01-02 03:04:05"
        with pytest.raises(UserError, match="another job"), held(folder):
            pass
    assert not folder.exists()


def test_of_many_that_find_a_dead_holder_one_takes_over(tmp_path, ended):
    """Threads, since a live process is the holder whichever of them it is."""
    for _ in range(50):
        folder, start, outcomes = tmp_path / "lock", threading.Barrier(8), []
        left(folder, pid=ended)
        with ExitStack() as stack:

            def take(stack=stack, folder=folder, start=start, outcomes=outcomes):
                start.wait()
                try:
                    outcomes.append(stack.enter_context(held(folder)))
                except UserError:
                    outcomes.append(None)

            threads = [threading.Thread(target=take) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sum(outcome is not None for outcome in outcomes) == 1
        assert not folder.exists()


def test_the_id_of_a_dead_process_may_be_another_ones_now(tmp_path):
    """This process has the id, and began at another time."""
    folder = tmp_path / "lock"
    left(folder, started="1")
    with held(folder) as dead:
        assert dead is not None


def test_who_passed_a_dead_holder_too_slowly_is_refused(tmp_path, monkeypatch, ended):
    """Meanwhile another process has taken over and released, and a third one has the lock by the first file."""
    folder, open_file = tmp_path / "lock", Path.open
    left(folder, pid=ended)

    def late(file, mode="r", *arguments, **options):
        if mode == "x" and file.name == "1.json":
            left(folder)
        return open_file(file, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", late)
    with pytest.raises(UserError, match="another job writes this run"), held(folder):
        pass
    assert [file.name for file in folder.iterdir()] == ["0.json"]


@pytest.mark.parametrize(
    "answer", [job("RUNNING"), job("COMPLETING"), f"{job('TIMEOUT', number=40)}\n{job()}", UNREACHABLE, ""]
)
def test_a_job_elsewhere_that_may_run_keeps_its_lock(tmp_path, monkeypatch, answer):
    folder = tmp_path / "lock"
    left(folder, host="node7", slurm_job="41")
    slurm(monkeypatch, tmp_path, answer)
    with pytest.raises(UserError, match="SLURM job 41, process") as caught, held(folder):
        pass
    assert (f"if that has ended, delete {folder}" in str(caught.value)) == (answer in (UNREACHABLE, ""))


@pytest.mark.parametrize("answer", [job("TIMEOUT"), job("PENDING"), FORGOTTEN])
def test_a_job_elsewhere_that_has_ended_loses_it(tmp_path, monkeypatch, answer):
    """Pending: SLURM has requeued it."""
    folder = tmp_path / "lock"
    left(folder, host="node7", slurm_job="41")
    slurm(monkeypatch, tmp_path, answer)
    with held(folder) as dead:
        assert dead.startswith("SLURM job 41, ")


@pytest.mark.parametrize(
    ("answer", "other"), [(job("TIMEOUT"), {"slurm_cluster": "theirs"}), (FORGOTTEN, {"user": os.getuid() + 1})]
)
def test_nobody_can_tell_about_a_job_that_slurm_does_not_show_here(tmp_path, monkeypatch, answer, other):
    """Another cluster has other jobs of the same numbers; other users' may be hidden (PrivateData)."""
    folder = tmp_path / "lock"
    left(folder, host="node7", slurm_job="41", **other)
    slurm(monkeypatch, tmp_path, answer)
    with pytest.raises(UserError, match=f"SLURM job 41, .* if that has ended, delete {folder}"), held(folder):
        pass


@pytest.mark.parametrize("variable", [None, "hpc"])
@pytest.mark.parametrize("name", [None, "hpc"])
def test_a_login_node_asks_about_a_job_of_its_cluster(tmp_path, monkeypatch, variable, name):
    """SLURM_CLUSTER_NAME is only set in jobs, and an executor may drop it there."""
    folder = tmp_path / "lock"
    left(folder, host="node7", slurm_job="41", slurm_cluster=name)
    slurm(monkeypatch, tmp_path, job("TIMEOUT"))
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    if variable:
        monkeypatch.setenv("SLURM_CLUSTER_NAME", variable)
    with held(folder) as dead:
        assert dead.startswith("SLURM job 41, ")


def test_a_job_leaves_the_name_of_its_cluster(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    slurm(monkeypatch, tmp_path, job())
    with held(tmp_path / "lock"):
        assert json.loads((tmp_path / "lock" / "0.json").read_text())["slurm_cluster"] == "hpc"


def test_a_requeued_job_has_the_lock_of_its_first_attempt(tmp_path, monkeypatch):
    """On another node. SLURM_RESTART_COUNT does not get there (snakemake-executor-plugin-slurm-jobstep)."""
    folder = tmp_path / "lock"
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    slurm(monkeypatch, tmp_path, job())
    with held(folder):
        first = json.loads((folder / "0.json").read_text())
    left(folder, **first | {"host": "node7"})
    slurm(monkeypatch, tmp_path, job(restarts=1))
    with held(folder) as dead:
        assert dead.startswith("SLURM job 41, ")


@pytest.mark.parametrize("answer", [job(), UNREACHABLE])
def test_another_node_of_the_same_allocation_may_still_write(tmp_path, monkeypatch, answer):
    folder = tmp_path / "lock"
    left(folder, host="node7", slurm_job="41", slurm_restarts=0)
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    slurm(monkeypatch, tmp_path, answer)
    with pytest.raises(UserError, match=f"SLURM job 41, .* if that has ended, delete {folder}"), held(folder):
        pass


@pytest.mark.parametrize("other", [{"machine": "another"}, {"machine": ""}])
def test_nobody_can_tell_about_a_machine_of_the_same_name(tmp_path, monkeypatch, other):
    """Another boot is no sign of a dead process where it is not known to be the same machine's."""
    monkeypatch.setattr(lock, "_MACHINE", tmp_path / "machine-id")
    (tmp_path / "machine-id").write_text(other["machine"] and "this one")
    folder = tmp_path / "lock"
    left(folder, boot="another", **other)
    with pytest.raises(UserError, match=f"if that has ended, delete {folder}"), held(folder):
        pass


@pytest.mark.parametrize("content", [{"host": "node7"}, {"namespace": "pid:[1]"}, None])
def test_nobody_can_tell_about_another_machine_or_container_or_a_file_without_content(tmp_path, content):
    folder = tmp_path / "lock"
    left(folder, **content or {})
    if content is None:
        (folder / "0.json").write_text("")
    with pytest.raises(UserError, match=f"if that has ended, delete {folder}"), held(folder):
        pass


def test_a_holder_that_nobody_has_waited_for_is_dead():
    """A zombie keeps its process id, as a killed command does until init asks how it ended."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not lock._alive({"pid": pid})
    os.waitpid(pid, 0)
