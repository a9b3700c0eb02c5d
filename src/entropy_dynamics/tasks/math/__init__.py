r"""Competition mathematics with integer answers: DAPO-Math-17k, AIME, and files of the same kind.

A closed box that holds anything but an integer (`\boxed{1/2}`) is a wrong answer. The fallback, an "Answer:" line or
else the last number of the response, applies only to responses without a box.
"""

import re
from typing import Any

from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.boxed import INSTRUCTION, MAX_LENGTH, extract_boxed, last_match
from entropy_dynamics.tasks.integers import parse_integer, read_integer
from entropy_dynamics.tasks.statements import StatedInWords

_ANSWER_LINE = re.compile(r"answer\s*+:([^\n]*+)", re.IGNORECASE)
_NUMBER = re.compile(r"(?:(?<![\w)}.])[-+−])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]++)(?:\.[0-9]++)?")


class Math(StatedInWords):
    name = "math"
    instruction = INSTRUCTION

    def read_answer(self, value: Any, text: str) -> str:
        """The integer, which may be behind the #### of GSM8K's solutions or in the last box of MATH's."""
        if isinstance(value, str):
            value = value.rpartition("####")[2].strip()
            value = value if (box := extract_boxed(value)) is None else box
        return read_integer(value)

    def extract(self, response: str) -> str | None:
        box = extract_boxed(response)
        return None if box is None else parse_integer(box)

    def is_correct(self, answer: str | None, problem: Problem) -> bool:
        return answer == problem.answer

    def fallback(self, response: str) -> str | None:
        """The integer on the last "Answer:" line or, if there is none, the last number if it is an integer."""
        if extract_boxed(response) is not None:
            return None
        line = last_match(_ANSWER_LINE, response)
        written = line[1].strip(" \t\r*").removesuffix(".") if line and len(line[1]) <= MAX_LENGTH else ""
        if stated := parse_integer(written):
            return stated
        number = last_match(_NUMBER, response)
        return None if number is None else parse_integer(number[0])


TASK = Math()
