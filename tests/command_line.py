"""Run a command in this process: what it prints, and the one line of a mistake; and files that commands read."""

import json
from collections.abc import Iterable
from pathlib import Path

from entropy_dynamics.cli import main


def output(capsys, *arguments, code: int = 0) -> tuple[str, str]:
    """What a command that ends with the code writes to stdout and to stderr."""
    ended = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert ended == code, err
    return out, err


def run(capsys, *arguments) -> str:
    return output(capsys, *arguments)[0]


def error(capsys, *arguments) -> str:
    """The line of a mistake, which is all that the command writes."""
    out, err = output(capsys, *arguments, code=2)
    [line] = err.splitlines()
    assert out == ""
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def set_to(settings: Iterable[str]) -> list[str]:
    return [part for entry in settings for part in ("--set", entry)]


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    """JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def from_files(train, task: str = "math", **evaluation: str | int) -> list[str]:
    """Options of `problems` for a training file and evaluation sets: files, or sizes of splits. Scale smoke."""
    made = "{source: countdown, size: 1, numbers: [2, 2], values: [50, 60], targets: [100, 120]}"
    sets = {
        name: f"{{source: split, size: {given}}}" if isinstance(given, int) else f"{{source: file, path: {given}}}"
        for name, given in evaluation.items()
    } or {"made": made}
    settings = [
        f"data.train={{source: file, path: {train}, task: {task}}}",
        "data.evaluation={}",
        *(f"data.evaluation.{name}={source}" for name, source in sets.items()),
        f"training.validation_set={next(iter(sets))}",
        f"evaluation.samples={{{', '.join(f'{name}: 1' for name in sets)}}}",
    ]
    return ["--scale", "smoke", *set_to(settings)]
