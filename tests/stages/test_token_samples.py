"""Which responses of a step are kept, and that each keeps its own tokens."""

from types import SimpleNamespace

import pandas as pd
import torch

from entropy_dynamics.results import token_samples
from entropy_dynamics.results.token_samples import STATISTICS, sampled_steps, write_token_samples


def test_the_first_the_middle_and_the_last_step():
    assert [sampled_steps(steps) for steps in (1, 2, 50)] == [{0}, {0, 1}, {0, 25, 49}]


def written(path, groups, lengths):
    """Every token's value is 100 times its row, and its place."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    values = 100 * torch.arange(len(groups))[:, None] + torch.arange(mask.shape[1])
    stats, same = SimpleNamespace(**dict.fromkeys(STATISTICS, values.float())), values.float()
    text, response = (lambda token: f"<{token}>"), (lambda row: {"row": row})
    write_token_samples(path, torch.tensor(groups), mask, values, stats, same, same, text, response)
    return pd.read_parquet(path)


def test_a_few_responses_of_a_few_prompts(tmp_path):
    groups = [prompt for prompt in range(20) for _ in range(6)]
    frame = written(tmp_path / "samples" / "step0.parquet", groups, [1 + row % 3 for row in range(120)])
    assert frame["row"].tolist() == [6 * prompt + sample for prompt in range(16) for sample in range(4)]
    assert frame["token"].iloc[5].tolist() == ["<700>", "<701>"]  # the seventh row's length is 1 + 7 % 3
    for name in ("token_id", *STATISTICS, "advantage", "weight"):
        assert [values.tolist() for values in frame[name][:3]] == [[0], [100, 101], [200, 201, 202]]


def test_long_responses_leave_room_for_fewer_prompts(tmp_path, monkeypatch):
    monkeypatch.setattr(token_samples, "TOKENS", 20)
    frame = written(tmp_path / "step0.parquet", [0, 0, 1, 1, 2, 2], [8, 8, 8, 8, 8, 8])
    assert frame["row"].tolist() == [0, 1, 2, 3]  # after the second prompt there are 32
