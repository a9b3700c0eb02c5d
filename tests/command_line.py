"""Run a command in this process: what it prints, and the one line of a mistake."""

from entropy_dynamics.cli import main


def run(capsys, *arguments) -> str:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


def error(capsys, *arguments) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line.removeprefix("error: ")


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
    return ["--scale", "smoke", *(part for entry in settings for part in ("--set", entry))]
