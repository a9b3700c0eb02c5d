"""A run in a few plain lines."""

import json

import pytest

from command_line import run
from entropy_dynamics.report.fill import in_digits
from entropy_dynamics.report.summary import topics

REASON = "grpo does not reach the Pass@K of clip_b"


def entry(
    id: str, verdict: str, effect: float | None = None, low: float | None = None, high: float | None = None
) -> dict:
    about = {"id": id, "label": f"the claim {id}", "subject": "this run", "verdict": verdict}
    about |= {"seeds": 5, "unit": "points", "range": [0, None], "detectable": None, "methods": []}
    return about | {"effect": effect, "low": low, "high": high, "reason": "" if effect else REASON}


@pytest.fixture
def root(tmp_path):
    entries = [
        entry("avg_gain_clip_b", "does not hold", -2.1, -3.25, -1.0),
        entry("pass_gain_clip_b", "holds", 11.5, 7.0, 15.5),
        entry("pass_gain_clip_v", "inconclusive", 2.5),
        entry("matched_pass_clip_b_qwen3", "inconclusive"),
        entry("matched_pass_clip_v_qwen3", "inconclusive") | {"reason": "runs/a/metrics.parquet is missing"},
        *(entry(f"false{i}", "does not hold", -1.0) for i in range(60)),
        entry("the papers", "holds") | {"subject": "paper"},
    ]
    (folder := tmp_path / "laptop").mkdir()
    (folder / "claims.json").write_text(json.dumps(entries))
    return folder


def test_counts_gains_and_what_does_not_hold(root, capsys):
    lines = run(capsys, "summary", root).splitlines()
    assert len(lines) <= 18
    assert max(map(len, lines[1:-1])) <= 100  # the first and the last name the folder
    assert lines[0] == f"{root}: Of 65 claims, 1 holds, 61 do not hold, 3 are inconclusive (2 of them without a value)"
    by_quantity = {line[:24].strip(): line[24:] for line in lines[3:8]}
    assert by_quantity["Avg@K (points)"].split("  ")[0] == "-2.1 [-3.2, -1.0]"
    assert by_quantity["Pass@K (points)"].split() == ["+11.5", "[7.0,", "15.5]", "+2.5"]
    assert by_quantity["Avg@K at equal Pass@K"].split() == by_quantity["Avg@K greedy"].split() == ["unknown", "unknown"]
    text = "\n".join(lines)
    assert "Avg@K greedy: not a claim of this run" in text
    reasons = "GRPO does not reach the Pass@K of Clip_B, the runs that it needs are not complete"
    assert f"Avg@K at equal Pass@K: {reasons}" in " ".join(text.split())
    assert "Does not hold: the claim avg_gain_clip_b; the claim false0; " in text
    assert lines[-2].endswith(" ...")
    command = f"entropy-dynamics report --scale laptop --results {root.parent}"
    assert lines[-1] == f"Everything on one page: {command} writes it"


def test_the_page_is_named_where_there_is_one(root, capsys):
    (root / "report.html").touch()
    assert run(capsys, "summary", root).endswith(f"\nEverything on one page: {root / 'report.html'}\n")


@pytest.mark.parametrize(
    ("effect", "low", "high", "shown"),
    [
        (0.000881, 0.000874, 0.000979, "0.00088 [0.00087, 0.00098]"),
        (11.5, 7.0, 15.5, "12 [7, 16]"),
        (1.0, 0.04, 2.0, "1.00 [0.04, 2.00]"),
        (-0.519, -1.069, 0.00131, "-0.519 [-1.069, 0.001]"),  # not 0, which would include it
        (1.0, 1e-17, 2.0, "1.0 [0.0, 2.0]"),  # 0 but for rounding
        (2.55, None, None, "2.5"),
        (2.55, 2.55, 2.55, "2.5"),
    ],
)
def test_an_interval_is_written_to_a_third_of_its_half(effect, low, high, shown):
    assert in_digits({"effect": effect, "low": low, "high": high}) == shown


def test_the_topics_of_the_page_count_what_has_a_value():
    """Most hold and none is refuted; refuted and none holds; else open; topics without a value are left out."""
    of = {
        "Pass@K rises": [
            *[entry("a", "holds", 1)] * 2,
            *[entry("a", "inconclusive", effect) for effect in (1, None)],
        ],
        "Avg@K rises": [
            entry("a", "does not hold", -3.94, -5.4, -2.2) | {"methods": ["clip_b"]},
            entry("a", "inconclusive", 1) | {"methods": ["clip_v"]},
        ],
        "The highest Pass@K of any temperature rises": [
            entry("a", verdict, 1) for verdict in ("holds", "does not hold")
        ],
        "Avg@K rises at equal Pass@K": [entry("a", "inconclusive")],
        "": [entry("a", "holds", 1)],
    }
    assert topics([one | {"topic": topic} for topic, found in of.items() for one in found]) == [
        ("holds", "Pass@K rises"),
        ("does not hold", "Avg@K rises: Clip_B -3.9 [-5.4, -2.2], Clip_V +1 points"),
        ("inconclusive", "The highest Pass@K of any temperature rises: +1, +1 points"),
    ]
    assert topics([]) == []
