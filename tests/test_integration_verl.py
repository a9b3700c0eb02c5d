"""Token weights in verl's own DataProto, loss and trainer registry, without Ray: `make test-integrations`."""

import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed here: `make test-integrations` runs these tests")

from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.workers.utils.padding import response_to_nested

from entropy_dynamics.core.objective import clipped_loss, token_divisors, weighted_sum
from entropy_dynamics.core.token_stats import TokenStats, token_stats
from entropy_dynamics.errors import UserError
from entropy_dynamics.integrations import verl
from entropy_dynamics.methods import load_method

ROLLOUTS, TOKENS = 8, 20


@pytest.fixture
def stats() -> TokenStats:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(ROLLOUTS, TOKENS, 40, generator=generator)
    return token_stats(logits, torch.randint(40, (ROLLOUTS, TOKENS), generator=generator))


@pytest.fixture
def tensors(stats) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([20, 3, 17, 20, 9, 12, 20, 1])
    mask = (torch.arange(TOKENS) < lengths[:, None]).long()
    advantages = torch.tensor([1.0, -1.0] * 4)[:, None] * mask
    fields = {"advantages": advantages, "response_mask": mask, "old_log_probs": stats.logp, "entropy": stats.entropy}
    return {name: values * mask for name, values in fields.items()}


def weighted(method, tensors) -> tuple[DataProto, dict[str, float]]:
    data = DataProto.from_dict({name: values.clone() for name, values in tensors.items()})
    _, metrics = verl.weight_tokens(method, data, torch.Generator().manual_seed(0), 1e-6)
    return data, metrics


@pytest.mark.parametrize("denominator", ["kept", "all"])
@pytest.mark.parametrize("name", ["clip_b", "s_star_mask_neg_lt", "clip_cov", "forking_tokens"])
def test_masks_and_verls_token_mean_are_ours(name, denominator, tensors, stats):
    params = {"denominator": denominator} | {"clip_b": {"mu": 1.0}, "clip_cov": {"lb": 0.1}}.get(name, {})
    method = load_method(name, **params)
    data, metrics = weighted(method, tensors)

    mask, advantages = tensors["response_mask"], tensors["advantages"]
    weights = method.token_weights(stats, advantages, mask, generator=torch.Generator().manual_seed(0))
    dropped = (weights == 0) & (mask > 0)
    assert 0 < dropped.sum() < mask.sum()
    assert metrics["entropy_control/clip_fraction"] == pytest.approx(float(dropped.sum() / mask.sum()))
    assert "entropy_control/neg_cov" not in metrics  # needs E[S]

    theirs = agg_loss(  # as verl's workers call it
        clipped_loss(stats.logp, stats.logp, data.batch["advantages"], mask),
        data.batch["response_mask"],
        "token-mean",
        batch_num_tokens=data.batch.get("loss_mask", mask).sum(),
    )
    divisors = token_divisors(weights, mask, torch.arange(ROLLOUTS), denominator=denominator)
    ours = weighted_sum(clipped_loss(stats.logp, stats.logp, advantages, mask), weights / divisors)
    torch.testing.assert_close(theirs, ours, atol=1e-6, rtol=0)


def test_the_method_off_changes_nothing(tensors):
    data, metrics = weighted(load_method("grpo"), tensors)
    assert all(torch.equal(data.batch[name], values) for name, values in tensors.items())
    assert metrics["entropy_control/clip_fraction"] == 0


def test_the_trainer_writes_what_changed_back_into_the_queue(tensors, monkeypatch):
    """The queue and the base trainer are replaced: both need Ray."""
    trainer = object.__new__(get_trainer_cls("entropy_control"))
    trainer.entropy_control, trainer.global_steps = load_method("clip_b", mu=1.0), 3
    trainer.config = OmegaConf.create({"actor_rollout_ref": {"actor": {"optim": {"lr": 1e-6}}}})
    lengths = tensors["response_mask"].sum(-1)
    jagged = torch.nested.as_nested_tensor(
        [torch.ones(int(length), dtype=torch.long) for length in lengths], layout=torch.jagged
    )
    nested = TensorDict(
        {name: response_to_nested(values, jagged) for name, values in tensors.items()}, batch_size=ROLLOUTS
    )

    class Queue:
        keys, partition_id, put = [f"u_{row}_0" for row in range(ROLLOUTS)], "train", None

        def __len__(self):
            return ROLLOUTS

    batch, metrics = Queue(), {}
    monkeypatch.setattr(verl.PPOTrainerSync, "_compute_advantage", lambda self, batch, metrics: batch)
    monkeypatch.setattr(verl.tq, "kv_batch_get", lambda **_: nested.select(*verl.FIELDS))
    monkeypatch.setattr(verl.tq, "kv_batch_put", lambda **stored: setattr(batch, "put", stored["fields"]) or batch)
    assert trainer._compute_advantage(batch, metrics) is batch

    expected, _ = weighted(trainer.entropy_control, tensors)
    assert set(batch.put.keys()) == {"advantages", "response_mask", "loss_mask"}
    for name, values in batch.put.items():
        assert values.offsets().diff().tolist() == lengths.tolist()
        assert torch.equal(values.to_padded_tensor(0, (ROLLOUTS, TOKENS)), expected.batch[name])
    assert metrics["entropy_control/clip_fraction"] > 0


def config(bypass=False, **control):
    section = {"entropy_control": control} if control else {}
    return OmegaConf.create({"algorithm": {"rollout_correction": {"bypass_mode": bypass}}} | section)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (config(), "verl's config names no method: add +entropy_control.method=clip_b"),
        (config(method="clip_v"), "ClipV needs E[S] of each token, and verl keeps no logits to compute it from"),
        (config(method="gspo"), "gspo is more than token weights"),
        (
            config(bypass=True, method="clip_b"),
            "bypass_mode=true skips the pass that computes entropy: set it to false",
        ),
    ],
)
def test_what_verl_cannot_run_is_one_clear_error(given, message):
    with pytest.raises(UserError) as error:
        verl.method_of(given)
    assert message in str(error.value)


def test_a_missing_tensor_is_one_clear_error(tensors):
    del tensors["entropy"]
    with pytest.raises(UserError, match="verl's batch has no entropy, which entropy control reads"):
        weighted(load_method("clip_b"), tensors)
