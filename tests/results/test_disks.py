"""A full disk or a read-only folder: one line, nothing half-written, and results as if undisturbed afterwards.

They mount small disks, for which they need the right to mount, and are skipped without it.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from entropy_dynamics.errors import UserError
from entropy_dynamics.models.storage import load_policy, save_policy
from fault_harness import COMMANDS, MODEL, TARGET, Workflow, assert_one_line, differences
from project_copy import snakemake


@pytest.fixture
def mount():
    """`mount(option, ..., folder)`, until the test is over."""
    mounted = []

    def call(*arguments):
        if shutil.which("mount") is None:
            pytest.skip("there is no `mount`")
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
        mounted.append(arguments[-1])

    yield call
    for folder in reversed(mounted):
        subprocess.run(["umount", "--lazy", folder], check=True)


def small_disk(mount, folder: Path, mib: int) -> Path:
    folder.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder))
    return folder


def make_read_only(mount, folder: Path) -> None:
    mount("--bind", str(folder), str(folder))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)


def fill(disk: Path, left: int = 0) -> Path:
    """A file that leaves `left` bytes of a disk free."""
    filler = disk / "filler"
    with open(filler, "wb") as file:
        state = os.statvfs(disk)
        if (size := state.f_bavail * state.f_frsize - left) > 0:
            os.posix_fallocate(file.fileno(), 0, size)
    return filler


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_ends_a_stage_with_one_line_and_changes_nothing(tmp_path, finished, stage, mount, name):
    results = finished / "results"
    kept = results.rename(tmp_path / "kept")
    shutil.copytree(kept, small_disk(mount, results, 40), dirs_exist_ok=True)
    fill(results)
    assert_one_line(stage(*COMMANDS[name]), "No space left on device")
    changed = differences(results / "smoke", kept / "smoke")
    # A partly written checkpoint is deleted when the run resumes.
    assert [one for one in changed if not one.startswith("checkpoints/")] == []


def test_a_policy_that_does_not_fit_on_the_disk(tmp_path, model, tokenizer, mount):
    """Page by page: one line, whichever of its files does not fit."""
    disk, messages = small_disk(mount, tmp_path / "disk", 4), []
    for pages in range(1000):
        filler = fill(disk, left=pages * os.sysconf("SC_PAGE_SIZE"))
        try:
            save_policy(model, tokenizer, disk / "policy")
        except (OSError, UserError) as error:
            messages.append(str(error))
        else:
            break
        shutil.rmtree(disk / "policy", ignore_errors=True)
        filler.unlink()
    assert len(messages) > 10
    assert all("No space left on device" in message for message in messages)
    assert load_policy(disk / "policy")


@pytest.mark.parametrize("name", ["problems", "train", "table"])
def test_a_read_only_folder_ends_a_stage_with_one_line(finished, stage, mount, name):
    make_read_only(mount, finished / "results")
    assert_one_line(stage(*COMMANDS[name]), "Read-only file system")


@pytest.mark.long
def test_the_disk_is_full_in_the_middle_of_a_run(tmp_path, unfinished, reference, mount):
    """The disk of the whole project, Snakemake's own records included."""
    disk = small_disk(mount, tmp_path / "disk", 48)
    work = Workflow(shutil.copytree(unfinished, disk, dirs_exist_ok=True), TARGET, checkpoints=True)
    process = work.start()
    while process.poll() is None and not work.files(f"checkpoints/{MODEL}/clip_b/seed0/*/step1"):
        time.sleep(0.005)
    filler = fill(disk)
    assert process.wait(timeout=120) != 0
    work.wait_until_gone()
    filler.unlink()
    assert work.run()
    assert differences(work.results, reference) == []


@pytest.mark.long
def test_a_workflow_in_a_read_only_results_folder(unfinished, reference, mount):
    results = unfinished / "results"
    make_read_only(mount, results)
    done = snakemake(unfinished, TARGET)
    assert done.returncode != 0
    assert "Read-only file system" in done.stdout + done.stderr
    subprocess.run(["mount", "-o", "remount,rw,bind", results], check=True)
    work = Workflow(unfinished, TARGET)
    assert work.run()
    assert differences(work.results, reference) == []
