"""bf16 in a plain process: autocast with fp32 master weights, near fp32, for trainer and native engine alike."""

import copy

import pytest
import torch

from entropy_dynamics.config import load_config
from entropy_dynamics.distributed.precision import precision_on
from entropy_dynamics.training.policy import Policy
from reference import batch_of, gradients

CPU = torch.device("cpu")
BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("flag", "expected"),
    [(None, "float32"), ("_is_avx512_bf16_supported", "bfloat16"), ("_is_amx_tile_supported", "bfloat16")],
)
def test_auto_is_what_the_processor_multiplies(monkeypatch, flag, expected):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name == flag)
    assert precision_on(CPU, "auto") == expected
    assert precision_on(CPU, "float32") == "float32"
    assert precision_on(CPU, "bfloat16") == "bfloat16"


@pytest.mark.parametrize("setting", ["precision=bfloat16", "precision=auto", "activation_checkpointing=full"])
def test_a_plain_process_takes_it(setting):
    config = load_config("laptop", "qwen2.5-7b-instruct", "grpo", [f"training.{setting}"])
    assert config.hardware.ranks is None


@pytest.mark.parametrize("share", [True, False])
def test_log_p_and_gradient_are_near_those_in_fp32(shared_model, make_trainer, share):
    batch = batch_of(make_trainer(shared_model))
    found = []
    for precision in (torch.float32, BF16):
        model = copy.deepcopy(shared_model)
        stats = Policy(model, precision=precision, share=share).stats(batch, torch.arange(len(batch)), 1.0)
        (stats.logp * torch.arange(1, len(batch) + 1)[:, None]).sum().backward()
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        found.append((stats.logp[batch.mask].detach(), gradients(model)))
    (exact, expected), (logp, gradient) = found
    assert 1e-5 < (logp - exact).abs().mean() < 0.02
    assert (logp - exact).abs().max() < 0.2
    assert 1e-5 < (gradient - expected).norm() / expected.norm() < 0.05


def test_the_engine_samples_from_the_policy_in_its_precision(shared_model, make_trainer):
    trainer = make_trainer(copy.deepcopy(shared_model))
    policy, trainer.sampler.returns_logp, differences = trainer.policy, True, {}
    for precision in (torch.float32, BF16):
        trainer.sampler.precision = precision
        batch = batch_of(trainer)
        for of_policy in (torch.float32, BF16):
            policy.precision = of_policy
            logp = policy.stats(batch, torch.arange(len(batch)), 1.0).logp
            difference = (logp - batch.engine_logp)[batch.mask].detach().abs().mean()
            differences[precision, of_policy] = float(difference)
    assert differences[torch.float32, torch.float32] < 1e-5
    assert differences[BF16, BF16] < 0.02
    assert differences[torch.float32, BF16] > 1e-4


def test_a_few_steps_take_the_curve_of_fp32(shared_model, make_trainer):
    """The rollouts are those of fp32, so that only the precision of the updates differs."""
    curves = []
    for precision in (torch.float32, BF16):
        trainer = make_trainer(copy.deepcopy(shared_model), "clip_b", params={"mu": 0.7}, learning_rate=3e-3, steps=4)
        source = make_trainer(copy.deepcopy(shared_model))
        trainer.sampler.model = source.policy.model
        trainer.policy.precision = precision
        curves.append([trainer.step(step)["entropy"] for step in range(4)])
    exact, rounded = torch.tensor(curves)
    assert (exact[-1] - exact[0]).abs() > 0.03  # the curve moves by more than the bound below
    difference = (exact - rounded).abs().max()
    assert 0 < difference < 0.01, difference
