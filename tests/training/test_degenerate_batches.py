"""Degenerate batches: no entropy, no advantage, no token left, one token, no end. Every method stays finite."""

import copy
import math

import pytest
import torch

from conftest import DISTINCT_METHODS
from entropy_dynamics.training.first_order import COLUMNS
from reference import SINGLE_FORWARD, graded, parameters

# PPO's share of explained variance needs returns that vary; what was not measured is NaN.
MAY_BE_NAN = {"validation_accuracy", "validation_pass", "value_explained_variance", *COLUMNS}
DECAY = 1e-3 * 0.01  # learning rate times weight decay of `training_config`

every_method = pytest.mark.parametrize("name", DISTINCT_METHODS)


@pytest.fixture
def make(trainer_on):
    """`make(name, model, ...)`: a trainer on a CPU with the settings of the method's file."""

    def build(name, model, **changes):
        # With half of a group right, Pass@4 has nothing to learn from six.
        params = ({"k": 2} if name == "pass_at_k" else {}) | changes.pop("params", {})
        return trainer_on(torch.device("cpu"), name, model, params=params, **changes)

    return build


def steps_of(trainer, count=2) -> list[dict]:
    """The metrics of some steps, all finite, with weights that are."""
    rows = [trainer.step(number) for number in range(count)]
    for row in rows:
        assert {name for name, value in row.items() if math.isnan(value)} <= MAY_BE_NAN
        assert not any(math.isinf(value) for value in row.values())
    assert parameters(trainer.policy.model).isfinite().all()
    return rows


def assert_only_decayed(trainer, before, rows):
    """No gradient: the weights are what weight decay alone makes of them."""
    assert [row["grad_norm"] for row in rows] == [0.0] * len(rows)
    updates = trainer.config.updates_per_batch * len(rows)
    expected = before * (1 - DECAY) ** updates
    assert torch.allclose(parameters(trainer.policy.model), expected, rtol=1e-6, atol=0)


def all_right(rollout):
    return graded(True)


def every_other(rollout):
    """Right by the number of the sample: a group always has both."""
    return graded(rollout.sample % 2 == 0, rollout.finish_reason == "length")


def certain(make_model, token: int):
    """A policy that gives `token` all of the probability, whatever came before: its logit is larger by thousands.

    The first coordinate of every hidden state is large and positive, blocks add nothing, and only the logit of `token`
    looks at it.
    """
    model = make_model("qwen2", tied=False)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight[:, 0] = 100.0
        model.lm_head.weight.zero_()
        model.lm_head.weight[token, 0] = 1000.0
    return model


# ---------------------------------------------------------------- entropy has collapsed
@every_method
def test_no_entropy_at_all(make, make_model, tokenizer, name):
    """Every response is the end token alone."""
    trainer = make(name, certain(make_model, tokenizer.eos_token_id), grade=every_other, max_new=5)
    before = parameters(trainer.policy.model)
    rows = steps_of(trainer)
    for row in rows:
        assert row["entropy"] == row["s_star_std"] == row["entropy_change"] == row["predicted_entropy_change"] == 0.0
        assert row["zero_variance_groups"] == 0.0  # there is something to learn, were it not certain
        assert (row["response_length"], row["truncated"]) == (1, 0)
    assert_only_decayed(trainer, before, rows)  # the gradient of a certain token's log p is 0


# ---------------------------------------------------------------- nothing to learn
@every_method
def test_all_rewards_equal(make, model, name):
    trainer = make(name, model, grade=all_right)
    before = parameters(model)
    # Once PPO's critic has learned, advantages are how far its values are off.
    rows = steps_of(trainer, count=1 if trainer.config.advantage == "gae" else 2)
    for row in rows:
        assert row["zero_variance_groups"] == 1.0
        assert row["neg_cov"] == 0.0
        assert row["predicted_entropy_change"] == pytest.approx(0.0, abs=1e-12)
        assert row["lens_pos_lt"] == row["lens_neg_gt"] == 0.0
        assert row["entropy"] > 0
    # W-REINFORCE and its parts and RFT do not normalize in the group: they learn from one that is all right.
    own = trainer.method.advantages(torch.ones(6), torch.zeros(6, dtype=torch.long))  # PPO's critic replaces them
    assert bool(own.any()) == name.startswith(("w_reinforce", "psr", "rft"))
    acts = trainer.method.acts_without_advantage
    if not acts and name not in ("w_reinforce", "psr", "rft"):
        assert_only_decayed(trainer, before, rows)


# ---------------------------------------------------------------- no token left
NO_NEGATIVES = {"psr", "psr_authors", "rft", "qae_authors"}  # QAE: at most 60 % are correct


@pytest.mark.parametrize(
    ("name", "denominator", "single_forward"),
    [
        *((name, "kept", 0) for name in DISTINCT_METHODS),
        *((name, "all", SINGLE_FORWARD) for name in ("grpo", "clip_b", "kl_cov", "unlikeliness", "ppo")),
    ],
)
def test_a_mask_that_drops_every_token(make, model, monkeypatch, name, denominator, single_forward):
    """Whatever the method, should it keep nothing."""
    trainer = make(
        name, model, grade=every_other, params={"denominator": denominator}, single_forward_tokens=single_forward
    )

    def nothing(stats, advantages, mask, *_):
        return torch.zeros_like(mask, dtype=torch.float32)

    monkeypatch.setattr(type(trainer.method), "token_weights", lambda self, *arguments, **_: nothing(*arguments))
    before = parameters(model)
    rows = steps_of(trainer, count=1)
    for row in rows:
        assert row["clip_fraction"] == 1.0
        assert row["clip_fraction_neg"] == (0.0 if name in NO_NEGATIVES else 1.0)
        assert row["lens_pos_lt_kept"] == row["lens_pos_gt_kept"] == row["predicted_entropy_change"] == 0.0
        assert row["entropy"] > 0
        assert row["reward_mean"] != 0
    if not trainer.method.acts_without_advantage:
        assert_only_decayed(trainer, before, rows)


# ---------------------------------------------------------------- responses of one token, and without an end
@every_method
def test_a_batch_of_two_tokens(make, model, name):
    """One group of two responses of one token each; larger ones have one token in `test_no_entropy_at_all`."""
    changes = {"params": {"k": 1}} if name == "pass_at_k" else {}
    trainer = make(
        name, model, grade=every_other, max_new=1, group_size=2, prompts_per_step=1, updates_per_batch=1, **changes
    )
    for row in steps_of(trainer, count=1):
        assert row["response_length"] == 1
        assert row["tokens"] == 2


@every_method
def test_every_response_is_cut_off(make, model, name):
    trainer = make(name, model, grade=every_other, max_new=6)
    trainer.sampler.end_tokens = [-1]  # no token ends a response
    for row in steps_of(trainer, count=1):
        assert row["truncated"] == 1.0
        assert row["response_length"] == 6
        assert row["grad_norm"] > 0 or row["clip_fraction"] == 1.0


def test_a_batch_is_learned_from_after_empty_ones(make, shared_model):
    """The optimizer state that an empty step leaves does not spoil the next."""
    models = [copy.deepcopy(shared_model) for _ in range(2)]
    for model, graders in zip(models, ([all_right, every_other], [every_other]), strict=True):
        trainer = make("clip_b", model, weight_decay=0.0)
        for number, grade in enumerate(graders):
            trainer.grade = grade
            row = trainer.step(number)
        assert row["grad_norm"] > 0
    moved = [(parameters(model) - parameters(shared_model)).abs().max() for model in models]
    assert all(0 < one < 0.01 for one in moved)
