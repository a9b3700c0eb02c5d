"""Answers that are expressions, graded by Math-Verify in a process with a limit of CPU time."""

import os
import signal
from importlib.util import find_spec

import pytest

from command_line import from_files, write_lines
from entropy_dynamics.cli import main
from entropy_dynamics.tasks import Problem, limited
from entropy_dynamics.tasks.expressions import TASK, equal
from entropy_dynamics.tasks.files import load_problems

pytestmark = pytest.mark.skipif(find_spec("math_verify") is None, reason="Math-Verify is not installed")


def correct(response: str, answer: str) -> bool:
    return TASK.grade(response, Problem("p", "?", answer, "expressions"), "stop").correct


@pytest.mark.parametrize(
    ("answer", "boxed", "expected"),
    [
        (r"\frac{3}{8}", "0.375", True), (r"\frac{3}{8}", r"\frac{8}{3}", False),
        (r"2\sqrt{3}", r"\sqrt{12}", True), ("a-b", "-b+a", True), ("a-b", "b-a", False),
        ("(2,5)", "[2,5]", False), ("(2,5)", "(5,2)", False), (r"\{2,5\}", "5, 2", True),
        (r"(-\infty,2]", r"(-\infty, 2)", False),
        (r"\begin{pmatrix}1\\3\end{pmatrix}", r"\begin{bmatrix}1\\3\end{bmatrix}", True),
        (r"\text{Carla}", "Carla", True), ("1,250", "1250", True), ("7", "7, 8", False),
        ("24", r"\$24", True), ("24", r"\$24.00", True), ("2350", r"\$2,350", True),
        ("24", r"\text{\$}24", True), ("24", r"24\$", True), ("24", r"\text{US\$}24", True),
        ("24", "24 dollars", True), ("24", r"\$25", False), ("-24", r"-\$24", True),
        ("-24", r"\$24", False), (r"\$7.50", "7.5", True), (r"\$7, \$9", "7, 9", True),
    ],
)  # fmt: skip
def test_answers_and_their_forms(answer, boxed, expected):
    assert correct(f"So it is $\\boxed{{{boxed}}}$.", answer) is expected


def test_only_the_box_counts():
    assert not correct("It is 3/8.", "3/8")
    assert not correct(r"\boxed{3/8} or \boxed{8/3}", "3/8")


@pytest.mark.parametrize("bomb", [r"9^{9^{9^{9^{9}}}}", r"10^{10^{10}}!", r"\sqrt{" * 40 + "x" + "}" * 40])
def test_an_answer_that_would_hang_is_wrong_and_the_next_one_is_graded(bomb):
    assert not correct(f"\\boxed{{{bomb}}}", "17")
    assert equal("17", "17.0")


def test_a_killed_verifier_is_no_wrong_answer():
    equal("18", "18.0")
    os.kill(limited.verifier("entropy_dynamics.tasks.expressions.check").process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="was killed"):
        correct(r"\boxed{19.0}", "19")
    assert correct(r"\boxed{19.0}", "19")


def test_files_with_expressions_are_read(tmp_path):
    rows = [
        ("half", "1/2"),
        ("interval", r"\left[0, \frac{1}{3}\right)"),
        ("word", r"\text{blue}"),
        ("steps", "3 * 4 = <<3*4=12>>12\n#### 1,212"),
        ("amount", "#### $1,212"),
        ("escaped", r"$\$5$"),
        ("behind", r"5\$"),
        ("box", "We count. " * 40 + r"$\boxed{\frac14}$."),
        ("nothing", ""),
    ]
    problems = [{"problem": f"The {text} one?", "answer": answer} for text, answer in rows]
    path = write_lines(tmp_path / "a.jsonl", problems)
    assert main(["problems", *from_files(path, "expressions"), "--results", str(tmp_path)]) == 0
    kept = load_problems(tmp_path / "smoke/data/train.parquet")
    written = ["1/2", r"\left[0, \frac{1}{3}\right)", r"\text{blue}", "1,212", "1,212", r"\$5", r"5\$", r"\frac14"]
    assert [problem.answer for problem in kept] == written
    assert all(problem.grade(f"\\boxed{{{problem.answer}}}", "stop").correct for problem in kept)
    plain = ["0.5", r"[0, \frac13)", "blue", "1212", "1212", "5", "5", "0.25"]
    assert all(problem.grade(f"\\boxed{{{box}}}", "stop").correct for problem, box in zip(kept, plain, strict=True))
