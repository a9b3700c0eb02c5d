"""Further contents of report.html: progress, unfinished runs, and token samples of all runs."""

import time
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.statistics import rounded
from entropy_dynamics.config import BASE
from entropy_dynamics.results.files import read_jobs, read_parquet
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.progress import trained_steps
from entropy_dynamics.tasks.countdown.problems import as_string

SILENT = 600  # seconds without a new line after which a run counts as stopped
SHOWN_TOKENS = 400  # per step of a run; more responses are in its file
ALL_TOKENS = 40_000  # of all runs together, about 2 MB as JSON
COLUMNS = {"logp": "p", "entropy": "h", "s_star": "s", "s_expected": "e", "advantage": "a", "weight": "w"}


def unfinished_runs(layout: Layout) -> list[dict[str, Any]]:
    """Runs with steps in their logs, but no metrics yet: name, steps done and total, curves, whether they run now.

    A curve is the points of an SVG polyline in a box of 100 by 40, those of GRPO with the same model and seed,
    and its last value.
    """
    shown = []
    for log in layout.find("logs/runs", ".log"):
        steps = _steps(log.path)
        if not len(steps) or layout.metrics(*log.run).is_file():
            continue
        model, method, seed = log.run
        other = _steps(layout.log("runs", model, "grpo", seed)) if method != "grpo" else steps[:0]
        total, curves = steps[0, 1], {}
        for column, name in enumerate(("entropy", "accuracy"), 2):
            top = max(*steps[:, column], *other[:, column], 1e-9)
            points = [
                " ".join(f"{100 * a / total:.1f},{39 - 38 * b / top:.1f}" for a, b in of[:, [0, column]])
                for of in (steps, other)
            ]
            curves[name] = (*points, float(steps[-1, column]))
        runs_now = time.time() - log.path.stat().st_mtime < SILENT
        name = f"{method}, seed {seed}, {model}"
        shown.append({"name": name, "done": int(steps[-1, 0]), "total": int(total), "curves": curves, "now": runs_now})
    return shown


def _steps(log: Path) -> np.ndarray:
    return np.array(trained_steps(log), float).reshape(-1, 4)


def progress(results: Results) -> dict[str, Any]:
    """The training runs of the tables and figures: how many are done, of how many, and the minutes left if known."""
    runs = {run.path for name in results.names for run in results.experiment(name).runs if run.method != BASE}
    done = sum(results.layout.metrics(*run).is_file() for run in runs)
    trained = [job for job in read_jobs(results.layout.jobs) if job["rule"] == "train"]
    minutes = busy_seconds(trained) / 60 / len(trained) * (len(runs) - done) if trained else None
    return {"done": done, "total": len(runs), "minutes": minutes}


def busy_seconds(jobs: Iterable[dict[str, Any]]) -> float:
    """The time during which at least one of the jobs ran."""
    busy, until = 0.0, 0.0
    for start, end in sorted((job["start"], job["start"] + job["seconds"]) for job in jobs):
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy


def token_samples(layout: Layout, first: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """The first responses of the sampled steps of all runs, each with an equal share of `ALL_TOKENS`.

    The runs of the (model, method) pairs in `first` come before all others.
    """
    order = {pair: place for place, pair in enumerate(first)}
    files: dict[tuple[int, str, str, int], dict[int, Path]] = {}
    for file in layout.find("samples", "/step*.parquet"):
        run = (order.get(file.run[:2], len(order)), *file.run)
        files.setdefault(run, {})[file.step] = file.path
    tokens = max(1, min(SHOWN_TOKENS, ALL_TOKENS // max(1, sum(map(len, files.values())))))
    samples = []
    for (_, model, method, seed), steps in sorted(files.items(), key=lambda item: item[0]):
        shown = {step: _shown(steps[step], tokens) for step in sorted(steps)}
        samples.append({"model": model, "method": method, "seed": seed, "steps": shown})
    return samples


def _shown(file: Path, tokens: int) -> list[dict[str, Any]]:
    """The responses up to the first that exceeds this number of tokens."""
    every = responses(file, file.stat().st_mtime_ns)
    before = accumulate((len(response["t"]) for response in every), initial=0)
    return [response for response, count in zip(every, before, strict=False) if count < tokens]


@lru_cache(4096)  # as `watch` rewrites the page again and again
def responses(file: Path, written: int) -> list[dict[str, Any]]:
    """Responses of a file of token samples, one list per token column: the first, cut off after `SHOWN_TOKENS`, and
    those that fit beside it. `written` is the time at which the file was written, for the cache."""
    shown, count = [], 0
    for row in read_parquet(file).to_dict("records"):
        tokens = list(row["token"])[:SHOWN_TOKENS]
        if shown and count + len(tokens) > SHOWN_TOKENS:
            break
        columns = {short: [rounded(value, 4) for value in row[name][: len(tokens)]] for name, short in COLUMNS.items()}
        shown.append({"prompt": _spoken(row["prompt"]), "correct": bool(row["correct"]), "t": tokens, **columns})
        count += len(tokens)
    return shown


def _spoken(prompt: str) -> str:
    """'3,9,7,7=6: make 6 from 3, 9, 7, 7' for a Countdown problem in the toy models' notation."""
    try:
        numbers, _, target = as_string(prompt).partition("=")
    except ValueError:
        return prompt
    return f"{prompt}: make {target} from {numbers.replace(',', ', ')}"
