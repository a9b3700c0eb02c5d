"""A run in fifteen plain lines."""

import json

import pytest

from entropy_dynamics.cli import main
from entropy_dynamics.reporting.summary import in_a_sentence


def entry(
    id: str, verdict: str, effect: float | None = None, low: float | None = None, high: float | None = None
) -> dict:
    ends = {"effect": effect, "low": low, "high": high}
    return {"id": id, "label": f"the claim {id}", "subject": "this run", "seeds": 5, "verdict": verdict} | ends


@pytest.fixture
def root(tmp_path):
    entries = [
        entry("avg_gain_clip_b", "does not hold", -2.1, -3.25, -1.0),
        entry("pass_gain_clip_b", "holds", 11.5, 7.0, 15.5),
        entry("pass_gain_clip_v", "inconclusive", 2.5),
        *(entry(f"false{i}", "does not hold") for i in range(60)),
        entry("the papers", "holds") | {"subject": "paper"},
    ]
    (folder := tmp_path / "laptop").mkdir()
    (folder / "claims.json").write_text(json.dumps(entries))
    return folder


def test_counts_gains_and_what_does_not_hold(root, capsys):
    assert main(["summary", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines[1:])) <= 100
    assert lines[0] == f"{root}: of 63 claims 1 holds, 61 do not, 1 is inconclusive"
    by_quantity = {line[:24].strip(): line[24:] for line in lines[3:8]}
    assert by_quantity["Avg@K (points)"].split("  ")[0] == "-2.1 [-3.25, -1]"
    assert by_quantity["Pass@K (points)"].split() == ["+11.5", "[7,", "15.5]", "+2.5"]
    assert by_quantity["Avg@K greedy"].split() == ["unknown", "unknown"]
    assert lines[9].startswith("Does not hold: the claim avg_gain_clip_b; the claim false0; ")
    assert lines[-1].endswith(" ...")


def test_the_page_is_named_where_there_is_one(root, capsys):
    (root / "report.html").touch()
    assert main(["summary", str(root)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Everything on one page: {root / 'report.html'}"


def test_verdicts_without_data_are_counted(root, capsys):
    entries = [entry("a", "holds", 1.0), entry("b", "holds", 2.0), entry("c", "does not hold", 1.0)]
    entries += [entry("d", "inconclusive"), entry("e", "inconclusive", 0.1, -1.0, 1.0)]
    (root / "claims.json").write_text(json.dumps(entries))
    assert main(["summary", str(root)]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == f"{root}: of 5 claims 2 hold, 1 does not, 2 are inconclusive (1 of them without a value)"


def test_in_the_folder_itself(root, capsys, monkeypatch):
    monkeypatch.chdir(root)
    assert main(["summary", "."]) == 0
    assert capsys.readouterr().out.startswith(f"{root}: of 63 claims ")


def test_a_folder_without_verdicts_is_one_line(tmp_path, capsys):
    assert main(["summary", str(tmp_path)]) == 2
    assert (
        capsys.readouterr().err == f"error: no file {tmp_path / 'claims.json'}; make it with: entropy-dynamics claims\n"
    )


def test_the_sentence_of_the_page_counts_what_has_a_value():
    """Most hold and none is refuted; refuted and none holds; else open; topics without a value are left out."""

    def of(topic, *found):
        return [entry("a", verdict, effect) | {"topic": topic} for verdict, effect in found]

    entries = [
        *of("Pass@K rises", ("holds", 1), ("holds", 1), ("inconclusive", 1), ("inconclusive", None)),
        *of("Avg@K rises", ("does not hold", 1), ("inconclusive", 1)),
        *of("the highest Pass@K of any temperature rises", ("holds", 1), ("does not hold", 1)),
        *of("Avg@K rises at equal Pass@K", ("inconclusive", None)),
        *of("", ("holds", 1)),
        entry("of an earlier release", "holds", 1),
    ]
    assert in_a_sentence(entries) == (
        "Holds: Pass@K rises (2 of 3); does not hold: Avg@K rises (0 of 2); "
        "open: the highest Pass@K of any temperature rises (1 of 2)."
    )
    assert in_a_sentence([]) == ""
