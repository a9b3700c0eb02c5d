"""TRL's own GRPOTrainer with our token weights, on a toy model: `make test-integrations`."""

import os
import socket

import pandas as pd
import pytest
import torch

trl = pytest.importorskip("trl", reason="TRL is not installed here: `make test-integrations` runs these tests")

from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from entropy_dynamics.core.objective import clipped_loss, token_divisors, weighted_sum
from entropy_dynamics.core.token_stats import TokenStats, token_stats
from entropy_dynamics.errors import UserError
from entropy_dynamics.integrations.trl import make_grpo_trainer
from entropy_dynamics.methods import load_method

TEMPERATURE = 0.8


def reward(completions, **_):
    return [float(sum(map(ord, text)) % 2) for text in completions]


def trainer_of(kind, folder, *, steps=2, dropout=0.0, **settings):
    """A trainer from the same weights, prompts and seed each time."""
    characters = {character: number for number, character in enumerate(["<pad>", "<eos>", *"0123456789+="])}
    tokenizer = Tokenizer(models.WordLevel(characters, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape["attention_dropout"] = dropout
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(characters), **shape, initializer_range=0.3, eos_token_id=1, pad_token_id=0)
    )
    defaults = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 8}
    defaults |= {"max_completion_length": 12, "temperature": TEMPERATURE}
    defaults |= {"learning_rate": 1e-2, "lr_scheduler_type": "constant"}
    return kind(
        model=model,
        reward_funcs=reward,
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"),
        train_dataset=Dataset.from_dict({"prompt": [f"{a}+{b}=" for a in range(5) for b in range(5)]}),
        args=trl.GRPOConfig(
            str(folder), **(defaults | settings), max_steps=steps, use_cpu=True, report_to=[], logging_steps=1
        ),
    )


@pytest.fixture
def build(tmp_path):
    return lambda kind, **settings: trainer_of(kind, tmp_path, **settings)


def weights_of(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


@pytest.mark.parametrize(("loss_type", "dropout"), [("dapo", 0.1), ("grpo", 0.0), ("dr_grpo", 0.0)])
def test_with_the_method_off_training_is_the_same_bit_for_bit(build, loss_type, dropout):
    plain, off = (
        build(kind, steps=3, loss_type=loss_type, dropout=dropout)
        for kind in (trl.GRPOTrainer, make_grpo_trainer(trl.GRPOTrainer, method="grpo"))
    )
    torch.manual_seed(1)
    plain.train()
    torch.manual_seed(1)
    off.train()
    logs = [[entry["reward"] for entry in one.state.log_history[:-1]] for one in (plain, off)]
    assert any(logs[0])
    assert logs[0] == logs[1]
    assert torch.equal(weights_of(plain), weights_of(off))
    assert off.state.log_history[0]["entropy_control/clip_fraction"] == 0


class Recorded:
    """Keeps the whole batch before and after the weights, and the losses of the first optimizer step."""

    def _weight_tokens(self, output):
        before = {name: value.clone() for name, value in output.items()}
        self.start = [parameter.detach().clone() for parameter in self.model.parameters()]
        super()._weight_tokens(output)
        self.recorded, self.losses = (before, dict(output)), []

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self.losses.append(loss.detach())
        return loss


SCOPES = {"dapo": "global_token", "grpo": "per_sequence"}


@pytest.mark.parametrize(
    ("method", "denominator", "loss_type"),
    [("clip_b", "kept", "dapo"), ("clip_b", "kept", "grpo"), ("clip_b", "all", "grpo"), ("clip_v", "all", "dapo")],
)
def test_masks_and_loss_are_ours_on_the_same_rollouts(build, method, denominator, loss_type):
    params = {"mu": 0.5, "denominator": denominator} | ({"max_frac": None} if method == "clip_v" else {})
    kind = make_grpo_trainer(trl.GRPOTrainer, method=method, **params)
    trainer = build(type("Kind", (Recorded, kind), {}), steps=1, loss_type=loss_type)
    trainer.train()
    before, after = trainer.recorded

    with torch.no_grad():  # ours: the whole batch at once, from plain logits
        for parameter, start in zip(trainer.model.parameters(), trainer.start, strict=True):
            parameter.copy_(start)
        ids, attention = (
            torch.cat([before[f"prompt_{name}"], before[f"completion_{name}"]], 1) for name in ("ids", "mask")
        )
        length = before["completion_ids"].shape[1]
        logits = trainer.model(input_ids=ids, attention_mask=attention).logits[:, -length - 1 : -1]
        stats = token_stats(logits, before["completion_ids"], temperature=TEMPERATURE)
        mask = before["completion_mask"]
        advantages = before["advantages"][:, None].expand(mask.shape)
        weights = load_method(method, **params).token_weights(stats, advantages, mask)
        groups = torch.arange(len(mask)) // 8
        divisors = token_divisors(weights, mask, groups, scope=SCOPES[loss_type], denominator=denominator)
        loss = weighted_sum(clipped_loss(stats.logp, stats.logp, advantages, mask), weights / divisors)

    negative = (advantages < 0) & (mask > 0)
    assert 0 < (weights[negative] == 0).sum() < negative.sum()
    assert torch.equal(after["advantages"], advantages * weights)
    torch.testing.assert_close(sum(trainer.losses), loss, atol=1e-6, rtol=0)
    [logged] = [entry for entry in trainer.state.log_history if "entropy_control/clip_fraction" in entry]
    assert logged["entropy_control/clip_fraction"] == pytest.approx(float((weights[mask > 0] == 0).double().mean()))
    assert logged["entropy_control/entropy"] == pytest.approx(float(stats.entropy[mask > 0].mean()), abs=1e-6)
    sampled = pd.read_parquet(f"{trainer.args.output_dir}/samples/step0.parquet").set_index("row")
    assert list(sampled.index) == [0, 1, 2, 3, 8, 9, 10, 11]  # four of each prompt's eight
    for row, response in sampled.iterrows():
        of_row = mask[row] > 0
        assert response["token_id"].tolist() == before["completion_ids"][row][of_row].tolist()
        assert response["weight"].tolist() == weights[row][of_row].tolist()
        assert response["logp"] == pytest.approx(stats.logp[row][of_row].numpy(), abs=1e-5)
        assert response["advantage"].tolist() == advantages[row][of_row].tolist()
    assert ("tool_mask" in after) == (denominator == "kept" and loss_type == "grpo")  # it narrows TRL's own metrics


@pytest.mark.parametrize("method", ["clip_b", "clip_v"])
def test_a_share_is_dropped_from_the_first_step_on(build, method):
    counts = []

    class Counted(make_grpo_trainer(trl.GRPOTrainer, method=method, share=0.02)):
        def _weight_tokens(self, output):
            counts.append(int(output["completion_mask"].sum()))
            super()._weight_tokens(output)

    trainer = build(Counted, steps=3, per_device_train_batch_size=32)
    trainer.train()
    name = "entropy_control/clip_fraction"
    logged = [entry[name] for entry in trainer.state.log_history if name in entry]
    assert min(counts) >= 150
    assert logged == pytest.approx([int(0.02 * count) / count for count in counts])


def gradients(build, through, method, loss_type, **params):
    """The trainer after its first optimizer step, and the gradient of that step."""

    class Kept(make_grpo_trainer(trl.GRPOTrainer, method=method, through=through, **params)):
        def _clip_grad_norm(self, *arguments, **named):
            self.gradients = [parameter.grad.clone() for parameter in self.model.parameters()]
            return super()._clip_grad_norm(*arguments, **named)

    trainer = build(Kept, steps=1, loss_type=loss_type)
    torch.manual_seed(1)
    trainer.train()
    return trainer, torch.cat([gradient.flatten() for gradient in trainer.gradients])


@pytest.mark.parametrize(
    ("method", "params", "loss_type"),
    [
        *[("clip_b", {"mu": 0.5, "denominator": denominator}, "dapo") for denominator in ("kept", "all")],
        *[("clip_v", {"mu": 0.5, "max_frac": None}, loss_type) for loss_type in ("cispo", "grpo", "bnpo", "dr_grpo")],
        ("forking_tokens", {}, "dapo"),
        ("s_star_mask_neg_lt", {}, "dapo"),
    ],
)
def test_the_loss_mask_gives_the_gradient_of_weighted_advantages(build, method, params, loss_type):
    (by_mask, masked), (_, weighted) = (
        gradients(build, through, method, loss_type, **params) for through in ("loss_mask", "advantages")
    )
    _, plain = gradients(build, "loss_mask", "grpo", loss_type)
    torch.testing.assert_close(masked, weighted, atol=1e-7, rtol=1e-5)
    assert (weighted - plain).norm() > 0.05 * plain.norm()  # tokens were dropped
    assert by_mask.state.log_history[0]["entropy_control/clip_fraction"] > 0


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_a_batch_whose_responses_are_all_truncated_has_no_metrics_and_no_gradient(build, loss_type):
    trainer = build(
        make_grpo_trainer(trl.GRPOTrainer, method="clip_b"),
        steps=1,
        loss_type=loss_type,
        mask_truncated_completions=True,
        generation_kwargs={"suppress_tokens": [1]},
    )
    start = weights_of(trainer)
    trainer.train()
    [logged, _] = trainer.state.log_history
    assert logged["loss"] == 0
    assert not any(name.startswith("entropy_control/") for name in logged)
    assert torch.equal(weights_of(trainer), start)


def test_hidden_states_in_place_of_logits_are_one_clear_error(build, monkeypatch):
    """As Unsloth returns them."""
    trainer = build(make_grpo_trainer(trl.GRPOTrainer, method="clip_b"), steps=1)
    monkeypatch.setattr(trainer.model, "lm_head", torch.nn.Identity())
    monkeypatch.setattr(trl.GRPOTrainer, "_generate_and_score_completions", lambda self, inputs: inputs)
    ones = torch.ones(8, 3, dtype=torch.long)
    batch = {f"{part}_{name}": ones for part in ("prompt", "completion") for name in ("ids", "mask")}
    message = "the model's logits have 32 items, and its vocabulary 14: they may be hidden states"
    with pytest.raises(UserError, match=message):
        trainer._generate_and_score_completions(batch | {"advantages": torch.ones(8)})


def train_on_rank(rank, folder, port):
    """Write what this process's rows had before the weights and after them."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)

    class Kept(Recorded):
        def _token_stats(self, output):
            self.stats = super()._token_stats(output)
            return self.stats

    kind = type("Kind", (Kept, make_grpo_trainer(trl.GRPOTrainer, method="clip_b", mu=0.5)), {})
    trainer = trainer_of(kind, folder, steps=1, gradient_accumulation_steps=1)
    trainer.train()
    before, after = trainer.recorded
    columns = trainer.stats.columns() | {"mask": before["completion_mask"], "weighted": after["advantages"]}
    columns["advantages"] = before["advantages"][:, None].expand(before["completion_mask"].shape).clone()
    logged = trainer.state.log_history[0] if rank == 0 else {}
    torch.save((columns, int(after["num_items_in_batch"]), logged), f"{folder}/rank{rank}.pt")
    torch.distributed.destroy_process_group()
    os._exit(0)  # on a busy machine, Gloo's destructor and its thread can wait for each other and the GIL for ever


def test_two_processes_have_the_weights_of_their_common_batch(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(train_on_rank, (str(tmp_path), port), nprocs=2)
    ranks, kept, (logged, _) = zip(*(torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)), strict=True)
    width = max(columns["mask"].shape[1] for columns in ranks)
    padded = [
        {name: torch.nn.functional.pad(x, (0, width - x.shape[1])) for name, x in columns.items()} for columns in ranks
    ]
    whole = {name: torch.cat([columns[name] for columns in padded]) for name in padded[0]}
    method = load_method("clip_b", mu=0.5)

    def weights_from(batch):
        stats = TokenStats(*(batch[name] for name in ("logp", "entropy", "s_star", "s_expected")))
        return method.token_weights(stats, batch["advantages"], batch["mask"])

    weights = weights_from(whole)
    torch.testing.assert_close(whole["weighted"], whole["advantages"] * weights)
    assert kept == (int((weights > 0).sum()),) * 2
    dropped = (weights[whole["mask"] > 0] == 0).double().mean()
    assert logged["entropy_control/clip_fraction"] == pytest.approx(float(dropped))
    alone = torch.cat([weights_from(columns) for columns in padded])
    assert not torch.equal(weights, alone)  # the thresholds of one process's rows are others


def test_another_version_of_trl_gets_its_weights_through_the_loss_mask(monkeypatch):
    assert make_grpo_trainer(trl.GRPOTrainer, method="clip_b").through == "advantages"
    monkeypatch.setattr("entropy_dynamics.integrations.trl.version", lambda name: "1.17.0")
    assert make_grpo_trainer(trl.GRPOTrainer, method="clip_b").through == "loss_mask"
    assert make_grpo_trainer(trl.GRPOTrainer, method="steer", through="advantages").through == "advantages"


@pytest.mark.parametrize(
    ("method", "params", "loss_type", "message"),
    [
        ("advantage_reweighting", {}, "dapo", "AdvantageReweighting has weights other than 0 and 1"),
        ("clip_b", {"denominator": "all"}, "grpo", "loss_type='grpo' divides by the loss mask"),
    ],
)
def test_what_a_loss_mask_cannot_carry_is_one_clear_error(build, method, params, loss_type, message):
    trainer = build(
        make_grpo_trainer(trl.GRPOTrainer, method=method, through="loss_mask", **params), loss_type=loss_type
    )
    with pytest.raises(UserError, match=message):
        trainer.train()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "cispo"}, "cispo is more than token weights (it has its own token_loss), so TRL cannot run it"),
        ({"method": "clip_b", "through": "mask"}, "through is 'mask'; it should be one of advantages, loss_mask"),
    ],
)
def test_what_trl_cannot_run_is_one_clear_error(arguments, message):
    with pytest.raises(UserError) as error:
        make_grpo_trainer(trl.GRPOTrainer, **arguments)
    assert str(error.value) == message


def test_another_trainer_is_one_clear_error():
    with pytest.raises(UserError, match=r"SFTTrainer of trl [\d.]+ has no _generate_and_score_completions: it needs"):
        make_grpo_trainer(trl.SFTTrainer, method="clip_b")


def test_statistics_are_those_of_trls_kernel():
    """E[S] too: E[S] = sum p^2 (H + (log sum p^2 - H_2) / 2), where H_2 is the entropy at half the temperature."""
    kernel = pytest.importorskip("trl.kernels.chunked_logprob").ChunkedLogProbFunction
    torch.manual_seed(0)
    hidden, weight, tokens = torch.randn(40, 16), torch.randn(300, 16), torch.randint(300, (40,))
    logp, entropy, log_squares, *_ = kernel.apply(hidden, weight, None, tokens, TEMPERATURE, 128)
    _, entropy_2, *_ = kernel.apply(hidden, weight, None, tokens, TEMPERATURE / 2, 128)
    ours = token_stats(hidden, tokens, weight=weight, temperature=TEMPERATURE)
    expected = log_squares.exp() * (entropy + (log_squares - entropy_2) / 2)
    assert expected.max() > 10 * expected.min() > 0  # the distributions differ
    theirs = {"logp": logp, "entropy": entropy, "s_star": logp.exp() * (logp + entropy), "s_expected": expected}
    for name, values in theirs.items():
        torch.testing.assert_close(getattr(ours, name), values, atol=1e-5, rtol=1e-4)
