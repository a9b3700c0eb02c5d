"""Evaluation: one row per sample, graded against its own problem, and its provenance."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from conftest import MODEL
from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.storage import load_policy, save_policy
from entropy_dynamics.results import token_samples
from entropy_dynamics.results.files import sha256, write_json
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.token_samples import STATISTICS, sampled_steps, write_token_samples
from entropy_dynamics.sampling import Rollout
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.stages import evaluate as stage
from entropy_dynamics.stages import shards
from entropy_dynamics.stages.common import make_grader, sample_rows
from entropy_dynamics.stages.evaluate import evaluate
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.files import write_problems
from mistakes import mistake

SUMS = [Problem("a", "3+4", "7", "math"), Problem("b", "1+1", "2", "math")]


def responses_of(tokenizer, problem_id, texts) -> list[Rollout]:
    """`texts` ending in ~ are cut off at the limit."""
    rollouts = []
    for sample, text in enumerate(texts):
        tokens = tokenizer.encode(text.removesuffix("~"), add_special_tokens=False)
        if text.endswith("~"):
            rollouts.append(Rollout(problem_id, sample, tokens, "length"))
        else:
            rollouts.append(Rollout(problem_id, sample, [*tokens, tokenizer.eos_token_id], "stop"))
    return rollouts


def test_hand_worked_rows(tokenizer):
    texts = ["3+4=7\\boxed{7}", "7", "\\boxed{8}", "3+4=~", "\\boxed{7}+~", "\\boxed{+}"]
    rollouts = responses_of(tokenizer, "a", texts)
    grade_rollout = make_grader(tokenizer, SUMS)
    rows = sample_rows(rollouts, [grade_rollout(rollout) for rollout in rollouts])
    assert rows["problem_id"].tolist() == ["a"] * 6
    assert rows["sample"].tolist() == list(range(6))
    assert rows["correct"].tolist() == [True, False, False, False, True, False]
    assert rows["formatted"].tolist() == [True, False, True, False, False, False]
    assert [None if pd.isna(one) else one for one in rows["answer"]] == ["7", None, "8", None, "7", None]
    assert rows["finish_reason"].tolist() == ["stop", "stop", "stop", "length", "length", "stop"]
    assert rows["tokens"].tolist() == [9, 2, 4, 4, 4, 4]
    assert rows["correct"].dtype == bool


@pytest.fixture
def evaluated(tmp_path, shared_model, tokenizer, problems):
    """`evaluated(method, seed, ...)`: the files of small sets, by a base and a trained policy.

    The config and the layout are attributes.
    """
    overrides = ["sampling.max_new_tokens=40", "evaluation.samples={aime24: 5, aime25: 3, dapo500: 2}"]
    config = load_config("laptop", MODEL, "base", overrides)
    layout = Layout(tmp_path / "results")
    for method in ("base", "grpo"):
        save_policy(shared_model, tokenizer, layout.policy(MODEL, method, 0))
        write_json(layout.policy(MODEL, method, 0) / "model.json", {"name": MODEL})
    for name, chosen in {"aime24": problems[:4], "aime25": problems[4:9], "dapo500": problems[9:]}.items():
        write_problems(layout.problems(name), chosen)

    def call(method, seed, *arguments, **named):
        return evaluate(config, layout, method, seed, *arguments, **named)

    call.config, call.layout = config, layout
    return call


def test_each_set_gets_its_file_and_number_of_samples(evaluated, problems):
    layout = evaluated.layout
    written = evaluated("base", 0, ["aime24", "dapo500"])
    out = layout.evaluation(MODEL, "base", 0)
    assert written == [out / "aime24.parquet", out / "dapo500.parquet"]
    assert sorted(path.name for path in out.iterdir()) == [
        f"{name}.{end}" for name in ("aime24", "dapo500") for end in ("parquet", "provenance.json")
    ]
    rows = pd.read_parquet(out / "aime24.parquet")
    columns = ["problem_id", "sample", "correct", "formatted", "answer", "finish_reason", "tokens"]
    assert list(rows.columns) == columns
    expected = [(problem.id, sample) for problem in problems[:4] for sample in range(5)]
    assert list(zip(rows["problem_id"], rows["sample"], strict=True)) == expected
    assert rows["tokens"].between(1, 40).all()
    assert len(pd.read_parquet(out / "dapo500.parquet")) == 3 * 2
    record = json.loads((out / "aime24.provenance.json").read_text())
    assert record["evaluation"]["samples"] == 5
    for file in [layout.model(MODEL, 0) / "model.json", layout.problems("aime24")]:
        assert record["inputs"][file.as_posix()] == sha256(file)
    assert layout.problems("dapo500").as_posix() not in record["inputs"]
    assert {"torch", "transformers"} <= set(record["packages"])
    assert {"processor", "cores", "memory_gib", "gpus"} <= set(record["hardware"])
    assert set(record["git"]) == {"commit", "changed"}


def test_further_temperatures_are_beside_the_usual_one(evaluated):
    usual, *_ = evaluated("grpo", 0, ["aime24"])
    before = usual.read_bytes()
    greedy, cold = evaluated("grpo", 0, ["aime24"], temperatures=[0, 0.4])
    assert [path.parent.name for path in (greedy, cold)] == ["T0", "T0.4"]
    assert usual.read_bytes() == before
    assert pd.read_parquet(greedy)["sample"].unique().tolist() == [0]  # all samples would be equal
    assert sorted(pd.read_parquet(cold)["sample"].unique()) == [0, 1, 2, 3, 4]
    record = json.loads(cold.with_suffix(".provenance.json").read_text())
    assert record["evaluation"] == {"samples": 5, "temperature": 0.4}
    assert record["config"]["evaluation.temperature"] == 0.4
    evaluated("grpo", 0, ["aime24"], temperatures=[0.4])  # the same again may replace it


def test_samples_at_the_usual_temperature_have_one_path(evaluated):
    usual, *_ = evaluated("grpo", 0, ["aime24"])
    before, at = usual.read_bytes(), evaluated.config.evaluation.temperature
    named = evaluated("grpo", 0, ["aime24"], temperatures=[at, at + 1e-9, 0.4, -0.0])
    assert named == [usual.parent / place / "aime24.parquet" for place in ("", "T0.4", "T0")]
    assert usual.read_bytes() == before
    assert not (usual.parent / f"T{at:g}").exists()


def test_an_untrained_model_that_is_pretrained_exists_once(evaluated):
    pretrained = evaluated.config.model_copy(update={"toy_models": {}})
    with mistake("--seed 3: ", " is pretrained, so it exists once, with seed 0"):
        evaluate(pretrained, evaluated.layout, "base", 3)


def test_random_numbers_depend_on_set_and_seed_only(evaluated, monkeypatch, shared_model):
    layout = evaluated.layout
    asked = []

    def sampler(_, directory, tokenizer, ranks):
        def sample(prompts, **arguments):
            asked.append(arguments)
            return responses_of(tokenizer, prompts[0].problem_id, ["\\boxed{1}"] * arguments["samples"])

        return nullcontext(SimpleNamespace(sample=sample))

    monkeypatch.setattr(stage, "open_sampler", sampler)
    evaluated("base", 0, ["aime24", "aime25"])
    evaluated("grpo", 0, ["aime24"])
    save_policy(shared_model, load_policy(layout.model(MODEL, 0))[1], layout.policy(MODEL, "grpo", 1))
    evaluated("grpo", 1, ["aime24"])
    first, other_set, other_method, other_seed = asked
    assert first == {"samples": 5, "temperature": 0.7, "max_new_tokens": 40, "stream": first["stream"]}
    assert other_set["samples"] == 3
    assert first == other_method  # methods are compared on the same random numbers
    assert len({one["stream"] for one in (first, other_set, other_seed)}) == 3


def test_an_interrupted_evaluation_resumes(evaluated, monkeypatch):
    """Interrupted in the third shard of the second set; then only missing shards are sampled."""
    datasets = ["aime24", "aime25"]
    whole = {file: file.read_bytes() for file in evaluated("base", 0, datasets)}
    for file in whole:
        file.unlink()
    asked = []
    sample = NativeSampler.sample

    def counting(self, prompts, **arguments):
        asked.append([prompt.problem_id for prompt in prompts])
        if len(asked) == 5:
            raise KeyboardInterrupt
        return sample(self, prompts, **arguments)

    monkeypatch.setattr(shards, "PROMPTS_HELD", 2)
    monkeypatch.setattr(NativeSampler, "sample", counting)
    with pytest.raises(KeyboardInterrupt):
        evaluated("base", 0, datasets)
    assert len(asked) == 5  # 2 + 2 problems, 2 + 2 + 1 problems
    evaluated("base", 0, datasets)
    assert asked[5:] == asked[4:5]
    assert {file: file.read_bytes() for file in whole} == whole
    assert not list((evaluated.layout.root / "shards").iterdir())


@pytest.mark.parametrize(
    ("method", "datasets", "message"),
    [
        ("base", ["aime42"], "evaluation.samples has no 'aime42'; did you mean 'aime2"),
        ("clip_b", ["aime24"], "/seed0/policy; make it with: entropy-dynamics train --model"),
        ("base", ["aime24", "aime25"], "/aime25.parquet; make it with: entropy-dynamics problems"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing_for_that_set(evaluated, method, datasets, message):
    layout = evaluated.layout
    layout.problems("aime25").unlink()
    with mistake(message):
        evaluated(method, 0, datasets)
    assert not (layout.evaluation(MODEL, method, 0) / f"{datasets[-1]}.parquet").exists()


# ---------------------------------------------------------------- loading
def test_only_safetensors_are_loaded(tmp_path, shared_model, tokenizer):
    with pytest.raises(UserError, match=r"it has no config\.json"):
        load_policy(tmp_path)
    save_policy(shared_model, tokenizer, tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no weights in .*: it has no \*\.safetensors"):
        load_policy(tmp_path)


# ---------------------------------------------------------------- token samples
def test_the_first_the_middle_and_the_last_step():
    assert [sampled_steps(steps) for steps in (1, 2, 50)] == [{0}, {0, 1}, {0, 25, 49}]


def written(path, groups, lengths):
    """Every token's value is 100 times its row, and its place."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    values = 100 * torch.arange(len(groups))[:, None] + torch.arange(mask.shape[1])
    stats, same = SimpleNamespace(**dict.fromkeys(STATISTICS, values.float())), values.float()
    text, response = (lambda token: f"<{token}>"), (lambda row: {"row": row})
    write_token_samples(path, torch.tensor(groups), mask, values, stats, same, same, text, response)
    return pd.read_parquet(path)


def test_a_few_responses_of_a_few_prompts(tmp_path):
    groups = [prompt for prompt in range(20) for _ in range(6)]
    frame = written(tmp_path / "samples" / "step0.parquet", groups, [1 + row % 3 for row in range(120)])
    assert frame["row"].tolist() == [6 * prompt + sample for prompt in range(16) for sample in range(4)]
    assert frame["token"].iloc[5].tolist() == ["<700>", "<701>"]  # the seventh row's length is 1 + 7 % 3
    for name in ("token_id", *STATISTICS, "advantage", "weight"):
        assert [values.tolist() for values in frame[name][:3]] == [[0], [100, 101], [200, 201, 202]]


def test_long_responses_leave_room_for_fewer_prompts(tmp_path, monkeypatch):
    monkeypatch.setattr(token_samples, "TOKENS", 20)
    frame = written(tmp_path / "step0.parquet", [0, 0, 1, 1, 2, 2], [8, 8, 8, 8, 8, 8])
    assert frame["row"].tolist() == [0, 1, 2, 3]  # after the second prompt there are 32
