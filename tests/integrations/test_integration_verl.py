"""Token weights in verl's own DataProto, loss and trainer registry, without Ray: `make test-integrations`."""

from types import SimpleNamespace

import pandas as pd
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed here: `make test-integrations` runs these tests")

from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils import tensordict_utils
from verl.workers.utils.padding import response_to_nested

from entropy_dynamics.core.objective import clipped_loss, token_divisors, weighted_sum
from entropy_dynamics.core.token_stats import TokenStats, token_stats
from entropy_dynamics.diagnostics.lens import lens_table
from entropy_dynamics.errors import UserError
from entropy_dynamics.integrations import verl
from entropy_dynamics.integrations.common import reported_metrics
from entropy_dynamics.methods import load_method

ROLLOUTS, TOKENS = 8, 20
LENGTHS = [20, 3, 17, 20, 9, 12, 20, 1]


@pytest.fixture
def stats() -> TokenStats:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(ROLLOUTS, TOKENS, 40, generator=generator)
    return token_stats(logits, torch.randint(40, (ROLLOUTS, TOKENS), generator=generator))


@pytest.fixture
def tensors(stats) -> dict[str, torch.Tensor]:
    mask = (torch.arange(TOKENS) < torch.tensor(LENGTHS)[:, None]).long()
    advantages = torch.tensor([1.0, -1.0] * 4)[:, None] * mask
    fields = {"advantages": advantages, "response_mask": mask, "old_log_probs": stats.logp, "entropy": stats.entropy}
    return {name: values * mask for name, values in fields.items()}


def weighted(method, tensors) -> tuple[DataProto, dict[str, float]]:
    data = DataProto.from_dict({name: values.clone() for name, values in tensors.items()})
    stats, weights = verl.token_weights(method, data, torch.Generator().manual_seed(0))
    metrics = reported_metrics(stats, data.batch["advantages"], weights, data.batch["response_mask"], 1e-6)
    verl.apply_weights(method, data, weights)
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


def test_a_share_of_the_batch_is_dropped(tensors):
    """5 % of 102 tokens are five."""
    data, metrics = weighted(verl.method_of(config(method="clip_b", share=0.05)), tensors)
    assert int(tensors["response_mask"].sum() - data.batch["response_mask"].sum()) == 5
    assert metrics["entropy_control/clip_fraction"] == pytest.approx(5 / 102)


def test_the_method_off_changes_nothing(tensors):
    data, metrics = weighted(load_method("grpo"), tensors)
    assert all(torch.equal(data.batch[name], values) for name, values in tensors.items())
    assert metrics["entropy_control/clip_fraction"] == 0


UIDS = ["b", "a", "c", "a", "b", "b", "a", "b"]  # verl mixes the prompts to balance its ranks


@pytest.fixture
def queue(tensors, tmp_path, monkeypatch):
    """A trainer after step 2 of 5, and its queue. The queue and the base trainer are replaced: both need Ray."""
    trainer = object.__new__(get_trainer_cls("entropy_control"))
    trainer.entropy_control, trainer.global_steps, trainer.total_training_steps = load_method("clip_b", mu=0.5), 3, 5
    trainer.tokenizer = SimpleNamespace(decode=lambda ids, **_: "".join(f"<{int(token)}>" for token in ids))
    optimizer = {"actor_rollout_ref": {"actor": {"optim": {"lr": 1e-6}}}}
    trainer.config = OmegaConf.create(optimizer | {"trainer": {"default_local_dir": str(tmp_path)}})
    tensors["response_mask"][2] = 0  # verl fills the batch up with such rows
    rows = [torch.arange(int(length)) for length in LENGTHS]
    jagged = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    prompts = torch.nested.as_nested_tensor([torch.tensor([90 + row]) for row in range(ROLLOUTS)], layout=torch.jagged)
    nested = tensordict_utils.get_tensordict(
        {name: response_to_nested(values, jagged) for name, values in tensors.items()}
        | {"responses": jagged, "prompts": prompts, "uid": UIDS}
    )

    class Queue:
        keys, partition_id, put = [f"u_{row}_0" for row in range(ROLLOUTS)], "train", None

        def __len__(self):
            return ROLLOUTS

    batch = Queue()
    monkeypatch.setattr(verl.PPOTrainerSync, "_compute_advantage", lambda self, batch, metrics: batch)
    monkeypatch.setattr(verl.tq, "kv_batch_get", lambda *, select_fields, **_: nested.select(*select_fields))
    monkeypatch.setattr(verl.tq, "kv_batch_put", lambda **stored: setattr(batch, "put", stored["fields"]) or batch)
    return trainer, batch


def test_the_trainer_writes_what_changed_back_into_the_queue(queue, tensors):
    (trainer, batch), metrics = queue, {}
    assert trainer._compute_advantage(batch, metrics) is batch
    expected, _ = weighted(trainer.entropy_control, tensors)
    assert set(batch.put.keys()) == {"advantages", "response_mask", "loss_mask"}
    for name, values in batch.put.items():
        assert values.offsets().diff().tolist() == LENGTHS
        assert torch.equal(values.to_padded_tensor(0, (ROLLOUTS, TOKENS)), expected.batch[name])
    assert metrics["entropy_control/clip_fraction"] > 0


def test_every_row_keeps_its_own_weights_in_any_order_of_the_queue(queue, tensors, monkeypatch):
    """verl's queue returns rows in the order of the keys; `response_to_nested` pairs rows with lengths by place."""
    (trainer, batch), order = queue, [5, 0, 7, 2, 1, 6, 3, 4]
    expected, _ = weighted(trainer.entropy_control, tensors)
    get = verl.tq.kv_batch_get

    def reordered(**asked):
        stored = get(**asked)
        return tensordict_utils.get_tensordict(
            {
                name: torch.nested.as_nested_tensor([stored[name][row] for row in order], layout=torch.jagged)
                for name in list(stored.keys())
                if name != "uid"
            }
        )

    monkeypatch.setattr(verl.tq, "kv_batch_get", reordered)
    trainer.global_steps = 4  # not sampled
    trainer._compute_advantage(batch, {})
    for name, values in batch.put.items():
        assert values.offsets().diff().tolist() == [LENGTHS[row] for row in order]
        for row, of_row in zip(order, values.unbind(), strict=True):
            torch.testing.assert_close(of_row, expected.batch[name][row, : LENGTHS[row]])


def test_a_batch_without_unmasked_tokens_has_no_metrics(queue, tensors):
    tensors = tensors | {"response_mask": torch.zeros_like(tensors["response_mask"])}
    data, metrics = weighted(queue[0].entropy_control, tensors)
    assert metrics == {}
    assert not data.batch["advantages"].any()


def test_the_middle_step_is_sampled_and_the_lens_reads_it(queue, tensors, stats, tmp_path):
    trainer, batch = queue
    weights = trainer.entropy_control.token_weights(stats, tensors["advantages"], tensors["response_mask"])
    trainer._compute_advantage(batch, {})
    trainer.global_steps = 4
    trainer._compute_advantage(batch, {})
    [file] = (tmp_path / "samples").iterdir()
    assert file.name == "step3.parquet"  # of verl's steps 1 to 5
    sampled = pd.read_parquet(file)
    rows = [1, 3, 6, 0, 4, 5, 7]  # each prompt's together; the row without a response token is left out
    assert sampled["uid"].tolist() == ["a", "a", "a", "b", "b", "b", "b"]
    assert sampled["prompt"].tolist() == [f"<{90 + row}>" for row in rows]
    for row, (_, response) in zip(rows, sampled.iterrows(), strict=True):
        length = LENGTHS[row]
        assert response["token"].tolist() == [f"<{token}>" for token in range(length)]
        for name, values in {"entropy": stats.entropy, "s_star": stats.s_star, "weight": weights}.items():
            assert response[name] == pytest.approx(values[row, :length].numpy(), abs=1e-6)
        assert response["advantage"].tolist() == [1.0 if row % 2 == 0 else -1.0] * length  # as before the weights
    assert "s_expected" not in sampled
    table, about = lens_table(file, ["clip_b@mu=0.5"])
    assert about.startswith(f"{sum(LENGTHS) - 17} tokens")
    assert 0 < table["dropped"].iloc[0] < 1


def config(bypass=False, **control):
    section = {"entropy_control": control} if control else {}
    return OmegaConf.create({"algorithm": {"rollout_correction": {"bypass_mode": bypass}}} | section)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (config(), "verl's config names no method: add +entropy_control.method=clip_b"),
        (config(method="clip_v"), "clip_v needs E[S] of each token, which verl does not compute"),
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
