"""Long samplings that were ended go on where they were: parts are made once, of one config and one set of inputs."""

import pandas as pd
import pytest

from entropy_dynamics.errors import UserError
from entropy_dynamics.ranks import Ranks
from entropy_dynamics.shards import Shards


def frame(number: int) -> pd.DataFrame:
    """Types that have to come back as they were: a missing integer, a missing text."""
    answers = pd.array([number, None], dtype="Int64")
    return pd.DataFrame({"problem_id": ["a", "b"], "answer": answers, "response": ["7", None]})


def no_more():
    raise AssertionError("made again")


def shards(root, made_from=1) -> Shards:
    return Shards(root / "evaluation", Ranks(), {"config": made_from})


def test_a_part_is_made_once_and_comes_back_as_it_was(tmp_path):
    first = shards(tmp_path)
    made = [first.rows(number, lambda number=number: frame(number)) for number in range(2)]
    again = shards(tmp_path)
    for number in range(2):
        pd.testing.assert_frame_equal(again.rows(number, no_more), made[number])
    pd.testing.assert_frame_equal(again.rows(2, lambda: frame(2)), frame(2))


def test_parts_of_something_else_are_not_taken(tmp_path):
    shards(tmp_path, made_from=1).rows(0, lambda: frame(0))
    other = shards(tmp_path, made_from=2).rows(0, lambda: frame(5))
    assert other["answer"][0] == 5


def test_they_go_once_the_result_is_there(tmp_path):
    one = shards(tmp_path)
    one.rows(0, lambda: frame(0))
    one.delete()
    assert list(tmp_path.iterdir()) == []
    assert shards(tmp_path).rows(0, lambda: frame(3))["answer"][0] == 3


def test_a_damaged_part_is_one_line(tmp_path):
    one = shards(tmp_path)
    one.rows(0, lambda: frame(0))
    [file] = one.folder.iterdir()
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(UserError, match=r"0\.parquet is damaged \(.*\): delete it") as caught:
        shards(tmp_path).rows(0, no_more)
    assert "\n" not in str(caught.value)
