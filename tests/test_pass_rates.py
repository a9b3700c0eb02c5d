"""The pass-rate filter: which rates are kept and why the rest is not, and the file that says so."""

from contextlib import nullcontext

import pandas as pd
import pytest

from conftest import ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.loading import save_policy
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sampling import Rollout
from entropy_dynamics.stages import pass_rates
from entropy_dynamics.stages.pass_rates import filter_by_rate, measure_pass_rates
from entropy_dynamics.tasks.files import write_problems


def test_the_paper_keeps_two_to_fourteen_of_sixteen():
    correct = pd.Series(range(17), index=[f"p{number}" for number in range(17)])
    frame = filter_by_rate(correct, 16, 1 / 16, 15 / 16)
    assert list(frame.columns) == ["problem_id", "correct", "samples", "rate", "kept", "reason"]
    assert frame["problem_id"].tolist() == [f"p{number}" for number in range(17)]
    assert frame["rate"].tolist() == [number / 16 for number in range(17)]
    assert frame.loc[frame["kept"], "correct"].tolist() == list(range(2, 15))
    reasons = {0: "rate <= 0.0625", 1: "rate <= 0.0625", 15: "rate >= 0.9375", 16: "rate >= 0.9375"}
    assert dict(zip(frame["correct"], frame["reason"], strict=True)) == {n: reasons.get(n, "") for n in range(17)}
    assert (frame["samples"] == 16).all()


def test_the_configured_bounds_are_those_of_the_paper():
    config = load_config("laptop", configs=ROOT / "configs").pass_rates
    assert (config.samples, config.low, config.high) == (16, 1 / 16, 15 / 16)
    assert config.model == "qwen2.5-7b-instruct"


@pytest.fixture
def prepared(tmp_path, shared_model, tokenizer, problems):
    """The config and a layout with training problems, not in the order of their ids, and a base model."""
    config = load_config(
        "laptop",
        "qwen2.5-7b-instruct",
        overrides=["pass_rates.samples=8", "sampling.max_new_tokens=4"],
        configs=ROOT / "configs",
    )
    layout = Layout(tmp_path / "results")
    write_problems(layout.problems("train"), problems[::-1])
    save_policy(shared_model, tokenizer, layout.model(config.pass_rates.model, 0))
    return config, layout


class Scripted:
    """A sampler whose sample k of problem i is correct if k < i."""

    def __init__(self, problems, tokenizer):
        self.problems, self.tokenizer, self.asked = problems, tokenizer, {}

    def sample(self, prompts, *, samples, **asked):
        self.asked = asked | {"samples": samples}
        rollouts = []
        for number, (prompt, problem) in enumerate(zip(prompts, self.problems, strict=True)):
            for sample in range(samples):
                answer = int(problem.answer) + (0 if sample < number else 1)
                tokens = self.tokenizer.encode(f"\\boxed{{{answer}}}", add_special_tokens=False)
                rollouts.append(Rollout(prompt.problem_id, sample, [*tokens, self.tokenizer.eos_token_id], "stop"))
        return rollouts


def test_every_problem_has_a_row_with_its_own_rate(prepared, problems, tokenizer, monkeypatch):
    config, layout = prepared
    problems = problems[::-1]
    sampler = Scripted(problems, tokenizer)
    monkeypatch.setattr(pass_rates, "open_sampler", lambda *_: nullcontext(sampler))
    returned = measure_pass_rates(config, layout)
    frame = pd.read_parquet(layout.pass_rates(0))
    assert frame["problem_id"].tolist() == [problem.id for problem in problems]
    assert frame["correct"].tolist() == [min(number, 8) for number in range(12)]
    assert frame["kept"].tolist() == [0 < number < 8 for number in range(12)]
    assert frame["reason"].tolist() == ["rate <= 0.0625", *[""] * 7, *["rate >= 0.9375"] * 4]
    assert frame["kept"].tolist() == returned["kept"].tolist()
    assert sampler.asked == {"samples": 8, "temperature": 1.0, "max_new_tokens": 4, "stream": "pass rates/seed0"}


def test_an_empty_set_is_one_line_and_no_file(prepared):
    config, layout = prepared  # an untrained model boxes nothing in four tokens
    with pytest.raises(UserError, match=r"^the pass-rate filter keeps none of 12 problems: no rate lies between"):
        measure_pass_rates(config, layout)
    assert not layout.pass_rates(0).exists()
    assert not list(layout.root.rglob("*.partial"))


def test_the_real_sampler_and_grader(prepared, problems):
    config, layout = prepared
    bounds = config.pass_rates.model_copy(update={"low": None, "high": None})
    frame = measure_pass_rates(config.model_copy(update={"pass_rates": bounds}), layout)
    assert len(frame) == 12
    assert frame["kept"].all()
    assert frame["correct"].between(0, 8).all()
