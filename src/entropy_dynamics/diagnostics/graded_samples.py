"""Unbiased Pass@k of sampled answers for all k, and the paired difference between two files."""

import json
import re
import sys
from collections.abc import Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import hypergeom, norm

from entropy_dynamics.analysis.pass_at_k import problem_pass_at_k
from entropy_dynamics.analysis.statistics import Interval, share_interval, simultaneous
from entropy_dynamics.diagnostics.logs import LABEL, RUN, RUNS, TABLES, column, read_table, visible
from entropy_dynamics.errors import UserError

# Columns of our files, verl's rollout and validation dumps, TRL's completions, and SkyRL's evaluation dumps.
PROBLEM = ("problem_id", "problem", "input", "prompt", "input_prompt")
CORRECT = ("correct", "acc", "score")
POLICY = re.compile(
    f"{RUN.pattern}|step|(global|train|training|trainer|policy)[ ._/-]steps?|epoch|iter|iteration"
    "|(checkpoint|ckpt)([ _](path|name|id))?|temp|temperature|top_[pk]",
    re.IGNORECASE,
)
NUMBERED = re.compile(LABEL.format(f"{RUNS}|epoch|iter|iteration"), re.IGNORECASE)  # samples, or policies
# The number of a sample in a name, such as NeMo-Skills' output-rs0. Files that are numbers alone may be those of steps.
IN_NAME = r"((?<![a-z])(?:rs|seed|run|trial|sample|attempt|try|rep|repeat|repetition|replica)[ _.=-]*)\d+"
INDEX = re.compile(  # column names that number samples or rows
    f"{NUMBERED.pattern}|((sample|attempt|rollout|repeat|completion|response|request|generation)[ ._/-]?)?"
    "(id|idx|index|number|uid|uuid)|sample|attempt|rollout|repeat",
    re.IGNORECASE,
)
RESPONSE = re.compile("((model|raw|full)[ _])?(response|output|completion|generation)s?|generated_text", re.IGNORECASE)
WRITER = re.compile(  # columns in which two copies of a row may differ
    "((local|global)_)?rank|(process|worker|host)([ _](id|index|name))?|pid|device|.*(time|stamp|_at|latency|duration)",
    re.IGNORECASE,
)
KIND = re.compile("filter|task|dataset|data_source|benchmark|file", re.IGNORECASE)  # of grading, or of problems
ROUNDING = 1e-6  # of grades in float32, relative
PARTS = 8  # maximum number of columns that a file is split into
SESSION = r"(.+)_(\d+)_(\d+)"  # uid of verl's V1 trainer: prompt, session, output
DETECTED = norm.isf(0.025) + norm.isf(0.1)  # size of a difference that is detected with 90 % power, in standard errors


def pass_at_k_table(
    files: Sequence[Path], problem: str | None, correct: str | None, threshold: float | None
) -> tuple[pd.DataFrame, list[str]]:
    """Pass@k in percent for k = 1, 2, 4, ... up to the smallest number of samples of a problem in any file, and notes.

    The table has one row per k. For each file, named by the part of its path that distinguishes it, and for each part
    of a file (see `_parts`), it has the value and the bounds of its 95 % interval over problems; for two of them, also
    those of the second minus the first on the problems that both have. There are notes about each file (see `_counts`),
    one if problems have different numbers of samples, one if a file has problems that the other lacks, and one about
    the difference at all k at once (`simultaneous`).

    Raises UserError for an unreadable file, a folder without files, a missing column, samples without a problem, no
    grades at all, grades of other values, more than 8 parts of a file, or two files without a common problem.

    Args:
        problem, correct: column names, if not among the known ones. Samples without a grade are left out, which is
            unbiased if grades are missing independently of the answer.
        threshold: smallest grade of a correct answer; None: grades are true or false, 1, 0 or -1, and 1 is correct.
    """
    read, noted = zip(*(_counts(file, problem, correct, threshold) for file in files), strict=True)
    notes = list(chain.from_iterable(noted))
    named = [(name, part) for name, parts in zip(_names(files), read, strict=True) for part in parts]
    names = [part if len(files) == 1 and part else "/".join(filter(None, (name, part))) for name, part in named]
    counts = [of_part for parts in read for of_part in parts.values()]
    fewest = min(int(of_file["samples"].min()) for of_file in counts)
    ks = sorted({2**i for i in range(fewest.bit_length())} | {fewest})
    if (most := max(int(of_file["samples"].max()) for of_file in counts)) > fewest:
        name, of_few = min(zip(names, counts, strict=True), key=lambda one: one[1]["samples"].min())
        few = f"{(of_few['samples'] == fewest).sum()} of {len(of_few)} problems of {name}"
        notes.append(f"k ends at {fewest}, the number of samples of {few}; others have up to {most}")
    intervals = [[share_interval(_scores(of_file, k)) for k in ks] for of_file in counts]
    tables = [_columns(name, of_file) for name, of_file in zip(names, intervals, strict=True)]
    shared = counts[0].index.intersection(counts[-1].index)
    if len(counts) == 2 and (len(files) == 2 or not shared.empty):
        if shared.empty:
            such = " and ".join(f"{of_file.index[0]:.60}" for of_file in counts)
            raise UserError(f"{files[0]} and {files[-1]} have no problem in common; their first ones are {such}")
        if len(shared) < max(map(len, counts)):
            of = " and ".join(str(len(of_file)) for of_file in counts)
            notes.append(f"the difference is of the {len(shared)} problems that both have, of {of}")
        first, second = (of_file.loc[shared] for of_file in counts)
        curve = np.stack([_scores(second, k) - _scores(first, k) for k in range(1, fewest + 1)])
        tables.append(2 * _columns("difference", [share_interval((1 + curve[k - 1]) / 2) for k in ks]) - 100)
        band = simultaneous([curve])
        if np.isfinite(band.low).any():
            found = {"gains": _spans(band.low > 0), "loses": _spans(band.high < 0)}
            changes = ", ".join(f"{verb} at k = {spans}" for verb, spans in found.items() if spans)
            notes.append(f"all k to {fewest} at once (95 % band): the second {changes or 'neither gains nor loses'}")
    return pd.concat([pd.DataFrame({"k": ks}), *tables], axis=1), notes


def power_table(
    file: Path, difference: float, problem: str | None, correct: str | None, threshold: float | None
) -> tuple[pd.DataFrame, list[str]]:
    """Number of problems of this kind needed to detect a difference of Pass@k with 90 % power, by samples per problem.

    Assumes that two independent runs sample each problem with the rate seen in this file, and that one of them is
    better by `difference` points on all problems. The variance of a problem's difference is then twice that of its
    estimate. The test is the two-sided test of the paired mean at 95 %. If the difference varies between problems, more
    are needed.

    The table has one row per number of samples (half, once, twice and four times that of the file) and one column per k
    up to half the file's samples, beyond which the variance has no unbiased estimate; NaN if the file shows no
    variance. There is a note if grades are missing. For the other arguments see `pass_at_k_table`.

    Raises UserError as `pass_at_k_table` does, and if the file has several parts, if a problem has only one sample, or
    if every problem is always or never solved.
    """
    parts, notes = _counts(file, problem, correct, threshold)
    if len(parts) > 1:
        raise UserError(f"{file} has rows of {', '.join(parts)}; --power takes those of one")
    [counts] = parts.values()
    if (fewest := int(counts["samples"].min())) < 2:
        raise UserError(f"{file} has a problem with 1 graded sample; --power takes 2 or more of each")
    if not ((counts["correct"] > 0) & (counts["correct"] < counts["samples"])).any():
        raise UserError(f"{file} has no problem that some samples solve and some do not; --power takes such problems")
    ks = [2**i for i in range((fewest // 2).bit_length())]
    rows = []
    for n in (fewest // 2, fewest, 2 * fewest, 4 * fewest):
        needed = {f"k={k}": 2 * _estimate_variance(counts, n, k) * (DETECTED / (difference / 100)) ** 2 for k in ks}
        rows.append({"samples": n} | {name: np.ceil(value) or np.nan for name, value in needed.items()})
    return pd.DataFrame(rows), notes


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


def _counts(
    file: Path, problem: str | None, correct: str | None, threshold: float | None
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Numbers of graded and correct samples of each problem, for each part of a file.

    Notes: of repeated rows and responses, missing grades, and what the parts are.
    """
    frame = _one_row_per_sample(_rows(file), problem)
    names = [column(frame, file, problem, PROBLEM, "the problem (choose one with --problem)").name]
    names.append(column(frame, file, correct, CORRECT, "the grade of an answer (choose one with --correct)").name)
    repeated = _repeated(frame, *names)
    notes = []
    if repeated.any():
        notes.append(f"{file}: {repeated.sum()} of {len(frame)} rows repeat another row and are left out")
    frame = _one_row_per_grade(frame[~repeated], *names)
    ids, values = frame[names[0]].map(_key), frame[names[1]]
    if (unknown := (frame[ids.name].isna() | (ids == "")).sum()) > 0:
        raise UserError(f"{file}: {unknown} of {len(ids)} samples have no {ids.name}")
    grades = values.dropna().infer_objects()
    if grades.empty:
        raise UserError(f"{file}: no sample has a value of {values.name}")
    if wrong := [of for of in grades.tolist() if not (isinstance(of, int | float) and abs(of) <= sys.float_info.max)]:
        raise UserError(f"{file}: {values.name} is {wrong[0]!r}; it should be true, false or a finite number")
    grades = grades.astype(float)
    grades = grades.mask(np.isclose(grades, grades.round(), rtol=0, atol=ROUNDING), grades.round())
    known = np.unique(grades)
    if threshold is None and not set(known) <= {-1, 0, 1}:
        shown = ", ".join(f"{value:g}" for value in known[:5]) + ", ..." * (len(known) > 5)
        one = len(ids) == ids.nunique() and "each problem has one row, so they may be rates; "
        raise UserError(
            f"{file}: {values.name} has {len(known)} value{'s' * (len(known) > 1)} "
            f"({shown}; mean {grades.mean():.3g}), not only 0 and 1: {one or ''}name the grade of a sample with "
            "--correct, or the smallest value of a correct one with --threshold"
        )
    parts, about = _parts(frame, ids, file)
    of_part = grades.groupby(parts[grades.index], observed=True)
    least = 1 if threshold is None else threshold
    right = {str(part): of_one >= least - ROUNDING * max(1, abs(least)) for part, of_one in of_part}
    counts = {part: flags.groupby(ids).agg(samples="size", correct="sum") for part, flags in right.items()}
    missing, left = len(values) - len(grades), f"{ids[grades.index].nunique()} of {ids.nunique()} problems are left"
    if missing:
        notes.append(f"{file}: {missing} of {len(values)} samples have no {values.name} and are left out; {left}")
    for name in (name for name in frame if RESPONSE.fullmatch(str(name)) and name not in names):
        said = frame[name][frame[name].map(lambda cell: isinstance(cell, str))].astype(object)
        texts = pd.DataFrame({"part": parts, "problem": ids, "text": said, "grade": grades})
        if (again := texts.dropna().duplicated().sum()) > 0:
            notes.append(f"{file}: {again} of {len(ids)} samples repeat an earlier {name}; are they copies?")
    return counts, notes + about


def _parts(frame: pd.DataFrame, ids: pd.Series, file: Path) -> tuple[pd.Series, list[str]]:
    """For each row, the part of the file that it belongs to, such as `step=20`; empty if the file has one part.

    Columns of `POLICY` with several values split a file. Those of `KIND` do if a problem has rows of several of their
    values, and so do the files of a folder. Seeds, runs and epochs, and files named by them, number the samples if
    they are numbers of which each problem has one row; ids that no two rows share name the samples.

    Notes: of data sets and files that are pooled or number the samples, and of parts with one sample per problem.
    """
    keys, notes, hint = pd.DataFrame({"part": "", "problem": ids}), [], ""
    order = sorted(map(str, frame.columns), key=lambda name: bool(KIND.fullmatch(name)))
    for name in sorted(order, key=lambda name: (name == "file", bool(NUMBERED.fullmatch(name)))):  # numbers come last
        kind, numbered = KIND.fullmatch(name), name == "file" or NUMBERED.fullmatch(name)
        if name == ids.name or not (kind or POLICY.fullmatch(name)):
            continue
        keys["value"] = values = frame[name].map(_key)
        once = keys[["problem", "value"]].drop_duplicates()
        if len(once) == once["problem"].nunique() == once["value"].nunique():  # names the problems
            continue
        single = numbered and not keys.duplicated(["part", "problem", "value"]).any()
        if single and name != "file" and not values[frame[name].notna()].duplicated().any():
            continue  # names the samples
        number = IN_NAME if name == "file" else rf"^-?\d+$|{IN_NAME}"
        unnumbered = values.str.replace(number, r"\1*", case=False, regex=True)
        if single and unnumbered.nunique() < values.nunique():
            if "*" not in set(unnumbered):
                notes.append(f"{file}: {name} numbers the samples ({unnumbered.iloc[0]})")
            keys["value"], values, single = unnumbered, unnumbered, False
        kinds = values.nunique()
        if keys.groupby(["part", "problem"] if kind else "part")["value"].nunique().max() > 1:
            keys["part"] += ("," + name + "=" + values).where(keys["part"] != "", name + "=" + values)
            join = "join the files into one" if name == "file" else f"remove the column {name}"
            hint = f"; if they are samples of one policy, {join}" if single else ""
        elif kind and kinds > 1 and not any(note.endswith("pooled") for note in notes):  # a file may be a data set
            shown = ", ".join(values.unique()[:3]) + ", ..." * (kinds > 3)
            notes.append(f"{file}: the problems of {kinds} {name}s ({shown}) are pooled")
    parts = keys["part"].unique()
    if len(parts) > PARTS:
        raise UserError(f"{file} has rows of {', '.join(parts[:2])} and {len(parts) - 2} more; keep those of one{hint}")
    if hint:
        notes.append(f"{file}: one sample of a problem in each of {', '.join(parts[:2])}{hint}")
    return keys["part"].astype(pd.CategoricalDtype(parts, ordered=True)), notes


def _repeated(frame: pd.DataFrame, problem: str, correct: str) -> pd.Series:
    """Whether a row repeats an earlier one, as those of other ranks and of resumed runs do.

    That equal rows are copies shows if a column numbers the other rows of each problem: a short response may be drawn
    twice.
    """
    rows = frame.drop(columns=[name for name in frame if WRITER.fullmatch(str(name))])
    lists = [name for name in rows if rows[name].dtype == object]
    equal = rows.drop(columns=lists).duplicated(keep=False).reindex(rows.index, fill_value=True)
    keys = rows[equal].assign(**{name: rows.loc[equal, name].map(_key) for name in lists})
    repeated = keys.duplicated().reindex(rows.index, fill_value=False)
    apart = [name for name in rows if name == problem or POLICY.fullmatch(str(name)) or KIND.fullmatch(str(name))]
    for name in (name for name in rows if INDEX.fullmatch(str(name)) and name not in (problem, correct)):
        keys = rows.loc[~repeated, list({*apart, name})].map(_key)
        if keys.groupby(problem)[name].nunique().max() > 1 and not keys.duplicated().any():
            return repeated
    return repeated & False


def _one_row_per_grade(frame: pd.DataFrame, problem: str, correct: str) -> pd.DataFrame:
    """A row per sample, if rows have lists of grades: lists as long as those are of samples, others of problems."""

    def lengths(name: str) -> pd.Series:
        return frame[name].map(lambda cell: len(cell) if isinstance(cell, list | np.ndarray) else -1)

    if ((grades := lengths(correct)) < 0).all():
        return frame
    chats = frame[problem][lengths(problem) > 0].map(lambda cell: isinstance(cell[0], dict))
    alike = [name for name in frame if lengths(name).equals(grades) and not (name == problem and chats.any())]
    return frame.explode(alike, ignore_index=True)


def _key(value: Any) -> str:
    """A text that is equal for equal values of different files: 0 and 0.0, lists and arrays, blanks at the ends."""

    def plain(value: Any) -> Any:
        value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        if isinstance(value, dict):
            return {name: plain(of) for name, of in value.items() if of is not None}  # parquet adds fields of null
        if isinstance(value, list):
            return [plain(of) for of in value]
        if isinstance(value, str):
            return value.strip().replace("\r\n", "\n")
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return text if isinstance(text := plain(value), str) else json.dumps(text, sort_keys=True, default=str)


def _one_row_per_sample(frame: pd.DataFrame, problem: str | None) -> pd.DataFrame:
    """The last output of each session of verl's V1 trainer, with the input of its prompt's first; or `frame`."""
    names = frame["uid"].astype(str).str.extract(f"^{SESSION}$") if "uid" in frame else pd.DataFrame([[None]])
    if names.isna().any(axis=None):
        return frame
    prompt, session, output = names[0], names[1], names[2].astype(int)
    frame = frame.assign(uid=prompt).iloc[output.argsort(kind="stable")]
    if problem is None and "input" in frame:
        frame["input"] = frame.groupby("uid")["input"].transform("first")
    apart = [frame[name] for name in map(str, frame.columns) if POLICY.fullmatch(name) or KIND.fullmatch(name)]
    return frame.groupby([prompt, session, *apart], sort=False, dropna=False).tail(1)


def _rows(path: Path) -> pd.DataFrame:
    if not path.is_dir():
        return read_table(path)
    if not (files := [file for file in visible(path, "*") if file.suffix in TABLES]):
        raise UserError(f"{path} has no .parquet, .jsonl or .csv file")
    return pd.concat([read_table(file).assign(file=file.stem) for file in files], ignore_index=True)


def _names(files: Sequence[Path]) -> list[str]:
    """The part of each path that distinguishes it from the others; for a single file its name."""

    def shared(paths: Sequence[tuple[str, ...]]) -> int:
        return sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))

    paths = [file.absolute().parts for file in files]
    head, tail = shared(paths), shared([path[::-1] for path in paths])
    names = ["/".join(path[head : len(path) - tail]) or path[-1] for path in paths]
    return [re.sub(r"\.(parquet|jsonl|csv)$", "", name) for name in names]


def _spans(chosen: np.ndarray) -> str:
    """The chosen k, counted from 1: '1 to 10, 60'."""
    spans = np.flatnonzero(np.diff(chosen, prepend=False, append=False)).reshape(-1, 2)
    return ", ".join(f"{start + 1} to {end}" if end > start + 1 else f"{end}" for start, end in spans)


def _scores(counts: pd.DataFrame, k: int) -> np.ndarray:
    return problem_pass_at_k(counts["correct"].to_numpy(), counts["samples"].to_numpy(), k)


def _columns(name: str, intervals: list[Interval]) -> pd.DataFrame:
    return pd.DataFrame([[100 * i.value, 100 * i.low, 100 * i.high] for i in intervals], columns=[name, "low", "high"])
