"""Files of graded samples, and what `entropy-dynamics pass-at-k` says of them."""

from functools import partial

import pandas as pd

from command_line import output, run, write_lines

GRADES = {"a": [1, 0, 0, 0], "b": [1, 1, 0, 0], "c": [0, 0, 0, 0], "d": [1, 1, 1, 1]}
CURVE = {1: 43.8, 2: 58.3, 4: 75.0}  # c of 4 correct: 1 - C(4 - c, k) / C(4, k), averaged


def graded(grades, **columns):
    """A row per sample; a column is a value or a function of the numbers of problem, sample and row."""
    table = []
    for place, (name, row) in enumerate(grades.items()):
        for sample, grade in enumerate(row):
            numbers = place, sample, len(table)
            more = {key: of(*numbers) if callable(of) else of for key, of in columns.items()}
            table.append({"problem_id": name, "correct": grade} | more)
    return table


rows = partial(graded, GRADES)


def written(path, rows):
    """As the suffix says."""
    if path.suffix == ".jsonl":
        return write_lines(path, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(rows)
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


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
