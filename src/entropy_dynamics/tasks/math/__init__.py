"""Competition mathematics with integer answers: DAPO-Math-17k, AIME, and files of the same kind."""

from entropy_dynamics.tasks.integers import IntegerTask
from entropy_dynamics.tasks.statements import StatedInWords


class Math(StatedInWords, IntegerTask):
    name = "math"


TASK = Math()
