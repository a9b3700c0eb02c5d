r"""Countdown: reach a target from given numbers, each used exactly once, with + - * / and parentheses.

A problem such as "3,5,7,25=24", or "Make 24 from 3, 5, 7 and 25 with + and -.", states the numbers and the target. As
in TinyZero, an answer is correct if it is an expression of all the numbers with that value, such as
`\boxed{25-(5+3-7)}`. It is evaluated in exact arithmetic; intermediate results may be negative or fractional.
"""

from typing import Any

from entropy_dynamics.tasks import Problem, Task
from entropy_dynamics.tasks.boxed import extract_boxed
from entropy_dynamics.tasks.countdown.expressions import parse_expression
from entropy_dynamics.tasks.countdown.problems import SENTENCE, CountdownSet, canonical, parse_problem
from entropy_dynamics.tasks.countdown.solutions import CountdownSolutions
from entropy_dynamics.tasks.integers import read_integer

SENTENCES = r"Use every number once to reach the target. Answer within \boxed{}."


class Countdown(Task):
    name = "countdown"
    instruction = (
        "Combine the numbers before the equals sign, each exactly once, with + - * / and parentheses so that they give "
        r"the number after it. Please reason step by step, and put the final expression within \boxed{}."
    )
    generated = CountdownSet
    solutions = CountdownSolutions

    def system_message(self, text: str) -> str:
        """A short one for sentences, of which each prompt of a small model pays every token."""
        return SENTENCES if SENTENCE.fullmatch(text.strip()) else self.instruction

    def read_answer(self, value: Any, text: str) -> str:
        """The target, which must be the one in the text."""
        _, target = parse_problem(text)
        if read_integer(value) != str(target):
            raise ValueError("the answer is not the target that the problem states")
        return str(target)

    def extract(self, response: str) -> str | None:
        expression = parse_expression(extract_boxed(response) or "")
        return expression.text if expression is not None else None

    def is_correct(self, answer: str | None, problem: Problem) -> bool:
        return answer is not None and solves(answer, problem.text)

    key = staticmethod(canonical)


def solves(text: str, problem: str) -> bool:
    """Whether an expression has the target's value and uses every number of the problem once."""
    expression, (numbers, target) = parse_expression(text), parse_problem(problem)
    return expression is not None and expression.value == target and expression.numbers == numbers


TASK = Countdown()
