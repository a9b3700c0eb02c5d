"""Tasks with integer answers: what is read as an integer in files and responses, and the grades and rewards."""

import math
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entropy_dynamics.tasks import Grade, Problem
from entropy_dynamics.tasks.integers import NOT_AN_INTEGER, parse_integer, read_integer
from entropy_dynamics.tasks.math import TASK
from entropy_dynamics.training.rewards import REWARDS


def grade(response: str, answer: int, finish_reason: str = "stop") -> Grade:
    return TASK.grade(response, Problem("p", "?", str(answer), "math"), finish_reason)


@pytest.mark.parametrize(
    ("text", "integer"),
    [
        ("204", 204), ("016", 16), ("-5", -5), ("- 5", -5), ("\N{MINUS SIGN}5", -5),
        ("1,234", 1234), ("1{,}234", 1234), (r"1\,234", 1234), ("25.0", 25), ("1,000.0", 1000),
        ("$204$", 204), (r"\$18", 18), (r"336^{\circ}", 336), ("336°", 336), (r"50\%", 50),
        (r"\text{204}", 204), (r"7,\! 654,\! 321", 7654321), (r"7\;654\text{ km}", 7654),
        ("7\u202f654", 7654), (r"\,204\;", 204), (r"\!204\hspace{2mm}", 204), ("{{204}}", 204),
        (r"\(204\)", 204), (r"\displaystyle 204", 204), (r"\mathsf{\text{204}}", 204),
        (r"\textcolor{blue}{204}", 204), ("\N{EN DASH}204", -204), (r"-\,204", -204),
        (r"-\$204", -204), ("204 km/h", 204), ("204 square units", 204),
        (r"204\,\mathrm{m}^3", 204), (r"204{}^\circ", 204), (r"20\,^{\circ}\text{C}", 20),
        ("35cm", 35), (r"\textnormal{33}", 33), (r"204^{\text{o}}", 204), (r"204^{\text{th}}", 204),
        ("9" * 18, 10**18 - 1), ("0" * 40 + "7", 7),
    ],
)  # fmt: skip
def test_integers_as_models_write_them(text, integer):
    assert parse_integer(text) == str(integer)


@pytest.mark.parametrize(
    "text",
    [
        "", "1/2", r"\frac{4}{2}", "3.5", "1e3", "2^{10}", "52_8", "x=5", "1, 2", "1,2345",
        "1,234{,}567", "(1,234)", "12 13", "--5", r"5 \text{ million}", r"5 \text{ or more}",
        "5 million", "5cm^4", r"3\!5", r"2\,000{,}000", r"\sqrt{9}", r"\left(204\right)", "{}",
        "\N{ARABIC-INDIC DIGIT THREE}", "\N{FULLWIDTH DIGIT TWO}", "5\x00",
        "\N{RIGHT-TO-LEFT MARK}5", "NaN", "__import__('os').getpid()", "9" * 19, "0" * 65,
    ],
)  # fmt: skip
def test_not_an_integer(text):
    assert parse_integer(text) is None


@settings(deadline=None)
@given(st.integers(-(10**18) + 1, 10**18 - 1))
def test_plain_and_grouped_integers_are_read_back(integer):
    for text in (str(integer), f"{integer:,}", f"${integer:,}$"):
        assert parse_integer(text) == str(integer)


@pytest.mark.parametrize(
    ("value", "answer"),
    [(70, 70), ("070", 70), ("25.0", 25), (25.0, 25), (-3.0, -3), ("1,234", 1234), (r"336^\circ", 336),
     (Decimal("12.00"), 12)],
)  # fmt: skip
def test_answers_in_files(value, answer):
    assert read_integer(value) == str(answer)


@pytest.mark.parametrize(
    "value", [3.5, 24.999999999999996, 1e16, math.inf, "1/2", "abc", "nan", True, [5], 10**18, Decimal("1.5")]
)
def test_answers_in_files_that_are_no_integers(value):
    with pytest.raises(ValueError, match=NOT_AN_INTEGER):
        read_integer(value)


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected", "paper", "binary"),
    [
        # answer is 16; expected is Grade(answer, correct, answer_correct, formatted, truncated)
        (r"so \boxed{016}", "stop", Grade("16", True, True, True, False), 1.0, 1.0),
        (r"so \boxed{17}", "stop", Grade("17", False, False, True, False), -0.1, 0.0),
        (r"\boxed{16} ... \boxed{17}", "stop", Grade("17", False, False, True, False), -0.1, 0.0),
        (r"\boxed{17} ... \boxed{16}", "stop", Grade("16", True, True, True, False), 1.0, 1.0),
        (r"\boxed{16} and on and on", "length", Grade("16", True, True, False, True), 0.0, 1.0),
        (r"\boxed{17} and on and on", "length", Grade("17", False, False, False, True), -1.0, 0.0),
        ("it is 16.", "stop", Grade(None, False, True, False, False), 0.0, 0.0),
        ("it is 17.", "stop", Grade(None, False, False, False, False), -0.1, 0.0),
        ("**Answer:** $16$.\nI checked 3 cases", "stop", Grade(None, False, True, False, False), 0.0, 0.0),
        ("Answer: 17\nAnswer: 16\n", "stop", Grade(None, False, True, False, False), 0.0, 0.0),
        ("ANSWER: sixteen, that is 16", "stop", Grade(None, False, True, False, False), 0.0, 0.0),
        ("16 is not 3", "stop", Grade(None, False, False, False, False), -0.1, 0.0),
        ("7+9=16", "stop", Grade(None, False, True, False, False), 0.0, 0.0),
        ("we get 1.16", "stop", Grade(None, False, False, False, False), -0.1, 0.0),
        ("pages 3-16", "stop", Grade(None, False, True, False, False), 0.0, 0.0),
        ("that is -16", "stop", Grade(None, False, False, False, False), -0.1, 0.0),
        ("7+9", "length", Grade(None, False, False, False, True), -1.0, 0.0),
        (r"\boxed{16} or \boxed{1", "length", Grade(None, False, False, False, True), -1.0, 0.0),
        (r"\boxed{1/16}", "stop", Grade(None, False, False, False, False), -0.1, 0.0),  # a box, and not the answer
        ("", "stop", Grade(None, False, False, False, False), -0.1, 0.0),
    ],
)
def test_hand_worked_grades_and_rewards(text, finish_reason, expected, paper, binary):
    found = grade(text, 16, finish_reason)
    assert found == expected
    assert REWARDS["paper"](found) == paper
    assert REWARDS["binary"](found) == binary


def test_an_aborted_response_is_not_graded():
    with pytest.raises(ValueError, match="abort"):
        grade(r"\boxed{1}", 1, "abort")


# How the answer 33 is written; 033 as on AIME's answer sheet.
CORRECT = [
    r"\boxed{33}", r"\boxed{033}", r"$$\boxed{33}$$", "**Final Answer:** $\\boxed{33}$\n\n",
    "```latex\n\\boxed{33}\n```", "\\boxed{\n33\n}", "\\boxed\n{33}",
    r"\\boxed{33}",  # a backslash escaped once too often
    r"\textbf{\boxed{33}}", r"\fbox{\boxed{33}}", r"\boxed{\boxed{33}}",
    r"\boxed{33\,\text{m}^{2}}",
    r"\boxed{1}, no: \boxed{33}",  # the last one counts
    r"\boxed{33} } } {", "\\boxed{33}\u200f\x00", r"\boxed{33}<|im_end|>",
    r"So m + n = 33, which is the answer: \boxed{33}. Note that \fbox{1} is wrong.",
]  # fmt: skip
WRONG = [
    # no box
    "Answer: 33", "33", r"\fbox{33}", r"\boxed 33", r"\boxed(33)", "boxed{33}", r"\boxed\{33\}",
    # not closed, or another one comes last
    r"\boxed{33", r"\boxed{33\}", r"\boxed{33} \boxed{", r"\boxed{33} or \boxed{331}",
    r"\boxed{33} \boxed{}", r"\boxed{33\boxed{}}",
    # something else than an integer: an answer, and a wrong one
    r"\boxed{-33}", r"\boxed{33/1}", r"\boxed{n=33}", r"\boxed{33, 33}", r"\boxed{int('33')}",
]  # fmt: skip


def written(form: str, answer: int) -> str:
    return form.replace("033", f"{answer:03d}") if "033" in form else form.replace("33", str(answer))


@pytest.mark.parametrize("form", [*CORRECT, *WRONG], ids=ascii)
def test_answers_as_models_write_them(form):
    correct = form in CORRECT
    for answer in (7, 33, 204):
        text = f"Let me think.\n{written(form, answer)}"
        found, cut_off = grade(text, answer), grade(text, answer, "length")
        assert found.correct is correct
        assert found.formatted >= correct
        assert found.answer_correct or "\\boxed" in form
        assert not grade(text, 1000).correct
        assert (cut_off.correct, cut_off.formatted) == (correct, False)
