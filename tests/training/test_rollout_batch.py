"""Rollouts as one padded batch, and how it is cut into micro-batches."""

import itertools

import pytest
import torch

from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.training import batch as batch_module
from entropy_dynamics.training.batch import RolloutBatch
from reference import batch_of


def test_hand_worked_collation(monkeypatch):
    prompts = [Prompt("b", [7, 8, 9]), Prompt("a", [5])]
    rollouts = [Rollout("b", 0, [1, 2], "stop"), Rollout("a", 0, [3], "length"), Rollout("b", 1, [4, 4, 4], "stop")]
    batch = RolloutBatch.collate(prompts, rollouts)
    assert batch.sequences.tolist() == [[7, 8, 9, 1, 2, 0], [5, 3, 0, 0, 0, 0], [7, 8, 9, 4, 4, 4]]
    assert batch.prompt_lengths.tolist() == [3, 1, 3]
    assert batch.response_lengths.tolist() == [2, 1, 3]
    assert batch.lengths.tolist() == [5, 2, 6]
    assert batch.groups.tolist() == [0, 1, 0]
    assert batch.mask.tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert batch.copy_of.tolist() == [0, 1, 2]
    monkeypatch.setattr(batch_module, "PADDING", 1)
    assert [rows.tolist() for rows in batch.micro_batches(12)] == [[2, 0], [1]]
    assert [rows.tolist() for rows in batch.micro_batches(11)] == [[2], [0, 1]]
    assert [rows.tolist() for rows in batch.micro_batches(1)] == [[2], [0], [1]]
    assert [rows.tolist() for rows in batch.micro_batches(100, torch.tensor([1, 2]))] == [[2, 1]]
    assert [rows.tolist() for rows in batch.subtrees(8)] == [[1, 0], [2]]  # 2 + 5 prefixes, and 6
    assert [rows.tolist() for rows in batch.subtrees(10)] == [[1, 0, 2]]  # the prompt [7, 8, 9] counts once
    assert [rows.tolist() for rows in batch.subtrees(1, torch.tensor([2, 0]))] == [[0], [2]]
    assert batch.subtrees(9, torch.arange(0)) == []


def test_hand_worked_micro_batches_of_copies_and_with_little_padding(monkeypatch):
    prompts = [Prompt("a", [5]), Prompt("b", [5])]
    responses = {"a": [[1, 2, 3], [1], [1, 2, 3], [2]], "b": [[1, 2, 3], [1, 2, 4], [1, 2, 3]]}
    rollouts = [Rollout(name, 0, ids, "stop") for name, listed in responses.items() for ids in listed]
    batch = RolloutBatch.collate(prompts, rollouts)
    assert batch.copy_of.tolist() == [0, 1, 0, 3, 4, 5, 4]

    def cut(tokens, padding, **options):
        monkeypatch.setattr(batch_module, "PADDING", padding)
        return [rows.tolist() for rows in batch.micro_batches(tokens, **options)]

    assert cut(20, 1) == [[0, 2, 4, 6, 5, 1, 3]]  # five different rows of four tokens
    assert cut(19, 1) == [[0, 2, 4, 6, 5, 1], [3]]
    assert cut(8, 1) == [[0, 2, 4, 6], [5, 1], [3]]
    assert cut(20, 3 / 20) == [[0, 2, 4, 6, 5], [1, 3]]  # the two short rows would be padded by four tokens
    assert cut(20, 4 / 20) == [[0, 2, 4, 6, 5, 1, 3]]
    assert cut(16, 1, rows=torch.tensor([1, 2, 0, 3]), ranks=2) == [[2, 0], [1, 3]]


@pytest.mark.parametrize("tokens", [1, 100, 10_000])
def test_micro_batches_cover_all_rows_once_within_the_limit(shared_model, make_trainer, tokens):
    batch = batch_of(make_trainer(shared_model))
    rows = torch.tensor([0, 2, 3, 5, 7, 11, 13, 17, 19])
    for chosen, kind in itertools.product((None, rows), ("micro_batches", "subtrees")):
        cuts = getattr(batch, kind)(tokens, chosen)
        assert sorted(torch.cat(cuts).tolist()) == (list(range(len(batch))) if chosen is None else rows.tolist())
        for cut in cuts:
            ends = [(row, end) for row in cut.tolist() for end in range(1, int(batch.lengths[row]) + 1)]
            prefixes = {tuple(batch.sequences[row, :end].tolist()) for row, end in ends}
            size = len(prefixes) if kind == "subtrees" else len(cut) * int(batch.lengths[cut].max())
            assert len(cut) == 1 or size <= tokens
