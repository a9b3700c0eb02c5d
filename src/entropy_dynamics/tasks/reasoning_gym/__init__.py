r"""Problem sets of the generators of Reasoning Gym, such as chain_sum, countdown or number_sorting.

An extra: `pip install 'entropy-dynamics[reasoning-gym]'`. If the answer is an integer, so must be the last box. Other
answers get the generator's own verifier, in a process with a limit of CPU time, and are correct at its full score.
"""

import json
import re
from contextlib import suppress
from typing import Any

from entropy_dynamics.tasks import Problem, Task
from entropy_dynamics.tasks.boxed import INSTRUCTION, extract_boxed
from entropy_dynamics.tasks.integers import parse_integer
from entropy_dynamics.tasks.limited import verifier
from entropy_dynamics.tasks.reasoning_gym.problems import MAX_LENGTH, ReasoningGymSet
from entropy_dynamics.tasks.reasoning_gym.solutions import ReasoningGymSolutions

_LATEX = re.compile(  # fonts, delimiters and escapes around words
    r"\\(?:text[a-z]*|math[a-z]+|operatorname|emph|mbox|bm|boldsymbol|underline)\s*\{((?:\\.|[^{}\\]|\{[^{}]*\})*)\}"
    r"|\$|\\[()\[\]]|\\([ _%#&{}])",
    re.DOTALL,
)


class ReasoningGym(Task):
    name = "reasoning_gym"
    instruction = INSTRUCTION
    generated = ReasoningGymSet
    solutions = ReasoningGymSolutions

    def read_answer(self, value: Any, text: str) -> str:
        """The JSON that `ReasoningGymSet` writes: the answer, and the item of a generator that it belongs to."""
        with suppress(TypeError, ValueError):
            if {"answer", "generator", "options", "seed", "index"} <= set(json.loads(value)):
                return str(value)
        raise ValueError("the answer does not belong to a generated problem")

    def extract(self, response: str) -> str | None:
        return (extract_boxed(response, MAX_LENGTH) or "").strip() or None

    def is_correct(self, answer: str | None, problem: Problem) -> bool:
        if answer is None:
            return False
        item = json.loads(problem.answer)
        if item["answer"] == parse_integer(item["answer"]):
            return parse_integer(answer) == item["answer"]
        call = verifier("entropy_dynamics.tasks.reasoning_gym.check").call
        forms = dict.fromkeys((answer, without_latex(answer)))  # the verifiers read plain text
        return item["answer"] in forms or any(call("check", item, problem.text, form) for form in forms)

    def key(self, text: str) -> str:
        return " ".join(text.split())  # case may matter


def without_latex(answer: str) -> str:
    r"""An answer without the LaTeX of words: `\text{Yes}`, `\(0.5\)` and `a\_b` are "Yes", "0.5" and "a_b"."""
    while (shorter := _LATEX.sub(r"\1\2", answer)) != answer:
        answer = shorter
    return answer.strip()


TASK = ReasoningGym()
