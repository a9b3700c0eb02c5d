"""An engine of vLLM that only records its calls."""

from types import SimpleNamespace

import torch


class FakeLLM:
    def __init__(self, *_, **__):
        text = SimpleNamespace(tie_word_embeddings=True, num_hidden_layers=1)
        self.model_config = SimpleNamespace(hf_text_config=text, dtype=torch.float32)
        self.calls = []

    def sleep(self, level):
        self.calls.append(("sleep", level))

    def wake_up(self, tags):
        self.calls.append(("wake_up", *tags))

    def collective_rpc(self, name, kwargs):
        self.calls.append((name, *(name for name, _ in kwargs["weights_iterator"])))

    def apply_model(self, _):
        return [torch.empty(0)]

    def reset_prefix_cache(self):
        self.calls.append(("reset_prefix_cache",))
        return True

    def generate(self, requests, settings, **_):
        self.calls.append(("generate", len(requests)))
        self.settings = settings
        logprobs = SimpleNamespace(logprobs=[-0.5])
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1], finish_reason="stop", logprobs=logprobs)])]
