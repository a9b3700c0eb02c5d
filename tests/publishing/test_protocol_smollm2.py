"""docs/reference/smollm2/protocol.md against the configs, and against the published runs beside it."""

import json

import numpy as np
import pandas as pd
import pytest

from conftest import ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.experiments.load import load_experiment

MODEL = "smollm2-135m-instruct"
PROTOCOL = " ".join((ROOT / "docs/reference/smollm2/protocol.md").read_text().split())
PUBLISHED = ROOT / "docs" / "reference" / "smollm2/seeds-0-7"
CHECKPOINTS = [10, 20, 40]


def config(method="grpo"):
    return load_config("smollm2", MODEL, method)


def test_the_configs_are_those_of_the_protocol():
    training, start, gate, sets = config().training, config().cold_start, config().gate, config().data.sets
    seeds, three, four = config().seeds, sets["countdown3"].size, sets["countdown4"].size
    low, high = (100 * bound for bound in gate.pass_rate)
    rate = f"{training.optimizer.learning_rate:.0e}".replace("e-0", "e-")
    assert config("clip_v").method.params.max_frac == 0.05
    for said in (
        f"A cold start of {start.steps} batches of {start.batch_size} demonstrations (AdamW, 5e-5)",
        f"{training.prompts_per_step} prompts with {training.group_size} rollouts each",
        f"There are {training.steps} steps at {rate}, in fp32",
        f"| Clip_B | 0 to {seeds.tables - 1} | mu {config('clip_b').method.params.mu:g},",
        f"| Clip_V | 0 to {seeds.tables - 1} | mu {config('clip_v').method.params.mu:g}, cap 5 %,",
        f"| Clip_V as released | 0 to {seeds.extras - 1} |",
        f"solves {low:g} to {high:g} % of its samples, at least {100 * gate.mixed_groups[0]:g} % of the groups of 8",
        f"entropy is at least {gate.entropy[0]:g} nats, {100 * gate.formatted[0]:g} % of the responses are boxed",
        f"{three} problems of three and {four} of four numbers, 16 samples at T = 0.7",
        f"{sets['validation'].size} validation problems with {config().evaluation.samples['validation']} samples",
    ):
        assert said in PROTOCOL, said
    assert start.learning_rate == 5e-5
    assert config("grpo").training.keep_steps == CHECKPOINTS
    assert config("random_mask").method.params.mu == config("clip_b").method.params.mu


def test_half_the_learning_rate_is_that_of_the_protocol():
    rate = config("grpo_half_rate").training.optimizer.learning_rate
    assert f"GRPO at {1e6 * rate:g}e-6 runs with seeds 0 to {config().seeds.extras - 1}, fp32" in PROTOCOL
    folder, seeds = ROOT / "experiments" / "smollm2", dict(config().seeds)
    left, widened = (load_experiment(name, "smollm2", seeds, folder) for name in ("left_rates", "left"))
    assert {run.seed for run in left.runs} == set(range(5))
    assert [*left.spec.grids] == ["temperatures", "half the rate", "checkpoints"]
    assert {run.method for run in left.runs} == {run.method for run in widened.runs} | {
        "grpo_half_rate",
        "clip_v_half_rate",
    }


def test_clip_v_at_half_the_learning_rate_is_that_of_the_protocol():
    of, full = config("clip_v_half_rate"), config("clip_v")
    rate, params = of.training.optimizer.learning_rate, of.method.params
    assert (rate, params) == (config("grpo_half_rate").training.optimizer.learning_rate, full.method.params)
    seeds = f"seeds 0 to {config().seeds.extras - 1}"
    assert f"Clip_V at {1e6 * rate:g}e-6, with the same mu of {params.mu:g}, runs with {seeds}, fp32" in PROTOCOL


def test_the_second_task_is_that_of_the_protocol():
    words, first = load_config("smollm2-words", MODEL, "clip_b"), config("clip_b")
    sets, (generator, options) = words.data.sets, next(iter(words.data.train.generators.items()))
    assert set(sets) == {"train", "words", "validation"}
    assert {source.generators[generator]["max_word_len"] for source in sets.values()} == {4}
    assert words.cold_start.solutions.generators == words.data.train.generators
    for said in (
        f"`{generator}`, words of three and four letters",
        f"{sets['train'].size} for training, {sets['words'].size} for evaluation",
        f"{sets['validation'].size} for validation (`configs",
        f"three and four letters after {words.cold_start.steps} batches",
        f"The bound on mixed groups is {100 * words.gate.mixed_groups[0]:g} % for this task",
        f"Arms: GRPO; Clip_B at mu {words.method.params.mu:g}; a random mask of Clip_B's size.",
        f"Evaluation is at T = {words.evaluation.temperature:g} and {words.evaluation.temperatures[0]:g} only.",
        f"Three seeds, 0 to {words.seeds.tables - 1},",
    ):
        assert said in PROTOCOL, said
    assert options == {"min_word_len": 3, "max_word_len": 4}
    assert load_config("smollm2-words", MODEL, "random_mask").method.params.mu == words.method.params.mu
    assert words.training == first.training
    table = load_experiment("table1", "smollm2-words", dict(words.seeds), ROOT / "experiments" / "smollm2-words")
    assert {run.method for run in table.runs} == {"base", "grpo", "clip_b", "random_mask"}
    assert words.evaluation.samples["words"] == first.evaluation.samples["countdown3"]


def test_published_runs_of_the_second_task_are_those_of_the_protocol():
    words = load_config("smollm2-words", MODEL, "clip_b")
    metrics = pd.read_parquet(PUBLISHED.parents[1] / "smollm2-words/seeds-0-2/metrics.parquet")
    rows = metrics[~metrics["method"].str.startswith("grpo@training.steps=")].groupby("method")
    assert {method: set(of["seed"]) for method, of in rows} == {
        method: set(range(words.seeds.tables)) for method in ("grpo", "clip_b", "random_mask")
    }
    assert set(rows.size()) == {words.seeds.tables * words.training.steps}
    dropped = rows["clip_fraction"].mean()
    assert dropped["grpo"] == 0
    assert 0.01 < dropped["random_mask"] <= dropped["clip_b"] < 0.02


def test_the_larger_dose_of_the_second_task_is_chosen_by_the_rule_of_its_protocol():
    """The smallest dose with which the entropy of the last tenth is a quarter above GRPO's, in two pilots."""
    folder = PUBLISHED.parents[1] / "smollm2-words"
    protocol, pilots = (folder / "protocol.md").read_text(), pd.read_parquet(folder / "seeds-100-101/metrics.parquet")
    ends = pilots[pilots["step"] >= 45].groupby(["method", "seed"])["entropy"].mean().unstack()
    kept = {share: np.log(ends.loc[f"clip_b@share={share}"] / ends.loc["grpo"]).mean() for share in (0.03, 0.05)}
    chosen = min(share for share, ratio in kept.items() if ratio >= np.log(1.25))
    parent, scale = load_config("smollm2-words"), load_config("smollm2-words-dose")
    table = load_experiment("words", scale.scale, dict(scale.seeds), ROOT / scale.experiments_folder)
    assert {run.method for run in table.runs} == {"base", "grpo", f"clip_b@share={chosen}"}
    assert {run.seed for run in table.runs} == set(range(280, 285))
    own = ("scale", "seeds", "experiments", "experiments_folder")
    assert scale.model_dump(exclude={*own}) == parent.model_dump(exclude={*own})
    assert "mean *r* over the two pilots is at least log 1.25 = 0.223" in protocol
    assert f"| `clip_b@share={chosen}` | 100, 101 |" in protocol
    assert set(pilots["seed"]) == {100, 101}
    assert set(pilots.groupby(["method", "seed"]).size()) == {50}
    gates = [json.loads((folder / f"seeds-100-101/gate-seed{seed}.json").read_text()) for seed in (100, 101)]
    assert [gate["faults"] for gate in gates] == [[], []]
    accuracy = pilots[pilots["step"] >= 45].groupby("method")["accuracy"].mean()
    page = (folder / "README.md").read_text()
    assert f"| {kept[0.05]:.3f}, wrong |" in page
    assert f"| −{100 * (accuracy['grpo'] - accuracy['clip_b@share=0.05']):.1f}, right |" in page
    assert "Seeds 280 to 284, arms `grpo` and `clip_b` at the dose" in protocol


def test_published_runs_are_those_of_the_protocol():
    metrics, counts = (pd.read_parquet(PUBLISHED / f"{name}.parquet") for name in ("metrics", "counts"))
    seeds = dict(config().seeds)
    frontier = load_experiment("frontier", "smollm2", seeds, ROOT / "experiments" / "smollm2").runs
    planned = {run.method for run in frontier} | {"clip_b@mu=2.5", "clip_v@mu=8.5,max_frac=0.0001"}
    planned |= (halved := {"grpo_half_rate", "clip_v_half_rate"})
    ran = metrics.groupby(["method", "seed"])
    assert set(metrics["method"]) <= planned - {"base"}
    assert set(metrics["seed"]) <= set(range(seeds["tables"]))
    for frame in (metrics, counts):
        for method in halved:
            assert set(frame.loc[frame["method"] == method, "seed"]) == set(range(seeds["extras"]))
    for (method, seed), rows in ran:
        steps = int(method.partition("steps=")[2] or config().training.steps)
        assert rows["step"].tolist() == list(range(steps)), (method, seed)
        dropped = rows["clip_fraction"].mean()
        released = "mu=" in method  # its pilots had 0 to 1.2 %
        least, most = (0, 0) if method.startswith("grpo") else (0, 0.012) if released else (0.005, 0.05)
        assert least <= dropped <= most, (method, seed)

    evaluation = config().evaluation
    assert set(counts["temperature"].astype(float).round(6)) == {evaluation.temperature, *evaluation.temperatures}
    for name in ("countdown3", "countdown4", "validation"):
        rows = counts[counts["dataset"] == name]
        assert rows["problem"].nunique() == config().data.sets[name].size
        assert set(rows.loc[rows["temperature"] > 0, "samples"]) == {evaluation.samples[name]}


def test_a_published_checkpoint_is_the_run_up_to_there():
    metrics = pd.read_parquet(PUBLISHED / "metrics.parquet").set_index(["method", "seed", "step"])["entropy"]
    for steps in CHECKPOINTS:
        part = metrics[f"grpo@training.steps={steps}"]
        assert part.to_numpy() == pytest.approx(metrics["grpo"].reindex(part.index).to_numpy(), abs=0)
