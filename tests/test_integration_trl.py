"""TRL's own GRPOTrainer with our token weights, on a toy model: `make test-integrations`."""

import pandas as pd
import pytest
import torch

trl = pytest.importorskip("trl", reason="TRL is not installed here: `make test-integrations` runs these tests")

from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from entropy_dynamics.core.objective import clipped_loss, token_divisors, weighted_sum
from entropy_dynamics.core.token_stats import token_stats
from entropy_dynamics.errors import UserError
from entropy_dynamics.integrations.trl import make_grpo_trainer
from entropy_dynamics.methods import load_method

TEMPERATURE = 0.8


def reward(completions, **_):
    return [float(sum(map(ord, text)) % 2) for text in completions]


@pytest.fixture
def build(tmp_path):
    """A trainer from the same weights, prompts and seed each time."""

    def make(trainer, *, steps=2, **settings):
        characters = {character: number for number, character in enumerate(["<pad>", "<eos>", *"0123456789+="])}
        tokenizer = Tokenizer(models.WordLevel(characters, unk_token="<pad>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        torch.manual_seed(0)
        shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=len(characters), **shape, initializer_range=0.3, eos_token_id=1, pad_token_id=0)
        )
        defaults = {
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "num_generations": 8,
            "max_completion_length": 12,
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "temperature": TEMPERATURE,
        }
        return trainer(
            model=model,
            reward_funcs=reward,
            processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"),
            train_dataset=Dataset.from_dict({"prompt": [f"{a}+{b}=" for a in range(5) for b in range(5)]}),
            args=trl.GRPOConfig(
                str(tmp_path), **(defaults | settings), max_steps=steps, use_cpu=True, report_to=[], logging_steps=1
            ),
        )

    return make


def weights_of(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
def test_with_the_method_off_training_is_the_same_bit_for_bit(build, loss_type):
    plain, off = (
        build(kind, steps=3, loss_type=loss_type)
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


@pytest.mark.parametrize("loss_type", SCOPES)
@pytest.mark.parametrize("denominator", ["kept", "all"])
@pytest.mark.parametrize("method", ["clip_b", "clip_v"])
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
        ({"method": "clip_bb"}, "unknown method 'clip_bb'; did you mean 'clip_b'?"),
        ({"method": "cispo"}, "cispo is more than token weights (it has its own token_loss), so TRL cannot run it"),
        ({"method": "clip_b", "through": "mask"}, "through is 'mask'; it should be one of advantages, loss_mask"),
        ({"method": "clip_b", "clip_high": 0.3}, "clip_high belongs to the loss, which is TRL's: set it there"),
    ],
)
def test_what_trl_cannot_run_is_one_clear_error(arguments, message):
    with pytest.raises(UserError) as error:
        make_grpo_trainer(trl.GRPOTrainer, **arguments)
    assert str(error.value) == message


def test_another_trainer_is_one_clear_error():
    with pytest.raises(UserError, match=r"SFTTrainer of trl [\d.]+ has no _generate_and_score_completions: it needs"):
        make_grpo_trainer(trl.SFTTrainer, method="clip_b")
