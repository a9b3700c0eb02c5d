"""The rollouts of a step as tensors, and their division into mini-batches and micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from entropy_dynamics.core.shapes import Groups, PerToken, Rows
from entropy_dynamics.models.tree import Tree
from entropy_dynamics.sampling import Prompt, Rollout

# Maximum padding in a micro-batch, as a fraction of its token limit. At the laptop scale, an additional micro-batch
# costs about as much.
PADDING = 1 / 16


@dataclass(frozen=True)
class RolloutBatch:
    """Right-padded rollouts. A sequence is a prompt followed by its response; `token` counts response tokens."""

    sequences: Int[Tensor, "batch length"]
    prompt_lengths: Int[Tensor, " batch"]
    response_lengths: Int[Tensor, " batch"]
    groups: Groups
    """Rollouts of one prompt share a number."""
    mask: Bool[Tensor, "batch token"]
    """True on response tokens."""
    copy_of: Int[Tensor, " batch"]
    """For each row, the first row with the same tokens: rollouts of a prompt may be identical."""
    engine_logp: PerToken | None = None
    """log p of the response tokens as computed by the engine, nats; None if it returns none."""
    top: Int[Tensor, "batch token top"] | None = None
    """Tokens whose log p under another policy the loss reads: those that the engine held most likely, or the whole
    vocabulary; None: not asked."""
    top_logq: Float[Tensor, "batch token top"] | None = None
    """Their log p under that policy, the engine's or the one before training, nats."""

    def is_sampled(self, rows: Rows) -> Bool[Tensor, "rows token top"] | None:
        """Which tokens of `top` are the rollout's own."""
        if self.top is None:
            return None
        place = self.prompt_lengths[rows, None] + torch.arange(self.mask.shape[1], device=rows.device)
        tokens = self.sequences[rows].gather(1, place.clamp_max(self.sequences.shape[1] - 1))
        return self.top[rows] == tokens[..., None]

    @classmethod
    def collate(cls, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> "RolloutBatch":
        """Pad and stack rollouts, each matched to its prompt by problem id. Padding is 0, as nothing attends to it."""
        number = {prompt.problem_id: group for group, prompt in enumerate(prompts)}
        groups = [number[rollout.problem_id] for rollout in rollouts]
        pairs = zip(groups, rollouts, strict=True)
        rows = [torch.tensor([*prompts[group].token_ids, *rollout.token_ids]) for group, rollout in pairs]
        response_lengths = torch.tensor([len(rollout.token_ids) for rollout in rollouts])
        first: dict[tuple[int, ...], int] = {}
        copy_of = [first.setdefault((group, *rollouts[row].token_ids), row) for row, group in enumerate(groups)]

        def padded(name: str, dtype: torch.dtype = torch.float32) -> Tensor | None:
            columns = [getattr(rollout, name) for rollout in rollouts]
            if any(column is None for column in columns):
                return None
            return pad_sequence([torch.tensor(column, dtype=dtype) for column in columns], batch_first=True)

        top = padded("top", torch.long)
        if top is not None:  # that of copies differs, if the engine adds noise
            copy_of = list(range(len(rollouts)))
        return cls(
            sequences=pad_sequence(rows, batch_first=True),
            prompt_lengths=torch.tensor([len(prompts[group].token_ids) for group in groups]),
            response_lengths=response_lengths,
            groups=torch.tensor(groups),
            mask=torch.arange(int(response_lengths.max())) < response_lengths[:, None],
            copy_of=torch.tensor(copy_of),
            engine_logp=padded("logp"),
            top=top,
            top_logq=padded("top_logp"),
        )

    def to(self, device: torch.device) -> "RolloutBatch":
        columns = {name: column.to(device) for name, column in vars(self).items() if column is not None}
        return RolloutBatch(**columns)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        """Length of every sequence without its padding."""
        return self.prompt_lengths + self.response_lengths

    def padded(self, rows: Rows) -> int:
        """Tokens of a forward pass over `rows` without their tree: identical rows run once, the others with padding."""
        return len(self.copy_of[rows].unique()) * int(self.lengths[rows].max())

    def mini_batches(self, count: int) -> list[Rows]:
        """The rows of each of `count` updates. Prompts are divided evenly; a group is never split."""
        groups = self.groups.unique().tensor_split(count)
        return [torch.isin(self.groups, chosen).nonzero().squeeze(-1) for chosen in groups]

    def tree(self, rows: Rows) -> Tree:
        """The prefixes of the sequences of `rows`."""
        return Tree.of(self.sequences[rows], self.lengths[rows])

    def subtrees(self, tokens: int, rows: Rows | None = None) -> list[Rows]:
        """Split `rows` (default: all) into micro-batches of at most `tokens` distinct prefixes.

        A longer sequence is a micro-batch by itself.
        """
        rows = torch.arange(len(self), device=self.groups.device) if rows is None else rows
        if len(rows) == 0:
            return []
        lengths = self.lengths[rows]
        ends = self.tree(rows).nodes.gather(1, lengths[:, None] - 1).squeeze(-1)  # sequences in depth-first order
        order = ends.argsort(stable=True)
        cuts, size, last = [], 0, -1
        for place, (end, length) in enumerate(zip(ends[order].tolist(), lengths[order].tolist(), strict=True)):
            size += end - last  # a prefix counts for the first of its sequences, and again in the next micro-batch
            if size > tokens and end > last and place:
                cuts.append(place)
                size = length
            last = end
        return list(rows[order].tensor_split(cuts))

    def micro_batches(self, tokens: int, rows: Rows | None = None, ranks: int = 1) -> list[Int[Tensor, " part"]]:
        """Split `rows` (default: all) into micro-batches of at most `tokens` tokens, padding included.

        Rows are sorted by length; identical rows count once, as the model runs them once. On one rank, a micro-batch
        ends early if the next, shorter rows would raise its padding above `PADDING`; a row longer than `tokens` is one
        by itself. The number of micro-batches is a multiple of `ranks`, a divisor of the number of rows, and any
        `ranks` consecutive ones cost about the same, so that they can be assigned round-robin.
        """
        rows = torch.arange(len(self), device=self.groups.device) if rows is None else rows
        lengths = self.lengths[rows].cpu()
        copy_of = self.copy_of[rows].cpu()
        order = copy_of.argsort(stable=True)
        order = order[lengths[order].argsort(descending=True, stable=True)]
        first = copy_of[order].diff(prepend=copy_of.new_tensor([-1])) != 0  # among its copies
        cuts, start, descending = [], 0, lengths[order]
        while start < len(rows):
            longest = int(descending[start])
            distinct = first[start:].cumsum(0) + int(not first[start])
            end = start + int(torch.searchsorted(distinct, max(1, tokens // longest), right=True))
            padding = ((longest - descending[start:end]) * first[start:end]).cumsum(0)
            if ranks == 1 and padding[-1] > tokens * PADDING:  # end before the first row that is too short
                length = descending[start + int(torch.searchsorted(padding, tokens * PADDING, right=True))]
                end = start + int((descending[start:end] > length).sum())
            cuts.append(order[start:end])
            start = end

        def padded(cut: Tensor) -> int:
            return len(copy_of[cut].unique()) * int(lengths[cut[0]])  # the first row is the longest

        while len(cuts) % ranks:
            largest = max(range(len(cuts)), key=lambda place: padded(cuts[place]) if len(cuts[place]) > 1 else 0)
            cuts[largest : largest + 1] = cuts[largest].tensor_split(2)
        if ranks > 1:
            cuts.sort(key=padded, reverse=True)
        return [rows[cut.to(rows.device)] for cut in cuts]
