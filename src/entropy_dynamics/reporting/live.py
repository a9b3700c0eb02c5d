"""Further contents of report.html: unfinished runs, and token samples of all runs."""

import json
import math
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from entropy_dynamics.results.files import read_parquet
from entropy_dynamics.results.layout import Layout

STEP = re.compile(r" (\d+)/(\d+)  entropy ([\d.]+)  accuracy ([\d.]+)")  # a line of training.progress
SILENT = 600  # seconds without a new line after which a run counts as stopped
SHOWN_TOKENS = 400  # per step; more responses are in its file
SHOWN_BYTES = 2**21  # for all runs together, as JSON
COLUMNS = {"logp": "p", "entropy": "h", "s_star": "s", "s_expected": "e", "advantage": "a", "weight": "w"}


def unfinished_runs(layout: Layout) -> list[dict[str, Any]]:
    """Runs with steps in their logs, but no metrics yet: name, steps done and total, curves, whether they run now.

    A curve is the points of an SVG polyline in a box of 100 by 40, and its last value.
    """
    shown = []
    for log in sorted(layout.root.glob("logs/runs/*/*/seed*.log")):
        model, method, seed = *log.parts[-3:-1], log.stem.removeprefix("seed")
        steps = STEP.findall(log.read_text(encoding="utf-8", errors="replace"))
        if not steps or layout.metrics(model, method, seed).is_file():
            continue
        step, (total, *_), *columns = np.array(steps, float).T
        curves = {name: _polyline(step / total, y) for name, y in zip(("entropy", "accuracy"), columns, strict=True)}
        runs_now = time.time() - log.stat().st_mtime < SILENT
        name = f"{method}, seed {seed}, {model}"
        shown.append({"name": name, "done": int(step[-1]), "total": int(total), "curves": curves, "now": runs_now})
    return shown


def _polyline(x: np.ndarray, y: np.ndarray) -> tuple[str, float]:
    height = 38 * (1 - y / max(y.max(), 1e-9)) + 1
    return " ".join(f"{100 * a:.1f},{b:.1f}" for a, b in zip(x, height, strict=True)), float(y[-1])


def token_samples(layout: Layout, first: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """The first responses of the sampled steps of all runs, lowest seeds first, up to `SHOWN_BYTES`.

    Args:
        first: (model, method) pairs to put before all others.
    """
    order = {pair: place for place, pair in enumerate(first)}
    files: dict[tuple[int, int, str, str], list[Path]] = {}
    for file in layout.root.glob("samples/*/*/seed*/step*.parquet"):
        model, method, seed = file.parts[-4:-1]
        key = (int(seed.removeprefix("seed")), order.get((model, method), len(order)), method, model)
        files.setdefault(key, []).append(file)
    shown, size = [], 0
    for (seed, _, method, model), steps in sorted(files.items()):
        by_step = {int(file.stem.removeprefix("step")): file for file in steps}
        sampled = {step: _responses(by_step[step]) for step in sorted(by_step)}
        run = {"model": model, "method": method, "seed": seed, "steps": sampled}
        size += len(json.dumps(run))
        if shown and size > SHOWN_BYTES:
            break
        shown.append(run)
    return shown


def _responses(file: Path) -> list[dict[str, Any]]:
    """Responses with one list per token column, cut off after `SHOWN_TOKENS`."""
    responses, count = [], 0
    for row in read_parquet(file).to_dict("records"):
        tokens = list(row["token"])[: SHOWN_TOKENS - count]
        columns = {short: [_short(value) for value in row[name][: len(tokens)]] for name, short in COLUMNS.items()}
        responses.append({"prompt": row["prompt"], "correct": bool(row["correct"]), "t": tokens, **columns})
        if (count := count + len(tokens)) >= SHOWN_TOKENS:
            break
    return responses


def _short(value: float) -> float | None:
    """Four significant digits; None for values that JSON cannot represent."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
