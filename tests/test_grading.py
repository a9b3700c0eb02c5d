"""The grader against hand-worked answers, against an independent reader of boxes, and against noise."""

import time

import pytest
from entropy_dynamics.tasks.grading import REWARDS, Grade, extract_boxed, grade, parse_integer
from hypothesis import example, given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"so \boxed{204}.", "204"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{1 + \boxed{5", None),  # the last box is open
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),  # escaped braces do not count
        (r"\boxed{\}", None),
        (r"\boxed{a\\}", r"a\\"),  # an escaped backslash, then the end
        (r"\boxed{}", ""),
        (r"\boxed{1} and \boxed{2", None),  # an open box is not a reason to go back
        (r"\boxed{1} then \boxed", "1"),  # the word alone opens nothing
        (r"\boxed 5", None),
        ("boxed{5}", None),
        ("", None),
        (r"\boxed{" + "1" * 64 + "}", "1" * 64),
        (r"\boxed{" + "1" * 65 + "}", None),
        (r"\boxed{3} \boxed{" + "1" * 65 + "}", None),
    ],
)
def test_last_balanced_box(text, box):
    assert extract_boxed(text) == box


@pytest.mark.parametrize(
    ("text", "integer"),
    [
        ("204", 204),
        (" 204 ", 204),
        ("016", 16),
        ("000", 0),
        ("-5", -5),
        ("+5", 5),
        ("- 5", -5),
        ("−5", -5),  # U+2212
        ("-0", 0),
        ("1,234", 1234),
        ("1,234,567", 1234567),
        ("1{,}234", 1234),
        (r"1,\!234", 1234),
        (r"1\,234", 1234),
        ("25.", 25),
        ("25.0", 25),
        ("25.000", 25),
        ("1,000.0", 1000),
        ("$204$", 204),
        ("$$ 204 $$", 204),
        (r"\$18", 18),
        ("$-3$", -3),
        (r"336^\circ", 336),
        (r"336^{\circ}", 336),
        ("336°", 336),
        (r"50\%", 50),
        ("50 %", 50),
        (r"\text{204}", 204),
        (r"\mathbf{204}", 204),
        (r"204 \text{ minutes}", 204),
        (r"204\text{ sq. cm}", 204),
        ("9" * 18, 10**18 - 1),
        ("0" * 40 + "7", 7),
    ],
)
def test_integers_as_models_write_them(text, integer):
    assert parse_integer(text) == integer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "$",
        "abc",
        "1/2",
        r"\frac{4}{2}",
        "3.5",
        "0.5",
        ".0",
        "1e3",
        "0x10",
        "2^{10}",
        "2**3",
        "52_8",
        "1_000",
        "x=5",
        "1, 2",
        "1,2",
        "1,23",
        "1,2345",
        "0,123",
        "1,234{,}567",
        "(1,234)",
        "1 234",
        "12 13",
        "--5",
        "five",
        r"5 \text{ million}",
        r"5 \text{ or } 6",
        r"\text{east}",
        "٣",  # ARABIC-INDIC DIGIT THREE
        "２",  # FULLWIDTH DIGIT TWO
        "²",
        "5\x00",
        "\u200f5",  # RIGHT-TO-LEFT MARK
        "NaN",
        "inf",
        "True",
        "__import__('os').getpid()",
        "9" * 19,
        "0" * 65,
    ],
)
def test_not_an_integer(text):
    assert parse_integer(text) is None


@settings(deadline=None)
@given(st.integers(-(10**18) + 1, 10**18 - 1))
def test_plain_and_grouped_integers_are_read_back(integer):
    assert parse_integer(str(integer)) == integer
    assert parse_integer(f"{integer:,}") == integer
    assert parse_integer(f"${integer:,}$") == integer


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected", "paper", "binary"),
    [
        # answer is 16; expected is Grade(answer, correct, answer_correct, formatted, truncated)
        (r"so \boxed{016}", "stop", Grade(16, True, True, True, False), 1.0, 1.0),
        (r"so \boxed{17}", "stop", Grade(17, False, False, True, False), -0.1, 0.0),
        (r"\boxed{16} ... \boxed{17}", "stop", Grade(17, False, False, True, False), -0.1, 0.0),
        (r"\boxed{17} ... \boxed{16}", "stop", Grade(16, True, True, True, False), 1.0, 1.0),
        (r"\boxed{16} and on and on", "length", Grade(16, True, True, False, True), 0.0, 1.0),
        (r"\boxed{17} and on and on", "length", Grade(17, False, False, False, True), -1.0, 0.0),
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
def test_grades_and_rewards_worked_by_hand(text, finish_reason, expected, paper, binary):
    found = grade(text, 16, finish_reason)
    assert found == expected
    assert REWARDS["paper"](found) == paper
    assert REWARDS["binary"](found) == binary


def test_an_aborted_response_is_not_graded():
    with pytest.raises(ValueError, match="abort"):
        grade(r"\boxed{1}", 1, "abort")


def last_box_by_brute_force(text):
    """Every start of a box from the back, then every end: the first end that leaves no brace open."""
    for start in reversed(range(len(text))):
        if not text[start:].startswith("\\boxed"):
            continue
        opened = text[start + len("\\boxed") :].lstrip()
        if not opened.startswith("{"):
            continue
        content = opened[1:]
        for end in range(len(content)):
            bare = content[: end + 1].replace("\\\\", "  ").replace("\\{", "  ").replace("\\}", "  ")
            if bare.endswith("}") and bare.count("}") == bare.count("{") + 1:
                return content[:end] if end <= 64 else None
        return None
    return None


BOXES = ["\\boxed", "\\boxed{", "{", "}", "\\", "\\{"]
PIECES = [*BOXES, " ", "\n", "1", "-", ",", "234", "x" * 40, "\x00", "\u200f", "é"]
TEXTS = st.text(max_size=300) | st.lists(st.sampled_from([*PIECES, "Answer:", ".", "$"]), max_size=40).map("".join)


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
@example("\\boxed{\\boxed{}")
def test_boxes_agree_with_brute_force(text):
    assert extract_boxed(text) == last_box_by_brute_force(text)


@settings(deadline=None)
@given(
    TEXTS,
    st.integers(-(10**6), 10**6),
    st.sampled_from(["stop", "length"]),
)
def test_any_text_gets_a_grade_that_agrees_with_itself(text, answer, finish_reason):
    found = grade(text, answer, finish_reason)
    assert found.correct == (found.answer == answer)
    assert found.answer_correct or not found.correct
    assert found.truncated == (finish_reason == "length")
    assert found.formatted == (found.answer is not None and not found.truncated)
    assert found.answer is None or abs(found.answer) < 2**63
    assert REWARDS["paper"](found) in {1.0, 0.0, -0.1, -1.0}


@settings(deadline=None)
@given(st.text(max_size=100), st.integers(0, 999))
def test_a_box_at_the_end_decides_whatever_stands_before_it(noise, answer):
    assert grade(noise + f" \\boxed{{{answer}}}", answer, "stop") == Grade(answer, True, True, True, False)


@pytest.mark.parametrize(
    "unit",
    [*BOXES, "\\boxed{1}", "\\boxed ", "\\boxed{{}", "1", "1,", "1,234,", "-", "1.", "$", "answer:", "answer ",
     "answer", " ", "\n", "\x00", "\u200f"],
)  # fmt: skip
def test_a_megabyte_is_graded_in_linear_time(unit):
    text = unit * (1_000_000 // len(unit))
    start = time.perf_counter()
    grade(text, 3, "length")
    grade("Answer: " + text + "\\boxed" + " " * 1_000_000, 3, "length")
    assert time.perf_counter() - start < 2
