"""The note about an untested version of vLLM, which needs no vLLM."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from entropy_dynamics.config import load_config
from entropy_dynamics.models.loading import save_policy
from entropy_dynamics.sampling.vllm import TESTED, VLLMSampler, _note_untested


class FakeLLM:
    def __init__(self, *_, **__):
        text = SimpleNamespace(tie_word_embeddings=True, num_hidden_layers=1)
        self.model_config = SimpleNamespace(hf_text_config=text)


@pytest.mark.parametrize(
    ("version", "notes"),
    [
        (TESTED[-1], 0),
        (f"{TESTED[-1]}+cpu", 0),
        ("0.99.0", 1),
        (f"{TESTED[-1]}rc1", 1),
        ("dev", 1),  # a build from source
    ],
)
def test_an_untested_version_is_noted_once(version, notes, shared_model, tokenizer, tmp_path, monkeypatch, capsys):
    vllm = ModuleType("vllm")
    vllm.LLM, vllm.__version__ = FakeLLM, version
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    _note_untested.cache_clear()
    save_policy(shared_model, tokenizer, tmp_path)
    for _ in range(2):
        VLLMSampler(tmp_path, config=load_config("rehearsal").engine, end_token=1, max_tokens=9, batch_size=1)
    line = f"note: vLLM is {version}; this adapter was tested with {', '.join(TESTED)}\n"
    assert capsys.readouterr().err == line * notes
