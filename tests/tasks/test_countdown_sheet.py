"""Several Countdown problems in one prompt: grades by hand, the generator, solutions and mistakes."""

from itertools import islice

import numpy as np
import pytest
from pydantic import ValidationError

from conftest import HABITS
from countdown import RULES
from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.countdown.problems import parse_problem
from entropy_dynamics.tasks.countdown_sheet import TASK, SheetSet, SheetSolutions

TWO = "3,5=8\n2,4,4=10\n7,1=6"
CAREFUL = dict.fromkeys(HABITS, 0.0) | {"solved": 1.0, "attempts": 1, "shortcut": 1.0}


def sheet_set(**changes) -> SheetSet:
    own = {"source": "countdown_sheet", "size": 50, "per_prompt": 6, "needed": 2}
    return SheetSet.model_validate(own | RULES | changes)


def solutions(**habits) -> SheetSolutions:
    each = {"task": "countdown", "habits": CAREFUL | habits, **RULES, "largest": 99}
    return SheetSolutions.model_validate({"task": "countdown_sheet", "per_prompt": 3, "each": each})


@pytest.mark.parametrize(
    ("response", "answer", "correct"),
    [
        (r"\boxed{3+5} \boxed{4 + 4 + 2} \boxed{7-1}", "3+5\n4+4+2\n7-1", True),
        (r"\boxed{3+5}, \boxed{1}, \boxed{7-1}", "3+5\n1\n7-1", True),
        (r"\boxed{?} \boxed{2+4+4} \boxed{7-1}", "\n2+4+4\n7-1", True),
        (r"\boxed{3+5} \boxed{2*4+2} \boxed{1}", "3+5\n2*4+2\n1", False),  # the second uses other numbers
        (r"\boxed{7-1} \boxed{2+4+4} \boxed{3+5}", "7-1\n2+4+4\n3+5", False),  # not in their order
        (r"\boxed{3+5} \boxed{2+4+4}", "3+5\n2+4+4", False),  # one is missing
        (r"\boxed{3+5} \boxed{2+4+4} \boxed{7-1} \boxed{1}", "3+5\n2+4+4\n7-1\n1", False),
        (r"\boxed{?} \boxed{}", None, False),
        ("3+5", None, False),
    ],
)
def test_two_of_three_by_hand(response, answer, correct):
    found = TASK.grade(response, Problem("p", TWO, "2", "countdown_sheet"), "stop")
    assert (found.answer, found.correct) == (answer, correct)


def test_prompts_are_solvable_different_and_apart_from_others():
    train = sheet_set().generate("train", 3, ())
    assert [one.id for one in train] == [f"train-{number:04d}" for number in range(50)]
    assert {one.answer for one in train} == {"2"}
    for one in train:
        assert len(one.text.splitlines()) == 6
        assert all(10 <= parse_problem(line)[1] <= 50 for line in one.text.splitlines())
    others = sheet_set().generate("test", 3, [one.text for one in train])
    assert not {TASK.key(one.text) for one in train} & {TASK.key(one.text) for one in others}
    assert TASK.key("5,3=8\n2,4=6") == TASK.key("3,5=8\n2,4=6") != TASK.key("2,4=6\n3,5=8")


def test_a_careful_writer_solves_them_all_and_a_rambling_one_does_not_end():
    text = next(solutions().problems(0, ()))
    response, ends = solutions().solve(text, np.random.default_rng(0))
    assert (ends, TASK.grade(response, Problem("p", text, "3", "countdown_sheet"), "stop").correct) == (True, True)
    assert not solutions(rambling=1.0).solve(text, np.random.default_rng(0))[1]
    drawn = list(islice(solutions().problems(0, [text]), 5))
    assert TASK.key(text) not in map(TASK.key, drawn)


def test_mistakes():
    with pytest.raises(ValidationError, match=r"needed \(7\) should be at most per_prompt \(6\)"):
        sheet_set(needed=7)
    few = {"numbers": [2, 2], "values": [1, 2], "targets": [1, 4], "per_prompt": 1, "needed": 1}
    with pytest.raises(UserError, match="hardly any new prompt is left"):
        sheet_set(**few).generate("train", 0, ())
    assert TASK.read_answer("2", TWO) == "2"
    for wrong in ("0", "4", "x"):
        with pytest.raises(ValueError, match=r"answer|integer"):
            TASK.read_answer(wrong, TWO)
