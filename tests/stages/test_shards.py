"""Interrupted samplings resume: shards are made once, for one config and one set of inputs."""

import pandas as pd
import pytest

from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.stages import shards as module
from entropy_dynamics.stages.shards import Shards
from entropy_dynamics.tasks import Grade
from fault_harness import truncate
from mistakes import mistake

PROMPTS = [Prompt(name, []) for name in "abcde"]
GRADES = [Grade(answer, True, True, True, False) for answer in ("7", None)]  # the type has to survive the file


class Engine:
    """Gives two responses per prompt, until it is interrupted in shard number `interrupted_in`."""

    def __init__(self, interrupted_in: int | None = None):
        self.interrupted_in, self.asked = interrupted_in, []

    def sample(self, part, **_) -> list[Rollout]:
        if len(self.asked) == self.interrupted_in:
            raise KeyboardInterrupt
        self.asked.append("".join(prompt.problem_id for prompt in part))
        return [Rollout(prompt.problem_id, sample, [1], "stop") for prompt in part for sample in range(2)]


def rows(shards, engine) -> pd.DataFrame:
    return shards.graded_samples(engine, PROMPTS, lambda rollout: GRADES[rollout.sample])


@pytest.fixture(autouse=True)
def two_at_a_time(monkeypatch):
    monkeypatch.setattr(module, "PROMPTS_HELD", 2)


def shards(root, made_from=1) -> Shards:
    return Shards(root / "evaluation", Ranks(), provenance([]) | {"config": made_from})


@pytest.fixture
def interrupted(tmp_path):
    """A folder with the first two of three shards."""
    with pytest.raises(KeyboardInterrupt):
        rows(shards(tmp_path), Engine(interrupted_in=2))
    return tmp_path


def test_only_the_missing_shard_is_made_and_the_rows_are_those_of_an_uninterrupted_call(interrupted, tmp_path):
    engine = Engine()
    found = rows(shards(interrupted), engine)
    assert engine.asked == ["e"]
    pd.testing.assert_frame_equal(found, rows(shards(tmp_path / "another"), Engine()))


@pytest.mark.parametrize(
    ("changed", "made"),
    [
        ("config", ["ab", "cd", "e"]),
        ("code", ["ab", "cd", "e"]),  # it may grade differently
        ("machine and commit", ["e"]),
        ("shard size", ["abc", "de"]),
    ],
)
def test_shards_are_reused_if_their_inputs_agree(interrupted, monkeypatch, changed, made):
    engine, record = Engine(), "entropy_dynamics.results.provenance"
    match changed:
        case "code":
            monkeypatch.setattr(f"{record}.code_hash", lambda: "another grader")
        case "machine and commit":
            monkeypatch.setattr(f"{record}.commit_of_code", lambda: "another")
            monkeypatch.setattr(f"{record}.hardware", lambda: "another")
        case "shard size":
            monkeypatch.setattr(module, "PROMPTS_HELD", 3)
    rows(shards(interrupted, made_from=2 if changed == "config" else 1), engine)
    assert engine.asked == made


def test_shards_are_deleted_once_the_result_is_written(interrupted):
    finished = shards(interrupted)
    rows(finished, Engine())
    finished.delete()
    finished.delete()
    assert list(interrupted.iterdir()) == []


def test_a_damaged_shard_is_one_line(interrupted):
    truncate(shards(interrupted).folder / "0-2.parquet")
    with mistake(match=r"0-2\.parquet is damaged \(.*\): delete it"):
        rows(shards(interrupted), Engine())
