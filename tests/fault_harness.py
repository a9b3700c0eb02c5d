"""What the tests of kills, disks and damaged files share: a workflow to end, restart and compare, and its stages."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from glob import glob
from pathlib import Path

import pandas as pd
import psutil
import pytest
from omegaconf import OmegaConf

from entropy_dynamics.cli import main
from entropy_dynamics.client import SERVER
from entropy_dynamics.config import settings_of
from preloaded import program
from project_copy import snakemake

STAGES = {  # a stage is reached when its first file is there
    "problems": "data/problems.json",
    "models": "models/*/*/model.json",
    "pass_rates": "pass_rates/seed0.parquet",
    "runs": "runs/*/*/*/metrics.parquet",
    "evaluations": "evaluations/*/*/*/*.parquet",
    "tables": "tables/*.csv",
    "figures": "figures/*.csv",
    "claims": "claims.json",
}
LOCKED = "another snakemake makes these files"
SECONDS_TO_END = 60  # after which a process of an ended workflow is an orphan
MODEL = "qwen2.5-7b-instruct"
MODEL_FOLDER = f"models/{MODEL}/seed0"
RUN = f"runs/{MODEL}/clip_b/seed0"
EVALUATION = f"evaluations/{MODEL}/clip_b/seed0"
TARGET = f"results/smoke/{EVALUATION}/aime24.parquet"
OF_A_RUN = ("--model", MODEL, "--method", "clip_b", "--seed", "0")
OTHER_MODEL = "distill-llama-8b"  # which the smoke scale has not made: results are not replaced
COMMANDS = {
    "problems": ("problems",),
    "model": ("model", "--model", OTHER_MODEL, "--set", f"toy_models[{OTHER_MODEL}].warm_start.steps=1"),
    "pass rates": ("pass_rates",),
    "train": ("train", *OF_A_RUN),
    "train with checkpoints": ("train", *OF_A_RUN, "--set", "training.checkpoint_every=1"),
    "evaluate": ("evaluate", *OF_A_RUN),
    "theory": ("theory",),
    "table": ("draw", "table1"),
    "figure": ("draw", "figure6"),
    "claims": ("claims",),
}
CHECKPOINTS = "overrides:\n  - for: {scale: smoke}\n    training: {checkpoint_every: 1, checkpoints_kept: 2}\n"


class Workflow:
    """One `snakemake` command at the smoke scale, started as often as it takes."""

    def __init__(self, project: Path, *targets: str, checkpoints: bool = False, preloaded: bool = False):
        """checkpoints: runs write one after every step, so that they can resume in the middle."""
        self.snakemake = program("snakemake") if preloaded else Path(sys.executable).with_name("snakemake")
        self.temporary = tempfile.TemporaryDirectory()  # not in the project: the path of a socket is short
        self.environment = {key: value for key, value in os.environ.items() if preloaded or key != SERVER}
        self.environment["TMPDIR"] = self.temporary.name
        self.project, self.targets = project, targets
        self.results = project / "results" / "smoke"
        self.output = project / "snakemake.txt"  # by the latest start
        self.unlockings = 0
        if checkpoints:
            (project / "configs" / "machine.yaml").write_text(CHECKPOINTS)

    def start(self, pause: str | None = None) -> subprocess.Popen:
        """In its own process group, with all its jobs: SIGKILL to the group is the machine going down.

        pause: jobs wait once a file that matches this is there.
        """
        with open(self.output, "wb") as output:
            return subprocess.Popen(
                [self.snakemake, *self.targets, "--config", "scale=smoke"],
                cwd=self.project,
                env=self.environment | ({} if pause is None else paused(self.results / pause)),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=heed_interrupts,
            )

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def run(self, disturb: Callable[[subprocess.Popen], object] = lambda process: None) -> bool:
        """Start it, and call `disturb` again and again until it has ended with all of its processes. True: it finished.

        A killed Snakemake leaves its lock, and the next one asks for `--unlock`: checked once, then removed silently.
        """
        if any(self.project.glob(".snakemake/locks/*")):
            if self.unlockings == 0:
                if self.start().wait() == 0:
                    return True  # killed after the lock was created, before anything was written into it
                assert LOCKED in self.said(), self.said()
                assert "--unlock" in self.said()
            self.unlock()
        process = self.start()
        while process.poll() is None:
            disturb(process)
            time.sleep(0.01)
        self.wait_until_gone()
        return process.returncode == 0

    def killed_at(self, pattern: str) -> None:
        """Start it preloaded, and SIGKILL the whole group once a file that matches `pattern` is there."""
        if any(self.project.glob(".snakemake/locks/*")):
            self.unlock()
        process = self.start(pause=pattern)
        while not self.files(pattern):
            assert process.poll() is None, self.said()
            time.sleep(0.005)
        kill(process)

    def unlock(self) -> None:
        done = snakemake(self.project, *self.targets, "--unlock")
        assert done.returncode == 0, done.stdout + done.stderr
        self.unlockings += 1

    def processes(self) -> list[psutil.Process]:
        """All live processes that `start` led to, whatever their parents and groups."""
        return [process for process in psutil.process_iter() if _temporary_folder(process) == self.temporary.name]

    def wait_until_gone(self) -> None:
        """Until none of them is left, which takes a moment after Snakemake has ended."""
        deadline = time.monotonic() + SECONDS_TO_END
        while left := self.processes():
            assert time.monotonic() < deadline, [process.cmdline() for process in left]
            time.sleep(0.01)

    def files(self, pattern: str) -> list[str]:
        """Existing files below `results`, without temporaries, whose names start with a dot."""
        return glob(pattern, root_dir=self.results)

    def resumed(self) -> int:
        """The number of runs that resumed from a checkpoint."""
        logs = [self.results / name for name in self.files("logs/runs/*/*/*.log")]
        return sum("resumes from the checkpoint" in log.read_text() for log in logs)


def heed_interrupts() -> None:
    """A shell starts background processes with Ctrl-C ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _temporary_folder(process: psutil.Process) -> str | None:
    """That of its environment when its program started; None for a zombie, and for a process of another user."""
    try:
        return process.environ().get("TMPDIR")
    except psutil.Error:
        return None


def wait_until(true: Callable[[], object], process: subprocess.Popen | None = None, seconds: float = 120) -> None:
    """Fails after so many seconds, or if the process ends before."""
    end = time.monotonic() + seconds
    while not true():
        assert process is None or process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """The process runs and is no zombie."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def kill(process: subprocess.Popen) -> None:
    """SIGKILL a process and its group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def paused(at: Path, until: str | Path = "") -> dict[str, str]:
    """The environment in which a command waits from when `at`, a glob, is there until `until` is (preloaded.py)."""
    return {"PAUSE_FROM": str(at), "PAUSE_UNTIL": str(until)}


def kill_when_there(command: list[str], project: Path, file: Path) -> None:
    """SIGKILL `entropy-dynamics <command>` and its ranks once `file`, a glob, exists."""
    environment = os.environ | paused(file)
    process = subprocess.Popen(
        [program("entropy-dynamics"), *command],
        cwd=project,
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not glob(str(file)):
        assert process.poll() is None
        time.sleep(0.005)
    kill(process)


def differences(results: Path, expected: Path) -> list[str]:
    """Files of a finished scale that differ from those of an undisturbed one, leftovers included.

    Compared bytewise, except for logs, the columns `seconds_*` of metrics, the machine's keys in a run's config, and in
    provenance the commit, which may change meanwhile, and the outputs' hashes; in the report, commits and minutes.
    """
    found, wanted = (
        {name: path for name, path in files_in(folder).items() if not name.startswith("logs/")}
        for folder in (results, expected)
    )
    differing = [name for name in found.keys() & wanted.keys() if not _same(found[name], wanted[name])]
    return sorted([*differing, *(found.keys() ^ wanted.keys())])


def files_in(folder: Path) -> dict[str, Path]:
    """All files below a folder, by relative name."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in files}


def _same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes() or _content(one) == _content(other)


def _content(path: Path) -> object:
    if path.name == "metrics.parquet":
        frame = pd.read_parquet(path)
        kept = [column for column in frame if not column.startswith("seconds_")]
        assert len(kept) > 10
        return [(column, str(frame[column].dtype), frame[column].to_numpy().tobytes()) for column in kept]
    if path.name == "config.yaml":
        return settings_of("train", OmegaConf.to_container(OmegaConf.load(path)))
    if path.name.endswith("provenance.json"):
        return {key: value for key, value in json.loads(path.read_text()).items() if key not in ("git", "outputs")}
    if path.name == "report.html":
        return re.sub(r" · commit .* with jobs running</p>", "", path.read_text())
    return path.read_bytes()


@pytest.fixture
def reference(smoke_project) -> Path:
    return smoke_project / "results" / "smoke"


@pytest.fixture
def finished(tmp_path, smoke_project) -> Path:
    """A copy of the project with the finished smoke scale; the test is in it."""
    return shutil.copytree(smoke_project, tmp_path / "project")


@pytest.fixture
def unfinished(finished) -> Path:
    """The same without one run and its evaluation; another job makes those at further temperatures."""
    shutil.rmtree(finished / "results" / "smoke" / RUN)
    for file in (finished / "results" / "smoke" / EVALUATION).glob("*.*"):
        if file.is_file():
            file.unlink()
    return finished


@pytest.fixture
def stage(finished, monkeypatch, capfd):
    """`stage(name, ...)` runs `entropy-dynamics <name> --scale smoke ...` in the copy: (exit code, output)."""
    monkeypatch.chdir(finished)

    def call(name, *arguments):
        code = main([name, "--scale", "smoke", *arguments])
        return code, "".join(capfd.readouterr())

    return call


def assert_one_line(result, *parts):
    """The exit code is 2 and the last line contains all of `parts`; notes may precede it."""
    code, text = result
    assert code == 2, text
    assert "Traceback" not in text
    *_, last = text.splitlines()
    assert last.startswith("error: "), text
    for part in parts:
        assert part in last


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path, position: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    if position is None:
        position = len(content) * 3 // 4
        while chr(content[position]).isdigit():  # another last digit may give the same float
            position += 1
    content[position] ^= 1
    path.write_bytes(content)
