"""Unbiased Pass@k of sampled answers for all k, and the paired difference between two files."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import hypergeom, norm

from entropy_dynamics.analysis.statistics import Interval, score_interval, share_interval
from entropy_dynamics.diagnostics.reading import column, read_table
from entropy_dynamics.errors import UserError
from entropy_dynamics.evaluation import problem_pass_at_k

# Columns of our files, verl's rollout and validation dumps, TRL's completions, and SkyRL's evaluation dumps.
PROBLEM = ("problem_id", "problem", "input", "prompt", "input_prompt")
CORRECT = ("correct", "acc", "score")
DETECTED = norm.isf(0.025) + norm.isf(0.1)  # size of a difference that is detected with 90 % power, in standard errors


def pass_at_k_table(
    files: Sequence[Path], problem: str | None = None, correct: str | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Pass@k in percent for k = 1, 2, 4, ... up to the smallest number of samples of a problem in any file.

    Args:
        problem, correct: column names, if not among the known ones. An answer is correct if its value is above 0.
            Samples without a value are left out, which is unbiased if values are missing independently of the answer.

    Returns:
        A table and notes. The table has one row per k. For each file, named by the part of its path that distinguishes
        it, it has the value and the bounds of its 95 % interval over problems; with two files, also those of the second
        minus the first on the problems that both have. There is a note for each file that lacks grades, and one if a
        file has problems that the other lacks.

    Raises:
        UserError: an unreadable file, a folder without files, a missing column, samples without a problem, no grades
            at all, or two files without a common problem.
    """
    counts, missing = zip(*(_counts(file, problem, correct) for file in files), strict=True)
    notes = [note for note in missing if note]
    fewest = min(int(of_file["samples"].min()) for of_file in counts)
    ks = sorted({2**i for i in range(fewest.bit_length())} | {fewest})
    tables = [_columns(name, _intervals(of_file, ks)) for name, of_file in zip(_names(files), counts, strict=True)]
    if len(files) == 2:
        shared = counts[0].index.intersection(counts[1].index)
        if shared.empty:
            raise UserError(f"{files[0]} and {files[1]} have no problem in common")
        if len(shared) < max(map(len, counts)):
            of = " and ".join(str(len(of_file)) for of_file in counts)
            notes.append(f"the difference is of the {len(shared)} problems that both have, of {of}")
        first, second = (of_file.loc[shared] for of_file in counts)
        differences = [score_interval([_scores(second, k) - _scores(first, k)]) for k in ks]
        tables.append(_columns("difference", differences))
    return pd.concat([pd.DataFrame({"k": ks}), *tables], axis=1), notes


def power_table(
    file: Path, difference: float, problem: str | None = None, correct: str | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Number of problems of this kind needed to detect a difference of Pass@k with 90 % power, by samples per problem.

    Assumes that two independent runs sample each problem with the rate seen in this file, and that one of them is
    better by `difference` on all problems. The variance of a problem's difference is then twice that of its estimate.
    The test is the two-sided test of the paired mean at 95 %. If the difference varies between problems, more of them
    are needed.

    Args:
        difference: of Pass@k, in points.
        problem, correct: as in `pass_at_k_table`.

    Returns:
        A table and notes. The table has one row per number of samples (half, once, twice and four times that of the
        file) and one column per k up to half the file's samples, beyond which the variance has no unbiased estimate;
        NaN if the file shows no variance. There is a note if grades are missing.

    Raises:
        UserError: as for `pass_at_k_table`; a problem has only one sample; or every problem is always or never solved.
    """
    counts, note = _counts(file, problem, correct)
    if (fewest := int(counts["samples"].min())) < 2:
        raise UserError(f"{file} has a problem with 1 graded sample; --power takes 2 or more of each")
    if not ((counts["correct"] > 0) & (counts["correct"] < counts["samples"])).any():
        raise UserError(f"{file} has no problem that some samples solve and some do not; --power takes such problems")
    ks = [2**i for i in range((fewest // 2).bit_length())]
    rows = []
    for n in (fewest // 2, fewest, 2 * fewest, 4 * fewest):
        needed = {f"k={k}": 2 * _estimate_variance(counts, n, k) * (DETECTED / (difference / 100)) ** 2 for k in ks}
        rows.append({"samples": n} | {name: np.ceil(value) or np.nan for name, value in needed.items()})
    return pd.DataFrame(rows), [note] if note else []


def _estimate_variance(counts: pd.DataFrame, n: int, k: int) -> float:
    """Unbiased estimate of the variance of a problem's Pass@k from n samples, averaged over problems.

    Let q be the rate of incorrect samples. Pass@k is estimated by 1 - U, where U is the share of sets of k samples that
    are all incorrect. Two sets that share j samples have 2k - j distinct ones, so both are incorrect with probability
    q^(2k-j), and Var U = sum_j h_j (q^(2k-j) - q^(2k)), where h_j = C(k, j) C(n-k, k-j) / C(n, k) is the share of such
    pairs. An unbiased estimate of q^m is 1 - Pass@m of the file's samples, if m is at most their number, so k is at
    most half of it. Plugging in the file's rate for q would be biased: for k = 1 and N samples it gives (N-1)/N of the
    variance.
    """
    shared = hypergeom.pmf(np.arange(k + 1), n, k, k)
    incorrect = np.array([1 - _scores(counts, 2 * k - j).mean() for j in range(k + 1)])
    return float(shared @ (incorrect - incorrect[0]))


def _counts(file: Path, problem: str | None, correct: str | None) -> tuple[pd.DataFrame, str]:
    """Numbers of graded and of correct samples of each problem, and a note on samples without a grade."""
    frame = _rows(file)
    ids = column(frame, file, problem, PROBLEM, "the problem")
    if (unknown := (ids.isna() | (ids.astype(str) == "")).sum()) > 0:
        raise UserError(f"{file}: {unknown} of {len(ids)} samples have no {ids.name}")
    values = column(frame, file, correct, CORRECT, "the grade of an answer (choose one with --correct)")
    grades = values.dropna().infer_objects()
    if grades.empty:
        raise UserError(f"{file}: no sample has a value of {values.name}")
    if not pd.api.types.is_numeric_dtype(grades):
        wrong = next((grade for grade in grades if not isinstance(grade, int | float)), grades.iloc[0])
        raise UserError(f"{file}: {values.name} is {wrong!r}; it should be true, false or a number")
    if np.isinf(grades.astype(float)).any():
        raise UserError(f"{file}: {values.name} is infinite; it should be true, false or a finite number")
    counts = (grades > 0).groupby(ids.astype(str)).agg(["size", "sum"])  # TRL's prompts may be lists of messages
    missing, left = len(values) - len(grades), f"{len(counts)} of {ids.astype(str).nunique()} problems are left"
    note = f"{file}: {missing} of {len(values)} samples have no {values.name} and are left out; {left}"
    return counts.rename(columns={"size": "samples", "sum": "correct"}), note if missing else ""


def _rows(path: Path) -> pd.DataFrame:
    """The rows of a file, or of all files directly in a folder."""
    if not path.is_dir():
        return read_table(path)
    if not (files := sorted(file for file in path.iterdir() if file.suffix in (".parquet", ".jsonl"))):
        raise UserError(f"{path} has no .parquet or .jsonl file")
    return pd.concat(map(read_table, files), ignore_index=True)


def _names(files: Sequence[Path]) -> list[str]:
    """The part of each path that distinguishes it from the others; for a single file its name."""
    paths = [file.absolute().parts for file in files]
    head, tail = _shared(paths), _shared([path[::-1] for path in paths])
    names = ["/".join(path[head : len(path) - tail]) or path[-1] for path in paths]
    return [name.removesuffix(".parquet").removesuffix(".jsonl") for name in names]


def _shared(paths: Sequence[tuple[str, ...]]) -> int:
    """Number of leading parts that all paths share."""
    return sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))


def _scores(counts: pd.DataFrame, k: int) -> np.ndarray:
    return problem_pass_at_k(counts["correct"].to_numpy(), counts["samples"].to_numpy(), k)


def _intervals(counts: pd.DataFrame, ks: Sequence[int]) -> list[Interval]:
    return [share_interval(_scores(counts, k)) for k in ks]


def _columns(name: str, intervals: list[Interval]) -> pd.DataFrame:
    return pd.DataFrame([[100 * i.value, 100 * i.low, 100 * i.high] for i in intervals], columns=[name, "low", "high"])
