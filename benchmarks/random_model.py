"""A model with random weights and an engine with random responses, for measurements of the trainer alone."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from entropy_dynamics.config.schema import ShapeConfig
from entropy_dynamics.models.loading import save_policy
from entropy_dynamics.models.toy_tokenizer import build_tokenizer
from entropy_dynamics.sampling import Prompt, Rollout, Sampler
from entropy_dynamics.tasks import Grade


def write_random_model(shape: ShapeConfig, directory: Path) -> None:
    """Random bf16 weights, generated and written one by one, and a tokenizer that nothing uses."""
    config = AutoConfig.for_model(
        shape.architecture,
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        tie_word_embeddings=shape.tied_embeddings,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    weights = (
        (name, torch.empty(one.shape, dtype=torch.bfloat16, device=device).normal_(0, 0.02, generator=generator))
        for name, one in model.named_parameters()
    )
    save_policy(model, build_tokenizer("bytes"), directory, weights)


class RandomResponses(Sampler):
    """In place of an engine: random responses of 1/8 of the limit to the limit, the same in every step."""

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary

    def lengths(self, responses: int, max_new_tokens: int) -> list[int]:
        """Of all responses, in order."""
        draw = torch.Generator().manual_seed(0)
        return torch.randint(max_new_tokens // 8, max_new_tokens + 1, (responses,), generator=draw).tolist()

    def sample(
        self, prompts: Sequence[Prompt], *, samples: int, temperature: float, max_new_tokens: int, stream: str
    ) -> list[Rollout]:
        """See `Sampler.sample`."""
        names = [(prompt.problem_id, sample) for prompt in prompts for sample in range(samples)]
        lengths = self.lengths(len(names), max_new_tokens)
        tokens = torch.randint(self.vocabulary, (sum(lengths),), generator=torch.Generator().manual_seed(1))
        pieces = tokens.split(lengths)
        return [Rollout(*name, own.tolist(), "length") for name, own in zip(names, pieces, strict=True)]

    def push(self, weights) -> None:
        """Gather the weights one by one, as an engine would take them."""
        for _ in weights:
            pass


def alternating(rollout: Rollout) -> Grade:
    """Every second response is correct."""
    correct = rollout.sample % 2 == 1
    return Grade(answer="1", correct=correct, answer_correct=correct, formatted=True, truncated=False)
