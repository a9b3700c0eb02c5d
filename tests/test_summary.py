"""A run in a few plain lines."""

import json

import pytest

from command_line import run
from entropy_dynamics.reporting.summary import topics


def entry(
    id: str, verdict: str, effect: float | None = None, low: float | None = None, high: float | None = None
) -> dict:
    ends = {"effect": effect, "low": low, "high": high, "unit": "points"}
    return {"id": id, "label": f"the claim {id}", "subject": "this run", "seeds": 5, "verdict": verdict} | ends


@pytest.fixture
def root(tmp_path):
    entries = [
        entry("avg_gain_clip_b", "does not hold", -2.1, -3.25, -1.0) | {"topic": "Avg@K rises"},
        entry("pass_gain_clip_b", "holds", 11.5, 7.0, 15.5) | {"topic": "Pass@K rises"},
        entry("pass_gain_clip_v", "inconclusive"),
        *(entry(f"false{i}", "does not hold") for i in range(60)),
        entry("the papers", "holds") | {"subject": "paper"},
    ]
    (folder := tmp_path / "laptop").mkdir()
    (folder / "claims.json").write_text(json.dumps(entries))
    return folder


def test_counts_topics_and_what_does_not_hold(root, capsys):
    lines = run(capsys, "summary", root).splitlines()
    assert max(map(len, lines[1:])) <= 100
    assert lines[:3] == [
        f"{root}: Of 63 claims, 1 hold, 61 do not hold, 1 are inconclusive",
        "does not hold  Avg@K rises: Clip_B -2.1 [-3.2, -1.0] points",
        "holds          Pass@K rises: Clip_B +12 [7, 16] points",
    ]
    assert lines[3].startswith("Does not hold: the claim avg_gain_clip_b; the claim false0; ")
    assert lines[-2].endswith(" ...")
    assert len(lines) == 7
    assert lines[-1] == "Everything on one page: entropy-dynamics report writes it"


def test_the_page_is_named_where_there_is_one(root, capsys):
    (root / "report.html").touch()
    assert run(capsys, "summary", root).endswith(f"\nEverything on one page: {root / 'report.html'}\n")


def test_the_topics_of_the_page_count_what_has_a_value():
    """Most hold and none is refuted; refuted and none holds; else open; topics without a value are left out."""

    def of(topic: str, *found: dict) -> list[dict]:
        return [one | {"topic": topic} for one in found]

    entries = [
        *of("Pass@K rises", *(entry(f"pass_gain_{i}", "holds", 1) for i in range(2))),
        *of("Pass@K rises", entry("pass_gain_2", "inconclusive", 1), entry("pass_gain_3", "inconclusive")),
        *of("Avg@K rises", entry("avg_gain_clip_b", "does not hold", -3.94, -5.4, -2.2)),
        *of("Avg@K rises", entry("avg_gain_clip_v", "inconclusive", 1)),
        *of("The highest Pass@K of any temperature rises", entry("b", "holds", 1), entry("c", "does not hold", 1)),
        *of("Avg@K rises at equal Pass@K", entry("matched_pass_clip_b_qwen3", "inconclusive")),
        *of("", entry("d", "holds", 1)),
        entry("of an earlier release", "holds", 1),
    ]
    assert topics(entries) == [
        ("holds", "Pass@K rises"),
        ("does not hold", "Avg@K rises: Clip_B -3.9 [-5.4, -2.2], Clip_V +1 points"),
        ("inconclusive", "The highest Pass@K of any temperature rises: +1, +1 points"),
    ]
    assert topics([]) == []
