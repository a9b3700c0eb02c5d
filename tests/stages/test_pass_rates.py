"""Pass rates: which are kept and why, and the gate, which stops a model without signal before RL."""

import json
import re
from contextlib import nullcontext

import pandas as pd
import pytest

from conftest import MODEL
from entropy_dynamics.config import load_config
from entropy_dynamics.config.schema.data import ADVICE, PassRateConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.report.fill import fill
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.stages import pass_rates
from entropy_dynamics.stages.gate import measure_gate
from entropy_dynamics.stages.pass_rates import measure_pass_rates
from entropy_dynamics.tasks.files import write_problems
from mistakes import mistake
from scripted_sampler import Scripted


def bounds(low, high) -> PassRateConfig:
    return PassRateConfig(model="m", samples=16, low=low, high=high)


def test_the_paper_keeps_two_to_fourteen_of_sixteen():
    kept = bounds(1 / 16, 15 / 16).keeps(pd.Series(range(17)) / 16)
    assert kept[kept].index.tolist() == list(range(2, 15))


@pytest.mark.parametrize(
    ("low", "high", "kept"),
    [
        (None, None, [True, True, True, False]),
        (0.0, None, [False, True, True, False]),
        (None, 1.0, [True, True, False, False]),
        (0.0, 1.0, [False, True, False, False]),
    ],
)
def test_a_bound_may_be_left_out_and_a_problem_without_a_rate_is_dropped(low, high, kept):
    assert bounds(low, high).keeps(pd.Series([0, 0.5, 1, float("nan")])).tolist() == kept


def test_a_filter_that_keeps_nothing_says_what_there_was():
    rates, between = pd.Series([0, 0, 1, 0.1, float("nan")]), "above pass_rates.low=0.25 and below pass_rates.high=1.0"
    message = f"none of 4 rates is {between} (2 are 0, 1 are 1): nothing is left to train on"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        bounds(0.25, 1.0).check_keeps_some(rates)


@pytest.fixture
def measure(tmp_path, shared_model, tokenizer, problems, monkeypatch):
    """`measure(*overrides)` measures pass rates of four samples, of which the first boxes the answer.

    Its layout, with the problems not in the order of their ids, and its sampler are attributes.
    """
    boxed = [f"\\boxed{{{problem.answer}}}" for problem in problems[::-1]]
    sampler = Scripted(tokenizer, lambda number, sample: boxed[number] if sample == 0 else "1+1")
    layout = Layout(tmp_path / "results")
    write_problems(layout.problems("train"), problems[::-1])
    save_policy(shared_model, tokenizer, layout.model(MODEL, 0))
    monkeypatch.setattr(pass_rates, "open_sampler", lambda *_, with_logp: nullcontext(sampler))

    def run(*overrides: str):
        config = load_config("laptop", MODEL, None, ["pass_rates.samples=4", *overrides])
        return measure_pass_rates(config, layout)

    run.layout, run.sampler = layout, sampler
    return run


def test_every_problem_has_a_row_with_its_own_rate(measure, problems):
    """Sample k of problem i is correct if k < i."""
    answers = [int(problem.answer) for problem in problems[::-1]]
    measure.sampler.response = lambda number, sample: f"\\boxed{{{answers[number] + (sample >= number)}}}"
    returned = measure("pass_rates.samples=8", "sampling.max_new_tokens=4")
    frame = pd.read_parquet(measure.layout.pass_rates(0))
    assert frame.columns.tolist() == ["problem_id", "correct", "samples", "rate"]
    assert frame["problem_id"].tolist() == [problem.id for problem in problems[::-1]]
    assert frame["correct"].tolist() == [min(number, 8) for number in range(12)]
    assert frame["rate"].tolist() == returned["rate"].tolist() == [min(number, 8) / 8 for number in range(12)]
    [asked] = measure.sampler.asked
    assert asked == {"samples": 8, "temperature": 1.0, "max_new_tokens": 4, "stream": "pass rates/seed0"}


def test_other_bounds_take_no_new_samples(measure):
    """After a filter that kept nothing."""
    with pytest.raises(UserError, match=r"^none of 12 rates is above pass_rates.low=0\.3 and below"):
        measure("pass_rates.low=0.3")
    assert not measure.layout.pass_rates(0).exists()
    measure.sampler.sample = None
    assert measure("pass_rates.low=0.2")["rate"].tolist() == [0.25] * 12


# ---------------------------------------------------------------- the gate before RL
# Problems with two samples each, of which 1, 0 and 2 are correct.
SAMPLES = pd.DataFrame(
    {
        "problem_id": ["a", "a", "b", "b", "c", "c"],
        "correct": [True, False, False, False, True, True],
        "formatted": [True, True, True, False, True, True],
        "finish_reason": ["stop", "stop", "stop", "length", "stop", "stop"],
        "tokens": [2, 4, 6, 8, 1, 9],
        "logp": [-1.0, -2.0, -3.0, -4.0, -3.0, -2.0],
    }
)
MEASURED = {"pass_rate": 1 / 2, "mixed_groups": 1 / 3, "entropy": 1 / 2, "formatted": 5 / 6, "truncated": 1 / 6}


def test_every_quantity_is_as_defined():
    assert measure_gate(SAMPLES) == pytest.approx(MEASURED)


def test_every_bound_of_the_config_has_its_quantity_and_its_advice():
    assert set(load_config("laptop").gate.model_dump()) == set(MEASURED) == set(ADVICE)


def test_without_bounds_it_is_only_recorded(measure):
    assert len(measure()) == 12
    gate = json.loads(measure.layout.gate(0).read_text())
    assert gate["measured"] == pytest.approx(
        {"pass_rate": 0.25, "mixed_groups": 1, "entropy": 0.25, "formatted": 0.25, "truncated": 0}
    )
    assert (gate["faults"], gate["problems"], gate["samples"]) == ([], 12, 48)


@pytest.mark.parametrize(
    ("bound", "fault"),
    [
        ("pass_rate=[0.0,0.2]", "pass_rate is 0.25, above 0.2: try harder problems in data.train"),
        ("entropy=[0.3,null]", "entropy is 0.25, below 0.3: try a smaller cold_start.steps"),
        ("formatted=[0.8,null]", "formatted is 0.25, below 0.8: try a larger cold_start.steps"),
    ],
)
def test_outside_a_bound_it_stops_with_what_would_be_changed(measure, bound, fault):
    with mistake(fault, match=r"^no signal: "):
        measure(f"gate.{bound}")
    assert not measure.layout.pass_rates(0).exists()
    assert measure.layout.gate(0).is_file()
    measure("gate.pass_rate=[0.25,0.25]")  # a bound is inside
    assert measure.layout.pass_rates(0).is_file()
    assert len(measure.sampler.asked) == 1  # other bounds take no new samples
    assert json.loads(measure.layout.gate(0).read_text())["faults"] == []


def test_the_page_shows_its_numbers_and_its_faults(measure):
    with pytest.raises(UserError):
        measure("gate.entropy=[0.3,1]")
    page = fill("gate.html", gates=[json.loads(measure.layout.gate(0).read_text())])
    rows = [re.findall(r"<t[hd][^>]*>(?:<span>)?([^<]*)", row) for row in page.split("<tr>")[1:]]
    assert rows[0][:6] == ["", "pass rate", "mixed groups", "entropy", "formatted", "truncated"]
    assert rows[1:] == [
        ["seed 0", "0.250", "1.000", "0.250", "0.250", "0.000"],
        ["bounds", "none", "none", "0.3 to 1", "none", "none"],
    ]
    assert "seed 0: entropy is 0.25, below 0.3" in page
    assert not fill("gate.html", gates=[]).strip()
