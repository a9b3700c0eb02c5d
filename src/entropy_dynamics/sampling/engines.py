"""Opens the configured engine, by `open_engine` of the module of that name in this folder."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entropy_dynamics.results.files import read_json
from entropy_dynamics.sampling import Prompt, Rollout, Sampler

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from entropy_dynamics.config.schema import StageConfig
    from entropy_dynamics.distributed.ranks import Ranks


@contextmanager
def open_sampler(
    config: "StageConfig",
    directory: Path,
    tokenizer: "PreTrainedTokenizerBase",
    ranks: "Ranks",
    *,
    model: "PreTrainedModel | None" = None,
    with_training: bool = False,
) -> Iterator[Sampler]:
    """Context manager: the configured engine with the policy in `directory`; one engine per rank.

    Args:
        model: the policy in training, from which the native engine samples instead of `directory`.
        with_training: weights will be pushed, and the engine frees the GPU for training between calls.

    Raises:
        UserError: the engine cannot serve this model here.
    """
    from entropy_dynamics.distributed.precision import PRECISIONS  # imports torch

    module = import_module(f"entropy_dynamics.sampling.{config.engine.name}")
    engine = module.open_engine(config, directory, tokenizer, ranks=ranks, model=model, with_training=with_training)
    try:
        sampler = engine if ranks.size == 1 else SharedSampler(engine, ranks)
        sampler.weights_dtype = PRECISIONS[config.engine.dtype]
        sampler.tolerance = config.engine.tolerance
        yield sampler
        ranks.barrier()  # shutdown may destroy the process group, so all ranks must have finished with it
    finally:
        engine.close()


class SharedSampler(Sampler):
    """The engines of all ranks: each samples a share of the prompts, and every rank gets all rollouts."""

    def __init__(self, engine: Sampler, ranks: "Ranks"):
        self.engine, self.ranks = engine, ranks

    def sample(self, prompts: Sequence[Prompt], **settings: Any) -> list[Rollout]:
        """See `Sampler.sample`."""
        share = self.ranks.share(prompts)
        rollouts = self.engine.sample(share, **settings) if share else []
        place = {prompt.problem_id: number for number, prompt in enumerate(prompts)}
        return sorted(_gathered(rollouts, self.ranks), key=lambda rollout: (place[rollout.problem_id], rollout.sample))

    def push(self, weights: Iterable[tuple[str, "Tensor"]]) -> None:
        """See `Sampler.push`."""
        self.engine.push(weights)

    def sleep(self) -> None:
        """See `Sampler.sleep`."""
        self.engine.sleep()


def _gathered(rollouts: Sequence[Rollout], ranks: "Ranks") -> Iterator[Rollout]:
    """The rollouts of all ranks. Tokens are sent as flat tensors, since JSON would take a second per batch."""
    import torch  # imported late, as the command line imports this module

    records = [(each.problem_id, each.sample, each.finish_reason, len(each.token_ids)) for each in rollouts]
    tokens = torch.tensor([token for rollout in rollouts for token in rollout.token_ids], dtype=torch.int32)
    logp = torch.tensor([value for rollout in rollouts for value in rollout.logp or ()], dtype=torch.float32)
    for share, *flat in zip(ranks.gather(records), ranks.gather_flat(tokens), ranks.gather_flat(logp), strict=True):
        ids, values, start = *(tensor.tolist() for tensor in flat), 0
        for problem_id, sample, reason, length in share:
            end = start + length
            yield Rollout(problem_id, sample, ids[start:end], reason, values[start:end] or None)
            start = end


def end_tokens(directory: Path, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The token ids that end a response: the tokenizer's end token and those in generation_config.json."""
    generation = directory / "generation_config.json"
    more = read_json(generation).get("eos_token_id") if generation.is_file() else None
    return sorted({tokenizer.eos_token_id, *(more if isinstance(more, list) else [more])} - {None})
