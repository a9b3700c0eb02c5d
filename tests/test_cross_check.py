"""Math-Verify as a second opinion, in a process that may hang, die or be killed without harm."""

import json
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import pandas as pd
import pytest
from entropy_dynamics.tasks.cross_check import MathVerify, cross_check
from entropy_dynamics.tasks.grading import grade
from entropy_dynamics.tasks.problems import Problem, write_problems

from conftest import ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.models.loading import save_policy
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sampling import Rollout, responses
from entropy_dynamics.stages.evaluate import evaluate, some_samples
from entropy_dynamics.tasks import cross_check as module

NOBODY = dict.fromkeys(("checked", "agree", "ours_only", "theirs_only", "timeout", "crash"), 0)
TOWER = r"\boxed{9^{9^{9^{9}}}}"  # a computer algebra system multiplies at it until the memory ends


@pytest.fixture(scope="module")
def worker():
    with MathVerify() as worker:
        yield worker


@pytest.mark.parametrize(
    ("text", "answer", "ours", "theirs"),
    [
        (r"so it is $\boxed{5}$.", 5, True, True),
        (r"\boxed{016}", 16, True, True),
        (r"\boxed{-3}", -3, True, True),
        (r"\boxed{336^\circ}", 336, True, True),
        (r"\boxed{6}", 5, False, False),
        ("I do not know", 5, False, False),
        ("", 5, False, False),
        (r"\boxed{\frac{10}{2}}", 5, False, True),  # ours reads integers, and takes this for a wrong answer
        ("nulls \x00 and \x00\\boxed{5}\x00", 5, True, True),
        ("\\boxed{5}\n{\"correct\": false}\n", 5, True, True),  # line feeds and JSON are text like any other
        ("\ud800 é \u2028 \\boxed{5}", 5, True, True),
    ],
)  # fmt: skip
def test_verdicts(worker, text, answer, ours, theirs):
    assert grade(text, answer, "stop").correct is ours
    assert worker.correct(text, answer) is theirs


def test_counts_by_hand():
    asked = [
        (r"\boxed{5}", 5, True),
        (r"\boxed{6}", 5, False),
        (r"\boxed{\frac{10}{2}}", 5, False),
        (r"\boxed{7}", 5, True),  # as if our grading were mistaken
    ]
    assert cross_check(asked) == NOBODY | {"checked": 4, "agree": 2, "theirs_only": 1, "ours_only": 1}
    assert cross_check([]) == NOBODY


def test_an_answer_without_an_end_is_given_up_and_the_next_one_graded():
    with MathVerify() as worker:
        assert worker.correct(r"\boxed{5}", 5) is True
        worker.limit_seconds = 0.5
        hung = worker.process
        assert worker.correct(TOWER, 5) == "timeout"
        assert hung.poll() is not None  # dead, not left behind
        worker.limit_seconds = 60
        assert worker.correct(r"\boxed{5}", 5) is True
        last = worker.process
    assert last.poll() is not None


def test_a_timeout_is_counted():
    asked = [(TOWER, 5, False), (r"\boxed{5}", 5, True)]
    assert cross_check(asked, limit_seconds=2) == NOBODY | {"checked": 2, "timeout": 1, "agree": 1}


def test_a_worker_that_is_killed_is_a_crash_and_starts_again():
    with MathVerify() as worker:

        def responses_with_a_murder():
            yield r"\boxed{5}", 5, True
            worker.process.kill()
            yield r"\boxed{5}", 5, True
            yield r"\boxed{5}", 5, True

        verdicts = [worker.correct(text, answer) for text, answer, _ in responses_with_a_murder()]
    assert verdicts == [True, "crash", True]


def test_a_text_that_a_stopped_worker_does_not_take_in_is_given_up():
    """A megabyte is more than a pipe holds, so it already hangs where the text is written."""
    with MathVerify() as worker:
        assert worker.correct(r"\boxed{5}", 5) is True
        stopped = worker.process
        stopped.send_signal(signal.SIGSTOP)
        worker.limit_seconds = 0.5
        assert worker.correct("1" * 1_000_000, 5) == "timeout"
        assert stopped.poll() is not None
        worker.limit_seconds = 60
        assert worker.correct("1" * 1_000_000 + r"\boxed{5}", 5) in (True, False)  # a whole megabyte gets through


def test_a_worker_that_does_not_start_stops_nothing(monkeypatch):
    monkeypatch.setattr(module.sys, "executable", "/bin/false")
    assert cross_check([(r"\boxed{5}", 5, True)] * 3) == NOBODY | {"checked": 3, "crash": 3}


# ---------------------------------------------------------------- beside an evaluation


def test_what_is_checked_does_not_depend_on_the_order():
    ids = [f"p{number}" for number in range(20)]
    forward = some_samples(ids, 5, 30, seed=1)
    assert forward == some_samples(ids[::-1], 5, 30, seed=1)
    assert len(forward) == 30
    assert len({problem for problem, _ in forward}) > 10  # spread over the problems
    assert forward != some_samples(ids, 5, 30, seed=2)
    assert some_samples(ids, 5, 1000, seed=1) == {(one, sample) for one in ids for sample in range(5)}
    assert some_samples(ids, 5, 0, seed=1) == set()


@pytest.mark.parametrize("checked", [0, 1, 100])
def test_an_evaluation_records_the_counts_and_keeps_its_grades(tmp_path, monkeypatch, shared_model, tokenizer, checked):
    model = "qwen2.5-7b-instruct"
    overrides = [f"evaluation.cross_checked={checked}", "evaluation.samples.aime24=3"]
    config = load_config("laptop", model, "base", overrides, configs=ROOT / "configs")
    layout = Layout(tmp_path)
    save_policy(shared_model, tokenizer, layout.model(model))
    write_json(layout.model(model) / "model.json", {})
    write_problems(layout.problems("aime24"), [Problem("a", "2+3", 5), Problem("b", "3+4", 7)])
    texts = {"a": [r"\boxed{5}", r"\boxed{2+3}", r"\boxed{6}"], "b": [r"\boxed{7}", r"\boxed{5}", "7"]}
    rollouts = [
        Rollout(problem, sample, [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id], "stop")
        for problem, ones in texts.items()
        for sample, text in enumerate(ones)
    ]

    @contextmanager
    def scripted(*_, **__):
        yield SimpleNamespace(sample=lambda *_, **__: rollouts)

    monkeypatch.setattr(responses, "open_sampler", scripted)
    [file] = evaluate(config, layout, "base", 0, ["aime24"])
    assert pd.read_parquet(file)["correct"].tolist() == [True, False, False, True, False, False]
    record = json.loads(file.with_name("aime24.provenance.json").read_text())
    if checked == 0:
        assert "math_verify" not in record
    elif checked == 1:
        assert record["math_verify"]["checked"] == 1
    else:  # a sum in the box, and an answer without a box, are right for Math-Verify alone
        assert record["math_verify"] == NOBODY | {"checked": 6, "agree": 4, "theirs_only": 2}
