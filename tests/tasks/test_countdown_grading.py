"""Countdown's expressions and grades, against brute force and hand-worked cases."""

import re
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from countdown import OPERATIONS, all_expressions, grade
from entropy_dynamics.tasks.countdown import TASK
from entropy_dynamics.tasks.countdown.expressions import parse_expression


@pytest.mark.parametrize(
    ("text", "normalized", "value"),
    [
        ("25-(5+3-7)", "25-(5+3-7)", 24), ("2-3*4", "2-3*4", -10), ("((7))", "((7))", 7),
        ("007+1", "7+1", 8), ("0*1", "0*1", 0), ("24/(4/3)", "24/(4/3)", 18),
        (" 8 / ( 3 - 8 / 3 ) ", "8/(3-8/3)", 24),  # a fraction on the way
        ("10-4-3", "10-4-3", 3), ("24/4/3", "24/4/3", 2),  # from the left
        (r"\left(3 \times 5\right) \div 2 \cdot 4", "(3*5)/2*4", 30),
        ("6 − 2 × 3 ÷ 1", "6-2*3/1", 0),
        ("(" * 31 + "7" + ")" * 31, "(" * 31 + "7" + ")" * 31, 7),
    ],
)  # fmt: skip
def test_hand_worked_expressions(text, normalized, value):
    found = parse_expression(text)
    assert (found.text, found.value) == (normalized, value)
    assert found.numbers == Counter(map(int, re.findall(r"\d+", normalized)))


@pytest.mark.parametrize(
    "text",
    ["", " ", "()", "(", "7)", "(7", "(7 8", "7 8", "7(8)", "(7)(8)", "+7", "-7", "7+", "7+-3", "7**2", "7//2", "7%2",
     "7^2", "7!", "7.0", "7,0", "7=7", "3+4=7", "x", "7x", r"\frac{7}{1}", "7/0", "7/(3-3)", "٧", "７", "²", "7\x00",
     "\u200f7", "1e3", "0x7", "1_0", "True", "__import__('os')", "(" * 33 + "7" + ")" * 33, r"3\left5", "7" * 65],
)  # fmt: skip
def test_no_expression(text):
    assert parse_expression(text) is None


TREES = st.recursive(
    st.integers(0, 30), lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner), max_leaves=8
)  # an integer or (left, operation, right)


def value_of(tree) -> Fraction | None:
    if isinstance(tree, int):
        return Fraction(tree)
    left, right = value_of(tree[0]), value_of(tree[2])
    if left is None or right is None or (tree[1] == "/" and right == 0):
        return None
    return OPERATIONS[tree[1]](left, right)


def written(tree, draw) -> str:
    """With the parentheses that are needed, and now and then others."""
    if isinstance(tree, int):
        return str(tree)
    left, operation, right = tree
    weak = {"+": "", "-": "", "*": "+-", "/": "+-"}[operation]  # operands that need parentheses on the left ...
    also = {"+": "+-", "-": "+-", "*": "+-*/", "/": "+-*/"}[operation]  # ... and on the right
    texts = [written(operand, draw) for operand in (left, right)]
    for place, needed in ((0, weak), (1, also)):
        operand = (left, right)[place]
        if (not isinstance(operand, int) and operand[1] in needed) or draw(st.integers(0, 9)) == 0:
            texts[place] = f"({texts[place]})"
    return f"{texts[0]}{draw(st.sampled_from(['', ' ']))}{operation}{texts[1]}"


@settings(max_examples=300, deadline=None)
@given(TREES, st.data())
def test_an_expression_has_the_value_of_its_tree(tree, data):
    text = written(tree, data.draw)
    value, found = value_of(tree), parse_expression(text)
    if value is None or len(text) > 64:
        assert found is None
    else:
        assert found.value == value
        assert parse_expression(found.text) == found


def test_grades_agree_with_brute_force():
    """Exactly those expressions of 1, 2, 4 and 4 are correct that have the value and use all that is given."""
    expressions = all_expressions((1, 2, 4, 4))
    assert len(expressions) > 4000  # 5 shapes x 4!/2 orders x 4^3 operations = 3840 use all four
    correct = {}
    for given_numbers, target in (((2, 4, 4), 6), ((1, 4, 4), 7), ((1, 2, 4), 2), ((1, 2, 4, 4), 3)):
        text = f"{','.join(map(str, given_numbers))}={target}"
        for expression, (value, used) in list(expressions.items())[:: 7 if len(given_numbers) == 4 else 1]:
            expected = value == target and used == Counter(given_numbers)
            assert grade(f"\\boxed{{{expression}}}", text).correct is expected, (expression, text)
            correct[text] = correct.get(text, 0) + expected
    assert min(correct.values()) > 0


@pytest.mark.parametrize(
    ("response", "correct", "answer"),
    [
        (r"7-3=4 \boxed{(25-5)+(7-3)}", True, "(25-5)+(7-3)"),
        (r"\boxed{25-(5+3-7)}", True, "25-(5+3-7)"),
        (r"\boxed{3*(5+3)}", False, "3*(5+3)"),  # 3 twice
        (r"\boxed{24}", False, "24"),  # not given
        (r"\boxed{4*6}", False, "4*6"),
        (r"\boxed{25-7+3*(7-5)}", False, "25-7+3*(7-5)"),  # 7 twice
        (r"\boxed{25-(5+3-7)} or \boxed{1}", False, "1"),  # the last box counts
        (r"\boxed{25-(5+3-7)=24}", False, None),
        (r"So \boxed{x: 25-(5+3-7)}", False, None),
        (r"\boxed{25/(5-5)}", False, None),
        (r"25-(5+3-7)", False, None),
        ("", False, None),
    ],
)
def test_hand_worked_grades(response, correct, answer):
    found = grade(response, "3,5,7,25=24")
    assert (found.correct, found.answer_correct, found.answer) == (correct, correct, answer)
    assert (found.formatted, found.truncated) == (answer is not None, False)
    cut_off = grade(response, "3,5,7,25=24", "length")
    assert (cut_off.correct, cut_off.formatted, cut_off.truncated) == (correct, False, True)


@pytest.mark.parametrize(("value", "answer"), [(24, "24"), ("24", "24"), (24.0, "24"), (r"\text{24}", "24")])
def test_the_answer_in_a_file_is_the_target(value, answer):
    assert TASK.read_answer(value, " 3,5,7,25=24\n") == answer


@pytest.mark.parametrize(
    ("value", "text", "reason"),
    [
        (23, "3,5=24", "not the target"), ("3*8", "3,8=24", "not an integer"),
        (24, "3 and 8 give 24", "not of the form"), (24, "24=24", "not of the form"),
        (24, "3,8=-24", "not of the form"), (24, "٣,8=24", "not of the form"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_graded(value, text, reason):
    with pytest.raises(ValueError, match=reason):
        TASK.read_answer(value, text)
