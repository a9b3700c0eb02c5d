"""Majority votes and different correct answers, from the answers of an evaluation's samples."""

import numpy as np
import pandas as pd
import pytest

from entropy_dynamics.analysis.problem_scores import problem_scores
from entropy_dynamics.experiments.load import Run
from entropy_dynamics.results.files import write_parquet
from synthetic_results import MODEL, evaluation_frame, results_in

# Per problem, four answers, the correct ones in capitals; None: no readable answer.
ANSWERS = [
    ["A", "A", "b", "B"],  # A has most votes
    ["A", "B", "c", "c"],  # c has, and is wrong
    ["A", "A", "b", "b"],  # a tie of a correct and a wrong answer
    ["A", None, None, None],  # one vote is a majority
    [None, None, None, None],
    ["b", "b", "c", "c"],
]


def samples(tmp_path, answers):
    correct = np.array([[answer is not None and answer.isupper() for answer in row] for row in answers])
    frame = evaluation_frame(correct).assign(answer=pd.array(np.ravel(np.array(answers, dtype=object)), dtype="str"))
    run = Run(MODEL, "grpo", 0)
    write_parquet(run.evaluation_file(tmp_path, "aime24"), frame)
    return results_in(tmp_path).samples(run, "aime24")


def test_votes_and_different_answers_by_hand(tmp_path):
    found = samples(tmp_path, ANSWERS)
    assert problem_scores("majority", found).tolist() == [1, 0, 0.5, 1, 0, 0]
    assert problem_scores("unique", found).tolist() == [2 / 4, 2 / 4, 1 / 4, 1 / 4, 0, 0]
    thirds = -(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3))  # A twice, B once
    expected = np.array([thirds, np.log(2), 0, 0, 0, 0]) / np.log(4)
    assert problem_scores("answer_entropy", found) == pytest.approx(expected)


def test_unknown_answers_are_no_votes(tmp_path):
    """`restore` knows counts alone and leaves the answers empty."""
    found = samples(tmp_path, [["", "", "", ""]] * 3)
    assert np.isnan([found.majority, found.unique, found.answer_entropy]).all()
