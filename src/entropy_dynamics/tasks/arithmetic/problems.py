"""Generation of sums."""

import re
from collections import Counter
from collections.abc import Collection
from math import comb
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field

from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks import GeneratedSet, Problem, ordered

DIGITS = 9  # the numbers are 1 to 9, as adding a zero changes nothing
_SUM = re.compile(r"\d+(\+\d+)+")

Terms = Annotated[int, Field(ge=2, le=1000)]
TermRange = Annotated[tuple[Terms, Terms], Field(strict=False), AfterValidator(ordered)]


class ArithmeticSet(GeneratedSet):
    """Sums, no two of the same numbers, with uniform lengths as long as unused sums of each length are left."""

    source: Literal["arithmetic"]
    terms: TermRange
    """[min, max] count of numbers in a sum."""

    def generate(self, prefix: str, seed: int, exclude: Collection[str]) -> list[Problem]:
        seen = {canonical(text) for text in exclude if is_sum(text)}
        left = sums_left(self.terms, seen)
        if self.size > sum(left.values()):
            raise UserError(
                f"arithmetic: {self.size} problems of {self.terms[0]} to {self.terms[1]} numbers are wanted, but only "
                f"{sum(left.values())} different ones are left besides the other sets; ask for fewer or widen `terms`"
            )
        rng = np.random.default_rng(seed)
        problems: list[Problem] = []
        while len(problems) < self.size:
            length = rng.choice([length for length, number in left.items() if number > 0])
            text = draw(int(length), rng)
            if (key := canonical(text)) in seen:
                continue
            seen.add(key)
            left[length] -= 1
            answer = str(sum(map(int, text.split("+"))))
            problems.append(Problem(f"{prefix}-{len(problems):04d}", text, answer, "arithmetic"))
        return problems


def is_sum(text: str) -> bool:
    return _SUM.fullmatch(text) is not None


def canonical(text: str) -> str:
    """The same sum with its numbers in ascending order; any other text unchanged."""
    return "+".join(sorted(text.split("+"), key=int)) if is_sum(text) else text


def number_of_sums(length: int) -> int:
    """Number of multisets of `length` numbers."""
    return comb(DIGITS + length - 1, length)


def sums_left(terms: tuple[int, int], excluded: Collection[str]) -> dict[int, int]:
    """Number of sums that are not in `excluded` (canonical texts), by length."""
    taken = Counter(text.count("+") + 1 for text in excluded)
    return {length: number_of_sums(length) - taken[length] for length in range(terms[0], terms[1] + 1)}


def draw(length: int, rng: np.random.Generator) -> str:
    """A random order of a random multiset of `length` numbers, uniform over multisets (stars and bars)."""
    stars = np.sort(rng.choice(DIGITS + length - 1, length, replace=False)) - np.arange(length)
    return "+".join(map(str, rng.permutation(stars) + 1))
