"""Writes the verdicts on the paper's claims (claims.json, .md, .png, .svg, .pdf) and others (field.json, .md, ...)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from entropy_dynamics.analysis.paper_gains import judge_gains, judge_paper
from entropy_dynamics.analysis.run_data import Model, Results
from entropy_dynamics.analysis.verdicts import correct_primary, judge
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.claims import Claim, load_claims, read_claims, read_field
from entropy_dynamics.figures.style import STYLE, VERDICT_LOOKS, add_footer, add_legend, pretty, save, sheet, sizes
from entropy_dynamics.report.fill import fill, in_digits, one_model
from entropy_dynamics.report.summary import summary_line, verdict_counts
from entropy_dynamics.results.files import write_json, write_text

SHOWN = 10


def write_claims(results: Results) -> list[Path]:
    """Judge every claim and write the files into results/<scale>.

    claims.json is a list of entries (see `Finding.entry`), first those of the claims, whose `subject` is "this run",
    then those of the gains that the paper prints, judged from its numbers alone, whose `subject` is "paper":

    - `effect`, `low`, `high`, `detectable`, and an open bound of `range`, the claimed range, are null if unknown;
    - `methods` are the compared ones, `figures` the tables and figures of `place`, and `headline` is the rank among the
      claims that are shown first, or null;
    - `ours` is whether the claim is this project's own and only follows from the one at `place`;
    - `paper` is {verdict, effect, low, high, reason} by the paper's own scores, or null if it does not print them;
    - `seeds` is the number of usable seeds that all compared methods have, or null if no seed is involved, and
      `by_seed` is the effect of each by its number, or {} if the effect is not computed seed by seed;
    - `seeds_needed` of an inconclusive claim is the number of seeds that detect the smallest effect of interest
      (MAX_SEEDS + 1: more than MAX_SEEDS), or null if unknown.

    Missing and diverged runs make a claim inconclusive. Raises UserError for invalid claims.yaml or paper_values.yaml.
    """
    file = read_claims(results.folder)
    tests, paper = file.tests, file.paper
    claims = load_claims(results.scale, results.seeds, results.folder, results.configs)
    models, entries = _judged(claims, results, tests)
    for claim, entry in zip(claims, entries, strict=True):
        by_paper = judge_paper(claim, paper.evaluations if paper else {}, results.paper)
        found = by_paper.entry("", "", "") if by_paper else {}
        keys = ("verdict", "effect", "low", "high", "reason")
        entry |= {"topic": file.topic(claim.spec), "paper": {key: found[key] for key in keys} if found else None}
    gains = list(judge_gains(paper, results.paper, tests["paper_gain"])) if paper else []
    values: dict[str, Any] = _opening(claims, entries, models, results) | {"tests": tests}
    values |= {"claims": list(map(_cells, entries)), "gains": list(map(_cells, gains)), "found": verdict_counts(gains)}
    json, md, *pictures = (results.layout.judged("claims", suffix) for suffix in ("json", "md", "png", "svg", "pdf"))
    write_json(json, entries + gains)
    write_text(md, fill("claims.md", **values))
    ran = [model for model in models.values() if model]
    with rc_context(fname=STYLE):
        notes = [one_model(ran), sizes(results.scale, ran), "gray tick: where the claim begins"]
        save(_draw(headlines(entries), notes), "Headline claims", *pictures)
    return [json, md, *pictures]


def write_field(results: Results, folder: str) -> list[Path]:
    """Judge the claims of the command `folder` and write <folder>.json and <folder>.md into results/<scale>.

    The entries are like those of claims.json, except that `paper` is the heading of the claim's file. Raises UserError
    if claims.yaml or a file of these claims is invalid, and if the folder has no claims.
    """
    papers, tests = read_field(results.folder, folder), read_claims(results.folder).tests
    claims = load_claims(results.scale, results.seeds, results.folder, results.configs, folder=folder)
    if not claims:
        instead = f"its claims are in {results.folder}/claims.yaml: entropy-dynamics claims --scale {results.scale}"
        raise UserError(f"scale {results.scale} has no claims in {results.folder / folder}; {instead}")
    models, entries = _judged(claims, results, tests)
    by_id, sections = {entry["id"]: entry for entry in entries}, []
    for paper in papers.values():
        own = [by_id[spec.id] for spec in paper.claims]
        for entry in own:
            entry["paper"] = paper.paper
        sections.append({"paper": paper.paper, "claims": list(map(_cells, own)), "untested": paper.untested})
    json, md = (results.layout.judged(folder, suffix) for suffix in ("json", "md"))
    write_json(json, entries)
    used = {name: tests[name] for name in dict.fromkeys(claim.spec.test for claim in claims)}
    write_text(md, fill("field.md", **_opening(claims, entries, models, results), papers=sections, tests=used))
    return [json, md]


def _opening(
    claims: Sequence[Claim], entries: list[dict[str, Any]], models: Mapping[str, Model | None], results: Results
) -> dict[str, str]:
    """The first paragraph of the Markdown: the verdicts, what the claims rest on, and what ran."""
    number = Counter("facet" if claim.spec.facet_of else claim.spec.rests_on for claim in claims)
    words = {
        "independent": "independent findings",
        "facet": "further facets",
        "by construction": "true by construction",
        "identity": "identities",
    }
    groups = "; ".join(f"{name}: {number[basis]}" for basis, name in words.items() if number[basis])
    ran = [model.ran_with_size if model else f"{name}, not run at this scale" for name, model in models.items()]
    single = one_model(model for model in models.values() if model)
    head = ". ".join(filter(None, [f"{results.scale} scale: {'; '.join(ran)}", single]))
    return {"summary": summary_line(entries), "groups": groups.capitalize(), "head": head}


def headlines(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `SHOWN` claims on scores, which share the unit of points, the most interesting first."""
    points = [entry for entry in entries if entry["unit"] == "points"]
    return sorted(points, key=lambda entry: entry["headline"] or inf)[:SHOWN]


def _draw(entries: list[dict[str, Any]], notes: list[str]) -> Figure:
    """One row per claim: effect and 95% interval in points; a gray line marks a threshold other than 0."""
    figure, [[ax]] = sheet(1.0 + 0.16 * len(entries))
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
    marks = {verdict: look | {"linestyle": "", "markersize": 4} for verdict, look in VERDICT_LOOKS.items()}
    add_legend(figure, marks, 3, handlelength=1, columnspacing=1.2)
    add_footer(figure, notes)
    return figure


def _judged(
    claims: Sequence[Claim], results: Results, tests: Mapping[str, str]
) -> tuple[dict[str, Model | None], list[dict[str, Any]]]:
    """The models of the claims by name, None for one that did not run; and an entry per claim."""
    models: dict[str, Model | None] = dict.fromkeys(name for claim in claims for name in claim.models)
    for name in models:
        with suppress(UserError):
            models[name] = results.model(name)
    findings = [judge(claim, results) for claim in claims]
    correct_primary(claims, findings)
    entries = [
        finding.entry(
            id=claim.spec.id,
            statement=_named(claim.spec.statement, claim, models, results),
            place=claim.spec.place,
            figures=claim.spec.figures,
            headline=claim.spec.headline,
            methods=list(claim.runs),
            ours=claim.spec.ours,
            scale=results.scale,
            label=_named(claim.spec.label, claim, models, results),
            subject="this run",
            unit=claim.spec.unit,
            claimed=claim.spec.claimed,
            why=claim.spec.why,
            rests_on=claim.spec.basis,
            paper=None,
            test=tests[claim.spec.test],
        )
        for claim, finding in zip(claims, findings, strict=True)
    ]
    return models, entries


def _named(text: str, claim: Claim, models: dict[str, Model | None], results: Results) -> str:
    """A statement or label with the names of the models that ran and of the data sets filled in."""
    name = claim.models[0] if claim.models else ""
    if model := models.get(name):
        name = f"the {model.ran}" if model.toy else model.ran
    for dataset in results.config.data.evaluation:
        text = text.replace(f"{{{dataset}}}", results.dataset_label(dataset))
    return text.replace("{model}", name)


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
