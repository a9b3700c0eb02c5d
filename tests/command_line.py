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
