"""A model with random weights and an engine with random responses, for measurements of the trainer alone."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from entropy_dynamics.config import RunConfig
from entropy_dynamics.config.schema.model import ShapeConfig
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.models.toy import transformers_config
from entropy_dynamics.models.toy_tokenizer import build_tokenizer
from entropy_dynamics.sampling import Prompt, Rollout, Sampler
from entropy_dynamics.tasks import Grade
from entropy_dynamics.training.policy import Policy
from entropy_dynamics.training.trainer import Trainer


def write_random_model(shape: ShapeConfig, directory: Path) -> None:
    """Random bf16 weights, generated and written one by one, and a tokenizer that nothing uses."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(transformers_config(shape))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    weights = (
        (name, torch.empty(parameter.shape, dtype=torch.bfloat16, device=device).normal_(0, 0.02, generator=generator))
        for name, parameter in model.named_parameters()
    )
    save_policy(model, build_tokenizer("bytes"), directory, weights)


class RandomResponses(Sampler):
    """In place of an engine: random responses, the same in every step, of 1/`spread` of the limit to the limit."""

    def __init__(self, vocabulary: int, spread: int = 8):
        self.vocabulary, self.spread = vocabulary, spread

    def lengths(self, responses: int, max_new_tokens: int) -> list[int]:
        """Length of each response, in order."""
        draw = torch.Generator().manual_seed(0)
        return torch.randint(max_new_tokens // self.spread, max_new_tokens + 1, (responses,), generator=draw).tolist()

    def sample(
        self, prompts: Sequence[Prompt], *, samples: int, temperature: float, max_new_tokens: int, stream: str
    ) -> list[Rollout]:
        """See `Sampler.sample`."""
        names = [(prompt.problem_id, sample) for prompt in prompts for sample in range(samples)]
        lengths = self.lengths(len(names), max_new_tokens)
        tokens = torch.randint(self.vocabulary, (sum(lengths),), generator=torch.Generator().manual_seed(1))
        pieces = tokens.split(lengths)
        return [Rollout(*name, piece.tolist(), "length") for name, piece in zip(names, pieces, strict=True)]

    def push(self, weights) -> None:
        """Gather the weights one by one, as an engine would take them."""
        for _ in weights:
            pass


def make_prompts(count: int, tokens: int) -> list[Prompt]:
    return [Prompt(str(number), [number + 1] * tokens) for number in range(count)]


def make_random_trainer(
    config: RunConfig, policy: Policy, sampler: RandomResponses, prompt_tokens: int, ranks: Ranks | None = None
) -> Trainer:
    """A trainer of `policy` with responses from `sampler`, every second one of them correct."""
    return Trainer(
        config.training,
        policy=policy,
        method=config.method.build(),
        sampler=sampler,
        grade=_alternating,
        prompts=make_prompts(config.training.prompts_per_step, prompt_tokens),
        temperature=1.0,
        max_new_tokens=config.sampling.max_new_tokens,
        seed=0,
        ranks=ranks,
    )


def _alternating(rollout: Rollout) -> Grade:
    correct = rollout.sample % 2 == 1
    return Grade(answer="1", correct=correct, answer_correct=correct, formatted=True, truncated=False)
