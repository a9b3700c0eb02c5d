"""Writes the verdicts on the paper's claims (claims.json, .md, .png, .svg, .pdf) and others (field.json, .md, ...)."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from entropy_dynamics.analysis.claims import Claim, load_claims, read_claims, read_field
from entropy_dynamics.analysis.paper_gains import judge_gains, judge_paper
from entropy_dynamics.analysis.run_data import Model, Results
from entropy_dynamics.analysis.verdicts import VERDICTS, Finding, correct_primary, judge
from entropy_dynamics.errors import UserError
from entropy_dynamics.reporting.style import RC, VERDICT_LOOKS, WIDTH, add_footer, pretty, save
from entropy_dynamics.reporting.templates import fill, in_digits, one_model
from entropy_dynamics.results.files import write_json, write_text

# How the ids of the most interesting claims on scores begin.
HEADLINES = ("pass_gain_", "avg_gain_", "path_pass_", "best_pass_", "competitive_clip_", "greedy_", "matched_pass_")
SHOWN = 10


def write_claims(results: Results) -> list[Path]:
    """Judge every claim and write the files into results/<scale>.

    claims.json is a list of {id, statement, place, verdict, effect, low, high, detectable, ours, scale, label, subject,
    unit, claimed, range, why, rests_on, topic, paper, test, seeds, by_seed, seeds_needed, reason}:

    - `ours` is whether the claim is this project's own and only follows from the one at `place`;
    - `range` is the claimed range, with null for an open bound, and `claimed` is the same in words;
    - `effect`, `low`, `high` and `detectable` are null if unknown;
    - `why` is the reason for a threshold other than 0;
    - `rests_on` is "identity", "by construction", "facet of <id>" or "independent";
    - `topic` is that of `topics` in claims.yaml, or "";
    - `paper` is {verdict, effect, low, high, reason} by the paper's own scores, or null if it does not print them;
    - `subject` is "this run" for claims, judged from the files of this scale, and "paper" for the gains that the paper
      prints, judged from its numbers alone, without `scale`, `ours` and `topic`;
    - `seeds` is the number of usable seeds that all compared methods have, or null if no seed is involved, and
      `by_seed` is the effect of each by its number, or {} if the effect is not computed seed by seed;
    - `seeds_needed` of an inconclusive claim is the number of seeds that detect the smallest effect of interest
      (MAX_SEEDS + 1: more than MAX_SEEDS), or null if unknown.

    Missing and diverged runs make a claim inconclusive. Raises UserError if claims.yaml or paper_values.yaml is
    invalid.
    """
    file = read_claims(results.folder)
    claims = load_claims(results.scale, results.seeds, results.folder)
    tests, evaluations = file.tests, file.paper.evaluations if file.paper else {}
    models, findings = _models(claims, results), [judge(claim, results) for claim in claims]
    correct_primary(claims, findings)
    entries = [
        _entry(claim, finding, models, results, tests)
        | {"topic": file.topic(claim.spec), "paper": _by_paper(judge_paper(claim, evaluations, results.paper))}
        for claim, finding in zip(claims, findings, strict=True)
    ]
    gains = list(judge_gains(file.paper, results.paper, tests["paper_gain"])) if file.paper else []
    head = _head(models, results)
    values: dict[str, Any] = {"head": head, "summary": summary_line(entries), "groups": groups_line(entries)}
    values |= {"gains_summary": gains_line(gains) if gains else "", "tests": tests}
    json, md, *pictures = (results.layout.claims(suffix) for suffix in ("json", "md", "png", "svg", "pdf"))
    write_json(json, entries + gains)
    write_text(md, fill("claims.md", claims=map(_cells, entries), gains=map(_cells, gains), **values))
    smaller = any(model and not model.is_the_papers for model in models.values())
    with rc_context(RC):
        notes = [head, "smaller models ran under the models' names" if smaller else ""]
        save(_draw(headlines(entries), notes), "Headline claims", *pictures)
    return [json, md, *pictures]


def write_field(results: Results, folder: str = "field") -> list[Path]:
    """Judge the claims of experiments/<folder> and write <folder>.json and <folder>.md into results/<scale>.

    The entries are like those of claims.json, except that `paper` is the heading of the claim's file. Raises UserError
    if claims.yaml or a file of experiments/<folder> is invalid.
    """
    papers, tests = read_field(results.folder, folder), read_claims(results.folder).tests
    claims = load_claims(results.scale, results.seeds, results.folder, folder=folder)
    models = _models(claims, results)
    of = {spec.id: paper.paper for paper in papers.values() for spec in paper.claims}
    entries = [
        _entry(claim, judge(claim, results), models, results, tests) | {"paper": of[claim.spec.id]} for claim in claims
    ]
    sections = []
    for paper in papers.values():
        cells = [_cells(entry) for entry in entries if entry["paper"] == paper.paper]
        sections.append({"paper": paper.paper, "claims": cells, "untested": paper.untested})
    json, md = (results.layout.judged(folder, suffix) for suffix in ("json", "md"))
    write_json(json, entries)
    used = {name: tests[name] for name in dict.fromkeys(claim.spec.test for claim in claims)}
    head, summary = _head(models, results), summary_line(entries)
    write_text(md, fill("field.md", head=head, summary=summary, papers=sections, tests=used))
    return [json, md]


def headlines(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `SHOWN` claims on scores, which share the unit of points, the most interesting first."""

    def place(entry: dict[str, Any]) -> int:
        return next((i for i, head in enumerate(HEADLINES) if entry["id"].startswith(head)), len(HEADLINES))

    return sorted((entry for entry in entries if entry["unit"] == "points"), key=place)[:SHOWN]


def _draw(entries: list[dict[str, Any]], notes: list[str]) -> Figure:
    """One row per claim: effect and 95% interval in points; a gray line marks a threshold other than 0."""
    figure = Figure(figsize=(WIDTH, 1.0 + 0.16 * len(entries)), layout="constrained")
    ax = figure.subplots()
    ax.axvline(0, color="black", linewidth=0.8, zorder=1)
    for row, entry in enumerate(entries):
        look, known = VERDICT_LOOKS[entry["verdict"]], entry["effect"] is not None
        if known:
            low, high = (entry["effect"] if entry[end] is None else entry[end] for end in ("low", "high"))
            ends = [[entry["effect"] - low], [high - entry["effect"]]]
            ax.errorbar(entry["effect"], row, xerr=ends, markersize=4, elinewidth=1, **look)
        ax.vlines([bound for bound in entry["range"] if bound], row - 0.4, row + 0.4, color="0.5", linewidth=0.8)
        text = in_digits(entry, "+").replace("-", "−") if known else "no value"
        ax.text(1.02, row, text, transform=ax.get_yaxis_transform(), va="center", fontsize=6, color=look["color"])
    ax.set_yticks(range(len(entries)), [pretty(entry["label"]) for entry in entries], fontsize=6)
    ax.set_ylim(max(len(entries), 1) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("effect, 95% interval (points)")
    marks = VERDICT_LOOKS.items()
    handles = [Line2D([], [], linestyle="", label=verdict, markersize=4, **look) for verdict, look in marks]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, handlelength=1, columnspacing=1.2)
    add_footer(figure, notes)
    return figure


def _entry(
    claim: Claim, finding: Finding, models: dict[str, Model | None], results: Results, tests: dict[str, str]
) -> dict[str, Any]:
    return finding.entry(
        id=claim.spec.id,
        statement=_named(claim.spec.statement, claim, models, results),
        place=claim.spec.place,
        ours=claim.spec.ours,
        scale=results.scale,
        label=_named(claim.spec.label, claim, models, results),
        subject="this run",
        unit=claim.spec.unit,
        claimed=claim.spec.claimed,
        why=claim.spec.why,
        rests_on=claim.spec.rests_on,
        paper=None,
        test=tests[claim.spec.test],
    )


def _models(claims: Sequence[Claim], results: Results) -> dict[str, Model | None]:
    """The models of the claims by name; None for one that did not run."""
    models: dict[str, Model | None] = {}
    for name in (name for claim in claims for name in claim.models if name not in models):
        models[name] = None
        with suppress(UserError):
            models[name] = results.model(name)
    return models


def _head(models: dict[str, Model | None], results: Results) -> str:
    """Introductory text: the models that ran at this scale."""
    ran = [model.ran_with_size if model else f"{name}, not run at this scale" for name, model in models.items()]
    single = one_model(model for model in models.values() if model)
    return ". ".join(filter(None, [f"{results.scale} scale: {'; '.join(ran)}", single]))


def summary_line(entries: list[dict[str, Any]]) -> str:
    """'Of 40 claims, 26 hold, 4 do not hold, 10 are inconclusive'."""
    return "Of {} claims, {} hold, {} do not hold, {} are inconclusive".format(len(entries), *_counts(entries))


def groups_line(entries: Sequence[Mapping[str, Any]]) -> str:
    """'They are 49 independent findings, 20 further facets of these, 7 statements true by construction, ...'."""
    counts = Counter(re.sub(" of .*", "", entry["rests_on"]) for entry in entries if "rests_on" in entry)
    return (
        f"They are {counts['independent']} independent findings, {counts['facet']} further facets of these, "
        f"{counts['by construction']} statements true by construction, {counts['identity']} identities"
    )


def gains_line(gains: list[dict[str, Any]]) -> str:
    """Like `summary_line`, for the gains that the paper prints."""
    exceed, losses, open_ = _counts(gains)
    return (
        f"Of the paper's own {len(gains)} gains in Table 1, {exceed} exceed the sampling noise, {losses} are losses "
        f"that exceed it, {open_} are inconclusive"
    )


def _counts(entries: list[dict[str, Any]]) -> list[int]:
    return [sum(entry["verdict"] == verdict for entry in entries) for verdict in VERDICTS]


def _named(text: str, claim: Claim, models: dict[str, Model | None], results: Results) -> str:
    """A statement or label with the names of the models that ran and of the data sets filled in."""
    name = claim.models[0] if claim.models else ""
    if model := models.get(name):
        name = f"the {model.ran}" if model.toy else model.ran
    for dataset in results.config.data.evaluation:
        text = text.replace(f"{{{dataset}}}", results.dataset_label(dataset))
    return text.replace("{model}", name)


def _by_paper(finding: Finding | None) -> dict[str, Any] | None:
    if finding is None:
        return None
    entry = finding.entry("", "", "")
    return {name: entry[name] for name in ("verdict", "effect", "low", "high", "reason")}


def _cells(entry: dict[str, Any]) -> dict[str, str]:
    """An entry as the cells of a row."""
    scores = entry.get("paper")
    return entry | {
        "effect": "none" if entry["effect"] is None else f"{_effect(entry)} {entry['unit']}",
        "place": f"ours, after {entry['place']}" if entry.get("ours") else entry["place"],
        "paper": f"{_effect(scores)}: {scores['verdict']}" if isinstance(scores, dict) else "none",
        "claimed": f"{entry['claimed']}: {entry['why']}" if entry.get("why") else entry["claimed"],
        "detectable": "none" if entry["detectable"] is None else f"{entry['detectable']:.2g}",
        "seeds": "none needed" if entry["seeds"] is None else str(entry["seeds"]),
    }


def _effect(entry: dict[str, Any]) -> str:
    return in_digits(entry) + (" no interval" if entry["low"] is None else "")
