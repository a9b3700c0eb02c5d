"""The file of claims, and the verdicts as they are written, from synthetic runs."""

import json
import re
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from entropy_dynamics.analysis.finding import VERDICTS
from entropy_dynamics.analysis.paper_gains import sampling_errors
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.experiments.claims import load_claims, read_claims, read_field
from entropy_dynamics.report.summary import summary_line
from entropy_dynamics.report.verdicts import write_claims
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import Layout
from mistakes import mistake
from single_claims import OTHER, write_curve
from synthetic_results import MODEL, ROOT, SCALE, SEEDS, STEPS, model_facts

SEEDS = SEEDS | {"tables": 5}


def write(results: Path) -> list[Path]:
    return write_claims(Results(results, SCALE, SEEDS, ROOT / "configs", ROOT / "experiments"))


def entries(results: Path) -> dict[str, dict]:
    return {one["id"]: one for one in json.loads(write(results)[0].read_text())}


# Output files
def test_without_any_run_every_claim_says_what_is_missing(tmp_path):
    found = [one for one in entries(tmp_path / SCALE).values() if one["subject"] == "this run"]
    assert {one["verdict"] for one in found} == {"inconclusive"}
    assert all(re.search("missing|temperature", one["reason"]) and one["effect"] is None for one in found)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Clip_B's and GRPO's runs on one model, enough for some claims of each verdict."""
    folder = tmp_path_factory.mktemp("results") / SCALE
    for model in (MODEL, OTHER):
        write_json(Layout(folder).model(model, 0) / "model.json", model_facts(model))
    for seed in range(SEEDS["tables"]):
        write_curve(folder, "grpo", seed, entropy=np.linspace(0.4, 0.1 + 0.01 * seed, STEPS), neg_cov=0.1 + 0.01 * seed)
        write_curve(folder, "clip_b", seed, entropy=0.3 + 0.02 * seed)
    write_curve(folder, "s_star_keep_pos_lt", 0, entropy=0.9)
    return folder


def test_claims_json_has_the_promised_keys(results):
    found = list(entries(results).values())
    keys = ["id", "statement", "place", "verdict", "effect", "low", "high", "detectable"]
    keys += ["subject", "unit", "claimed", "range", "test", "seeds", "by_seed", "seeds_needed", "reason"]
    of_a_run = {"scale", "ours", "topic", "figures", "headline", "methods"}
    for one in found:
        promised = {*keys, *of_a_run} if one["subject"] == "this run" else {*keys}
        assert set(one) - {"why", "rests_on", "paper", "label"} == promised
        assert one["verdict"] in VERDICTS
        assert (one["low"] is None) == (one["high"] is None) == (one["detectable"] is None)
        assert one["low"] is None or one["low"] <= one["effect"] <= one["high"]
        assert all(one[key] for key in ("statement", "place", "unit", "test", "reason"))
    ranges = {one["claimed"].split()[0]: [end is None for end in one["range"]] for one in found}
    assert ranges == {"above": [False, True], "below": [True, False], "from": [False, False]}
    own = [one for one in found if one["subject"] == "this run"]
    topics = {one["id"]: one["topic"] for one in own}
    assert topics["entropy_held_clip_b_qwen2.5"] == topics["entropy_held_distill"] == "Clipping keeps entropy up"
    assert topics["entropy_held_clip_higher"] == ""
    assert len(own) >= 15
    verdicts = {one["id"]: one["verdict"] for one in own}
    assert verdicts["entropy_held_clip_b_qwen2.5"] == "holds"
    assert verdicts["figure5_sign"] == "does not hold"
    single = next(one for one in own if one["id"] == "figure1_keep_pos_lt")
    assert (single["verdict"], single["reason"]) == ("inconclusive", "1 seed; a verdict needs 5")
    assert single["effect"] is not None
    counts = [sum(v == verdict for v in verdicts.values()) for verdict in VERDICTS]
    without = sum(one["effect"] is None for one in own)
    assert list(map(int, re.findall(r"\d+", summary_line(own)))) == [len(own), *counts, without]
    assert summary_line([single]) == "Of 1 claims, 0 hold, 0 do not hold, 1 is inconclusive"


def test_the_markdown_has_all_of_it_and_names_the_toy_models(results):
    text = write(results)[1].read_text()
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    assert len(rows) == len(entries(results))
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 2  # two tables, no stray bar
    assert "| above -1: about what the paper's own evaluation resolves" in text
    assert "gain over GRPO in Avg@K is larger on toy AIME24 and toy AIME25 (their mean) than on toy DAPO500" in text
    claims, _, gains = text.partition("**Of the paper's own")
    assert not re.search(r"(?<!toy )(AIME2|DAPO5)|[{}]", claims)
    assert "on AIME24, more than sampling noise" in gains
    own = [one for one in entries(results).values() if one["subject"] == "this run"]
    assert summary_line(own) in text
    facets = sum(one["rests_on"].startswith("facet of ") for one in own)
    independent = sum(one["rests_on"] == "independent" for one in own)
    assert f"Independent findings: {independent}; further facets: {facets}; " in text
    assert "The entropy of the toy Qwen2 for Qwen2.5-7B-Instruct falls" in text
    assert not re.search(r"(?<!toy Qwen2 for )(?<!toy )Qwen", text)


def test_sampling_errors_against_brute_force():
    """Clip_B's AIME24 cell of Table 1: with these difficulties, Avg@32 and Pass@32 are the paper's, and so scatter."""
    avg, passed = 19.69, 56.67
    # Parameters by a grid search over Beta(0.1969 t, 0.8031 t), by quadrature instead of the closed form.
    x = (np.arange(200_000) + 0.5) / 200_000

    def quadrature(t, value):
        # p = x^(1/a) turns the density's singularity at 0 into a constant
        a, b = 0.1969 * t, 0.8031 * t
        p = x ** (1 / a)
        weight = np.exp((b - 1) * np.log1p(-np.minimum(p, 1 - 1e-12)))
        return (weight * value(p)).sum() / weight.sum()

    totals = np.linspace(0.2, 2, 181)
    misses = [quadrature(t, lambda p: (1 - p) ** 32) for t in totals]
    t = totals[np.argmin(np.abs(np.array(misses) - (1 - passed / 100)))]
    within = quadrature(t, lambda p: p * (1 - p))
    miss = quadrature(t, lambda p: (1 - p) ** 32 * (1 - (1 - p) ** 32))
    expected = {"avg": 100 * (within / (30 * 32)) ** 0.5, "pass": 100 * (miss / 30) ** 0.5}
    errors = sampling_errors(avg, passed, 30, 32)
    assert {metric: errors[metric] for metric in expected} == pytest.approx(expected, rel=0.02)
    # Never more than without any difference between the problems.
    assert errors["avg"] < 100 * (0.1969 * 0.8031 / 960) ** 0.5
    # Their difference, by sampling the answers to some problems again.
    rng = np.random.default_rng(0)
    p = rng.beta(0.1969 * t, 0.8031 * t, 4000)
    correct = rng.binomial(32, p, (500, 4000))
    spread = ((correct > 0) - correct / 32).std(axis=0)
    assert errors["pass_minus_avg"] == pytest.approx(100 * np.sqrt((spread**2).mean() / 30), rel=0.03)


def test_the_papers_gains(tmp_path):
    found = {key: one for key, one in entries(tmp_path / SCALE).items() if one["subject"] == "paper"}
    assert len(found) == 24
    best = found[f"paper_{MODEL}_clip_b_aime24_avg"]
    errors = [sampling_errors(*pair, 30, 32)["avg"] for pair in ((19.69, 56.67), (16.88, 50.0))]
    half = 1.96 * np.hypot(*errors)
    assert (best["effect"], best["verdict"]) == (pytest.approx(2.81), "holds")
    assert (best["low"], best["high"]) == (pytest.approx(2.81 - half, abs=1e-3), pytest.approx(2.81 + half, abs=1e-3))
    assert found[f"paper_{OTHER}_clip_b_aime25_pass"]["verdict"] == "inconclusive"  # one problem of thirty
    assert found[f"paper_{OTHER}_clip_b_aime25_pass"]["effect"] == pytest.approx(-3.34)
    held = sum(one["verdict"] == "holds" for one in found.values())
    assert f"**Of the paper's own 24 gains in Table 1, {held} exceed" in (tmp_path / SCALE / "claims.md").read_text()


def test_claims_by_the_papers_own_scores(tmp_path):
    """Pooled as ours: the mean over two models and three data sets, by hand from Table 1."""
    found = {key: one["paper"] for key, one in entries(tmp_path / SCALE).items() if one["subject"] == "this run"}
    gains = {
        "avg_gain_clip_b": ([2.81, 0.93, 1.65, 0.10, 0.52, -0.68], "holds", (0.00, 1.78)),
        "avg_gain_clip_v": ([1.24, 0.52, 1.62, 0.83, 1.46, 0.57], "holds", (0.14, 1.94)),
        "pass_gain_clip_b": ([6.67, 3.33, 3.4, 0, -3.34, 1.2], "inconclusive", (-2.1, 5.8)),
        "pass_gain_clip_v": ([3.33, 6.67, 2.2, 3.34, 3.33, 0.8], "inconclusive", (-0.7, 7.3)),
    }
    for key, (cells, verdict, ends) in gains.items():
        paper = found[key]
        assert (paper["verdict"], paper["effect"]) == (verdict, pytest.approx(np.mean(cells), abs=1e-3))
        assert (paper["low"], paper["high"]) == pytest.approx(ends, abs=0.05)
    # Gains in Pass@K minus those in Avg@K: two of Clip_B's six have the other sign, the smallest is -3.34 - 0.52.
    everywhere = {name: found[f"pass_over_avg_everywhere_{name}"] for name in ("clip_b", "clip_v")}
    assert everywhere["clip_b"]["effect"] == pytest.approx(-3.86)
    assert everywhere["clip_b"]["reason"].endswith("the estimates of 4 of 6 are as claimed")
    assert everywhere["clip_v"]["reason"].endswith("the estimates of 6 of 6 are as claimed")
    aime = (2.81 + 0.93 + 0.10 + 0.52) / 4 - (1.65 - 0.68) / 2
    assert found["aime_over_dapo_clip_b"]["effect"] == pytest.approx(aime, abs=1e-3)
    # Tables 3 and 4 have no Pass@K, and so no sampling error.
    means = [np.mean(cells) for cells in ([20, 16.67, 48.03], [20.83, 15.83, 48.2], [15.94, 15.83, 48.22])]
    means.append(np.mean([16.35, 14.9, 47.13]))
    competitive = found["competitive_clip_b"]
    assert competitive["effect"] == pytest.approx(np.mean([19.69, 16.35, 49.68]) - np.mean(means), abs=1e-3)
    assert (competitive["low"], competitive["verdict"]) == (None, "inconclusive")
    assert "no sampling error without Pass@K" in competitive["reason"]
    for key in ("sampling_law", "greedy_clip_b_qwen2.5", "easy_loss_clip_b", "figure4_solved"):
        assert found[key] is None


# The file of claims
def test_the_ablations_are_claimed_to_go_where_theorem_1_says():
    claims = load_claims(SCALE, SEEDS, ROOT / "experiments")
    assert len(claims) >= 15
    directions = {one.spec.id: one.spec.claimed for one in claims if one.spec.id.startswith("figure1")}
    up = {"keep_pos_lt", "keep_neg_gt", "mask_pos_gt", "mask_neg_lt"}  # Theorem 1
    assert len(directions) == 8
    for claim_id, side in directions.items():
        assert side == ("above 0" if claim_id.removeprefix("figure1_") in up else "below 0")


GOOD = """
tests: {over_seeds: a, curve_difference: a, sweep_trend: a, score_difference: a, paper_gain: a}
claims:
  - {id: a, label: a, statement: a, place: a, test: over_seeds, unit: nats, model: qwen3-4b-base, runs: {grpo: tables},
     statistic: drop, columns: [entropy], above: 0}
paper: {place: Table 1, models: [m], methods: [clip_b], against: grpo, evaluations: {}}
"""


def in_scores(keys: str) -> tuple[str, str]:
    """The claim of GOOD, and one about scores in its place."""
    old = GOOD[GOOD.index("test: over_seeds") : GOOD.index("}\npaper")]
    about = (
        "test: score_difference, unit: points, models: [qwen3-4b-base], runs: {grpo: tables}, against: {base: tables}"
    )
    return old, f"{about}, metric: pass, evaluations: [aime24], {keys}"


def test_an_entry_with_for_stands_for_a_claim_per_combination_of_rows(tmp_path):
    loop = "id: '${m}_${q}', for: [[{m: grpo, side: above}, {m: clip_b, side: below}], [{q: 7b}, {q: 4b}]]"
    text = GOOD.replace("id: a", loop).replace("{grpo: tables}", "{'${m}': tables}").replace("above: 0", "'${side}': 0")
    (tmp_path / "claims.yaml").write_text(text)
    claims = {claim.spec.id: claim for claim in load_claims(SCALE, SEEDS, tmp_path)}
    assert list(claims) == ["grpo_7b", "grpo_4b", "clip_b_7b", "clip_b_4b"]
    assert [list(claim.runs) for claim in claims.values()] == [["grpo"], ["grpo"], ["clip_b"], ["clip_b"]]
    assert claims["grpo_4b"].spec.claimed == "above 0"
    assert claims["clip_b_4b"].spec.claimed == "below 0"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("above: 0", "above: 0, why: a", "`why` is the reason for a threshold other than 0"),
        ("above: 0", "above: 0, below: 1", "give one of above, below and within"),
        ("grpo: tables", "grpo: three", "claims[0].runs.grpo is 'three'; it should be 'tables', 'extras' or 'pilot'"),
        ("statistic: drop", "statistic: ratio_difference", "the statistic 'ratio_difference' is of 4 columns"),
        (*in_scores("everywhere: true, below: 0"), "everywhere takes the smallest difference, so it takes `above`"),
        (*in_scores("primary: true, temperature: envelope, above: 0"), "a primary claim takes an effect per seed"),
        ("above: 0", "above: 0, rests_on: chance", "claims[0].rests_on is 'chance'"),
        ("statistic: drop", "statistic: steps_to", "target is for the statistics steps_to and sum_to, which need one"),
        ("id: a,", "id: '${n}', for: [[{m: clip_b}]],", "each a list of rows {name: text}: KeyError('n')"),
    ],
)
def test_a_broken_file_of_claims_is_one_line(tmp_path, old, new, message):
    (tmp_path / "claims.yaml").write_text(GOOD)
    assert load_claims(SCALE, SEEDS, tmp_path)[0].seeds_by_method == {"grpo": range(SEEDS["tables"])}
    (tmp_path / "claims.yaml").write_text(GOOD.replace(old, new, 1))
    with mistake("claims.yaml", message):
        load_claims(SCALE, SEEDS, tmp_path)


# ---------------------------------------------------------------- what claims rest on
def test_the_claims_of_the_paper_are_fewer_findings():
    claims = read_claims(ROOT / "experiments").claims
    kinds = {claim.id: claim.basis for claim in claims}
    assert kinds["sampling_law"] == "identity"
    assert kinds["entropy_held_clip_b_qwen2.5"] == "by construction"
    assert kinds["best_clip_b_qwen3"] == "facet of greedy_clip_b_qwen3"
    assert list(kinds.values()).count("independent") < len(claims) * 2 / 3


def test_a_facet_of_a_claim_in_another_file():
    papers = read_field(ROOT / "experiments", "controls").values()
    controls = {claim.id: claim.basis for paper in papers for claim in paper.claims}
    assert controls["competitive_clip_v_kl_cov"] == "facet of competitive_clip_v"  # which is in claims.yaml
    assert controls["steps_to_20_clip_b"] == "facet of learns_faster_clip_b_qwen2.5"


@pytest.mark.parametrize(
    ("where", "file", "claim", "of"),
    [
        ("claims.yaml", "claims.yaml", "figure4_solved", "pass_gain_clip_v"),
        ("field", "field/staleness.yaml", "field_stale_collapse", "field_cispo_less_entropy"),
    ],
)
def test_a_facet_of_nothing_is_one_line(tmp_path, where, file, claim, of):
    folder = copytree(ROOT / "experiments", tmp_path / "experiments")
    before, start, after = (folder / file).read_text().partition(f"- id: {claim}\n")
    changed = re.sub("facet_of: .*", f"facet_of: {of}", after, count=1)
    (folder / file).write_text(before + start + changed)
    with mistake(f"{where}: facet_of of {claim} names {of!r}, which is no independent claim"):
        read_field(folder, "field")
