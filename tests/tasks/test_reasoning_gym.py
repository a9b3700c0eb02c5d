"""Problem sets from the generators of Reasoning Gym, their grades and demonstrations."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from importlib.util import find_spec
from itertools import islice

import numpy as np
import pytest

from command_line import error, set_to
from entropy_dynamics.cli import main
from entropy_dynamics.errors import UserError
from entropy_dynamics.sections import parse
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.files import load_problems
from entropy_dynamics.tasks.limited import Verifier
from entropy_dynamics.tasks.reasoning_gym import TASK, ReasoningGymSet, ReasoningGymSolutions
from entropy_dynamics.tasks.reasoning_gym.problems import FEWER, REFUSED
from mistakes import mistake

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="Reasoning Gym is not installed")

HASHED = "isomorphic_strings: {}, polynomial_multiplication: {}, word_ladder: {}"  # they read sets of strings
SMALL = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}


def gym_set(generators, size=6) -> ReasoningGymSet:
    return parse(ReasoningGymSet, {"source": "reasoning_gym", "size": size, "generators": generators}, "a config")


def set_command(generators, folder, size=6) -> list[str]:
    train = f"data.train={{source: reasoning_gym, size: {size}, generators: {{{generators}}}}}"
    small = set_to([train, "data.evaluation.dapo500.size=2", "data.evaluation.validation.size=2"])
    return ["problems", "--scale", "smoke", *small, "--results", str(folder)]


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


@pytest.mark.parametrize(
    ("generator", "wrapped"),
    [
        ("syllogism", r"\text{%s}"), ("calendar_arithmetic", r"\textbf{\text{%s}}"),
        ("color_cube_rotation", r"\(\mathrm{%s}\)"), ("family_relationships", "$%s$"),
        ("decimal_arithmetic", r"\text{ %s }"), ("spell_backward", r"\mathtt {%s}"),
    ],
)  # fmt: skip
def test_words_in_latex_are_read(generator, wrapped):
    for problem in gym_set({generator: {}}, 3).generate("p", 5, []):
        right = answer(problem)
        assert problem.grade(f"\\boxed{{{wrapped % right}}}", "stop").correct
        assert not problem.grade(f"\\boxed{{{wrapped % (right + 'x')}}}", "stop").correct


def test_escapes_in_an_answer_are_read():
    entry = {"generator": "spell_backward", "options": {}, "seed": 1, "index": 0}
    problem = Problem("p", "?", json.dumps({"answer": 'a_b {"c": 5%}'} | entry), "reasoning_gym")
    assert problem.grade(r'\boxed{\text{a\_b\ \{"c": 5\%\}}}', "stop").correct


def test_every_generator_works_across_processes_or_is_refused(monkeypatch):
    """Items made in opposite orders by two processes, whose parents have other seeds of Python's hashes."""
    from reasoning_gym.factory import DATASETS

    names, made = sorted(DATASETS.keys() - REFUSED), []
    for hash_seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        verifier = Verifier("entropy_dynamics.tasks.reasoning_gym.check")
        places = sorted(((index, name) for name in names for index in (0, 1)), reverse=hash_seed == "2")
        made.append({place: verifier.call("generate", place[1], {}, 7, place[0]) for place in places})
    assert made[0] == made[1]
    assert None not in made[0].values()

    monkeypatch.setattr("entropy_dynamics.tasks.reasoning_gym.verifier", lambda _: verifier)
    without = set()
    for (index, name), entry in made[0].items():
        if entry["answer"] is None:
            without.add(name)
            continue
        item = {"answer": entry["answer"], "generator": name, "options": {}, "seed": 7, "index": index}
        problem = Problem("p", entry["question"], json.dumps(item), "reasoning_gym")
        assert problem.grade(f"\\boxed{{{entry['answer']}}}", "stop").correct, name
        wrong = ["no idea", *(["0"] if entry["answer"] not in ("0", "0.0") else [])]
        assert not any(problem.grade(f"\\boxed{{{text}}}", "stop").correct for text in wrong), name
    for name in without:
        with pytest.raises(UserError, match=f"the problems of {name} have no reference answer"):
            gym_set({"chain_sum": {}, name: {}}).generate("p", 1, [])
    assert without == {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


def test_items_whose_answer_no_box_holds_are_left_out():
    """Some answers of `ab` are empty, and some of `palindrome_partitioning` are longer than a box that is read."""
    for name, left_out in (("ab", 7), ("palindrome_partitioning", 8)):
        problems = gym_set({name: {}}, 9).generate("p", 11, [])
        assert all(problem.grade(f"\\boxed{{{answer(problem)}}}", "stop").correct for problem in problems)
        assert {json.loads(problem.answer)["index"] for problem in problems} == {*range(10)} - {left_out}


def test_the_reasons_for_a_refusal():
    import reasoning_gym

    for name, reason in REFUSED.items():
        with mistake(f"generators: {name}: {reason}"):
            gym_set({name: {}})
    clock = reasoning_gym.create_dataset("codeio", seed=2591, size=1)
    assert clock[0]["question"] != clock[0]["question"]
    for name, wrong in (("coin_flip", "0"), ("game_of_life_halting", "no idea")):
        items = reasoning_gym.create_dataset(name, seed=7, size=1)
        assert items[0]["answer"] != wrong
        assert items.score_answer(wrong, items[0]) == 1


def test_a_set_is_the_same_with_another_hash_seed_and_its_wrong_answers_are_graded(tmp_path):
    command = [sys.executable, "-m", "entropy_dynamics.cli", *set_command(HASHED, tmp_path / "other")]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "1"})
    assert main(set_command(HASHED, tmp_path / "own")) == 0
    files = [tmp_path / folder / "smoke/data/train.parquet" for folder in ("other", "own")]
    assert files[0].read_bytes() == files[1].read_bytes()
    for problem in load_problems(files[0]):
        assert not problem.grade(r"\boxed{no idea}", "stop").correct
        assert problem.grade(f"\\boxed{{{answer(problem)}}}", "stop").correct


def test_a_generator_with_few_items_says_when_they_are_used_up(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(FEWER, "acre", 40)
    said = error(capsys, *set_command("acre: {}", tmp_path, 41))
    assert said.startswith("data.train: reasoning_gym: hardly any new problem of acre is left")
    assert len(gym_set({"acre": {}}, 30).generate("p", 1, [])) == 30


def test_generating_an_item_takes_nothing_of_the_time_of_an_answer(monkeypatch):
    from entropy_dynamics.tasks.reasoning_gym import check

    class Slow:
        def __getitem__(self, index):
            end = time.process_time() + 0.2
            while time.process_time() < end:
                pass
            return {"question": "?", "answer": "yes"}

        def score_answer(self, given, entry):
            return float(given == entry["answer"])

    monkeypatch.setattr(check, "_dataset", lambda *_: Slow())
    over, item = [], {"generator": "slow", "options": {}, "seed": 1, "index": 0, "answer": "yes"}
    handler = signal.signal(signal.SIGPROF, lambda *_: over.append(True))
    try:
        signal.setitimer(signal.ITIMER_PROF, 0.1)
        assert check.check(item, "?", "yes")
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 0
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
    assert not over


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


COMPUTES = [
    "(3+4)*5", "x*exp(2*x) + C", "2x + x! + 0.5", "P and not Q", "_ Q\nQ _",
    "['A', '-4.0', 'x!']", "[[1, 0], [0, 1]]",
]  # fmt: skip
ACTS = [
    "open('x', 'w')", "__import__('os')", "(1).__class__", "sin('open(1)')",
    "[sin(1) for sin in [open]]", "exit()!",
    # SymPy also evaluates strings
    r"'open\x281\x29'", r"[['open\x281\x29']]", r"'open\x281\x29' + x!", "b'1'",
    "'open' + '%c' % 40 + '1' + '%c' % 41", "f'open{40:c}1{41:c}'",
    "open.__doc__[4]", "open.__doc__[4] + x!",
]  # fmt: skip


@pytest.mark.parametrize("text", [*COMPUTES, *ACTS])
def test_only_what_computes_is_evaluated(text):
    from entropy_dynamics.tasks.reasoning_gym.check import harmless

    assert harmless(text) is (text in COMPUTES)


def test_a_string_in_an_answer_is_no_code(tmp_path):
    [problem] = gym_set({"simple_integration": {}}, 1).generate("p", 3, [])
    code = rf"""'__import__\x28"os"\x29.mkdir\x28"{tmp_path}/made"\x29'"""
    assert not problem.grade(f"\\boxed{{{code}}}", "stop").correct
    assert not list(tmp_path.iterdir())


def test_a_file_needs_the_generated_answers():
    with pytest.raises(ValueError, match="does not belong to a generated problem"):
        TASK.read_answer("5", "2+3?")
