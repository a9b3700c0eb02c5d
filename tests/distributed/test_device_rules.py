"""Everything that runs on a GPU, on an emulated device that refuses what PyTorch refuses there.

FSDP2 needs a process group with collectives on the device, and Triton kernels a real one: `pytest -m gpu` has both.
ENTROPY_DYNAMICS_NAN_SEEDS=1000-2500 chooses the seeds of the long search for a NaN.
"""

import math
import os

import pandas as pd
import pytest
import torch

from conftest import DISTINCT_METHODS, MODEL, SMALL, smallest_group
from emulated_device import DEVICE, DeviceError, DeviceTensor, emulated_device
from entropy_dynamics.config import load_config
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sampling.native import ReplicaSampler
from entropy_dynamics.stages.evaluate import evaluate
from entropy_dynamics.stages.model import prepare_model
from entropy_dynamics.stages.pass_rates import measure_pass_rates
from entropy_dynamics.stages.problems import build_problem_sets
from entropy_dynamics.stages.train import train
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.trainer import Trainer
from reference import SINGLE_FORWARD, timeless

pytestmark = pytest.mark.filterwarnings("ignore:no Triton kernels")  # which the code tries, as on CUDA
CLOSE = {"rel": 1e-4, "abs": 1e-6, "nan_ok": True}  # operators are cut into others than on the CPU
NAN_STEPS = 4  # of each seed


@pytest.fixture(autouse=True)
def device():
    torch.use_deterministic_algorithms(True, warn_only=True)  # memory that nothing was written to is NaN
    with emulated_device() as device:
        yield device
    torch.use_deterministic_algorithms(False)


# ---------------------------------------------------------------- The emulation refuses what PyTorch refuses
@pytest.mark.parametrize(
    "mixed",
    [
        lambda here, there: here + there,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: here @ there,
        lambda here, there: there.gather(0, torch.tensor(1)),
        lambda here, there: torch.searchsorted(there, torch.tensor(2.0)),
        lambda here, there: torch.nn.functional.embedding(torch.tensor(1), there[:, None]),
        lambda here, there: here.sum().add_(there.sum()),
        lambda here, there: here[torch.tensor([0, 1], device=DEVICE)],
        lambda here, there: there.index_put_((torch.tensor([0, 1]),), here[:2]),
        lambda here, there: here.index_put_((torch.tensor([0, 1], device=DEVICE),), here[:2]),
        lambda here, there: torch.multinomial(there.abs(), 1, generator=torch.Generator()),
        lambda here, there: torch.rand(3, generator=torch.Generator(DEVICE)),
        lambda here, there: there.numpy(),
        lambda here, there: there.long()[None] @ there.long()[:, None],
    ],
)
def test_mixed_devices_are_refused(mixed):
    with pytest.raises(DeviceError):
        mixed(torch.arange(4.0), torch.arange(4.0, device=DEVICE))


def test_what_pytorch_allows_is_computed_as_on_the_cpu():
    here, there = torch.arange(1.0, 5.0), torch.arange(1.0, 5.0).to(DEVICE).requires_grad_()
    assert there.device == DEVICE
    assert there[torch.tensor([0, 2])].tolist() == [1.0, 3.0]  # indices on the CPU
    loss = (there * torch.tensor(2.0)).log().sum() + there.prod().cpu().to(DEVICE)  # a CPU tensor without dimensions
    loss.backward()
    assert isinstance(there.grad, DeviceTensor)
    assert torch.allclose(there.grad.cpu(), 1 / here + 24 / here)
    drawn = torch.rand(3, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE)
    assert torch.equal(drawn.cpu(), torch.rand(3, generator=torch.Generator().manual_seed(1)))


# ---------------------------------------------------------------- Training
@pytest.mark.parametrize(
    ("name", "single_forward_tokens"),
    [
        *((name, 0) for name in DISTINCT_METHODS),
        *((name, SINGLE_FORWARD) for name in ("clip_b", "unlikeliness", "ppo_clip_b")),
    ],
)
def test_every_method_trains_on_the_device_as_on_the_cpu(trainer_on, make_model, name, single_forward_tokens):
    small = {"group_size": smallest_group(name), "max_new": 4}
    small["entropy_change_every"] = int(name == "clip_b")  # measured likewise whatever the method
    expected, trainer = (
        trainer_on(device, name, make_model(), single_forward_tokens=single_forward_tokens, **small)
        for device in (torch.device("cpu"), DEVICE)
    )
    row, on_cpu = trainer.step(0), expected.step(0)
    assert timeless(row) == pytest.approx(timeless(on_cpu), **CLOSE)
    assert row["zero_variance_groups"] < 1  # there is something to learn
    assert all(parameter.device == DEVICE for parameter in trainer.policy.model.parameters())


def test_the_defect_that_this_file_is_for_is_found(trainer_on, make_model, monkeypatch):
    """Lengths were on the CPU and rows on the device: 'indices should be either on cpu or on the same device'."""
    lengths = property(lambda batch: (batch.prompt_lengths + batch.response_lengths).cpu())
    monkeypatch.setattr(RolloutBatch, "lengths", lengths)
    with pytest.raises(DeviceError, match="indices should be either on cpu"):
        trainer_on(DEVICE, "clip_b", make_model()).step(0)


def test_bf16_and_an_engine_of_its_own(trainer_on, make_model, tokenizer):
    """Forward and backward passes in bf16, and pushes to a replica in bf16. Not FSDP2's casts around fp32 weights."""
    rows = []
    for device in (torch.device("cpu"), DEVICE):
        trainer = trainer_on(device, "clip_b", make_model().bfloat16(), group_size=2, max_new=4, entropy_change_every=0)
        replica = make_model(seed=7).to(device, torch.bfloat16)
        trainer.sampler = ReplicaSampler(replica, end_tokens=[tokenizer.eos_token_id], batch_size=64)
        trainer.sampler.weights_dtype, trainer.sampler.tolerance = torch.bfloat16, 0.05
        rows.append(trainer.step(0))
        assert {parameter.dtype for parameter in trainer.policy.parameters()} == {torch.bfloat16}
        assert all(parameter.device == device for parameter in replica.parameters())
    for name in ("entropy", "accuracy", "grad_norm"):
        assert rows[0][name] == pytest.approx(rows[1][name], rel=0.02), name


@pytest.mark.long
@pytest.mark.parametrize("place", [DEVICE, torch.device("cpu")], ids=str)
def test_no_seed_samples_a_nan_from_a_bf16_replica(trainer_on, make_model, tokenizer, place):
    """Fresh memory is NaN, so an element that is read before it is written shows in the engine's or trainer's log p.

    Both places, as attention is cut into other operators on the device, while the CPU's kernel has memory of its own.
    The seed chooses the weights, the problems, the rollouts, and one of 32 combinations of the settings below.
    """
    first, last = map(int, os.environ.get("ENTROPY_DYNAMICS_NAN_SEEDS", "0-32").split("-"))
    for seed in range(first, last):
        architecture, shape = ("qwen2", "qwen3")[seed % 2], {"layers": 1 + seed // 2 % 2, "heads": 2}
        trainer = trainer_on(
            place,
            "clip_v_paper",
            make_model(architecture, seed=seed, **shape),
            seed=seed,
            updates_per_batch=(1, 2)[seed // 4 % 2],
            max_new=(4, 8)[seed // 16 % 2],
            importance_truncation=2.0,
            group_size=4,
            entropy_change_every=0,
        )
        trainer.sampler = ReplicaSampler(
            make_model(architecture, **shape).to(place, torch.bfloat16),
            end_tokens=[tokenizer.eos_token_id],
            batch_size=(64, 8)[seed // 8 % 2],
        )
        trainer.sampler.weights_dtype, trainer.sampler.tolerance = torch.bfloat16, 1.0
        for step in range(NAN_STEPS):  # one with a NaN ends with a UserError
            row = trainer.step(step)
            assert math.isfinite(row["engine_logp_difference"]), (seed, step)
        print(f"{place}: seeds {first} to {seed}, {NAN_STEPS} steps each, without a NaN", flush=True)


# ---------------------------------------------------------------- Stages
def test_stages_run_on_the_device_and_a_run_resumes(tmp_path, monkeypatch, capsys):
    method = "ppo"  # whose critic is on the device and in its checkpoint, too
    settings = [*SMALL, "training.steps=2", "training.checkpoint_every=1"]
    config, layout, ranks = load_config("smoke", MODEL, method, settings), Layout(tmp_path), Ranks(device=DEVICE)
    build_problem_sets(config.data, layout.data)
    monkeypatch.setattr("entropy_dynamics.stages.model.device_of", lambda hardware: DEVICE)
    prepare_model(config, layout)
    rates = measure_pass_rates(config, layout, ranks=ranks)
    assert (rates["samples"] == 2).all()
    step = Trainer.step
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", lambda self, number: 1 / 0 if number else step(self, number))
        with pytest.raises(ZeroDivisionError):
            train(config, layout, method, 0, ranks)
    train(config, layout, method, 0, ranks)
    assert "resumes from the checkpoint after step 1" in capsys.readouterr().err
    assert len(pd.read_parquet(layout.metrics(MODEL, method, 0))) == 2
    for path in evaluate(config, layout, method, 0, ["aime24"], ranks):
        assert len(pd.read_parquet(path)) == 2 * 4
