"""The embedded task: its problems are what they claim, and its solutions show exactly the habits asked for."""

import itertools
import re
from collections import Counter

import numpy as np
import pytest

from entropy_dynamics.config import HabitsConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks.arithmetic import canonical, generate_problems, problem_stream, write_solution


def habits(**changed: float) -> HabitsConfig:
    none = {"shuffled": 0.0, "shortcut": 0.0, "sloppy": 0.0, "unboxed": 0.0, "rambling": 0.0}
    return HabitsConfig(**(none | changed))


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


def test_problems_are_sums_with_the_right_answer_and_length():
    problems = generate_problems(400, terms=(4, 7), seed=3, prefix="train")
    assert len({problem.id for problem in problems}) == 400
    assert all(re.fullmatch(r"[1-9](\+[1-9]){3,6}", problem.problem) for problem in problems)
    assert all(problem.answer == sum(numbers(problem.problem)) for problem in problems)
    lengths = Counter(len(numbers(problem.problem)) for problem in problems)
    assert set(lengths) == {4, 5, 6, 7}
    assert min(lengths.values()) > 60  # 100 each, standard deviation 9


def test_problems_are_unique_up_to_reordering_and_avoid_the_excluded():
    first = generate_problems(100, terms=(3, 4), seed=0, prefix="a")
    # Reordered on purpose: exclusion must not depend on how a sum is written.
    exclude = {"+".join(reversed(problem.problem.split("+"))) for problem in first}
    second = generate_problems(300, terms=(3, 4), seed=0, prefix="b", exclude=exclude)
    keys = [tuple(numbers(problem.problem)) for problem in first + second]
    assert len(keys) == len(set(keys)) == 400


def test_problems_are_the_same_for_a_seed_and_others_for_another():
    one, same, other = (generate_problems(50, terms=(5, 6), seed=seed, prefix="x") for seed in (1, 1, 2))
    assert one == same
    assert {problem.problem for problem in one} != {problem.problem for problem in other}


def test_every_sum_is_found_before_the_space_is_said_to_be_empty():
    every = {tuple(sorted(digits)) for digits in itertools.product(range(1, 10), repeat=3)}
    assert len(every) == 165
    problems = generate_problems(165, terms=(3, 3), seed=0, prefix="x")
    assert {tuple(numbers(problem.problem)) for problem in problems} == every
    with pytest.raises(UserError, match="only 165"):
        generate_problems(166, terms=(3, 3), seed=0, prefix="x")
    with pytest.raises(UserError, match="only 164"):
        generate_problems(165, terms=(3, 3), seed=0, prefix="x", exclude={problems[0].problem})


@pytest.mark.parametrize("terms", [(1, 3), (5, 4), (0, 0)])
def test_impossible_terms_are_a_users_mistake(terms):
    with pytest.raises(UserError, match="fewest"):
        generate_problems(1, terms=terms, seed=0, prefix="x")


def test_all_orders_of_a_problem_occur():
    seen = {
        problem.problem for seed in range(100) for problem in generate_problems(45, terms=(2, 2), seed=seed, prefix="")
    }
    assert len(seen) == 81


def test_stream_never_yields_an_excluded_sum():
    held = {problem.problem for problem in generate_problems(120, terms=(3, 3), seed=5, prefix="x")}
    keys = {tuple(numbers(text)) for text in held}
    drawn = list(itertools.islice(problem_stream(terms=(3, 4), seed=1, exclude=held), 2000))
    assert not keys & {tuple(numbers(text)) for text in drawn}
    lengths = Counter(len(numbers(text)) for text in drawn)
    assert lengths[3] / lengths[4] == pytest.approx(45 / 165, rel=0.2)  # 120 of the 165 sums of three are excluded


def test_stream_leaves_out_a_length_that_is_used_up_and_says_so_when_it_is_the_last():
    every = {problem.problem for problem in generate_problems(165, terms=(3, 3), seed=0, prefix="x")}
    drawn = itertools.islice(problem_stream(terms=(3, 4), seed=1, exclude=every), 200)
    assert {len(numbers(text)) for text in drawn} == {4}
    with pytest.raises(UserError, match="none is left for the warm start"):
        next(problem_stream(terms=(3, 3), seed=1, exclude=every))


def test_a_careful_solution_is_the_chain_of_running_sums():
    rng = np.random.default_rng(0)
    assert write_solution("7+5+9+1+1", habits(), rng) == ("7+5=12+9=21+1=22+1=23\\boxed{23}", True)


def test_a_shuffled_solution_adds_the_same_numbers_in_every_order():
    rng = np.random.default_rng(0)
    orders = set()
    for _ in range(300):
        solution, ends = write_solution("7+5+9+1", habits(shuffled=1.0), rng)
        added, sums = chain(solution)
        assert ends
        assert sorted(added) == [1, 5, 7, 9]
        assert sums == list(itertools.accumulate(added))
        assert solution.endswith("\\boxed{22}")
        orders.add(tuple(added))
    assert len(orders) == 24


def test_a_sloppy_solution_is_off_as_often_as_asked_and_goes_on_from_its_mistake():
    rng = np.random.default_rng(0)
    slips = steps = 0
    for _ in range(1000):
        solution, _ = write_solution("7+5+9+1+1", habits(sloppy=0.2), rng)
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
        solution, ends = write_solution("7+5+9+1+1", habits(shortcut=1.0), rng)
        assert ends
        guesses.append(int(re.fullmatch(r"\\boxed\{(\d+)\}", solution)[1]))
    off = np.array(guesses) - 23
    assert abs(off.mean()) < 0.5
    assert 2 < off.std() < 6
    assert 0.02 < (off == 0).mean() < 0.2


def test_unboxed_and_rambling_solutions():
    rng = np.random.default_rng(0)
    assert write_solution("7+5", habits(unboxed=1.0), rng) == ("7+5=12", True)
    solution, ends = write_solution("7+5", habits(rambling=1.0, unboxed=0.5), rng)
    assert not ends
    assert "boxed" not in solution
    assert len(solution) >= 128
    assert set(solution.split("\n")) == {"7+5=12"}


def test_the_mixture_has_the_shares_asked_for():
    rng = np.random.default_rng(0)
    count = Counter()
    for _ in range(4000):
        solution, ends = write_solution("7+5+9", habits(shortcut=0.3, rambling=0.1, unboxed=0.2), rng)
        guess = solution.startswith("\\boxed")
        count["shortcut"] += guess
        count["rambling"] += not ends
        count["unboxed"] += ends and "boxed" not in solution
    assert count["shortcut"] / 4000 == pytest.approx(0.3, abs=0.03)
    assert count["rambling"] / 4000 == pytest.approx(0.7 * 0.1, abs=0.02)
    assert count["unboxed"] / 4000 == pytest.approx(0.7 * 0.9 * 0.2, abs=0.025)
