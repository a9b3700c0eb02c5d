"""The rollouts of one step as tensors, and their division into mini-batches and micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from entropy_dynamics.core.shapes import Groups, PerToken, Rows
from entropy_dynamics.sampling import Prompt, Rollout


@dataclass(frozen=True)
class RolloutBatch:
    """Rollouts, right-padded: a sequence is a prompt followed by its response; `token` counts response tokens."""

    sequences: Int[Tensor, "batch length"]
    prompt_lengths: Int[Tensor, " batch"]
    response_lengths: Int[Tensor, " batch"]
    groups: Groups
    """Rollouts of one prompt share a number."""
    mask: Bool[Tensor, "batch token"]
    """True on response tokens."""
    engine_logp: PerToken | None = None
    """log p of the response tokens as the engine computed them, if it does."""

    @classmethod
    def collate(cls, prompts: Sequence[Prompt], rollouts: Sequence[Rollout], pad_token: int) -> "RolloutBatch":
        """Pad and stack the rollouts of `prompts`, which are matched by problem id."""
        number = {prompt.problem_id: group for group, prompt in enumerate(prompts)}
        groups = [number[rollout.problem_id] for rollout in rollouts]
        rows = [
            torch.tensor([*prompts[group].token_ids, *rollout.token_ids])
            for group, rollout in zip(groups, rollouts, strict=True)
        ]
        response_lengths = torch.tensor([len(rollout.token_ids) for rollout in rollouts])
        engine_logp = None
        if all(rollout.logp is not None for rollout in rollouts):
            engine_logp = torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(rollout.logp, dtype=torch.float32) for rollout in rollouts], batch_first=True
            )
        return cls(
            sequences=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_token),
            prompt_lengths=torch.tensor([len(prompts[group].token_ids) for group in groups]),
            response_lengths=response_lengths,
            groups=torch.tensor(groups),
            mask=torch.arange(int(response_lengths.max())) < response_lengths[:, None],
            engine_logp=engine_logp,
        )

    def to(self, device: torch.device) -> "RolloutBatch":
        columns = (getattr(self, name) for name in self.__dataclass_fields__)
        return RolloutBatch(*(None if column is None else column.to(device) for column in columns))

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        """Length of every sequence without its padding."""
        return self.prompt_lengths + self.response_lengths

    def mini_batches(self, count: int) -> list[Rows]:
        """The rows of `count` updates, which share the prompts evenly."""
        groups = self.groups.unique().tensor_split(count)
        return [torch.isin(self.groups, chosen).nonzero().squeeze(-1) for chosen in groups]

    def micro_batches(
        self, tokens: int, rows: Rows | None = None, ranks: int = 1, *, prompts: bool = True
    ) -> list[Int[Tensor, " part"]]:
        """Cut `rows` (default: all) into micro-batches of at most `tokens` tokens, padding included.

        Without `prompts` these are tokens of responses only: for a model that runs a prompt once for all its responses.

        Rows are sorted by length, so a micro-batch holds little padding; a row longer than `tokens` is a micro-batch
        by itself. The number of micro-batches is a multiple of `ranks`, and any `ranks` consecutive ones cost about
        the same: assigned round-robin, every rank makes the same number of forward passes, of similar sizes.

        Raises:
            ValueError: the number of rows is not a multiple of `ranks`.
        """
        rows = torch.arange(len(self), device=self.groups.device) if rows is None else rows
        if len(rows) % ranks:
            raise ValueError(f"{len(rows)} rows cannot be divided evenly among {ranks} ranks")
        lengths = (self.lengths if prompts else self.response_lengths)[rows].cpu()
        order = lengths.argsort(descending=True, stable=True)
        cuts, start = [], 0
        while start < len(rows):
            count = max(1, tokens // int(lengths[order[start]]))
            cuts.append(order[start : start + count])
            start += count

        def padded(cut: Tensor) -> int:
            return len(cut) * int(lengths[cut[0]])  # a cut begins with its longest row

        while len(cuts) % ranks:
            largest = max(range(len(cuts)), key=lambda place: padded(cuts[place]) if len(cuts[place]) > 1 else 0)
            cuts[largest : largest + 1] = cuts[largest].tensor_split(2)
        if ranks > 1:
            cuts.sort(key=padded, reverse=True)
        return [rows[cut.to(rows.device)] for cut in cuts]
