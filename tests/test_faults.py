"""Whatever ends a workflow or damages its files, the same command again gives the results of an undisturbed one.

The reference is the smoke scale of `smoke_project`. The long tests (`make test-long`) kill whole workflows, at random
moments as often as ENTROPY_DYNAMICS_KILLS says.
"""

import json
import operator
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path

import psutil
import pytest

from entropy_dynamics.cli import main
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.loading import load_policy, save_policy
from fault_harness import LOCKED, STAGES, Workflow, differences, kill, members
from project_copy import SNAKEMAKE, copy_project, snakemake

MODEL = "qwen2.5-7b-instruct"
MODEL_FOLDER = f"models/{MODEL}"
RUN = f"runs/{MODEL}/clip_b/seed0"
EVALUATION = f"evaluations/{MODEL}/clip_b/seed0"
TARGET = f"results/smoke/{EVALUATION}/aime24.parquet"
OF_A_RUN = ("--model", MODEL, "--method", "clip_b", "--seed", "0")
KILLS = int(os.environ.get("ENTROPY_DYNAMICS_KILLS", 50))
SECONDS = (3, 20)  # between a start and its kill: the smoke scale takes 90 s on two cores, a job of it 3 to 8
FLIPS = 60
SEED = 6


@pytest.fixture
def reference(smoke_project) -> Path:
    return smoke_project / "results" / "smoke"


@pytest.fixture
def finished(tmp_path, smoke_project) -> Path:
    """A copy of the project with the finished smoke scale; the test is in it."""
    return shutil.copytree(smoke_project, tmp_path / "project")


@pytest.fixture
def unfinished(finished) -> Path:
    """The same without one run and its evaluation."""
    for name in (RUN, EVALUATION):
        shutil.rmtree(finished / "results" / "smoke" / name)
    return finished


@pytest.fixture
def stage(finished, monkeypatch, capfd):
    """`stage(name, ...)` runs `entropy-dynamics <name> --scale smoke ...` in the copy: (exit code, output)."""
    monkeypatch.chdir(finished)

    def call(name, *arguments):
        code = main([name, "--scale", "smoke", *arguments])
        return code, "".join(capfd.readouterr())

    return call


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


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def assert_one_line(result, *parts):
    """The exit code is 2 and the last line contains all of `parts`; notes may precede it."""
    code, text = result
    assert code == 2, text
    assert "Traceback" not in text
    *_, last = text.splitlines()
    assert last.startswith("error: "), text
    for part in parts:
        assert part in last


# ---------------------------------------------------------------- killed


def test_a_run_and_its_evaluation_killed_twice(unfinished, reference):
    work = Workflow(unfinished, TARGET, checkpoints=True)
    assert not work.run(lambda _: bool(work.files(f"checkpoints/{MODEL}/clip_b/seed0/*/step2")))
    assert not work.run(lambda _: bool(work.files(f"{RUN}/metrics.parquet")))
    assert work.resumed() == 1
    assert work.run()
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

    def reached(_) -> bool:
        found = [stage for stage, pattern in awaited.items() if work.files(pattern)]
        for stage in found:
            del awaited[stage]
        return bool(found)

    while not work.run(reached):
        pass
    assert not awaited
    assert differences(work.results, reference) == []


@pytest.mark.long
def test_kills_at_random_moments(tmp_path, reference):
    """Workflows one after the other, each killed repeatedly until it finishes; every other one with checkpoints.

    After a kill that left no new file, the next moment is drawn from a longer interval, so a slow machine progresses.
    """
    moments, kills, resumed = random.Random(SEED), 0, 0
    for number in count():
        (tmp_path / str(number)).mkdir()
        work = Workflow(copy_project(tmp_path / str(number)), checkpoints=number % 2 == 0)
        files, longest, done = 0, SECONDS[1], False
        while not done:
            moment = moments.uniform(SECONDS[0], longest) if kills < KILLS else float("inf")
            done = work.run(partial(operator.lt, moment))
            before, files = files, sum(len(work.files(pattern)) for pattern in STAGES.values())
            longest = max(SECONDS[1], longest / 1.25) if files > before else 1.5 * longest
            if not done:
                kills += 1
                print(f"workflow {number}: kill {kills} after {moment:.1f} s, {files} files", flush=True)
        assert differences(work.results, reference) == []
        resumed += work.resumed()
        if kills == KILLS:
            break
    assert resumed > 0 or KILLS < 10


# ---------------------------------------------------------------- ended in other ways


def interrupt_twice(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)


def kill_the_job(process: subprocess.Popen) -> None:
    """As the kernel does when memory runs out: the stage, and neither its shell nor Snakemake."""
    jobs = [one for one in members(process) if one.pid != process.pid and "train" in one.cmdline()]
    assert len(jobs) == 1
    jobs[0].kill()


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
    assert not members(process)
    log = (work.results / f"logs/{RUN}.log").read_text()
    assert "Traceback" not in log
    assert "Traceback" not in work.said() or how == "Ctrl-C twice"  # which may interrupt Snakemake's own shutdown
    if how == "Ctrl-C":
        assert "interrupted; no half-written file is left" in log
        assert not list(work.results.rglob("*.partial"))
    if how != "SIGTERM to Snakemake":  # which lets its jobs finish
        assert not work.files(f"{RUN}/metrics.parquet")
    assert work.run()
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


# ---------------------------------------------------------------- disks

SMALL_MODEL = ("--set", f"toy_models[{MODEL}].warm_start.steps=1")
COMMANDS = {
    "problems": ("problems",),
    "model": ("model", "--model", MODEL, *SMALL_MODEL),
    "pass rates": ("pass_rates",),
    "train": ("train", *OF_A_RUN),
    "train with checkpoints": ("train", *OF_A_RUN, "--set", "training.checkpoint_every=1"),
    "evaluate": ("evaluate", *OF_A_RUN),
    "theory": ("theory", "--model", MODEL),
    "table": ("report", "table1"),
    "figure": ("report", "figure6"),
    "claims": ("claims",),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_ends_a_stage_with_one_line_and_changes_nothing(tmp_path, finished, stage, mount, name):
    results = finished / "results"
    kept = results.rename(tmp_path / "kept")
    shutil.copytree(kept, small_disk(mount, results, 40), dirs_exist_ok=True)
    before = differences(results / "smoke", kept / "smoke")
    fill(results)
    assert_one_line(stage(*COMMANDS[name]), "No space left on device")
    changed = differences(results / "smoke", kept / "smoke")
    # A partly written checkpoint is deleted when the run resumes.
    assert [one for one in changed if not one.startswith("checkpoints/")] == before == []


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


@pytest.mark.parametrize("name", COMMANDS)
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
    assert not members(process)
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


# ---------------------------------------------------------------- damaged files


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damaged", "name"),
    [
        (f"{RUN}/metrics.parquet", "figure"),
        (f"{EVALUATION}/dapo500.parquet", "table"),
        (f"{MODEL_FOLDER}/model.json", "table"),
        ("data/train.parquet", "pass rates"),
        ("data/pass_rates.parquet", "train"),
        ("data/dapo500.parquet", "train"),
        (f"{MODEL_FOLDER}/model.json", "train"),
        (f"{MODEL_FOLDER}/model.safetensors", "train"),
        (f"{MODEL_FOLDER}/tokenizer.json", "train"),
        (f"{MODEL_FOLDER}/config.json", "train"),
        (f"{MODEL_FOLDER}/model.safetensors", "theory"),
        ("data/aime24.parquet", "evaluate"),
        (f"{RUN}/policy/model.safetensors", "evaluate"),
        (f"{RUN}/policy/tokenizer.json", "evaluate"),
    ],
)
def test_a_truncated_file_is_named_with_its_remedy(finished, stage, damaged, name):
    path = Path("results/smoke", damaged)
    truncate(path)
    if name == "train":
        shutil.rmtree(Path("results/smoke", RUN))
    before = names_in(finished / "results")
    assert_one_line(stage(*COMMANDS[name]), str(path.parent), "delete")
    assert names_in(finished / "results") == before


def test_a_claim_names_the_truncated_file_that_it_cannot_be_judged_by(stage):
    truncate(Path("results/smoke", RUN, "metrics.parquet"))
    code, _ = stage("claims")
    assert code == 0  # other claims are judged
    claims = json.loads(Path("results/smoke/claims.json").read_text())
    unsure = [claim for claim in claims if f"{RUN}/metrics.parquet" in claim["reason"]]
    assert unsure
    assert {claim["verdict"] for claim in unsure} == {"inconclusive"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("damaged", "name"), [(f"{EVALUATION}/dapo500.parquet", "table"), (f"{RUN}/metrics.parquet", "figure")]
)
def test_following_the_message_restores_the_file(finished, reference, stage, damaged, name):
    truncate(finished / "results/smoke" / damaged)
    _, text = stage(*COMMANDS[name])
    path, command = re.search(r"error: (\S+) .*; delete it and rerun: snakemake (.*)", text).groups()
    Path(path).unlink()
    subprocess.run([SNAKEMAKE, *shlex.split(command)], cwd=finished, check=True, capture_output=True)
    assert stage(*COMMANDS[name])[0] == 0
    assert differences(finished / "results/smoke", reference) == []


@pytest.mark.long
def test_verify_names_a_file_in_which_one_bit_is_flipped(finished, stage):
    """Random files of a finished scale, without its logs, each with one bit flipped at a random place."""
    place = random.Random(SEED)
    results = finished / "results/smoke"
    files = sorted(path for path in results.rglob("*") if path.is_file() and path.stat().st_size)
    files = [path for path in files if path.relative_to(results).parts[0] != "logs"]
    files = place.sample(files, FLIPS)
    assert stage("verify")[0] == 0
    unseen = []
    for path in files:
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[place.randrange(len(whole))] ^= 1 << place.randrange(8)
        path.write_bytes(changed)
        code, said = stage("verify")
        path.write_bytes(whole)
        name, folder = path.relative_to(results).as_posix(), path.parent.relative_to(results).as_posix()
        told = name in said or f"{folder}: " in said  # a run whose record has another hash of an input is stale
        if not told and not (code == 0 and name.endswith("provenance.json")):  # the hardware in it has no hash
            unseen.append((name, code, said))
    assert unseen == []


def killed_when_there(project: Path, command: list[str], file: str) -> list[Path]:
    """SIGKILL a stage and its ranks once `file` (a glob below the results) exists; the files that match it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "entropy_dynamics.cli", command[0], "--scale", "smoke", *command[1:]],
        cwd=project,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    work = Workflow(project)
    while process.poll() is None and not work.files(file):
        time.sleep(0.002)
    ranks = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    kill(process)
    psutil.wait_procs(ranks)  # each has its own group, and the kernel ends it with its parent
    return [work.results / name for name in work.files(file)]


def test_a_run_on_two_ranks_is_killed_and_resumes(unfinished, stage):
    """It gives the bytes of an undisturbed one on two ranks."""
    command = [*COMMANDS["train with checkpoints"], "--set", "hardware.ranks=2"]
    run, kept = unfinished / "results/smoke" / RUN, unfinished / "results/kept"
    code, text = stage(*command)
    assert code == 0, text
    run.rename(kept)
    assert killed_when_there(unfinished, command, f"checkpoints/{MODEL}/clip_b/seed0/*/step2")
    assert not run.exists()
    code, text = stage(*command)
    assert code == 0, text
    assert re.search(r"resumes from the checkpoint after step [23]$", text, re.MULTILINE)
    assert differences(run, kept) == []


@pytest.mark.parametrize("damage", [truncate, flip_a_bit])
@pytest.mark.parametrize("file", ["*.safetensors", "*.json"])
def test_a_damaged_checkpoint_is_skipped(unfinished, reference, stage, damage, file):
    """A run killed after three of its four steps, with the third checkpoint damaged, resumes from the second."""
    command = [*COMMANDS["train with checkpoints"], "--set", "training.checkpoints_kept=2"]
    [third] = killed_when_there(unfinished, command, f"checkpoints/{MODEL}/clip_b/seed0/*/step3")
    damage(max(third.glob(file), key=lambda path: path.stat().st_size))
    code, text = stage(*command)
    assert code == 0, text
    said = [line for line in text.splitlines() if str(third.relative_to(unfinished)) in line]
    assert len(said) == 1
    assert "damaged" in said[0]
    assert "after step 2" in text
    made = {
        name
        for name in differences(unfinished / "results/smoke", reference)
        if name.startswith(("runs/", "checkpoints/"))
    }
    assert made == set()
