"""Generation of Countdown problems, and search for their solutions."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, islice
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field

from entropy_dynamics.errors import UserError
from entropy_dynamics.sections import PositiveInt, Section
from entropy_dynamics.tasks import GeneratedSet, Problem, Range, ordered

Operation = Literal["+", "-", "*", "/"]
Count = Annotated[int, Field(ge=2, le=6)]
PATIENCE = 10_000  # draws in a row without a new problem before giving up
_PROBLEM = re.compile(r"[0-9]{1,9}(?:,[0-9]{1,9})+=[0-9]{1,9}")
SENTENCE = re.compile(r"Make ([0-9]+) from ([0-9, ]+) and ([0-9]+)(?: with [-+*/, and]+)?\.")


class Rules(Section):
    """The problem space. Intermediate results are positive integers up to `largest`."""

    numbers: Annotated[tuple[Count, Count], Field(strict=False), AfterValidator(ordered)]
    """[min, max] count of given numbers, uniformly distributed; the search takes 0.3 s for a problem of 6."""
    values: Range
    """[min, max] of the given numbers."""
    targets: Range
    """[min, max] target; uniform over the reachable ones."""
    operations: Annotated[str, Field(pattern=r"^[-+*/]{1,4}$")] = "+-*/"
    largest: PositiveInt = 1000
    """Largest intermediate result."""
    sentences: bool = False
    """Whether problems are sentences, for pretrained models, instead of strings such as 3,5,7=21."""


class CountdownSet(Rules, GeneratedSet):
    """Solvable problems, no two with the same numbers and target."""

    source: Literal["countdown"]

    def generate(self, prefix: str, seed: int, exclude: Collection[str]) -> list[Problem]:
        seen = {canonical(text) for text in exclude}
        problems = []
        for number, text in enumerate(islice(draw_problems(self, np.random.default_rng(seed), seen), self.size)):
            seen.add(canonical(text))
            problems.append(Problem(f"{prefix}-{number:04d}", text, str(parse_problem(text)[1]), "countdown"))
        return problems


class Move(NamedTuple):
    """Combination of the two numbers at the positions `left` and `right` of a pool."""

    left: int
    operation: Operation
    right: int
    result: int
    pool: tuple[int, ...]
    """The pool afterwards, in ascending order."""


def as_string(text: str) -> str:
    """'7,3,5=1' for a problem in either notation. Raises ValueError if the text is not a Countdown problem."""
    text = SENTENCE.sub(lambda part: f"{part[2]},{part[3]}={part[1]}".replace(" ", ""), text.strip())
    if _PROBLEM.fullmatch(text) is None:
        raise ValueError("the problem is not of the form 3,5,7=21")
    return re.sub(r"\b0+(?=[0-9])", "", text)


def parse_problem(text: str) -> tuple[Counter[int], int]:
    """The numbers with their counts, and the target. Raises ValueError if the text is not a Countdown problem."""
    numbers, _, target = as_string(text).partition("=")
    return Counter(map(int, numbers.split(","))), int(target)


def sentence(text: str, operations: str) -> str:
    """'Make 1 from 3, 5 and 7 with + and -.' for '3,5,7=1'."""
    numbers, _, target = text.partition("=")
    return f"Make {target} from {_listed(numbers.split(','))} with {_listed(operations)}."


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def canonical(text: str) -> str:
    """The same problem as a string, with its numbers in ascending order; any other text unchanged."""
    try:
        numbers, target = parse_problem(text)
    except ValueError:
        return text
    return f"{','.join(map(str, sorted(numbers.elements())))}={target}"


def draw_problems(rules: Rules, rng: np.random.Generator, excluded: Collection[str]) -> Iterator[str]:
    """Yield random problems endlessly, except those whose canonical text is in `excluded`, which may grow meanwhile.

    Raises UserError if hardly any problems are left.
    """
    misses = 0
    while misses < PATIENCE:
        count = int(rng.integers(rules.numbers[0], rules.numbers[1], endpoint=True))
        numbers = rng.integers(rules.values[0], rules.values[1], size=count, endpoint=True).tolist()
        reached = reachable(tuple(sorted(numbers)), rules.operations, rules.largest)
        targets = sorted(target for target in reached if rules.targets[0] <= target <= rules.targets[1])
        text = f"{','.join(map(str, numbers))}={targets[rng.integers(len(targets))]}" if targets else ""
        if text and canonical(text) not in excluded:
            misses = 0
            yield sentence(text, rules.operations) if rules.sentences else text
        else:
            misses += 1
    raise UserError(
        f"countdown: hardly any new problem of {rules.numbers[0]} to {rules.numbers[1]} numbers is left besides those "
        "drawn for this set and others; ask for fewer or widen `numbers`, `values` or `targets`"
    )


@lru_cache(maxsize=1 << 16)
def moves(pool: tuple[int, ...], operations: str, largest: int) -> tuple[Move, ...]:
    """All distinct ways to combine two numbers of `pool`, which is in ascending order."""
    different = {}
    for low, high in combinations(range(len(pool)), 2):
        a, b = pool[high], pool[low]
        rest = [number for place, number in enumerate(pool) if place not in (low, high)]
        results: dict[Operation, int] = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if a % b == 0 else 0}
        for operation, result in results.items():
            if operation in operations and 0 < result <= largest:
                different[a, operation, b] = Move(high, operation, low, result, tuple(sorted([*rest, result])))
    return tuple(different.values())


@lru_cache(maxsize=1 << 16)
def reachable(pool: tuple[int, ...], operations: str, largest: int) -> frozenset[int]:
    """Values of all expressions that use every number of `pool`, which is in ascending order."""
    if len(pool) == 1:
        return frozenset(pool)
    values = (reachable(move.pool, operations, largest) for move in moves(pool, operations, largest))
    return frozenset().union(*values)
