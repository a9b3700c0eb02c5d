"""A copy of the configs to be hostile in, and what every refusal has to be: one line, exit code 2, nothing written."""

import shutil
from pathlib import Path

import pytest

from conftest import ROOT
from entropy_dynamics.cli import main

MODEL = "qwen2.5-7b-instruct"
RUN = ("--model", MODEL, "--method", "grpo")
LONG = "x" * 300  # no file system takes such a name


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The project's configs, some folders deep so that a `../` shows, and a scale `mine` for hostile YAML."""
    folder = tmp_path / "home" / "user" / "project"
    for name in ("configs", "experiments"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "configs" / "scale" / "mine.yaml").write_text("extends: laptop\nscale: mine\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def refused(project, tmp_path, capfd):
    """`refused(step, ...)`: the line after `error: ` of a command that has to fail without a trace."""

    def call(*arguments: str) -> str:
        before = everything_in(tmp_path)
        capfd.readouterr()
        code, usage = run_main(arguments)
        out, err = capfd.readouterr()
        return one_line(code, out, err, usage, same=everything_in(tmp_path) == before)

    return call


def run_main(arguments) -> tuple[int, bool]:
    """Exit code, and whether argparse gave it: it prints its usage first."""
    try:
        return main(arguments), False
    except SystemExit as end:
        return end.code, True


def one_line(code: int, out: str, err: str, usage: bool, same: bool) -> str:
    assert code == 2, (out, err)
    assert out == ""
    assert "Traceback" not in err
    lines = err.splitlines()
    if usage:
        assert lines[0].startswith("usage: ")
        assert ": error: " in lines[-1]
    else:
        assert len(lines) == 1, err
        assert lines[0].startswith("error: ")
    assert same, "something was written"
    return lines[-1].partition("error: ")[2]


def everything_in(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
