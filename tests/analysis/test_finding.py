"""From an interval to a verdict, its reason and its entry in claims.json."""

import numpy as np
import pytest

from entropy_dynamics.analysis.finding import VERDICTS, Finding
from entropy_dynamics.analysis.statistics import Interval
from entropy_dynamics.results.files import write_json
from single_claims import ENTROPY, SEED, finding, write_curve


@pytest.mark.parametrize(
    ("ends", "claimed", "verdict"),
    [
        ((0.1, 2), (0, np.inf), "holds"),
        ((0, 2), (0, np.inf), "inconclusive"),
        ((0, 2), (-np.inf, 0), "inconclusive"),
        ((0.1, 2), (-np.inf, 0), "does not hold"),
        ((-2, 0), (-np.inf, 0), "inconclusive"),
        ((-2, 0), (0, np.inf), "inconclusive"),
        ((-2, -0.1), (0, np.inf), "does not hold"),
        ((0.1, 2), (0, 1), "inconclusive"),
        ((-2, 0.1), (0, 1), "inconclusive"),
        ((0.1, 0.9), (0, 1), "holds"),
        ((2, 3), (0, 1), "does not hold"),
    ],
)
def test_an_interval_that_touches_the_threshold_decides_nothing(ends, claimed, verdict):
    assert Finding(Interval(sum(ends) / 2, *ends)).decide(*claimed).verdict == verdict
    assert verdict in VERDICTS


@pytest.mark.parametrize(
    ("interval", "reason"),
    [
        (Interval(0.0, seeds=5), "the runs do not differ at all, so the spread between them is unknown"),
        (Interval(0.0), "a data set has one problem, so the spread of problems is unknown"),
        (
            Interval(0.0, seeds=5, parts=(Interval(0.0), Interval(0.0, -1, 1, seeds=5))),
            "a data set has one problem, so the spread of problems is unknown",
        ),
    ],
)
def test_why_an_effect_has_no_interval(interval, reason):
    assert Finding(interval).decide(0, np.inf).reason == reason


def test_the_reason_names_two_obstacles_and_counts_the_rest():
    def reason(obstacles, missing):
        names = [f"{place}.parquet" for place in range(missing)]
        return Finding(obstacles=["a", "b", "c"][:obstacles], missing=names).decide(0, np.inf).reason

    assert [reason(2, 0), reason(3, 0)] == ["a; b", "a; b; and 1 more"]
    assert [reason(1, 1), reason(0, 2)] == ["0.parquet is missing; a", "0.parquet and 1 more files are missing"]


def test_an_entry_of_claims_json():
    """Six digits; null for what is unknown. Seeds that would detect an effect of 0.1 are more than a hundred."""
    unclear = Interval(1 / 3, -1.0, 2.0, spread=1.0, seeds=5, error=0.0)
    found = Finding(unclear, usable=[0, 2], by_seed=[1 / 3, 0.5]).decide(0, np.inf, 0.1)
    rest = {"detectable": 2.03647, "range": [0, None], "seeds": 2, "by_seed": {"0": 0.333333, "2": 0.5}}
    reason = "the interval includes the threshold; an effect of 0.1 takes more than 100 seeds"
    about = {"id": "a", "statement": "b", "place": "c", "verdict": "inconclusive", "unit": "nats"}
    effect = {"effect": 0.333333, "low": -1, "high": 2} | rest
    assert found.entry("a", "b", "c", unit="nats") == about | effect | {"seeds_needed": 101, "reason": reason}
    assert Finding(unclear, usable=[0]).decide(0, np.inf, 2.04).seeds_needed == 5
    without = Finding(unclear).decide(0, np.inf, 0.1).entry("a", "b", "c")
    assert (without["seeds"], without["by_seed"], without["seeds_needed"]) == (None, {}, None)
    assert Finding(usable=[0], obstacles=["a"]).decide(0, np.inf).entry("a", "b", "c")["by_seed"] == {}


def test_seeds_go_under_their_numbers_in_the_published_runs(tmp_path):
    write_curve(tmp_path, "grpo", entropy=0.3 + 0.01 * SEED)
    write_curve(tmp_path, "clip_b", entropy=0.6)
    write_json(tmp_path / "seeds.json", [0, 1, 50, 51, 2])
    assert finding(ENTROPY, tmp_path).usable == [0, 1, 50, 51, 2]
