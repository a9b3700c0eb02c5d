"""Sums of one-digit numbers, with worked solutions in a mixture of good and bad habits.

A problem is "7+1+5+9+1", for example. A careful solution adds one number at a time, in any order, and boxes the last
running sum: "7+5=12+9=21+1=22+1=23\\boxed{23}". Every order is correct, so the choice of the next number is a
high-entropy fork, while a running sum is determined by what precedes it.
"""

from entropy_dynamics.tasks.arithmetic.problems import ArithmeticSet, canonical
from entropy_dynamics.tasks.arithmetic.solutions import ArithmeticSolutions
from entropy_dynamics.tasks.integers import IntegerTask


class Arithmetic(IntegerTask):
    name = "arithmetic"
    generated = ArithmeticSet
    solutions = ArithmeticSolutions

    def key(self, text: str) -> str:
        """The canonical text: sums of the same numbers are the same problem."""
        return canonical(text)


TASK = Arithmetic()
