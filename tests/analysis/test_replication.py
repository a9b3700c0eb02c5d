"""Comparing two complete runs."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from command_line import error
from conftest import ROOT
from entropy_dynamics.analysis.replication import Replicate
from entropy_dynamics.analysis.statistics import Interval, seed_interval
from entropy_dynamics.cli import main


def claim(id: str, verdict: str, effect: float | None, low: float | None = None, high: float | None = None) -> dict:
    about = {"id": id, "label": id, "subject": "this run", "seeds": 5}
    return about | {"verdict": verdict, "effect": effect, "low": low, "high": high}


@pytest.fixture
def compare(tmp_path, capsys):
    def call(first: list[dict], second: list[dict]) -> tuple[int, str, dict[str, list[str]]]:
        (tmp_path / "run").mkdir()
        files = tmp_path / "run" / "claims.json", tmp_path / "second.json"
        for file, entries in zip(files, (first, second), strict=True):
            file.write_text(json.dumps(entries))
        code = main(["compare", str(tmp_path / "run"), str(files[1]), "--table"])
        out, err = capsys.readouterr()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line[:1] == "|"]
        return code, out.partition("\n\n")[0] + err, {row[0]: row[1:] for row in rows[2:]}

    return call


def test_differences_and_their_intervals_by_hand(compare):
    """3-4-5: half-widths of 3 and 4 make one of 5; ends that are not symmetric combine crosswise."""
    first = [claim("same", "holds", 10, 7, 13), claim("apart", "holds", 10, 7, 13), claim("skewed", "holds", 1, 0, 4)]
    second = [
        claim("same", "inconclusive", 14, 10, 18),
        claim("apart", "does not hold", 15.5, 11.5, 19.5),
        claim("skewed", "holds", 2, -2, 14),
    ]
    code, summary, rows = compare(first, second)
    assert code == 0
    assert rows["same"] == ["**holds**", "**inconclusive**", "10 [7, 13]", "14 [10, 18]", "4 [-1, 9]", "–", "yes"]
    assert rows["apart"][-3:] == ["5.5 [0.5, 10.5]", "–", "**no**"]
    assert rows["skewed"][-3:] == ["1 [-4, 13]", "–", "yes"]
    assert summary.splitlines() == [
        "Effects:  2 of 3 (67%) agree: the 95% interval of their difference includes zero; expected: about 97%",
        "Power:    90% for a difference of unknown size; 0 of 0 would agree had the second run found the threshold, "
        "0 of 0 had it found the opposite sign",
        "Verdicts: 2 of 3 changed, 1 of them reversed; expected by chance: unknown, as a file has no ranges",
        "Differ:   same (holds → inconclusive), apart (holds → does not hold)",
    ]


@pytest.mark.parametrize("claimed", [(0.0, np.inf), (-np.inf, 1.0), (-1.0, 2.0)])
def test_the_chance_that_a_verdict_changes_is_what_runs_drawn_again_show(claimed):
    """Two runs of one true effect, with intervals of fixed width, drawn many times."""
    (low, high), widths = claimed, ((0.8, 1.2), (1.0, 0.6))
    effects = [
        Interval(value, value - below, value + above) for value, (below, above) in zip((0.9, 0.7), widths, strict=True)
    ]
    errors = [(effect.high - effect.low) / 2 / 1.959964 for effect in effects]
    common = np.average([effect.value for effect in effects], weights=[error**-2 for error in errors])
    rng = np.random.default_rng(0)
    verdicts = []
    for spread, (below, above) in zip(errors, widths, strict=True):
        values = rng.normal(common, spread, 200_000)
        holds = (values - below > low) & (values + above < high)
        fails = (values + above < low) | (values - below > high)
        verdicts.append(np.where(holds, 1, np.where(fails, -1, 0)))
    changed = (verdicts[0] != verdicts[1]).mean()
    claim = Replicate("id", ("holds", "holds"), (effects[0], effects[1]), claimed, random=True)
    assert 0.05 < changed == pytest.approx(claim.chance_of_change, abs=0.005)


def test_what_is_expected_of_two_runs_with_the_intervals_of_seeds():
    """Five normal seeds each, whose median lies 0 to 2 standard deviations above the threshold.

    The interval of the difference contains zero in about 97 % of the pairs. Verdicts change as often as expected where
    the true effect lies as far from the threshold as intervals reach, and half as often at the threshold.
    """
    rng, agree, ratios = np.random.default_rng(5), [], {}
    for true in (0.0, 0.5, 0.8, 1.0, 1.2, 2.0):
        changed, expected = [], []
        for _ in range(300):
            effects = tuple(seed_interval(rng.normal(true, 1, 5)) for _ in range(2))
            verdicts = tuple(
                "holds" if effect.low > 0 else "does not hold" if effect.high < 0 else "inconclusive"
                for effect in effects
            )
            pair = Replicate("id", verdicts, effects, (0.0, np.inf), random=True)
            agree.append(pair.agrees)
            changed.append(pair.changed)
            expected.append(pair.chance_of_change)
        ratios[true] = np.mean(expected) / np.mean(changed)
    assert np.mean(agree) == pytest.approx(0.975, abs=0.01)
    assert [ratios[true] for true in (0.8, 1.0, 1.2)] == pytest.approx([1, 1, 1], abs=0.2)
    assert 1.5 < ratios[0.0] < 3


def test_claims_without_an_interval_without_seeds_or_of_the_paper_are_not_counted(compare):
    gain = claim("gain", "holds", 1, 0, 2) | {"subject": "paper"}
    exact = claim("exact", "holds", 1, 0.9, 1.1) | {"seeds": None}
    first = [claim("one_seed", "inconclusive", 1), claim("missing", "inconclusive", None), exact, gain]
    second = [*first, claim("new", "holds", 1, 0, 2)]
    code, summary, rows = compare([*first, claim("new", "holds", 3, 2, 4)], second)
    assert (code, list(rows)) == (0, ["one_seed", "missing", "exact", "new"])
    assert [row[-1] for row in rows.values()] == ["–", "–", "–", "**no**"]
    assert "0 of 1 (0%) agree" in summary
    assert "0 of 1 changed" in summary


def test_runs_without_a_claim_to_compare_are_one_line_with_their_scales(tmp_path, capsys):
    exact = claim("exact", "holds", 1, 0.9, 1.1) | {"seeds": None}
    for scale, gain in (("laptop", claim("gain", "holds", 1, 0, 2)), ("smoke", claim("gain", "inconclusive", 1))):
        (tmp_path / scale).mkdir()
        entries = [entry | {"scale": scale} for entry in (exact, gain)]
        (tmp_path / scale / "claims.json").write_text(json.dumps(entries))
    assert error(capsys, "compare", tmp_path / "laptop", tmp_path / "smoke" / "claims.json", "--table") == (
        f"{tmp_path}/laptop and {tmp_path}/smoke/claims.json (laptop and smoke scale): "
        "nothing to compare, as no claim has an interval over seeds in both"
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("referenc/second", "no file referenc/second/claims.json; make it with: entropy-dynamics claims"),
        ("run", "no file run/claims.json; make it with: entropy-dynamics claims"),
    ],
)
def test_a_run_that_is_not_there(tmp_path, monkeypatch, capsys, path, message):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    assert error(capsys, "compare", path, "run") == message


def test_a_verdict_that_one_run_could_not_give_has_not_changed(compare):
    first = [claim("both", "holds", 1, 0.5, 2), claim("first_only", "holds", 1, 0.5, 2)]
    second = [claim("both", "holds", 1, 0.4, 2), claim("first_only", "inconclusive", None)]
    for entry in (*first, *second):
        entry["range"] = [0, None]
    code, summary, rows = compare(first, second)
    assert code == 0
    assert summary.splitlines()[2:] == [
        "Verdicts: 0 of 1 changed, 0 of them reversed; expected by chance: about 0; "
        "1 more have an interval in one run only",
        "Differ:   none",
    ]
    assert rows["first_only"][:2] == ["holds", "inconclusive"]


def test_claims_that_were_judged_by_another_range_are_not_compared(compare):
    first = [claim("moved", "holds", 1, 0.5, 2) | {"range": [0, None]}, claim("same", "holds", 1, 0.5, 2)]
    second = [claim("moved", "inconclusive", 1, 0.4, 2) | {"range": [1, None]}, claim("same", "holds", 2, 0.5, 3)]
    _, summary, rows = compare(first, second)
    assert "1 of 1 (100%) agree" in summary
    assert "0 of 1 changed" in summary
    assert "; 1 more were judged by another range" in summary
    assert rows["moved"][-1] == "–"


def test_a_run_beside_itself_is_called_that(compare):
    run = [
        claim("gain", "holds", 1, 0.5, 2),
        claim("open", "inconclusive", 1, -1, 2),
        claim("none", "inconclusive", None),
    ]
    rounded = [entry | {"low": entry["low"] and entry["low"] * (1 + 1e-6)} for entry in run]
    _, summary, rows = compare(run, rounded)
    assert summary == "All 2 effects are identical: these are the same runs"
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ({"claims": []}, "claims.json holds no verdicts: make it again with: entropy-dynamics claims"),
        ([{"id": "a", "subject": "this run"}], "claims.json holds no verdicts: make it again with"),
        ([], "nothing to compare, as no claim has an interval"),
    ],
)
def test_mistakes_get_one_line(compare, first, message):
    code, summary, _ = compare(first, [claim("a", "holds", 1, 0, 2)])
    assert code == 2
    assert message in summary
    assert summary.strip().count("\n") == 0


# What agreement is worth


@pytest.mark.parametrize("seeds", [5, 8])
def test_a_detectable_difference_is_detected_in_nine_of_ten_pairs_of_runs(seeds):
    rng, alone = np.random.default_rng(seeds), Interval(spread=1.0, seeds=seeds, error=0.0).detectable()
    found = []
    for _ in range(1000):
        first, second = rng.normal(0, 1, seeds), rng.normal(alone * 2**0.5, 1, seeds)
        pair = (seed_interval(first), seed_interval(second))
        claim = Replicate("a", ("holds",) * 2, pair, (0, np.inf), random=True, detectable=(alone, alone))
        found.append(not claim.agrees)
    assert claim.detectable_difference == pytest.approx(alone * 2**0.5)
    assert np.mean(found) == pytest.approx(0.9, abs=0.04)


@pytest.mark.parametrize(("scale", "shares"), [("laptop", True), ("desk", False)])
def test_runs_that_share_seeds_say_so_and_use_their_correlation(compare, scale, shares):
    """Four of five seeds are in both runs, whose effects of these correlate at 0.8: 0.64 of the medians."""
    about = {"range": [0, None], "unit": "points", "detectable": 3, "scale": "laptop"}
    first = claim("a", "holds", 10, 7, 13) | about | {"by_seed": {"0": 1, "1": 2, "2": 3, "3": 4, "9": 0}}
    second = claim("a", "holds", 11, 7, 15) | about | {"by_seed": {"0": 1, "1": 3, "2": 2, "3": 4, "8": 0}}
    exact = claim("exact", "holds", 1, 0.9, 1.1) | {"seeds": None, "scale": "laptop"}
    second |= {"scale": scale, "detectable": 4}
    _, summary, rows = compare([first, exact], [second, exact | {"scale": scale}])
    half = (9 + 16 - 2 * 0.64 * 12) ** 0.5 if shares else 5.0
    assert rows["a"][-3:-1] == [f"1 [{1 - half:.3g}, {1 + half:.3g}]", f"{half:.3g}"]
    said = "Seeds:    up to 4 are in both runs, so these are not independent: estimates correlate at 0.64"
    assert (said in summary) == shares
    assert ("Scales:   laptop and desk: other models or problems" in summary) == (not shares)


def test_effects_by_seed_are_those_of_the_published_counts():
    """Pass@K of Clip_B minus GRPO's, averaged over two models and three data sets, without the project's statistics."""
    folder = ROOT / "docs/reference/laptop/paper/seeds-0-4"
    counts = pd.read_parquet(folder / "counts.parquet")
    chosen = np.isclose(counts["temperature"], 0.7) & counts["model"].isin(["qwen2.5-7b-instruct", "qwen3-4b-base"])
    counts = counts[chosen & counts["dataset"].isin(["aime24", "aime25", "dapo500"])]
    solved = counts.assign(solved=100.0 * (counts["correct"] > 0))
    scores = solved.groupby(["method", "seed", "model", "dataset"])["solved"].mean().groupby(["method", "seed"]).mean()
    effects = scores["clip_b"] - scores["grpo"]
    [claim] = [one for one in json.loads((folder / "claims.json").read_text()) if one["id"] == "pass_gain_clip_b"]
    assert {int(seed): effect for seed, effect in claim["by_seed"].items()} == pytest.approx(
        effects.to_dict(), rel=1e-5
    )
