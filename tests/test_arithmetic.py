"""Sums: the problems are what they claim, and the solutions show exactly the habits asked for."""

import itertools
import re
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.arithmetic.problems import ArithmeticSet, canonical
from entropy_dynamics.tasks.arithmetic.solutions import ArithmeticSolutions


def generate(size: int, terms: tuple[int, int], seed: int, exclude=()) -> list[Problem]:
    return ArithmeticSet(source="arithmetic", size=size, terms=terms).generate("x", seed, exclude)


def solutions(terms: tuple[int, int] = (2, 9), **habits: float) -> ArithmeticSolutions:
    none = {"shuffled": 0.0, "shortcut": 0.0, "sloppy": 0.0, "unboxed": 0.0, "rambling": 0.0}
    return ArithmeticSolutions(task="arithmetic", terms=terms, habits=none | habits)


def numbers(text: str) -> list[int]:
    return sorted(int(number) for number in text.split("+"))


def chain(solution: str) -> tuple[list[int], list[int]]:
    """The numbers added and the running sums written, of the first line and without the box."""
    body = solution.split("\n")[0].split("\\boxed")[0]
    assert re.fullmatch(r"\d(\+\d=\d+)+", body)
    steps = re.findall(r"\+(\d)=(\d+)", body)
    return [int(body[0]), *(int(n) for n, _ in steps)], [int(body[0]), *(int(s) for _, s in steps)]


def test_canonical_ignores_order_only():
    assert canonical("7+1+5+9+1") == "1+1+5+7+9" == canonical("9+7+5+1+1")
    assert canonical("7+1") != canonical("7+1+1")


def test_problems_are_sums_with_the_correct_answer_and_length():
    problems = generate(400, (4, 7), 3)
    assert len({problem.id for problem in problems}) == 400
    assert all(re.fullmatch(r"[1-9](\+[1-9]){3,6}", problem.text) for problem in problems)
    assert all(problem.answer == str(sum(numbers(problem.text))) for problem in problems)
    lengths = Counter(len(numbers(problem.text)) for problem in problems)
    assert set(lengths) == {4, 5, 6, 7}
    assert min(lengths.values()) > 60  # 100 each, standard deviation 9


def test_problems_are_unique_up_to_reordering_and_avoid_the_excluded():
    first = generate(100, (3, 4), 0)
    # Reordered on purpose: exclusion must not depend on how a sum is written.
    exclude = {"+".join(reversed(problem.text.split("+"))) for problem in first}
    second = generate(300, (3, 4), 0, exclude)
    keys = [tuple(numbers(problem.text)) for problem in first + second]
    assert len(keys) == len(set(keys)) == 400


def test_problems_are_the_same_for_a_seed_and_others_for_another():
    one, same, other = (generate(50, (5, 6), seed) for seed in (1, 1, 2))
    assert one == same
    assert {problem.text for problem in one} != {problem.text for problem in other}


def test_every_sum_is_found_before_the_space_is_reported_empty():
    every = {tuple(sorted(digits)) for digits in itertools.product(range(1, 10), repeat=3)}
    assert len(every) == 165
    problems = generate(165, (3, 3), 0)
    assert {tuple(numbers(problem.text)) for problem in problems} == every
    with pytest.raises(UserError, match="only 165"):
        generate(166, (3, 3), 0)
    with pytest.raises(UserError, match="only 164"):
        generate(165, (3, 3), 0, {problems[0].text})


@pytest.mark.parametrize("terms", [(1, 3), (5, 4), (0, 0), (2, 1001)])
def test_impossible_terms_are_a_users_mistake(terms):
    with pytest.raises(ValidationError):
        generate(1, terms, 0)


def test_all_orders_of_a_problem_occur():
    seen = {problem.text for seed in range(100) for problem in generate(45, (2, 2), seed)}
    assert len(seen) == 81


def test_stream_never_yields_an_excluded_sum():
    held = {problem.text for problem in generate(120, (3, 3), 5)}
    keys = {tuple(numbers(text)) for text in held}
    drawn = list(itertools.islice(solutions((3, 4)).problems(1, held), 2000))
    assert not keys & {tuple(numbers(text)) for text in drawn}
    lengths = Counter(len(numbers(text)) for text in drawn)
    assert lengths[3] / lengths[4] == pytest.approx(45 / 165, rel=0.2)  # 120 of the 165 sums of three are excluded


def test_stream_leaves_out_a_length_that_is_used_up_and_raises_when_it_is_the_last():
    every = {problem.text for problem in generate(165, (3, 3), 0)}
    drawn = itertools.islice(solutions((3, 4)).problems(1, every), 200)
    assert {len(numbers(text)) for text in drawn} == {4}
    with pytest.raises(UserError, match="none is left for the warm start"):
        next(solutions((3, 3)).problems(1, every))


def test_a_careful_solution_is_the_chain_of_running_sums():
    rng = np.random.default_rng(0)
    assert solutions().solve("7+5+9+1+1", rng) == ("7+5=12+9=21+1=22+1=23\\boxed{23}", True)


def test_a_shuffled_solution_adds_the_same_numbers_in_every_order():
    rng = np.random.default_rng(0)
    orders = set()
    for _ in range(300):
        solution, ends = solutions(shuffled=1.0).solve("7+5+9+1", rng)
        added, sums = chain(solution)
        assert ends
        assert sorted(added) == [1, 5, 7, 9]
        assert sums == list(itertools.accumulate(added))
        assert solution.endswith("\\boxed{22}")
        orders.add(tuple(added))
    assert len(orders) == 24


def test_a_sloppy_solution_is_off_as_often_as_asked_and_continues_from_its_mistake():
    rng = np.random.default_rng(0)
    slips = steps = 0
    for _ in range(1000):
        solution, _ = solutions(sloppy=0.2).solve("7+5+9+1+1", rng)
        added, sums = chain(solution)
        off = [after - before - number for before, after, number in zip(sums, sums[1:], added[1:], strict=False)]
        assert set(off) <= {-2, -1, 0, 1, 2}
        assert solution.endswith(f"\\boxed{{{sums[-1]}}}")
        slips += sum(step != 0 for step in off)
        steps += len(off)
    assert slips / steps == pytest.approx(0.2, abs=0.025)  # four standard deviations


def test_a_shortcut_is_a_bare_guess_near_the_sum_and_mostly_wrong():
    rng = np.random.default_rng(0)
    guesses = []
    for _ in range(2000):
        solution, ends = solutions(shortcut=1.0).solve("7+5+9+1+1", rng)
        assert ends
        guesses.append(int(re.fullmatch(r"\\boxed\{(\d+)\}", solution)[1]))
    off = np.array(guesses) - 23
    assert abs(off.mean()) < 0.5
    assert 2 < off.std() < 6
    assert 0.02 < (off == 0).mean() < 0.2


def test_unboxed_and_rambling_solutions():
    rng = np.random.default_rng(0)
    assert solutions(unboxed=1.0).solve("7+5", rng) == ("7+5=12", True)
    solution, ends = solutions(rambling=1.0, unboxed=0.5).solve("7+5", rng)
    assert not ends
    assert "boxed" not in solution
    assert len(solution) >= 128
    assert set(solution.split("\n")) == {"7+5=12"}


def test_the_mixture_has_the_shares_asked_for():
    rng = np.random.default_rng(0)
    count = Counter()
    for _ in range(4000):
        solution, ends = solutions(shortcut=0.3, rambling=0.1, unboxed=0.2).solve("7+5+9", rng)
        guess = solution.startswith("\\boxed")
        count["shortcut"] += guess
        count["rambling"] += not ends
        count["unboxed"] += ends and "boxed" not in solution
    assert count["shortcut"] / 4000 == pytest.approx(0.3, abs=0.03)
    assert count["rambling"] / 4000 == pytest.approx(0.7 * 0.1, abs=0.02)
    assert count["unboxed"] / 4000 == pytest.approx(0.7 * 0.9 * 0.2, abs=0.025)
