"""The adapter of vLLM around an engine that only records its calls, which needs no vLLM."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from entropy_dynamics.config import load_config
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.sampling import Prompt
from entropy_dynamics.sampling.vllm import VLLMSampler
from fake_vllm import FakeLLM


@pytest.fixture
def start(shared_model, tokenizer, tmp_path, monkeypatch):
    """`start()`: a sampler on a fake vLLM."""
    save_policy(shared_model, tokenizer, tmp_path)

    def make():
        vllm = ModuleType("vllm")
        vllm.LLM, vllm.SamplingParams = FakeLLM, SimpleNamespace
        monkeypatch.setitem(sys.modules, "vllm", vllm)
        return VLLMSampler(tmp_path, config=load_config("rehearsal").engine, end_tokens=[1], max_tokens=9, batch_size=1)

    return make


def test_after_a_sleep_nothing_is_sampled_before_a_push(start):
    """A sleep drops the weights and the cache; the cache is back only after the weights have arrived."""
    sampler = start()
    sampler.sleeps = True  # as on a GPU
    engine, how = sampler._llm, {"samples": 1, "temperature": 1.0, "max_new_tokens": 2, "stream": "test"}
    sampler.sleep()
    sampler.sleep()
    with pytest.raises(RuntimeError, match="after a sleep without a push"):
        sampler.sample([Prompt("p", [3])], **how)
    assert engine.calls == [("sleep", 2)]
    sampler.push([("model.embed_tokens.weight", torch.zeros(2, 2))])
    (rollout,) = sampler.sample([Prompt("p", [3])], **how)
    assert (rollout.token_ids, rollout.logp) == ([1], [-0.5])
    assert engine.calls[1:] == [
        ("wake_up", "weights"),
        ("reload_weights", "model.embed_tokens.weight", "lm_head.weight"),
        ("reset_prefix_cache",),
        ("wake_up", "kv_cache"),
        ("generate", 1),
    ]
