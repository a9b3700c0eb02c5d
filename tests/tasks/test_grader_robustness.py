r"""Graders against responses that try to break them: any text comes back with a grade, and nothing is evaluated."""

import faulthandler
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from entropy_dynamics.tasks.boxed import extract_boxed
from grader_attacks import (
    BOXES,
    CANARY,
    CODE,
    COUNTDOWN,
    FAMILIES,
    HUGE,
    PIECES,
    PROBLEMS,
    SHEET,
    check,
    evaluated,
    last_box,
    literal,
    nothing_evaluated,
    sums,
)

REASONS = st.sampled_from(["stop", "length"])
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
    st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join),
    st.lists(st.sampled_from([*PIECES, *HUGE]), max_size=4).map("".join),
    st.tuples(st.sampled_from(PIECES), st.integers(1, 5000)).map(lambda one: one[0] * one[1]),
    st.text(st.characters(codec=None), max_size=200),
    st.tuples(st.text(max_size=20), st.sampled_from([*PIECES, *HUGE])).map(lambda one: f"{one[0]}\\boxed{{{one[1]}}}"),
)


@pytest.fixture(autouse=True)
def no_canary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path(CANARY).exists()


# ---------------------------------------------------------------- boxes
@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"so \boxed{204}.", "204"), (r"\boxed{1} no, \boxed{2}", "2"), (r"\boxed {7}", "7"),
        (r"\boxed{\boxed{5}}", "5"), (r"\boxed{1 + \boxed{5", None),  # the last box is open
        (r"\boxed{\{1,2\}}", r"\{1,2\}"), (r"\boxed{\}", None),  # escaped braces do not count
        (r"\boxed{a\\}", r"a\\"),  # an escaped backslash, then the end
        (r"\boxed{}", ""), (r"\boxed 5", None),
        (r"\boxed{1} then \boxed", "1"),  # the word alone opens nothing
        (r"\boxed{" + "1" * 64 + "}", "1" * 64), (r"\boxed{" + "1" * 65 + "}", None),
    ],
)  # fmt: skip
def test_last_balanced_box(text, box):
    assert extract_boxed(text) == box


@settings(deadline=None)
@given(st.lists(st.sampled_from([*BOXES, "{", "}", "\\", "\\{", " ", "\n", "1", "x" * 40]), max_size=25).map("".join))
@example("\\boxed{\\boxed{}")
def test_boxes_agree_with_an_independent_reading(text):
    box = last_box(text)
    assert extract_boxed(text) == (box if len(box or "") <= 64 else None)


# ---------------------------------------------------------------- any response
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS, st.sampled_from(PROBLEMS), REASONS)
@example("\\boxed{" + "9" * 100_000 + "}", sums(33), "stop")  # more digits than int() reads
@example("\\boxed{\x0033}", sums(33), "stop")
@example("\\boxed{33\u200f}", COUNTDOWN, "stop")
def test_any_response(text, problem, finish_reason):
    check(text, problem, finish_reason)


@pytest.mark.long
@settings(max_examples=300_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS, st.sampled_from(PROBLEMS), REASONS)
def test_any_response_for_long(text, problem, finish_reason):
    check(text, problem, finish_reason)


@settings(deadline=None)
@given(st.text(max_size=50), st.lists(st.sampled_from(PIECES), max_size=5))
def test_the_last_box_counts_whatever_comes_before(noise, pieces):
    before = noise + "".join(pieces)
    for problem, correct in ((sums(-33), "-33"), (COUNTDOWN, "(300/3-1)/3+0*(11+33)")):
        check(text := f"{before} \\boxed{{{correct}}}", problem, "stop")
        assert problem.grade(text, "stop").correct
        assert not problem.grade(f"{text} \\boxed{{1}}", "stop").correct


@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("problem", [sums(33), COUNTDOWN], ids=["integers", "countdown"])
def test_code_in_a_box_is_wrong(code, problem):
    found = problem.grade(f"\\boxed{{{code}}}", "stop")
    assert (found.answer, found.correct) == (None, False)


def test_hand_worked_the_independent_readings():
    assert last_box(r"\boxed{1} \boxed{\text{3} {}}") == r"\text{3} {}"
    assert last_box(r"\boxed{1} \boxed{2") is None
    assert literal(r"\text{ 1{,}234 }^\circ") == 1234
    assert literal("−33.000") == -33
    assert literal(r"33\text{ sq. cm}") == 33
    for no_integer in ("", "33.5", "9^9", "9**9", "٣٣", "1/2", "--3", "3-3", "x", None):
        assert literal(no_integer) is None
    assert evaluated(r"(3 \times 11) / 2") == (16.5, [3, 11, 2])
    for no_expression in ("", "3**3", "3//3", "3 3", "3(3)", "1/0", "٣", "x", "()", None):
        assert evaluated(no_expression) is None


def test_the_watch_sees_what_an_evaluating_grader_would_do():
    for evil in (
        lambda: eval("1"),
        lambda: exec("1"),
        lambda: compile("1", "", "eval"),
        lambda: open("/dev/null").close(),
        lambda: __import__("this_is_no_module"),
    ):
        with pytest.raises(AssertionError), nothing_evaluated(), suppress(ImportError):
            evil()


# ---------------------------------------------------------------- long responses
@contextmanager
def ends_within(seconds: float, processor_seconds: float):
    """Processor time is what a busy machine does not lengthen. What does not come back at all ends the process."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    start = time.process_time()
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert time.process_time() - start < processor_seconds


def grade_large(unit: str, size: int) -> None:
    text = unit * (size // len(unit))
    for problem, correct in ((sums(33), "33"), (COUNTDOWN, "33-0*(1+3+3+11+300)"), (SHEET, "")):
        for response in (text, f"\\boxed{{{text}}}", f"Answer: {text}"):
            problem.grade(response, "stop")
        assert not correct or problem.grade(f"{text}\\boxed{{{correct}}}", "length").correct


LONG = pytest.param(10_000_000, 100, marks=pytest.mark.long)


@pytest.mark.parametrize(("size", "seconds"), [(50_000, 2), LONG])
@pytest.mark.parametrize("unit", FAMILIES, ids=lambda unit: ascii(unit[:20]))
def test_a_long_response_is_graded_in_linear_time(unit, size, seconds):
    """In linear time 0.1 s, in quadratic time 4 s at least; ten megabytes take seconds or hours."""
    with ends_within(300, processor_seconds=seconds):
        grade_large(unit, size)
