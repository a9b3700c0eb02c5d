r"""Countdown: reach a target from given numbers, each used exactly once, with + - * / and parentheses.

A problem reads "3,5,7,25=24": the numbers, then the target. An expression of all of them with that value is a
correct answer, such as `\boxed{25-(5+3-7)}`, by the rule of TinyZero. It is evaluated in exact fractions; intermediate
results may be negative or fractions.
"""

from typing import Any

from entropy_dynamics.tasks import Problem, Task
from entropy_dynamics.tasks.boxed import extract_boxed
from entropy_dynamics.tasks.countdown.expressions import parse_expression
from entropy_dynamics.tasks.countdown.problems import CountdownSet, canonical, parse_problem
from entropy_dynamics.tasks.countdown.solutions import CountdownSolutions
from entropy_dynamics.tasks.integers import read_integer


class Countdown(Task):
    name = "countdown"
    instruction = (
        "Combine the numbers before the equals sign, each exactly once, with + - * / and parentheses so that they give "
        r"the number after it. Please reason step by step, and put the final expression within \boxed{}."
    )
    generated = CountdownSet
    solutions = CountdownSolutions

    def read_answer(self, value: Any, text: str) -> str:
        """The target, which the text states too."""
        _, target = parse_problem(text)
        if read_integer(value) != str(target):
            raise ValueError("the answer is not the target that the problem states")
        return str(target)

    def extract(self, response: str) -> str | None:
        box = extract_boxed(response)
        expression = parse_expression(box) if box is not None else None
        return expression.text if expression is not None else None

    def is_correct(self, answer: str | None, problem: Problem) -> bool:
        expression = parse_expression(answer) if answer is not None else None
        if expression is None:
            return False
        numbers, target = parse_problem(problem.text)
        return expression.value == target and expression.numbers == numbers

    def key(self, text: str) -> str:
        """The order of the numbers makes no difference."""
        return canonical(text)


TASK = Countdown()
