"""Entropy bonus: the classic regulariser, -c H in the loss of every response token (Williams and Peng 1991)."""

import math
from dataclasses import dataclass
from typing import ClassVar

from entropy_dynamics.methods import Method, check_number, method


@method("entropy_bonus")
@dataclass(frozen=True, kw_only=True)
class EntropyBonus(Method):
    """Every token keeps its weight; the mean of H is over all response tokens.

    coefficient: c, in units of loss per nat. Used are 1e-4 to 5e-3; with more, entropy tends to run away.
    """

    coefficient: float = 1e-3
    needs_batch: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        check_number("coefficient", self.coefficient, lambda v: 0 <= v < math.inf, "a finite number, 0 or more")

    def entropy_bonus(self) -> float:
        return self.coefficient
