"""Problem sets from the generators of Reasoning Gym, their grades and demonstrations."""

import json
import zlib
from itertools import islice

import numpy as np
import pytest

from entropy_dynamics.errors import UserError
from entropy_dynamics.sections import parse
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.reasoning_gym import TASK, ReasoningGymSet, ReasoningGymSolutions
from entropy_dynamics.tasks.reasoning_gym.check import harmless
from mistakes import mistake

pytest.importorskip("reasoning_gym")

SMALL = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}


def gym_set(generators, size=6) -> ReasoningGymSet:
    return parse(ReasoningGymSet, {"source": "reasoning_gym", "size": size, "generators": generators}, "a config")


def answer(problem: Problem) -> str:
    return json.loads(problem.answer)["answer"]


def test_the_generators_take_turns_and_their_answers_are_correct():
    names = ["chain_sum", "countdown", "number_sorting", "spell_backward"]
    problems = gym_set({name: {} for name in names}, 8).generate("p", 3, [])
    assert [json.loads(problem.answer)["generator"] for problem in problems] == names * 2
    assert problems == gym_set({name: {} for name in names}, 8).generate("p", 3, [])
    for problem in problems:
        assert problem.grade(f"\\boxed{{{answer(problem)}}}", "stop").correct
        assert not problem.grade("\\boxed{1}", "stop").correct
        assert not problem.grade(answer(problem), "stop").correct  # no box


def test_the_verifier_accepts_other_right_answers():
    [problem] = gym_set({"countdown": {"min_numbers": 3, "max_numbers": 3}}, 1).generate("p", 3, [])
    assert problem.grade(f"\\boxed{{(({answer(problem)}))}}", "stop").correct
    assert not problem.grade(f"\\boxed{{{answer(problem)} + 1}}", "stop").correct


def test_sets_share_no_problem():
    first = gym_set(SMALL, 30).generate("a", 1, [])
    second = gym_set(SMALL, 30).generate("b", 2, [problem.text for problem in first])
    assert len({problem.text for problem in first + second}) == 60
    with pytest.raises(UserError, match="reasoning_gym: hardly any new problem of chain_sum is left"):
        gym_set(SMALL, 10_000).generate("c", 1, [])


def test_seeds_have_other_demonstrations():
    """Reasoning Gym's own seeds give the same items, moved by the difference of the seeds."""
    solutions = ReasoningGymSolutions(task="reasoning_gym", generators={"chain_sum": {}})
    first, again, second = (list(islice(solutions.problems(seed, []), 50)) for seed in (0, 0, 1))
    assert first == again
    assert len({*first, *second}) > 90


@pytest.mark.parametrize(
    ("generators", "message"),
    [
        ({"chain_sums": {}}, "unknown generator 'chain_sums'; did you mean 'chain_sum'?"),
        ({"chain_sum": {"min_term": 2}}, "chain_sum has no option 'min_term'; did you mean 'min_terms'?"),
        ({"chain_sum": {"min_terms": 9, "max_terms": 3}}, "generators: chain_sum: "),
    ],
)
def test_a_mistake_is_one_line(generators, message):
    with mistake(message):
        gym_set(generators)


def test_a_demonstration_is_correct_and_shows_the_steps_of_a_sum():
    generators = {"chain_sum": {"min_terms": 3, "max_terms": 3}, "spell_backward": {}}
    solutions = ReasoningGymSolutions.model_validate({"task": "reasoning_gym", "generators": generators})
    texts = list(islice(solutions.problems(1, []), 4))
    problems = gym_set(generators, 4).generate("p", zlib.crc32(b"reasoning_gym/1"), [])
    assert texts == [problem.text for problem in problems]
    for problem in problems:
        response, ends = solutions.solve(problem.text, np.random.default_rng(1))
        assert ends
        assert problem.grade(response, "stop").correct
        assert response.count(" = ") == (2 if "chain_sum" in problem.answer else 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(3+4)*5", True),
        ("x*exp(2*x) + C", True),
        ("open('x', 'w')", False),
        ("__import__('os')", False),
        ("(1).__class__", False),
        ("sin('open(1)')", False),
        ("[sin(1) for sin in [open]]", False),
        ("exit()!", False),
    ],
)
def test_no_answer_that_is_evaluated_does_anything(text, expected):
    assert harmless(text) is expected


def test_a_file_needs_the_generated_answers():
    with pytest.raises(ValueError, match="does not belong to a generated problem"):
        TASK.read_answer("5", "2+3?")
