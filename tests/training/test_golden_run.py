"""A small training run whose numbers are known, for each kind of method.

Repeated, it gives the same bits. Against the numbers in golden_run.json it is held to 1e-5 only: the last bits of a
matrix product are those of the BLAS kernels that a CPU gets, and differ from one build of PyTorch to the next.
"""

import copy
import json
from pathlib import Path

import pytest

from reference import timeless

GOLDEN = Path(__file__).with_name("golden_run.json")
STEPS = 3
METHODS = {
    "grpo": {},
    "clip_b": {"mu": 0.7},
    "clip_v": {"mu": 0.7, "max_frac": 0.05},
    "clip_cov": {"ratio": 0.1, "lb": 0.05},
    "kl_cov": {"frac": 0.2},
    "forking_tokens": {"keep_fraction": 0.2},
    "s_star_keep_neg_lt": {},
}
WITH_A_MASK = [name for name in METHODS if name != "grpo"]
UPDATES = {"clip_cov": 2, "kl_cov": 2}  # they decide before every update, and KL-Cov has no effect with one
KEPT = (
    *("entropy", "entropy_change", "predicted_entropy_change", "s_star_mean", "s_centered_mean", "neg_cov"),
    *("clip_fraction", "grad_norm", "reward_mean", "response_length"),
)


def train(make_trainer, shared_model, name: str, **changes) -> tuple[list[dict], list, list[float]]:
    """Metrics of every step; weights and coefficients of every token in each update; losses of all updates."""
    trainer = make_trainer(
        copy.deepcopy(shared_model),
        name,
        params=METHODS[name],
        updates_per_batch=UPDATES.get(name, 1),
        learning_rate=3e-3,
        eps=1e-3,  # with a tiny one, AdamW makes a whole step of the rounding of a gradient that is zero
        max_grad_norm=1.0,
        **changes,
    )
    masks, losses = [], []
    backward = trainer.update.backward

    def spy(batch, rows, advantages, scored, decision, **named):
        gradient = backward(batch, rows, advantages, scored, decision, **named)
        losses.append(gradient.loss.item())
        masks.append(decision.weights.tolist())
        masks.append(None if decision.coefficients is None else decision.coefficients.tolist())
        return gradient

    trainer.update.backward = spy
    rows = [trainer.step(step) for step in range(STEPS)]
    return [timeless(row) for row in rows], masks, losses


@pytest.fixture(scope="module")
def golden() -> dict:
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", METHODS)
def test_the_run_is_the_known_one_and_repeats_to_the_bit(make_trainer, shared_model, tmp_path, golden, name):
    rows, masks, losses = train(make_trainer, shared_model, name)
    again, masks_again, losses_again = train(make_trainer, shared_model, name)
    assert json.dumps([rows, losses]) == json.dumps([again, losses_again])  # as text, in which nan equals nan
    assert masks == masks_again
    found = {"loss": losses, **{key: [row[key] for row in rows] for key in KEPT}}
    (tmp_path / GOLDEN.name).write_text(json.dumps(golden | {name: found}, indent=1) + "\n")
    assert found.keys() == golden[name].keys()
    for key, values in found.items():
        about = f"{key} of {name} is not the known one; if that is meant, the new numbers are in {tmp_path}"
        assert values == pytest.approx(golden[name][key], rel=1e-5, abs=1e-6), about


def test_the_methods_are_told_apart_by_it(golden):
    """Else a method that does nothing would pass."""
    runs = {name: run["entropy"] for name, run in golden.items()}
    assert set(runs) == set(METHODS)
    assert len({tuple(run) for run in runs.values()}) == len(METHODS)
    assert len({run[0] for run in runs.values()}) == 1  # the untrained policy's is the same for all
    assert all(max(golden[name]["clip_fraction"]) > 0 for name in WITH_A_MASK if name != "kl_cov")


@pytest.mark.parametrize("name", WITH_A_MASK)
def test_how_a_batch_is_cut_changes_no_mask_and_no_result(make_trainer, shared_model, name):
    """Whole runs, so that what a step hands on to the next is covered, too; gradients are in test_training.py."""
    rows, masks, losses = train(
        make_trainer, shared_model, name, tokens_per_micro_batch=10_000, single_forward_tokens=0
    )
    # Some rows at a time, and each by itself. Tokens after equal prefixes tie up to rounding: at 150, at a threshold.
    for tokens in (120, 1):
        cut_rows, cut_masks, cut_losses = train(
            make_trainer, shared_model, name, tokens_per_micro_batch=tokens, single_forward_tokens=0
        )
        assert cut_masks == masks
        assert cut_losses == pytest.approx(losses, rel=1e-6, abs=1e-6)
        for cut, row in zip(cut_rows, rows, strict=True):
            assert cut == pytest.approx(row, rel=1e-5, abs=1e-6, nan_ok=True)
