"""One rank, two ranks, one plain process: the same masks, losses, gradients and policies (real processes, gloo)."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from batches import skewed_batch
from conftest import ROOT
from entropy_dynamics.distributed.launch import start_ranks
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import empty_model, fill
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.training.first_order import COLUMNS
from mistakes import mistake
from preloaded import program
from rank_program import CASES, STEPS, make_trainer, recorded
from reference import timeless

FEW_TOKENS = 0.05  # a share of about 70 tokens, some with an S_c of rounding error: three may fall on the other side

FAMILIES = {name: name for name in ("phi3", "olmo2", "mistral")}
RUN = {  # number of ranks -> what they run in one launch; untied weights concern loading and pushing, not methods
    2: [
        *(f"tied/{case}" for case in (*CASES, "checkpoint-save", "checkpoint-resume")),
        *(f"untied/{case}" for case in ("scoring_pass", "ppo", "checkpoint-save", "checkpoint-resume")),
        *(f"{family}/recomputed" for family in FAMILIES),
    ],
    4: ["nodes/reduced", "nodes/ppo", "nodes/checkpoint-save", "nodes/checkpoint-resume"],  # on two nodes
    1: ["tied/scoring_pass", "tied/checkpoint-resume", "nodes/checkpoint-resume"],
}


@pytest.fixture(scope="session")
def root(tmp_path_factory, make_model, tokenizer) -> Path:
    """Small models whose parameters do not divide evenly, and the outcomes on ranks."""
    root, monkeypatch = tmp_path_factory.mktemp("ranks"), pytest.MonkeyPatch()
    kinds = {"tied": "qwen3", "untied": "llama", "nodes": "qwen3"} | FAMILIES
    for name, kind in kinds.items():
        model = make_model(kind, layers=2, tied=name != "untied")
        save_policy(model, tokenizer, root / name / "model")
    for count, cases in RUN.items():
        monkeypatch.setenv("NODES", "2" if count == 4 else "1")
        start_ranks(count, [program("python"), str(ROOT / "tests" / "rank_program.py"), str(root), *cases])
    monkeypatch.undo()
    return root


def on_ranks(count: int, case: str, root: Path) -> dict:
    return json.loads((root / f"{case}-{count}.json").read_text())


@cache  # some tests compare the same case
def in_one_process(case: str, root: Path) -> dict:
    model, case = case.split("/")
    trainer = make_trainer(case, root / model / "model", Ranks())
    seen = recorded(trainer)
    rows = [trainer.step(step) for step in range(STEPS)]
    weights = {name: tensor.flatten().tolist() for name, tensor in trainer.policy.weights()}
    return {**seen, "rows": rows, "policy": weights}


def assert_same(one: dict, other: dict, tolerance: float) -> None:
    assert one["rollouts"] == other["rollouts"]
    for name in ("weights", "effective"):
        for mine, theirs in zip(one[name], other[name], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=1e-6)  # masks are then the same
    for mine, theirs in zip(one["gradients"], other["gradients"], strict=True):
        assert np.abs(mine).max() > 1e-3
        np.testing.assert_allclose(mine, theirs, atol=tolerance)
    for mine, theirs in zip(one["rows"], other["rows"], strict=True):
        for name in set(mine) & set(theirs):
            if not name.startswith("seconds"):
                limit = FEW_TOKENS if name == "s_centered_positive_top" else 10 * tolerance
                assert mine[name] == pytest.approx(theirs[name], abs=limit, nan_ok=True), name
    assert set(one["policy"]) == set(other["policy"])
    for name, values in one["policy"].items():
        np.testing.assert_allclose(values, other["policy"][name], atol=10 * tolerance)


@pytest.mark.parametrize("case", [one for one in RUN[2] if "checkpoint" not in one and "bfloat16" not in one])
def test_two_ranks_match_one_process(case, root):
    assert_same(on_ranks(2, case, root), in_one_process(case, root), 1e-5)


def test_one_sharded_rank_matches_one_process(root):
    assert_same(on_ranks(1, "tied/scoring_pass", root), in_one_process("tied/scoring_pass", root), 1e-5)


@pytest.mark.parametrize("case", ["reduced", "ppo"])
def test_two_nodes_of_two_ranks_match_one_process(case, root):
    assert_same(on_ranks(4, f"nodes/{case}", root), in_one_process(f"nodes/{case}", root), 1e-5)


@pytest.mark.parametrize(("ranks", "case"), [(2, "tied/kept_graphs"), (2, "tied/updates"), (4, "nodes/reduced")])
def test_the_entropy_change_to_first_order_is_that_of_all_shards(ranks, case, root):
    for mine, theirs in zip(on_ranks(ranks, case, root)["rows"], in_one_process(case, root)["rows"], strict=True):
        for name in COLUMNS:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3), name


def test_bfloat16_stays_near_and_keeps_fp32_master_weights(root):
    """Gradients are rounded, master weights are not: a learning rate of 1e-3 moves them by less than bf16 resolves."""
    rounded, exact = on_ranks(2, "tied/bfloat16", root), on_ranks(2, "tied/recomputed", root)
    gradients = np.array(rounded["gradients"][0]), np.array(exact["gradients"][0])
    assert np.corrcoef(*gradients)[0, 1] > 0.99
    assert not np.array_equal(*gradients)
    reduced = torch.tensor(rounded["gradients"][0])
    assert not torch.equal(reduced, reduced.bfloat16().float()), "the gradients were reduced in bfloat16"
    values = torch.tensor(rounded["policy"]["model.layers.0.mlp.up_proj.weight"])
    assert not torch.equal(values, values.bfloat16().float())


@pytest.mark.parametrize(
    ("model", "saved", "ranks"), [("tied", 2, 1), ("tied", 2, 2), ("untied", 2, 2), ("nodes", 4, 4), ("nodes", 4, 1)]
)
def test_a_checkpoint_resumes_on_as_many_ranks_or_on_another_number(model, saved, ranks, root):
    whole = on_ranks(saved, f"{model}/checkpoint-save", root)
    resumed = on_ranks(ranks, f"{model}/checkpoint-resume", root)
    for part in ("policy", "critic"):
        for name, values in whole[part].items():
            if ranks == saved:
                assert values == resumed[part][name], name  # bitwise
            np.testing.assert_allclose(values, resumed[part][name], atol=1e-5)
    assert [row["step"] for row in resumed["rows"]] == [0, 1, 2, 3]
    for one, other in zip(whole["rows"], resumed["rows"], strict=True):
        exact = timeless(one)
        if ranks != saved:  # sums in another order
            exact = pytest.approx(exact, rel=1e-3, abs=1e-4, nan_ok=True)
        assert timeless(other) == exact
    [kept] = (root / model / "checkpoints").glob("*/*")
    assert sorted({path.suffix for path in kept.iterdir()}) == [".json", ".safetensors"]  # nothing pickled
    for path in kept.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            assert list(file.keys())


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_micro_batches_are_divided_evenly_among_ranks_with_little_padding(ranks):
    """At the paper's sizes, on lengths as skewed as reasoning traces have them: log-normal, some cut off at 7,168."""
    batch = skewed_batch(rows=128 * ranks, seed=ranks)
    cuts = batch.micro_batches(16384, ranks=ranks)
    assert len(cuts) % ranks == 0
    assert torch.equal(torch.cat(cuts).sort().values, torch.arange(len(batch)))
    padded = [len(cut) * int(batch.lengths[cut].max()) for cut in cuts]
    assert all(size <= 16384 or len(cut) == 1 for size, cut in zip(padded, cuts, strict=True))
    tokens = int(batch.lengths.sum())
    assert (sum(padded) - tokens) / sum(padded) < 0.10
    for turn in range(0, len(cuts), ranks):
        together = padded[turn : turn + ranks]
        assert max(together) <= 2 * min(together)
    work = [sum(padded[rank::ranks]) for rank in range(ranks)]
    assert max(work) < 1.15 * min(work)


def test_truncated_weights_are_a_single_line_error(tmp_path, shared_model, tokenizer):
    save_policy(shared_model, tokenizer, tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with mistake(f"the weights in {tmp_path} cannot be loaded: "):
        fill(empty_model(tmp_path), tmp_path, lambda name: name, Ranks())
