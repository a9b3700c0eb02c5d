"""Files of graded samples, and what `entropy-dynamics pass-at-k` says of them."""

import json

import pandas as pd

from command_line import output, run, write_lines

GRADES = {"a": [1, 0, 0, 0], "b": [1, 1, 0, 0], "c": [0, 0, 0, 0], "d": [1, 1, 1, 1]}
CURVE = {1: 43.8, 2: 58.3, 4: 75.0}  # c of 4 correct: 1 - C(4 - c, k) / C(4, k), averaged


def rows(**columns):
    """A row per sample; each column is a function of the problem's and the sample's number and of the row's."""
    return [
        {"problem_id": name, "correct": grade}
        | {key: of(place, sample, 4 * place + sample) for key, of in columns.items()}
        for place, (name, grades) in enumerate(GRADES.items())
        for sample, grade in enumerate(grades)
    ]


def graded(grades, **columns):
    return [{"problem_id": name, "correct": grade} | columns for name, row in grades.items() for grade in row]


def written(path, rows):
    pd.DataFrame(rows).to_parquet(path) if path.suffix == ".parquet" else write_lines(path, rows)
    return path


def json_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def curve(text, column=1):
    """k -> Pass@k."""
    return {int(line.split()[0]): float(line.split()[column]) for line in text.splitlines()[1:]}


def curve_of(capsys, *arguments):
    """Pass@k of a file with one policy, and what the command says on stderr."""
    out, err = output(capsys, "pass-at-k", *arguments)
    assert out.split("\n")[0].split()[2:] == ["low", "high"]
    return curve(out), err


def first_row(capsys, *arguments):
    """The columns of the table without bounds, and their values at k = 1."""
    header, row, *_ = (line.split() for line in run(capsys, "pass-at-k", *arguments).splitlines())
    return {name: float(value) for name, value in zip(header, row, strict=True) if name not in ("low", "high")}
