"""The embedded task: sums of one-digit numbers, and worked solutions with a mixture of good and bad habits.

A problem reads "7+1+5+9+1". A careful solution adds one number at a time, in whatever order, and boxes the last
running sum: "7+5=12+9=21+1=22+1=23\\boxed{23}". Every order is right, so the choice of the next number is a fork of
high entropy, while a running sum follows from what stands before it. The bad habits are what reinforcement learning
has to unlearn: guessing at once, being off in a sum, forgetting the box, never coming to an end.
"""

from collections import Counter
from collections.abc import Iterator
from math import comb

import numpy as np

from entropy_dynamics.config import HabitsConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks.problems import Problem

DIGITS = 9  # the numbers are 1 to 9: adding a zero is no step
MOST_TERMS = 1000  # more fit no prompt
RAMBLING_CHARACTERS = 160  # a solution that never ends is written this long: more than any token limit in use
MISTAKES = (-2, -1, 1, 2)  # by how much a sloppy running sum is off
RARE = 0.05  # of a length with less than this share of its sums left the warm start draws none
GUESSING_ERROR = 4.0  # standard deviation of a guess around the true sum


def canonical(text: str) -> str:
    """The text of the same sum with its numbers in ascending order: equal for two texts that differ in order only."""
    return "+".join(sorted(text.split("+"), key=int))


def generate_problems(
    count: int, *, terms: tuple[int, int], seed: int, prefix: str, exclude: set[str] = frozenset()
) -> list[Problem]:
    """`count` sums of terms[0] to terms[1] numbers, no two alike up to reordering, none of them in `exclude`.

    The lengths are equally frequent as long as there are sums left of each. `exclude` holds problem texts in any order
    of their numbers. Raises UserError if there are fewer than `count` such sums.
    """
    low, high = _checked_terms(terms)
    seen = {canonical(text) for text in exclude}
    left = _sums_left(low, high, seen)
    if count > sum(left.values()):
        raise UserError(
            f"arithmetic: {count} problems of {low} to {high} numbers wanted, but only {sum(left.values())} different "
            "ones are left beside the other sets; ask for fewer or widen `terms`"
        )
    rng = np.random.default_rng(seed)
    problems = []
    while len(problems) < count:
        length = rng.choice([length for length, number in left.items() if number > 0])
        text = _draw(int(length), rng)
        if (key := canonical(text)) in seen:
            continue
        seen.add(key)
        left[length] -= 1
        problems.append(Problem(f"{prefix}-{len(problems):04d}", text, sum(map(int, text.split("+")))))
    return problems


def problem_stream(*, terms: tuple[int, int], seed: int, exclude: set[str] = frozenset()) -> Iterator[str]:
    """Problem texts without end, repetitions allowed, none of them in `exclude` in any order of its numbers.

    Every length is drawn equally often and a draw in `exclude` is drawn anew, so a length is the rarer the more of its
    sums are excluded; one of which hardly any is left does not occur. Raises UserError if that is all of them.
    """
    low, high = _checked_terms(terms)
    excluded = {canonical(text) for text in exclude}
    left = _sums_left(low, high, excluded)
    lengths = [length for length, number in left.items() if number >= RARE * _number_of_sums(length)]
    if not lengths:
        raise UserError(
            f"arithmetic: the other sets hold nearly every sum of {low} to {high} numbers, so none is left "
            "for the warm start; make those sets smaller or widen its `terms`"
        )
    rng = np.random.default_rng(seed)
    while True:
        text = _draw(int(rng.choice(lengths)), rng)
        if canonical(text) not in excluded:
            yield text


def write_solution(problem: str, habits: HabitsConfig, rng: np.random.Generator) -> tuple[str, bool]:
    """A solution of the sum `problem` in the manner of `habits`, and whether it comes to an end."""
    numbers = [int(number) for number in problem.split("+")]
    if rng.random() < habits.shortcut:
        return _boxed(max(0, round(rng.normal(sum(numbers), GUESSING_ERROR)))), True
    text, total = _running_sums(numbers, habits, rng)
    if rng.random() < habits.rambling:
        while len(text) < RAMBLING_CHARACTERS:
            text += "\n" + _running_sums(numbers, habits, rng)[0]
        return text, False
    return (text if rng.random() < habits.unboxed else text + _boxed(total)), True


def _running_sums(numbers: list[int], habits: HabitsConfig, rng: np.random.Generator) -> tuple[str, int]:
    order = rng.permutation(numbers) if rng.random() < habits.shuffled else numbers
    total = int(order[0])
    text = str(total)
    for number in order[1:]:
        total += int(number)
        if rng.random() < habits.sloppy:
            total = max(0, total + int(rng.choice(MISTAKES)))
        text += f"+{number}={total}"
    return text, total


def _boxed(answer: int) -> str:
    return f"\\boxed{{{answer}}}"


def _number_of_sums(length: int) -> int:
    return comb(DIGITS + length - 1, length)  # multisets of `length` numbers


def _sums_left(low: int, high: int, excluded: set[str]) -> dict[int, int]:
    """For every length how many sums are not among `excluded` (canonical texts)."""
    taken = Counter(text.count("+") + 1 for text in excluded)
    return {length: _number_of_sums(length) - taken[length] for length in range(low, high + 1)}


def _draw(length: int, rng: np.random.Generator) -> str:
    """A random order of a multiset of `length` numbers, every multiset equally likely (stars and bars)."""
    stars = np.sort(rng.choice(DIGITS + length - 1, length, replace=False)) - np.arange(length)
    return "+".join(map(str, rng.permutation(stars) + 1))


def _checked_terms(terms: tuple[int, int]) -> tuple[int, int]:
    low, high = terms if len(terms) == 2 else (0, 0)
    if not 2 <= low <= high <= MOST_TERMS:
        raise UserError(
            f"arithmetic: `terms` is {list(terms)}; it must be [fewest, most] with 2 <= fewest <= most <= {MOST_TERMS}"
        )
    return low, high
