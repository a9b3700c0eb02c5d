"""Tests that need a GPU: `pytest -m gpu`. Those of vLLM are in test_vllm_sampler.py."""

import json
import sys

import numpy as np
import pytest
import torch

from conftest import METHODS, ROOT, smallest_group, toy_model_config
from entropy_dynamics.distributed.launch import start_ranks
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.models.toy import build_toy_model
from entropy_dynamics.models.warm_start import solution_batches, warm_start

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]
CASES = ("scoring_pass", "updates", "ppo", "recomputed", "bfloat16", "checkpoint-save", "checkpoint-resume")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, make_model, tokenizer):
    """Cases of rank_program.py on one GPU under FSDP2, and the first three on one CPU rank."""
    root = tmp_path_factory.mktemp("ranks")
    save_policy(make_model("qwen3", layers=2), tokenizer, root / "tied" / "model")
    found = {}
    for device, cases in (("cuda", CASES), ("cpu", CASES[:3])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DEVICE", device)
            program = [sys.executable, str(ROOT / "tests" / "rank_program.py"), str(root)]
            start_ranks(1, [*program, *(f"tied/{case}" for case in cases)])
        found |= {(device, case): json.loads((root / "tied" / f"{case}-1.json").read_text()) for case in cases}
    return found


@pytest.mark.parametrize("case", CASES[:3])
def test_a_gpu_matches_a_cpu(outcomes, case):
    gpu, cpu = outcomes["cuda", case], outcomes["cpu", case]
    assert gpu["rollouts"][0] == cpu["rollouts"][0]
    assert np.array_equal(gpu["weights"][0], cpu["weights"][0])
    np.testing.assert_allclose(gpu["gradients"][0], cpu["gradients"][0], atol=1e-4)


def test_bfloat16_stays_near_and_keeps_fp32_master_weights(outcomes):
    rounded, exact = outcomes["cuda", "bfloat16"], outcomes["cuda", "recomputed"]
    assert np.corrcoef(rounded["gradients"][0], exact["gradients"][0])[0, 1] > 0.99
    values = torch.tensor(rounded["policy"]["model.layers.0.mlp.up_proj.weight"])
    assert not torch.equal(values, values.bfloat16().float())


def test_a_checkpoint_resumes_the_run(outcomes):
    saved, resumed = outcomes["cuda", "checkpoint-save"], outcomes["cuda", "checkpoint-resume"]
    for part in ("policy", "critic"):
        for name, values in saved[part].items():
            np.testing.assert_allclose(values, resumed[part][name], atol=1e-5)


def test_memory_is_within_a_fifth_of_the_plan(tmp_path):
    """A step of Qwen2.5-0.5B's shape with random weights and responses, without an engine."""
    case = {"scale": "gpu", "method": "clip_b", "overrides": ["training.entropy_change_every=0"]}
    program = [sys.executable, str(ROOT / "benchmarks" / "gpu_check_training.py")]
    start_ranks(1, [*program, json.dumps(case), str(tmp_path / "measured.json")])
    measured = json.loads((tmp_path / "measured.json").read_text())
    assert measured["peak_gib"] == pytest.approx(measured["planned"]["peak_gib"], rel=0.2), measured["planned"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_as_on_a_cpu(trainer_on, make_model, name):
    gpu, cpu = (
        trainer_on(torch.device(device), name, make_model(), group_size=smallest_group(name), max_new=4).step(0)
        for device in ("cuda", "cpu")
    )
    # Clip-Cov draws tokens with the generator of the device.
    same = (
        ("entropy", "accuracy", "s_star_mean") if name == "clip_cov" else [key for key in cpu if "seconds" not in key]
    )
    assert {key: gpu[key] for key in same} == pytest.approx(
        {key: cpu[key] for key in same}, rel=1e-3, abs=1e-5, nan_ok=True
    )


def test_a_warm_start_matches_that_of_a_cpu(tokenizer):
    losses = []
    for device in ("cuda", "cpu"):
        spec = toy_model_config(layers=2)
        settings = spec.warm_start.model_copy(update={"steps": 5, "batch_size": 4})
        model = build_toy_model(spec, tokenizer).to(device)
        batches = solution_batches(tokenizer, settings, seed=0, exclude=(), max_new_tokens=48)
        losses.append(warm_start(model, settings, batches, float))
    np.testing.assert_allclose(*losses, rtol=1e-4)
