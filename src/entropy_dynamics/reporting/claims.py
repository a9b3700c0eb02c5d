"""The paper's claims: read from experiments/claims.yaml, judged from files of runs, written as json, md, png, svg.

The YAML file says what its keys mean. Snakemake asks this module for the input files of its rule, so it imports nothing
heavy; the numbers are made in `verdicts.py` and `paper_gains.py`.
"""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from entropy_dynamics.analysis.experiments import (
    COLUMN_NAMES,
    EXPERIMENTS,
    TEXTS,
    Run,
    check,
    load_experiment,
    named,
    number,
)
from entropy_dynamics.config import CONFIGS, load_config, read_yaml
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.results.files import write_json, write_text
from entropy_dynamics.results.layout import Layout

VERDICTS = ("holds", "does not hold", "cannot tell")
WINDOWS = ("all", "second_half", "last_tenth")
COLUMNS = ["verdict", "claim", "place", "effect", "claimed", "seeds", "reason"]
METRICS = ("avg", "pass", "pass_minus_avg", "extremes")
_SIDES = {"above", "below", "within"}
_COMMON = {"id", "label", "statement", "place", "test", "unit"}
_KEYS = {
    "logit_steps": ({"theorem", "statistic"}, set()),
    "within_run": ({"model", "runs", "statistic", "columns"}, {"window"}),
    "over_seeds": ({"model", "runs", "statistic", "columns"}, {"window"}),
    "curve_difference": ({"model", "runs", "against", "statistic", "columns"}, {"window", "spread", "sweep"}),
    "score_difference": ({"models", "runs", "against", "metric", "evaluations"}, set()),
}  # test: (keys it needs, keys it may have)
_STATISTICS = {
    "logit_steps": ("slope", "correlation"),
    "within_run": ("mean", "ratio", "correlation"),  # `drop` over blocks drawn from anywhere in a run means nothing
    "over_seeds": ("mean", "ratio", "correlation", "drop", "variation"),
    "curve_difference": ("mean", "ratio", "correlation", "drop", "variation"),
}
_COLUMNS = {"mean": 1, "ratio": 2, "correlation": 2, "drop": 1, "variation": 1}
_SIZES = {"problems", "samples"}
_PAPER_KEYS = {"place", "models", "methods", "against", "evaluations"}


def _sections(value: Any) -> bool:
    return named(object, value) and len(value) > 0


def _sizes(value: Any) -> bool:
    return named(dict, value) and all(
        set(one) == _SIZES and all(type(size) is int and 1 <= size <= 10**6 for size in one.values())
        for one in value.values()
    )


# What the value of a key has to do, in words too; of all other keys: be a text.
_RIGHT = {
    **dict.fromkeys(("above", "below"), (number, "be a number")),
    "within": (lambda v: isinstance(v, list) and len(v) == 2 and all(map(number, v)), "be a list of two numbers"),
    "theorem": (lambda v: v in (1, 2), "be 1 or 2"),
    **dict.fromkeys(("models", "evaluations"), TEXTS),
    "columns": COLUMN_NAMES,
    **dict.fromkeys(("runs", "against", "spread"), (_sections, "map methods to 'tables' or 'extras'")),
}
_RIGHT_OF_PARTS = {
    **dict.fromkeys(("tests", "paper"), (lambda v: isinstance(v, dict), "be a mapping")),
    "claims": (lambda v: isinstance(v, list) and len(v) > 0, "be a list of claims"),
}
_RIGHT_OF_PAPER = {
    **dict.fromkeys(("models", "methods"), (lambda v: v == [] or TEXTS[0](v), TEXTS[1])),
    "evaluations": (_sizes, "map data sets to {problems: 1 or more, samples: 1 or more}"),
}


@dataclass(frozen=True)
class Claim:
    """One claim of the file. `runs`, `against` and `spread` map a method to its number of seeds."""

    id: str
    label: str  # for the picture
    statement: str
    place: str
    test: str
    unit: str
    low: float | None  # the claimed side: from low ...
    high: float | None  # ... to high, None where open
    models: tuple[str, ...] = ()
    runs: dict[str, int] = field(default_factory=dict)
    against: dict[str, int] = field(default_factory=dict)
    spread: dict[str, int] = field(default_factory=dict)
    statistic: str = ""
    columns: tuple[str, ...] = ()
    window: str = "all"
    metric: str = ""
    evaluations: tuple[str, ...] = ()
    theorem: int = 0

    @property
    def claimed(self) -> str:
        if None not in (self.low, self.high):
            return f"from {self.low:g} to {self.high:g}"
        return f"below {self.high:g}" if self.low is None else f"above {self.low:g}"

    def all_runs(self) -> list[Run]:
        methods: dict[str, int] = {}
        for part in (self.runs, self.against, self.spread):
            for method, seeds in part.items():
                methods[method] = max(seeds, methods.get(method, 0))
        return [
            Run(model, method, seed) for model in self.models for method in methods for seed in range(methods[method])
        ]


def load_claims(scale: str, seeds: Any, experiments: Path = EXPERIMENTS) -> tuple[list[Claim], dict[str, str], dict]:
    """Read claims.yaml for one scale; `seeds` is the `seeds` section of its config.

    Returns:
        The claims, {test: what it does}, and the section on the paper's own numbers.

    Raises:
        UserError: broken YAML, a key or value that is unknown, missing or given twice.
    """
    path = experiments / "claims.yaml"
    content = read_yaml(path)
    check(content, {"tests", "claims", "paper"}, set(), str(path), _RIGHT_OF_PARTS)
    check(content["tests"], {*_KEYS, "paper_gain"}, set(), f"{path}: tests")
    check(content["paper"], _PAPER_KEYS, set(), f"{path}: paper", _RIGHT_OF_PAPER)
    claims = [_claim(entry, i, scale, seeds, experiments, path) for i, entry in enumerate(content["claims"], 1)]
    for one in claims:
        if sum(one.id == other.id for other in claims) > 1:
            raise UserError(f"{path}: two claims have the id {one.id!r}")
    return claims, content["tests"], content["paper"]


def _claim(entry: Any, number: int, scale: str, seeds: Any, experiments: Path, path: Path) -> Claim:
    where = f"{path}: claim {entry.get('id', number) if isinstance(entry, dict) else number}"
    test = entry.get("test") if isinstance(entry, dict) else None
    if not isinstance(test, str) or test not in _KEYS:
        raise UserError(f"{where}: unknown test {test!r}{nearest(str(test), _KEYS)}")
    needed, allowed = _KEYS[test]
    check(entry, _COMMON | needed, allowed | _SIDES, where, _RIGHT)
    sides = sorted(_SIDES & set(entry))
    if len(sides) != 1:
        raise UserError(f"{where}: give one of 'above', 'below' and 'within', not {' and '.join(sides) or 'none'}")
    limits = entry[sides[0]]
    low, high = {"above": (limits, None), "below": (None, limits)}.get(sides[0]) or limits
    for key, known in (("statistic", _STATISTICS.get(test)), ("window", WINDOWS), ("metric", METRICS)):
        if key in entry and entry[key] not in known:
            raise UserError(f"{where}: unknown {key} {entry[key]!r}{nearest(str(entry[key]), known)}")
    if "columns" in entry and len(entry["columns"]) != _COLUMNS[entry["statistic"]]:
        raise UserError(f"{where}: the statistic {entry['statistic']!r} takes {_COLUMNS[entry['statistic']]} columns")
    if test in ("within_run", "over_seeds") and len(entry["runs"]) != 1:
        raise UserError(f"{where}: the test {test!r} is of one method")
    models = tuple(entry.get("models", [entry["model"]] if "model" in entry else []))
    parts = {}
    for part in [key for key in ("runs", "against", "spread") if key in entry]:
        parts[part] = {}
        for method, section in entry[part].items():
            if section not in ("tables", "extras"):
                raise UserError(f"{where}: seeds of {method} are {section!r}; they have to be 'tables' or 'extras'")
            parts[part][_swept(method, entry.get("sweep"), scale, seeds, experiments, where)] = seeds[section]
    plain = {key: entry[key] for key in _COMMON | {"statistic", "window", "metric", "theorem"} if key in entry}
    tuples = {key: tuple(entry[key]) for key in ("columns", "evaluations") if key in entry}
    return Claim(**plain, **tuples, **parts, low=low, high=high, models=models)


def _swept(method: str, sweep: str | None, scale: str, seeds: Any, experiments: Path, where: str) -> str:
    """clip_b@mu=largest -> clip_b@mu=2.1, the largest value that the experiment `sweep` has at this scale."""
    prefix, _, end = method.rpartition("=")
    if end not in ("smallest", "largest"):
        return method
    if sweep is None:
        raise UserError(f"{where}: {method} needs the key 'sweep', the experiment with its values")
    runs = load_experiment(sweep, scale, seeds, experiments).runs
    swept = {run.method for run in runs if run.method.startswith(f"{prefix}=")}
    if not swept:
        raise UserError(f"{where}: {sweep} has no runs {prefix}=...")
    pick = min if end == "smallest" else max
    return pick(swept, key=lambda name: float(name.rpartition("=")[2]))


def claim_runs(scale: str, seeds: Any, configs: Path = CONFIGS, experiments: Path = EXPERIMENTS) -> list[Run]:
    """All runs that claims are judged by, of the models that this scale has."""
    known = load_config(scale, configs=configs).models
    claims, _, _ = load_claims(scale, seeds, experiments)
    return list(dict.fromkeys(run for claim in claims for run in claim.all_runs() if run.model in known))


def input_files(
    results: Path, scale: str, seeds: Any, configs: Path = CONFIGS, experiments: Path = EXPERIMENTS
) -> list[Path]:
    """All that `write_claims` reads from results/<scale>, where the scale has those models; in a fixed order."""
    known = load_config(scale, configs=configs).models
    needed = dict.fromkeys(  # many claims read one file: a path is made once
        (run, part)
        for claim in load_claims(scale, seeds, experiments)[0]
        for run in claim.all_runs()
        if run.model in known
        for part in (*claim.evaluations, *(["metrics"] if claim.columns else []))
    )
    files = [Layout(results).logit_steps]
    files += [Layout(results).model(model) / "model.json" for model in dict.fromkeys(run.model for run, _ in needed)]
    return files + [
        run.metrics_file(results) if part == "metrics" else run.evaluation_file(results, part) for run, part in needed
    ]


def write_claims(
    results: Path, scale: str, seeds: Any, configs: Path = CONFIGS, experiments: Path = EXPERIMENTS
) -> list[Path]:
    """Judge every claim and write claims.json, .md, .png, .svg and .html into `results`, which is results/<scale>.

    claims.json is a list of {id, subject, statement, place, verdict, effect, low, high, unit, claimed, test, seeds,
    reason}. `subject` is "this run" for the claims, judged from the files of this scale, and "paper" for the gains that
    the paper prints, judged from its numbers alone. `effect`, `low` and `high` are null where there is none; `seeds`
    maps a method to how many of its seeds could be used. Missing and diverged runs give "cannot tell" with the reason.

    Raises:
        UserError: claims.yaml or paper_values.yaml is not as it should be.
    """
    from entropy_dynamics.analysis.paper_gains import judge_paper
    from entropy_dynamics.analysis.results import Results
    from entropy_dynamics.analysis.verdicts import judge
    from entropy_dynamics.reporting.claims_figure import write_picture

    results = Path(results)
    source = Results(results, scale, Path(configs), Path(experiments))
    claims, tests, paper = load_claims(scale, seeds, source.experiments)
    findings = [judge(claim, source) for claim in claims]
    models = {model: _model_that_ran(source, model) for claim in claims for model in claim.models}
    stand_ins = {model for model, ran in models.items() if ran.startswith("stand-in")}
    entries = []
    for claim, finding in zip(claims, findings, strict=True):
        name = models[claim.models[0]].partition(",")[0].replace("stand-in", "the stand-in") if claim.models else ""
        entries.append(
            {
                "id": claim.id,
                "subject": "this run",
                "statement": claim.statement.replace("{model}", name),
                "place": claim.place,
                "verdict": finding.verdict,
                "effect": finding.effect,
                "low": finding.low,
                "high": finding.high,
                "unit": claim.unit,
                "claimed": claim.claimed,
                "test": tests[claim.test],
                "seeds": finding.seeds,
                "reason": finding.reason,
            }
        )
    own = judge_paper(paper, source.paper["scores"], tests["paper_gain"])
    head = f"{scale} scale: {'; '.join(dict.fromkeys(models.values()))}"
    json, md, png, svg, html = (results / f"claims.{ending}" for ending in ("json", "md", "png", "svg", "html"))
    write_json(json, entries + own)
    write_text(md, to_markdown(entries, own, tests, head))
    write_text(html, to_html(entries, own, tests, head))
    write_picture(claims, findings, stand_ins, [head, summary_line(entries), summary_line(own)], png, svg)
    return [json, md, png, svg, html]


def summary_line(entries: list[dict]) -> str:
    """'Of 39 claims 26 hold, 3 do not hold, and of 10 one cannot tell', for the entries of one subject."""
    hold, fail, open_ = (sum(entry["verdict"] == verdict for entry in entries) for verdict in VERDICTS)
    if entries and entries[0]["subject"] == "paper":
        return (
            f"Of the paper's own {len(entries)} gains in Table 1, {hold} exceed the noise of sampling, {fail} are"
            f" losses that exceed it, {open_} cannot be told from it"
        )
    return f"Of {len(entries)} claims {hold} hold, {fail} do not hold, and of {open_} one cannot tell"


def to_markdown(entries: list[dict], own: list[dict], tests: dict[str, str], head: str) -> str:
    """The claims and the paper's own gains, a table each, with what was tested."""
    rows = [[f"**{verdict}**", *rest] for verdict, *rest in _rows(entries)]
    paper_rows = [[f"**{one['verdict']}**", one["statement"], _effect(one)] for one in own]
    blocks = [
        f"**{summary_line(entries)}.** {head}. Each effect with its 95 % interval.",
        _table(COLUMNS, rows),
        f"**{summary_line(own)}.** {_escaped(tests['paper_gain'])}",
        _table(["verdict", "gain", "effect"], paper_rows),
        "Tests:",
        "\n".join(f"- `{name}`: {_escaped(text)}" for name, text in tests.items() if name != "paper_gain"),
    ]
    return "\n\n".join(blocks) + "\n"


def to_html(entries: list[dict], own: list[dict], tests: dict[str, str], head: str) -> str:
    """What `to_markdown` says, as a page that stands alone: for the report."""
    from entropy_dynamics.reporting.tables import STYLE

    paper_rows = [[one["verdict"], one["statement"], _effect(one)] for one in own]
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f"<title>Claims</title>\n<style>{STYLE}</style>\n</head>\n<body>",
        f"<h1>{escape(summary_line(entries))}</h1>\n<p>{escape(head)}. Each effect with its 95 % interval.</p>",
        _html_table(COLUMNS, _rows(entries)),
        f"<h1>{escape(summary_line(own))}</h1>\n<p>{escape(tests['paper_gain'])}</p>",
        _html_table(["verdict", "gain", "effect"], paper_rows),
        "<h1>Tests</h1>",
        *(f"<p><b>{name}</b>: {escape(text)}</p>" for name, text in tests.items() if name != "paper_gain"),
        "</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _html_table(columns: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = [
        f"<tr><td><b>{escape(verdict)}</b></td>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for verdict, *rest in rows
    ]
    body = "\n".join(lines)
    return f'<table class="text">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>'


def _rows(entries: list[dict]) -> list[list[str]]:
    return [
        [
            one["verdict"],
            one["statement"],
            one["place"],
            _effect(one),
            one["claimed"],
            ", ".join(f"{method} {seeds}" for method, seeds in one["seeds"].items()) or "none needed",
            one["reason"],
        ]
        for one in entries
    ]


def _effect(entry: dict) -> str:
    if entry["effect"] is None:
        return "none"
    interval = "no interval" if entry["low"] is None else f"[{entry['low']:.4g}, {entry['high']:.4g}]"
    return f"{entry['effect']:.4g} {interval} {entry['unit']}"


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([row[0], *map(_escaped, row[1:])] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _escaped(text: str) -> str:
    for character in "*|_":
        text = text.replace(character, f"\\{character}")
    return text


def _model_that_ran(source: Any, model: str) -> str:
    try:
        return source.model(model).ran_with_size
    except UserError:
        return f"{model}, not run at this scale"
