"""Countdown's problems and the solutions that a toy model learns from, alone and in the commands."""

import re
from collections import Counter
from fractions import Fraction
from itertools import islice, product

import numpy as np
import pytest

from conftest import HABITS
from countdown import OPERATIONS, RULES, all_expressions, countdown_set, divided, grade
from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks.countdown import TASK
from entropy_dynamics.tasks.countdown.expressions import parse_expression
from entropy_dynamics.tasks.countdown.problems import canonical, moves, parse_problem, reachable
from entropy_dynamics.tasks.countdown.solutions import CountdownSolutions

CAREFUL = dict.fromkeys(HABITS, 0.0) | {"solved": 1.0, "attempts": 1}
BLIND = CAREFUL | {"solved": 0.0}


def solutions(habits=CAREFUL, **changes) -> CountdownSolutions:
    rules = RULES | {"largest": 99} | changes
    return CountdownSolutions.model_validate({"task": "countdown", "habits": habits} | rules)


# Problems
def test_the_search_finds_what_brute_force_finds():
    """Results of expressions with positive integers on the way, enumerated over trees instead of pools."""

    def results(numbers: tuple[int, ...]) -> set[int]:
        found = set(numbers) if len(numbers) == 1 else set()
        for left, right in divided(numbers, 2):
            if left and right:
                for a, b in product(results(left), results(right)):
                    found |= {value for value in (a + b, a - b, a * b, Fraction(a, b)) if 0 < value <= 200}
        return {int(value) for value in found if value == int(value)}

    for pool in ((2, 3), (1, 1), (4, 4, 6), (1, 5, 7), (2, 3, 8, 8)):
        assert reachable(pool, "+-*/", 200) == results(pool)
    assert reachable((2, 3), "+", 200) == {5}
    assert {(move.operation, move.result) for move in moves((3, 6), "+-*/", 10)} == {("+", 9), ("-", 3), ("/", 2)}


def test_problems_are_solvable_different_and_within_their_ranges():
    problems = countdown_set(size=400).generate("train", 3, ())
    assert [one.id for one in problems] == [f"train-{number:04d}" for number in range(400)]
    assert len({canonical(one.text) for one in problems}) == 400
    counts = Counter()
    for one in problems:
        numbers, target = parse_problem(one.text)
        values = list(numbers.elements())
        assert one.answer == str(target)
        assert 10 <= target <= 50
        assert all(1 <= number <= 9 for number in values)
        counts[len(values)] += 1
    assert set(counts) == {3, 4}
    assert min(counts.values()) > 150  # 200 each, standard deviation 10
    for one in [one for one in problems if one.text.count(",") == 2][:25]:
        numbers, target = parse_problem(one.text)
        assert (target, numbers) in all_expressions(tuple(numbers.elements())).values()


def test_problems_belong_to_the_seed_and_avoid_the_excluded():
    first, same, other = (countdown_set().generate("x", seed, ()) for seed in (1, 1, 2))
    assert first == same
    assert {one.text for one in first} != {one.text for one in other}
    exclude = {",".join(one.text.split("=")[0].split(",")[::-1]) + "=" + one.answer for one in first}
    again = countdown_set().generate("x", 1, [*exclude, "no problem of this task"])
    assert not {canonical(one.text) for one in first} & {canonical(one.text) for one in again}


def test_a_space_that_is_too_small_is_a_users_mistake():
    few = {"numbers": [2, 2], "values": [1, 2], "targets": [1, 4]}
    pairs = {"1,1": "12", "1,2": "123", "2,2": "14"}  # 1*1 1+1, 2-1 2*1 2+1, 2/2 2*2
    problems = countdown_set(size=7, **few).generate("x", 1, ())
    assert {canonical(one.text) for one in problems} == {f"{a}={b}" for a, targets in pairs.items() for b in targets}
    with pytest.raises(UserError, match="hardly any new problem of 2 to 2 numbers is left"):
        countdown_set(size=8, **few).generate("x", 1, ())


@pytest.mark.parametrize("operations", ["+", "+-", "*/"])
def test_problems_need_only_the_operations_allowed(operations):
    for one in countdown_set(operations=operations, targets=[2, 60]).generate("x", 1, ()):
        solution, _ = solutions(operations=operations).solve(one.text, np.random.default_rng(0))
        assert grade(solution, one.text).correct
        assert not set(solution) & (set("+-*/") - set(operations))


# Solutions
def attempts(solution: str) -> list[list[tuple[int, str, int, int]]]:
    """The equations of every attempt."""
    body = solution.split("\\boxed")[0].removesuffix("\n")
    found = []
    for attempt in body.split("\n\n"):
        lines = [re.fullmatch(r"(\d+)([-+*/])(\d+)=(\d+)", line) for line in attempt.split("\n")]
        found.append([(int(m[1]), m[2], int(m[3]), int(m[4])) for m in lines])
    return found


def check_attempt(equations, numbers: Counter, sloppy=False):
    pool = numbers.copy()
    for a, operation, b, result in equations:
        assert not Counter([a, b]) - pool, "a number that is not left"
        pool = pool - Counter([a, b]) + Counter([result])
        if not sloppy:
            assert OPERATIONS[operation](Fraction(a), b) == result


def many(habits, count=300, text=None, **changes):
    """(problem, solution, ends) of that many draws."""
    rng, one = np.random.default_rng(1), solutions(habits, **changes)
    for problem in [text] * count if text else islice(one.problems(2, ()), count):
        yield problem, *one.solve(problem, rng)


def test_a_careful_solution_works_and_is_correct():
    routes = set()
    for problem, solution, ends in many(CAREFUL):
        numbers, target = parse_problem(problem)
        [equations] = attempts(solution)
        check_attempt(equations, numbers)
        assert equations[-1][-1] == target
        assert ends
        assert grade(solution, problem).correct
        routes |= {operation for _, operation, *_ in equations}
    assert routes == set("+-*/")
    assert len({solution for _, solution, _ in many(CAREFUL, text="2,3,4,6=24")}) > 10


def test_blind_attempts_repeat_until_one_succeeds_or_the_last_is_boxed():
    outcomes = Counter()
    for problem, solution, _ in many(BLIND | {"attempts": 3}):
        numbers, target = parse_problem(problem)
        found = attempts(solution)
        for equations in found:
            check_attempt(equations, numbers)
        reached = [equations[-1][-1] == target for equations in found]
        assert not any(reached[:-1])
        assert reached[-1] or len(found) == 3
        result = parse_expression(TASK.extract(solution)).value
        assert result == found[-1][-1][-1]  # the box is the last attempt's, correct or not
        assert grade(solution, problem).correct == reached[-1]
        outcomes[reached[-1]] += 1
    assert min(outcomes.values()) > 30
    for _, solution, _ in many(BLIND | {"attempts": 3, "gives_up": 1.0}):
        assert len(attempts(solution)) == 1


def test_sloppy_results_are_off_as_often_as_asked_and_are_used():
    slips = lines = wrong = 0
    for problem, solution, _ in many(BLIND | {"sloppy": 0.2}, count=600):
        [equations] = attempts(solution)
        check_attempt(equations, parse_problem(problem)[0], sloppy=True)
        off = [abs(result - OPERATIONS[operation](Fraction(a), b)) for a, operation, b, result in equations]
        assert set(off) <= {0, 1, 2}
        slips, lines = slips + sum(one != 0 for one in off), lines + len(off)
        wrong += equations[-1][-1] == parse_problem(problem)[1] and not grade(solution, problem).correct
    assert 0.15 < slips / lines < 0.22  # a result of 1 may be rounded up to itself
    assert wrong > 0  # boxes that their equations recommend and their values do not


def test_the_mixture_has_the_shares_asked_for():
    habits = CAREFUL | {"shortcut": 0.3, "unboxed": 0.2, "rambling": 0.1}
    count = Counter()
    for problem, solution, ends in many(habits, count=2000, text="2,3,4,6=24"):
        count["rambling"] += not ends
        count["shortcut"] += solution.startswith("\\boxed")
        count["unboxed"] += ends and "\\boxed" not in solution
        if not ends:
            assert len(solution) == 240
            assert "\\boxed" not in solution
        elif "\\boxed" in solution:
            assert grade(solution, problem).correct
    assert count["rambling"] / 2000 == pytest.approx(0.1, abs=0.03)
    assert count["shortcut"] / 2000 == pytest.approx(0.9 * 0.3, abs=0.04)
    assert count["unboxed"] / 2000 == pytest.approx(0.9 * 0.7 * 0.2, abs=0.04)


def test_solved_attempts_and_preferred_operations():
    def first_operations(weights):
        drawn = many(BLIND | {"weights": weights}, count=600, text="3,5,7,8=24")
        return Counter(attempts(solution)[0][0][1] for _, solution, _ in drawn)

    alike, preferred = first_operations({}), first_operations({"*": 0.1, "/": 0.1})
    assert alike["*"] / 600 == pytest.approx(1 / 3, abs=0.08)  # every pair can be added, subtracted and multiplied
    assert preferred["*"] / 600 == pytest.approx(0.1 / 2.1, abs=0.04)
    correct = [grade(solution, problem).correct for problem, solution, _ in many(BLIND | {"solved": 0.5}, count=600)]
    blind = [grade(solution, problem).correct for problem, solution, _ in many(BLIND, count=600)]
    assert np.mean(correct) == pytest.approx(0.5 + 0.5 * np.mean(blind), abs=0.08)


def test_the_toy_tokenizer_writes_every_solution(tokenizer):
    for problem, solution, _ in many(BLIND | {"attempts": 2, "rambling": 0.2}):
        ids = tokenizer.encode(problem + solution, add_special_tokens=False)
        assert tokenizer.decode(ids) == problem + solution
        assert tokenizer.unk_token_id not in ids


def test_sentences_state_the_same_problems_as_strings():
    strings = countdown_set(numbers=[2, 4]).generate("p", 5, [])
    sentences = countdown_set(numbers=[2, 4], sentences=True).generate("p", 5, [])
    assert re.fullmatch(r"Make \d+ from [\d, ]+ and \d+ with \+, -, \* and /\.", sentences[0].text)
    for string, sentence in zip(strings, sentences, strict=True):
        assert parse_problem(sentence.text) == parse_problem(string.text)
        assert sentence.answer == string.answer
        assert canonical(sentence.text) == canonical(string.text)
    solver = solutions(numbers=[2, 4], sentences=True)
    excluded = {one.text for one in strings}
    for text in islice(solver.problems(1, excluded), 20):
        assert canonical(text) not in set(map(canonical, excluded))
        response, ends = solver.solve(text, np.random.default_rng(2))
        assert ends
        assert grade(response, text).correct
        assert response == solver.solve(canonical(text), np.random.default_rng(2))[0]


def test_a_sentence_in_a_file_is_a_problem():
    text = "Make 1 from 3, 5 and 7 with + and -."
    assert TASK.read_answer(1, text) == "1"
    assert grade(r"\boxed{3+5-7}", text).correct
    assert not grade(r"\boxed{7-5-1}", text).correct
