"""A step's rollouts as tensors, and how they are cut into micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from entropy_dynamics.sampling import Prompt, Rollout


@dataclass(frozen=True)
class RolloutBatch:
    """B rollouts. Response tensors are [B, T], T the longest response; sequences are prompt, then response."""

    sequences_BL: Tensor  # int64, right-padded
    prompt_lengths_B: Tensor
    response_lengths_B: Tensor
    groups_B: Tensor  # rollouts of one prompt share a number
    mask_BT: Tensor  # bool, true on response tokens
    engine_logp_BT: Tensor | None = None  # log p of the response tokens as the engine computed them, where it does

    @classmethod
    def collate(cls, prompts: Sequence[Prompt], rollouts: Sequence[Rollout], pad_token: int) -> "RolloutBatch":
        """Put the rollouts of `prompts` (each known by its problem id) side by side."""
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
            sequences_BL=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_token),
            prompt_lengths_B=torch.tensor([len(prompts[group].token_ids) for group in groups]),
            response_lengths_B=response_lengths,
            groups_B=torch.tensor(groups),
            mask_BT=torch.arange(int(response_lengths.max())) < response_lengths[:, None],
            engine_logp_BT=engine_logp,
        )

    def to(self, device: torch.device) -> "RolloutBatch":
        columns = (getattr(self, name) for name in self.__dataclass_fields__)
        return RolloutBatch(*(None if column is None else column.to(device) for column in columns))

    def __len__(self) -> int:
        return len(self.sequences_BL)

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of every row without its padding."""
        return self.prompt_lengths_B + self.response_lengths_B

    def micro_batches(self, tokens: int, rows: Tensor | None = None, ranks: int = 1) -> list[Tensor]:
        """Cut `rows` (all by default) into micro-batches of at most `tokens` tokens, padding counted.

        Rows are sorted by length, so a micro-batch holds little padding; a single longer row is one by itself. The
        number of micro-batches is a multiple of `ranks`, and `ranks` that follow each other cost about the same: dealt
        out in turn, every rank makes as many forward passes as any other, of like sizes.

        Raises ValueError if the number of rows is not a multiple of `ranks`.
        """
        rows = torch.arange(len(self)) if rows is None else rows
        if len(rows) % ranks:
            raise ValueError(f"{len(rows)} rows cannot be dealt to {ranks} ranks evenly")
        lengths = self.lengths_B.cpu()[rows]
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
        return [rows[cut] for cut in cuts]
