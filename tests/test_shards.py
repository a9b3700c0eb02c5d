"""Long samplings that were ended go on where they were: parts are made once, of one config and one set of inputs."""

import pandas as pd
import pytest

from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.sampling import Prompt
from entropy_dynamics.sampling import shards as module
from entropy_dynamics.sampling.shards import Shards

PROMPTS = [Prompt(name, []) for name in "abcde"]


class Machine:
    """Makes two rows a prompt, until it goes in the part number `goes_in`."""

    def __init__(self, goes_in: int | None = None):
        self.goes_in, self.asked = goes_in, []

    def __call__(self, part) -> pd.DataFrame:
        if len(self.asked) == self.goes_in:
            raise KeyboardInterrupt
        self.asked.append("".join(prompt.problem_id for prompt in part))
        ids = [prompt.problem_id for prompt in part for _ in range(2)]
        answers = pd.array([7, None] * len(part), dtype="Int64")  # types that have to come back as they were
        return pd.DataFrame({"problem_id": ids, "answer": answers, "response": ["7", None] * len(part)})


@pytest.fixture(autouse=True)
def two_at_a_time(monkeypatch):
    monkeypatch.setattr(module, "PROMPTS_HELD", 2)


def shards(root, made_from=1) -> Shards:
    return Shards(root / "evaluation", Ranks(), provenance([]) | {"config": made_from})


@pytest.fixture
def ended(tmp_path):
    """A folder in which the first two of three parts were made."""
    with pytest.raises(KeyboardInterrupt):
        shards(tmp_path).rows(PROMPTS, Machine(goes_in=2))
    return tmp_path


def test_only_the_missing_part_is_made_and_the_rows_are_those_of_one_go(ended):
    machine = Machine()
    found = shards(ended).rows(PROMPTS, machine)
    assert machine.asked == ["e"]
    pd.testing.assert_frame_equal(found, Machine()(PROMPTS))


def test_parts_of_something_else_are_not_taken(ended):
    machine = Machine()
    shards(ended, made_from=2).rows(PROMPTS, machine)
    assert machine.asked == ["ab", "cd", "e"]


def test_parts_that_other_code_graded_are_not_taken(ended, monkeypatch):
    monkeypatch.setattr("entropy_dynamics.results.provenance._code_hash", lambda: "another grader")
    machine = Machine()
    shards(ended).rows(PROMPTS, machine)
    assert machine.asked == ["ab", "cd", "e"]


def test_parts_of_another_machine_and_commit_are_taken(ended, monkeypatch):
    for name in ("commit_of_code", "hardware"):
        monkeypatch.setattr(f"entropy_dynamics.results.provenance.{name}", lambda: "another")
    machine = Machine()
    shards(ended).rows(PROMPTS, machine)
    assert machine.asked == ["e"]


def test_parts_cut_otherwise_are_not_taken(ended, monkeypatch):
    monkeypatch.setattr(module, "PROMPTS_HELD", 3)
    machine = Machine()
    shards(ended).rows(PROMPTS, machine)
    assert machine.asked == ["abc", "de"]


def test_they_go_once_the_result_is_there(ended):
    one = shards(ended)
    one.rows(PROMPTS, Machine())
    one.delete()
    assert list(ended.iterdir()) == []


def cut(content: bytes) -> bytes:
    return content[:50]


def flip_a_bit_of_the_data(content: bytes) -> bytes:
    return content[:30] + bytes([content[30] ^ 1]) + content[31:]


@pytest.mark.parametrize("damage", [cut, flip_a_bit_of_the_data])
def test_a_damaged_part_is_one_line(ended, damage):
    file = shards(ended).folder / "0-2.parquet"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=r"0-2\.parquet is damaged \(.*\): delete it") as caught:
        shards(ended).rows(PROMPTS, Machine())
    assert "\n" not in str(caught.value)
