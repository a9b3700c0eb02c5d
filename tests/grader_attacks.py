r"""Responses that try to break a grader, and independent readings of the last box."""

import re
import sys
from contextlib import contextmanager
from fractions import Fraction

from entropy_dynamics.tasks import Grade, Problem, tasks
from entropy_dynamics.training.rewards import REWARDS

CANARY = "canary-of-the-grader"  # the name of a file that no response may create
CODE = [
    f"__import__('os').system('touch {CANARY}')",
    f"open('{CANARY}', 'w')",
    f"exec(\"open('{CANARY}', 'w')\")",
    f"[c for c in ().__class__.__base__.__subclasses__()][0]('{CANARY}')",
    f"`touch {CANARY}`",
    f"$(touch {CANARY})",
    f"\\write18{{touch {CANARY}}}",
    f"\\input{{|touch {CANARY}}}",
    "lambda: 33",
    "33 if True else 34",
]
TOWERS = ["9^9^9^9", "9**9**9**9", "9^{9^{9^{9}}}", "10^{100000}", "99999!!!!", "2 \\uparrow\\uparrow 99", "1e999999"]
DIGITS = ["٣٣", "३३", "３３", "㉝", "Ⅲ", "³³", "𝟛𝟛", "三十三", "3\u200b3", "3\u20e33\u20e3"]  # in other scripts
INVISIBLE = ["\x00", "\u200f", "\u202e", "\u2066", "\ufeff", "\u200b", "\u00ad", "\x1b[2J", "\ud800", "\U0010ffff"]
FORMATS = ["%s%s%s%n", "{0.__class__}", "{answer!r}", "%(answer)d", "${33}", "{{33}}", "#{33}", "f'{33}'"]
NUMBERS = ["33", "033", "-33", "+33", "− 33", "33.0", "33.", "3,300", "3{,}300", "3,3", "33/1", "3 3", "1,234,5", ""]
NUMBERS += ["9" * 18, "9" * 19, "0" * 70 + "33", "3_3", "33e0", "0x21", "NaN", "inf", "True", "None"]
HUGE = ["7" * 100_000, "-" + "0" * 100_000 + "33", "1" + ",000" * 30_000, "3." + "0" * 100_000]
BOXES = ["\\boxed", "\\boxed{", "\\boxed {", "\\boxed\n{", "\\boxed{{", "\\boxed{\\boxed{", "\\fbox{", "boxed{"]
BRACES = ["{", "}", "}}", "\\{", "\\}", "\\", "\\\\", "$", "$$", "^\\circ", "\\%", "\\text{", "\\mathbf{"]
BRACES += ["Answer:", "\n"]
EXPRESSIONS = ["(", ")", "((((", "+", "-", "*", "/", "\\times", "\\left(", "3*11", "33-0", "300/(3-3)", "(300-3)/11+6"]
EXPRESSIONS += ["3(11)"]
PIECES = [*CODE, *TOWERS, *DIGITS, *INVISIBLE, *FORMATS, *NUMBERS, *BOXES, *BRACES, *EXPRESSIONS]

# What a long response may be made of: each of these again and again.
FAMILIES = [*PIECES, "\\boxed{1}", "{}", "\\boxed{}{", "1,", "1,234", "-1", "1.", "answer:", "answer ", " ", "a", "é"]
FAMILIES = sorted({*FAMILIES} - {""})

_EVALUATING = ("exec", "compile", "import", "open", "os.", "subprocess.", "socket.", "ctypes.", "pickle.", "shutil.")
_watching: list[str] | None = None


def _hook(event: str, _) -> None:
    if _watching is not None and event.startswith(_EVALUATING):
        _watching.append(event)


sys.addaudithook(_hook)  # it stays until the interpreter ends


@contextmanager
def nothing_evaluated():
    """Fails if Python compiles, executes, imports, opens or starts anything in this block (PEP 578 audit events)."""
    global _watching
    tasks()  # imports them: in the block it would look like a grader that does
    _watching = seen = []
    try:
        yield
    finally:
        _watching = None
    assert seen == []


def last_box(text: str) -> str | None:
    r"""Content of the last `\boxed{}` of a string; None if there is none or it is not closed."""
    start = -1
    for opening in re.finditer(r"\\boxed\s*\{", text):
        start = opening.end()
    if start < 0:
        return None
    open_braces, escaped = 1, False
    for place in range(start, len(text)):
        if escaped:
            escaped = False
        elif text[place] == "\\":
            escaped = True
        else:
            open_braces += (text[place] == "{") - (text[place] == "}")
        if open_braces == 0:
            return text[start:place]
    return None


def literal(box: str | None) -> int | None:
    """The one integer that can be meant: what is left when all LaTeX around a number is struck out; None else.

    Reads more than the grader may: whatever this does not read, no grader of integers should.
    """
    if box is None:
        return None
    bare = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|°|\\!", "", box.replace("−", "-"))
    bare = re.sub(r"\\(text|textbf|textrm|mathbf|mathrm|mbox)\{", "", bare)
    bare = re.sub(r"[\s{}$%,\\]", "", bare)
    bare = re.sub(r"(?<=[0-9.])[A-Za-z. ]*$", "", re.sub(r"\.0*(?=[^0-9]|$)", "", bare))
    sign = -1 if bare.startswith("-") else 1
    digits = bare.lstrip("+-")
    if not digits or set(digits) - set("0123456789") or len(bare) - len(digits) > 1:
        return None
    value = 0
    for digit in digits[-40:]:  # no answer has more
        value = 10 * value + "0123456789".index(digit)
    return sign * value


def evaluated(box: str | None) -> tuple[Fraction, list[int]] | None:
    """The value of a box as Python reads it, and the numbers in it; None unless it has numbers, + - * / and () only."""
    for latex, plain in ((r"\times", "*"), (r"\cdot", "*"), (r"\div", "/"), (r"\left", " "), (r"\right", " ")):
        box = (box or "").replace(latex, plain)
    box = box.replace("×", "*").replace("÷", "/").replace("−", "-")
    if not re.fullmatch(r"[0-9+\-*/()\s]+", box) or re.search(r"\*\*|//", box):
        return None
    try:
        value = eval(re.sub("[0-9]+", "Fraction('\\g<0>')", " ".join(box.split())), {"Fraction": Fraction})
    except (SyntaxError, TypeError, ZeroDivisionError):
        return None
    return (value, [int(number) for number in re.findall("[0-9]+", box)]) if isinstance(value, Fraction) else None


def sums(answer: int) -> Problem:
    return Problem("p", "?", str(answer), "math")


COUNTDOWN = Problem("p", "0,1,3,3,11,33,300=33", "33", "countdown")
SHEET = Problem("p", f"{COUNTDOWN.text}\n3,11=33", "1", "countdown_sheet")
PROBLEMS = [COUNTDOWN, SHEET, *map(sums, [33, -33, 0, 3, 3300, 10**18 - 1])]


def boxes(text: str) -> list[str]:
    """The contents of all boxes that hold no other brace and at most 64 characters."""
    parts = [part.partition("}") for part in text.split("\\boxed{")[1:]]
    return [box for box, closed, _ in parts if closed and "{" not in box and len(box) <= 64]


def check(text: str, problem: Problem, finish_reason: str) -> None:
    """The properties of every grade: nothing was evaluated, and it is correct only if an independent reading agrees."""
    with nothing_evaluated():
        found = problem.grade(text, finish_reason)
        rewards = [reward(found) for reward in REWARDS.values()]
    assert isinstance(found, Grade)
    assert all(reward in (1.0, 0.0, -0.1, -1.0) for reward in rewards)
    assert found.truncated == (finish_reason == "length")
    assert found.formatted == (found.answer is not None and not found.truncated)
    assert found.answer_correct or not found.correct
    if problem.task == "countdown_sheet":
        values = [evaluated(box) for box in boxes(text)]
        assert found.answer is None or any(values)  # Python also reads a sign before an expression
        if found.correct:
            assert len(values) == 2
            assert 33 in [value[0] for value in values if value]
        return
    box = last_box(text)
    if problem.task == "countdown":
        assert found.answer is None or evaluated(box) is not None
        if found.correct:
            value, numbers = evaluated(box)
            assert value == int(problem.answer)
            given = [int(number) for number in problem.text.partition("=")[0].split(",")]
            assert all(numbers.count(number) <= given.count(number) for number in numbers)
        return
    assert found.correct == (found.answer == problem.answer)
    assert found.answer == (None if found.answer is None else str(literal(box)))
    if found.answer_correct:
        assert problem.answer.lstrip("-") in re.sub(r"[^0-9]", "", text)  # it is nowhere else than in the text
