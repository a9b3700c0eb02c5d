r"""Problems whose answers are expressions: fractions, roots, tuples, intervals, sets, matrices, words.

For MATH-500, GSM8K and files of the same kind. The last box is compared with the answer by Math-Verify, an extra:
`pip install 'entropy-dynamics[expressions]'`. It runs in a process with a limit of CPU time (`tasks.limited`).
"""

import re
from decimal import Decimal
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.boxed import INSTRUCTION, extract_boxed
from entropy_dynamics.tasks.limited import verifier
from entropy_dynamics.tasks.statements import StatedInWords

MAX_LENGTH = 256  # characters in a box


class Expressions(StatedInWords):
    name = "expressions"
    instruction = INSTRUCTION

    def read_answer(self, value: Any, text: str) -> str:
        """The answer as written, behind the #### of GSM8K's solutions, or in the last box of MATH's."""
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            raise ValueError("the answer is neither a text nor a number")
        written = str(value).rpartition("####")[2].strip()
        box = extract_boxed(written, MAX_LENGTH)
        answer = re.sub(r"^\$+|(?<!\\)\$+$", "", written if box is None else box).strip()
        if len(answer) > MAX_LENGTH:
            raise ValueError(f"the answer has more than {MAX_LENGTH} characters")
        if not equal(answer, answer):
            raise ValueError("Math-Verify cannot read the answer")
        return answer

    def extract(self, response: str) -> str | None:
        return (extract_boxed(response, MAX_LENGTH) or "").strip() or None

    def is_correct(self, answer: str | None, problem: Problem) -> bool:
        return answer is not None and equal(problem.answer, answer)


@lru_cache(maxsize=1 << 16)  # the samples of a problem repeat few answers
def equal(expected: str, answer: str) -> bool:
    """Whether Math-Verify takes two answers, in LaTeX, for equal. Raises UserError without it."""
    if find_spec("math_verify") is None:
        raise UserError("the task expressions needs Math-Verify: pip install 'entropy-dynamics[expressions]'")
    return bool(verifier("entropy_dynamics.tasks.expressions.check").call("check", expected, answer))


TASK = Expressions()
