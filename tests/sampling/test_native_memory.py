"""The KV cache of the native engine: its size is bounded, its results are not affected."""

import pytest
import torch

from conftest import MODEL
from entropy_dynamics.config import load_config
from entropy_dynamics.distributed import devices
from entropy_dynamics.distributed.devices import memory_bytes
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.planning.footprint import GIB, sampling_memory
from entropy_dynamics.sampling import native
from entropy_dynamics.sampling.native import NativeSampler, open_engine

HOW = {"samples": 5, "temperature": 1.0, "max_new_tokens": 12, "stream": "test"}


@pytest.fixture
def sampled(tokenizer, prompts, monkeypatch):
    """`sampled(model, ...)`: rollouts of a sampler, and of each of its batches the rows and the bytes of the cache."""

    def run(model, **options):
        batches = []
        original = NativeSampler._sample_batch

        def spy(self, requests, *rest):
            batches.append([sum(len(samples) for _, samples in requests), 0])
            return original(self, requests, *rest)

        class Counted(native.PreallocatedLayer):
            def lazy_initialization(self, keys, values):
                super().lazy_initialization(keys, values)
                size = 2 * self.max_rows * self.max_length * keys.shape[1] * keys.shape[3] * keys.element_size()
                batches[-1][1] += size

        with monkeypatch.context() as patched:
            patched.setattr(NativeSampler, "_sample_batch", spy)
            patched.setattr(native, "PreallocatedLayer", Counted)
            ends = {"end_tokens": [tokenizer.eos_token_id]}
            return NativeSampler(model, **ends, batch_size=64, **options).sample(prompts, **HOW), batches

    return run


@pytest.mark.parametrize("rows", [12, 3, 0.5])
def test_a_bounded_cache_gives_the_same_rollouts(make_model, sampled, prompts, rows):
    model = make_model(layers=2, heads=2, kv_heads=1)
    whole, batches = sampled(model)
    assert [size for size, _ in batches] == [60]
    row = (max(len(prompt.token_ids) for prompt in prompts) + HOW["max_new_tokens"]) * 2 * 2 * 32 * 4
    assert batches[0][1] == 60 * row
    bounded, batches = sampled(model, cache_bytes=rows * row)
    assert bounded == whole
    assert {size for size, _ in batches} == {12: {10}, 3: {3, 2}, 0.5: {1}}[rows]
    assert rows < 1 or all(size <= rows * row for _, size in batches)


def test_an_engine_takes_half_of_its_processs_memory(shared_model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "memory_bytes", lambda device: {"cpu": 1000, "cuda": 4000}[device.type])

    def bound(ranks, *overrides):
        config = load_config("smoke", MODEL, overrides=overrides)
        more = {"model": shared_model, "with_training": False}
        return open_engine(config, tmp_path, tokenizer, ranks=ranks, **more).cache_bytes

    assert bound(Ranks()) == 500
    four = ["hardware.ranks=4", "training.group_size=16"]
    assert bound(Ranks(size=4), *four) == 125
    assert bound(Ranks(size=4), *four, "hardware.nodes=2") == 250
    gpu = Ranks(device=torch.device("cuda"))
    assert bound(gpu, "hardware.device=cuda") == 2000
    assert bound(gpu, "hardware.device=cuda", "hardware.runs_per_gpu=4") == 500


def test_the_memory_of_a_cpu_is_that_of_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_CGROUPS", tmp_path)
    monkeypatch.setattr(devices, "_OWN_CGROUP", tmp_path / "own")
    machine = memory_bytes(torch.device("cpu"))
    assert machine > 2**28
    (tmp_path / "own").write_text("4:memory:/other\n0::/job/step\n")
    step = tmp_path / "job" / "step"
    step.mkdir(parents=True)
    (step / "memory.max").write_text("max\n")
    assert memory_bytes(torch.device("cpu")) == machine
    (step.parent / "memory.max").write_text("1048576\n")
    assert memory_bytes(torch.device("cpu")) == 2**20
    (step.parent / "memory.max").write_text(f"{machine * 2}\n")
    assert memory_bytes(torch.device("cpu")) == machine


def test_the_plan_knows_the_bound():
    def cache(*overrides):
        native_engine = ["engine.name=native", "engine.dtype=float32", "plan.gpu=A100", *overrides]
        config = load_config("gpu", MODEL, overrides=native_engine)
        return sampling_memory(config, trains=False)["KV cache"]

    full = 512 * 3072 * 2 * 24 * 2 * 64 * 4
    assert cache() == full > 30 * GIB
    small = "plan.gpus.A100.memory_gib=16"
    assert cache(small) == 8 * GIB
    assert cache(small, "hardware.runs_per_gpu=2") == 4 * GIB
    assert cache(small, "sampling.batch_size=1") == full / 512
