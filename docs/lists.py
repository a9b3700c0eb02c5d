"""Writes what data and code know into the pages, in the root: python docs/lists.py

Each part is between two comments: tables of published verdicts, counts and metrics, published runs, experiments and
their cost, the command line, the keys of the config. A test compares the parts.
"""

import argparse
import inspect
import re
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from statistics import median
from types import NoneType
from typing import Any, get_args

import numpy as np
import pandas as pd
from pydantic import BaseModel

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.problem_scores import score_columns
from entropy_dynamics.analysis.published_runs import RUN, PublishedRun, read_run
from entropy_dynamics.analysis.replication import agreeing_had_second_found, detectable_by_unit, replicates
from entropy_dynamics.analysis.run_data import Samples
from entropy_dynamics.analysis.statistics import Interval, mean_interval, score_interval
from entropy_dynamics.cli import command_parser
from entropy_dynamics.config import BASE, RunConfig, load_config, read_yaml
from entropy_dynamics.experiments.claims import JUDGED
from entropy_dynamics.experiments.load import FURTHER, PAPER, TARGETS
from entropy_dynamics.planning.plan import TEMPERATURES, needed_runs
from entropy_dynamics.publishing.restore import MODELS
from entropy_dynamics.report.fill import markdown
from entropy_dynamics.report.summary import verdict_counts
from entropy_dynamics.results.files import read_json

REFERENCE, EXPERIMENTS = Path("docs/reference"), Path("experiments")
PART = re.compile(r"(<!-- (\w+): python docs/lists.py -->\n).*?(<!-- end -->)", re.DOTALL)
DOCS = [*sorted(Path("docs").glob("*.md")), *sorted(REFERENCE.glob("*.md"))]
PAGES = [Path("README.md"), EXPERIMENTS / "README.md", *DOCS]
TOYS = ("qwen2.5-7b-instruct", "qwen3-4b-base")
SETS = ("aime24", "aime25", "dapo500")
MINUS = "\N{MINUS SIGN}"
COMMON = ("help", "scale", "results", "set")  # options that the page of the command line names once
LINKED = ("claims.md", "controls.md", "field.md", "ladder.png", "models.json", "controls.json")
CLIPPING = {"clip_b": "Clip_B", "clip_v": "Clip_V"}
CORES = 2  # each runs one job at a time
Runs = dict[str, PublishedRun]  # by path below docs/reference


def main() -> None:
    for page in PAGES:
        page.write_text(written(page), encoding="utf-8")


def written(page: Path) -> str:
    """The page with its lists as they should be."""
    lists: dict[str, Callable[[], str]] = {
        "runs": published_runs,
        "replications": replications,
        "evidence": evidence,
        "targets": targets,
        "files": experiment_titles,
        "gains": gains,
        "controls_laptop": lambda: controls("laptop"),
        "controls_desk": lambda: controls("desk"),
        "left": what_is_left,
        "methods": methods_on_policy,
        "lens": lens,
        "matched": matched_entropy,
        "switches": paper_and_code,
        "commands": commands,
        "keys": keys,
    }
    return PART.sub(lambda part: f"{part[1]}\n{lists[part[2]]()}\n\n{part[3]}", page.read_text(encoding="utf-8"))


def published_runs() -> str:
    runs = read_runs()
    rows = []
    for name, run in runs.items():
        folder = REFERENCE / name
        linked = next(file for file in LINKED if (folder / file).is_file())
        parts = " and ".join(f"`{runs[part].was[0]}`" for part in parts_of(name, run))
        page = f"README.md{run.page}" if run.page and run.page[0] == "#" else run.page
        shows = f"[{run.shows}]({page})" if page else run.shows
        rows.append(
            [
                f"[{run.was[0]}]({name}/{linked})",
                f"{parts} together: {shows}" if parts else shows,
                size_of(name, runs),
                seeds_of(name, runs),
                run.processor or "",
                ", ".join(run.commits),
                ", ".join(run.protocol),
                verdicts(folder),
            ]
        )
    heads = ["run", "what", "parameters", "seeds", "machine", "commits", "protocol", "hold, do not, inconclusive"]
    return table(heads, rows)


def replications() -> str:
    runs = read_runs()
    rows = []
    for first, run in runs.items():
        for second in run.compare_with:
            claims = [claim for claim in replicates(REFERENCE / first, REFERENCE / second) if claim.compared]
            sizes = dict.fromkeys(size_of(name, runs) for name in (first, second))
            changed = sum(claim.changed for claim in claims)
            rows.append(
                [
                    f"`{run.was[0]}`, `{runs[second].was[0]}`",
                    ", ".join(sizes),
                    f"{sum(bool(claim.agrees) for claim in claims)} of {len(claims)}",
                    f"{median(detectable_by_unit(claims)['points']):.2g}",
                    *("{} of {}".format(*agreeing_had_second_found(claims, share)) for share in (0, -1)),
                    f"{changed} ({sum(claim.chance_of_change for claim in claims):.0f})",
                ]
            )
            assert not any(claim.reversed for claim in claims), "docs/reference/runs.md says that none is"
    heads = ["runs", "parameters", "agree", "detected, points", "at the threshold", "opposite sign"]
    return table([*heads, "verdicts changed (predicted)"], rows)


def evidence() -> str:
    """Differences from GRPO over all published runs of the toy models, with an interval over clusters.

    A cluster is a seed at one size. Its value is the mean over all runs that have both methods, on whatever processor,
    then over models and data sets. Clusters weigh the same; the interval is Student's.
    """
    arms, cells = ["model", "method", "seed"], ["model", "method", "seed", "dataset"]
    kinds = {"Pass@K": 0.7, "Avg@K": 0.7, "greedy accuracy": 0.0}
    of_size: dict[str, pd.DataFrame] = {}
    for size, scale in {"0.1 M": "laptop", "1 M": "desk"}.items():
        runs = []
        for file in sorted((REFERENCE / scale).rglob("counts.parquet")):
            frame = pd.read_parquet(file, filters=[("model", "in", TOYS), ("method", "in", ["grpo", *CLIPPING])])
            frame = frame[frame["dataset"].isin(SETS)]
            solved = {"Pass@K": frame["correct"] > 0}
            scores = frame.assign(**dict.fromkeys(kinds, frame["correct"] / frame["samples"]) | solved)
            at = {kind: (frame["temperature"] - value).abs() < 1e-3 for kind, value in kinds.items()}
            scores[[*kinds]] = scores[[*kinds]].astype(float).where(pd.DataFrame(at))
            if "grpo" in frame["method"].array:
                wide = scores.groupby(cells)[[*kinds]].mean().groupby(arms).mean().unstack("method")
                over = wide.sub(wide.xs("grpo", axis=1, level="method"), level=0)
                runs.append(over.stack("method", future_stack=True).reset_index().dropna(subset="Avg@K"))
        once = pd.concat(runs).drop_duplicates()  # some folders repeat the runs of another
        of_size[size] = 100 * once.groupby(arms).mean().unstack("method")
    rows = []
    for method, label in CLIPPING.items():
        for kind, temperature in kinds.items():
            clusters = {}
            for size, scores in of_size.items():
                clusters[size] = scores[kind, method].unstack("model").dropna().mean(axis=1)
            every = pd.concat(clusters)
            intervals = [mean_interval(values.to_numpy()) for values in (every, *clusters.values())]
            shown = [f"{of.value:+.1f} [{of.low:.1f}, {of.high:.1f}]".replace("-", MINUS) for of in intervals]
            name = kind if not temperature else f"{kind}, temperature {temperature}"
            rows.append([f"{label}: {name}", *shown, f"{(every < 0).sum()} of {len(every)}"])
    return table(["points over GRPO", "all", *of_size, "clusters below GRPO"], rows)


def read_runs() -> Runs:
    """All published runs: the laptop's first, the paper's before others, parts before what is pooled from them."""

    def order(name: str) -> tuple[bool, str, bool, str, bool, str]:
        scale, _, rest = name.partition("/")
        folder, _, last = rest.rpartition("/")
        return scale != "laptop", scale, folder != PAPER, folder, last.startswith("pooled"), last

    names = [str(file.parent.relative_to(REFERENCE)) for file in REFERENCE.rglob(RUN)]
    return {name: run for name in sorted(names, key=order) if (run := read_run(REFERENCE / name))}


def parts_of(name: str, run: PublishedRun) -> list[str]:
    return [str(Path(name).parent / part) for part in run.of]


def size_of(name: str, runs: Runs) -> str:
    """'0.1 M', '0.03 to 2.1 M', '135 M, pretrained'."""
    named = (REFERENCE / other / MODELS for other in (name, *parts_of(name, runs[name]), *runs[name].same_models_as))
    models = read_json(next(file for file in named if file.is_file()))["models"].values()
    least, most = (of(model["parameters"] / 1e6 for model in models) for of in (min, max))
    shown = f"{least:.1g} to {most:.2g}" if most > 2 * least else f"{most:.0f}" if most >= 1 else f"{most:.1g}"
    return f"{shown} M{'' if all(model['toy'] for model in models) else ', pretrained'}"


def seeds_of(name: str, runs: Runs) -> str:
    """'0 to 4', or '0 to 4, 50 to 54', of all trained methods."""
    seeds: set[int] = set()
    for part in parts_of(name, runs[name]) or [name]:
        frame = pd.read_parquet(REFERENCE / part / "counts.parquet", columns=["method", "seed"])
        seeds |= set(frame.loc[frame["method"] != BASE, "seed"])
    firsts, lasts = sorted(seeds - {seed + 1 for seed in seeds}), sorted(seeds - {seed - 1 for seed in seeds})
    return ", ".join(f"{a} to {b}" if a < b else f"{a}" for a, b in zip(firsts, lasts, strict=True))


def verdicts(folder: Path) -> str:
    """'46, 7, 23 (4 without a value)', of each file of verdicts."""
    cells = []
    for kind in ("claims", *JUDGED):
        if (file := folder / f"{kind}.json").is_file():
            entries = verdicts_of(file).values()
            without = sum(entry["effect"] is None for entry in entries)
            counts = ", ".join(map(str, verdict_counts(entries))) + (f" ({without} without a value)" if without else "")
            link = file.with_suffix(".md") if file.with_suffix(".md").is_file() else file
            cells.append(f"[{kind}]({link.relative_to(REFERENCE)}): {counts}")
    return "; ".join(cells)


def targets() -> str:
    """What each folder of experiments/ trains beyond the default, and its hours."""
    default = Cost("laptop", None)
    rows = [["the paper's", "`snakemake`", f"{default.trained} in all", default.hours()]]
    rows.append([f"`{FURTHER}/`", "`snakemake`", "none", ""])
    for name in (*TARGETS, "field"):
        cost = Cost("laptop", name)
        rows.append([f"`{name}/`", f"`snakemake {name}`", f"{cost.beyond(default)}", cost.hours(default)])
    others = {path.name for path in EXPERIMENTS.iterdir() if path.is_dir()} - {FURTHER, *TARGETS, *JUDGED}
    for name in sorted(others):
        cost = Cost(name, None)
        rows.append([f"`{name}/`", f"`snakemake --config scale={name}`", f"{cost.trained} in all", cost.hours()])
    return table(["folder of experiments", "built by", "training runs beyond the default", "hours on two cores"], rows)


class Cost:
    """The training runs of a target, and the seconds of its jobs on one core by workflow/costs.yaml."""

    def __init__(self, scale: str, target: str | None):
        self.config = load_config(scale)
        self.stages = {stage: {run.path for run in runs} for stage, runs in needed_runs(self.config, target).items()}
        every = self.stages["train"]
        longer = {run: (run[0], run[1].partition("@training.steps=")[0], run[2]) for run in every}
        # The policy of a longer run's earlier steps is left by that run.
        self.stages["train"] = {run for run in every if longer[run] == run or longer[run] not in every}
        self.stages["model"] = {(model, self.config.untrained(model, seed)) for model, _, seed in every}
        self.stages["pass_rates"] = {run for run in self.stages["model"] if run[0] == self.config.pass_rates.model}
        costs = read_yaml(Path("workflow/costs.yaml"))
        self.measured = scale
        while self.measured not in costs:
            self.measured = read_yaml(Path(f"configs/scale/{self.measured}.yaml"))["extends"]
        self.seconds = costs[self.measured] | dict.fromkeys(TEMPERATURES, costs[self.measured]["temperatures"])

    @property
    def trained(self) -> int:
        return len(self.stages["train"])

    def beyond(self, default: "Cost") -> int:
        return len(self.stages["train"] - default.stages["train"])

    def hours(self, default: "Cost | None" = None) -> str:
        known = default.stages if default else {}
        seconds = 0.0
        for stage, jobs in self.stages.items():
            for job in jobs - known.get(stage, set()):
                seconds += self.seconds[stage] * (self.length(*job[:2]) if stage == "train" else 1)
        return f"{seconds / CORES / 3600:.1g}"

    def length(self, model: str, method: str) -> float:
        """The number of steps over that of the scale whose costs are used."""
        if self.config.scale == self.measured:
            return 1
        steps = load_config(self.config.scale, model, method).training.steps
        return steps / load_config(self.measured).training.steps


def experiment_titles() -> str:
    """The titles of all tables and figures, and the papers whose claims are judged, by folder."""
    parts = []
    folders = [EXPERIMENTS, EXPERIMENTS / FURTHER, *(EXPERIMENTS / name for name in TARGETS)]
    folders += sorted(path.parent for path in EXPERIMENTS.rglob("*.yaml") if path.parent not in folders)
    for folder in dict.fromkeys(folders):
        rows = []
        for file in sorted(folder.glob("*.yaml"), key=by_number):
            content = read_yaml(file)
            what = content.get("title") or content.get("paper")
            if isinstance(what, str):  # not in claims.yaml and paper_values.yaml
                rows.append([f"[{file.stem}]({file.relative_to(EXPERIMENTS)})", markdown(what)])
        name = f"`{folder.relative_to(EXPERIMENTS)}/`" if folder != EXPERIMENTS else "This level"
        parts.append(f"### {name}\n\n{table(['file', 'what it shows'], rows)}")
    return "\n\n".join(parts)


def by_number(file: Path) -> tuple[str, int]:
    """losses_stale_8 before losses_stale_10."""
    stem, number = re.fullmatch(r"(.*?)(\d*)", file.stem).groups()
    return stem, int(number or 0)


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |") for cells in (heads, *rows)]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


def shown(value: float, low: float, high: float, decimals: int = 1, sign: bool = True) -> str:
    """'+17.0 [11.0, 23.8]'; halves are rounded away from zero."""
    places = Decimal(1).scaleb(-decimals)
    texts = []
    for number in (value, low, high):
        text = str(Decimal(f"{number:.6g}").quantize(places, ROUND_HALF_UP))
        texts.append(text.removeprefix("-") if float(text) == 0 else text.replace("-", MINUS))
    plus = "+" if sign and texts[0][0] != MINUS and float(texts[0]) else ""
    return f"{plus}{texts[0]} [{texts[1]}, {texts[2]}]"


def of_claim(name: str, claim: str, decimals: int = 1) -> str:
    entry = verdicts_of(REFERENCE / name)[claim]
    return shown(entry["effect"], entry["low"], entry["high"], decimals)


def gains() -> str:
    """The main comparison: the paper's gains over GRPO and ours."""
    pooled = ["laptop/paper/pooled", "desk/paper/pooled", "smollm2/seeds-0-7"]
    rows = []
    for metric, name in (("pass", "Pass@K"), ("avg", "Avg@K")):
        for method in ("clip_b", "clip_v"):
            claim = f"{metric}_gain_{method}"
            paper = verdicts_of(REFERENCE / pooled[0])[claim]["paper"]
            cells = [shown(paper["effect"], paper["low"], paper["high"])]
            label = f"{name}, {method.capitalize()[:-1]}{method[-1].upper()}"
            rows.append([label, *cells, *(of_claim(run, claim) for run in pooled)])
    heads = ["points above GRPO [95 %]", "paper, 4 and 7 B", "toy, 0.1 M", "toy, 1 M", "SmolLM2, 135 M"]
    return table(heads, rows)


@cache
def counts_of(folder: str) -> dict[str, pd.DataFrame]:
    """The counts of each method at temperature 0.7 on the evaluation sets."""
    frame = pd.read_parquet(REFERENCE / folder / "counts.parquet")
    frame = frame[np.isclose(frame["temperature"].astype(float), 0.7) & frame["dataset"].isin(SETS)]
    return dict(iter(frame.groupby("method", observed=True)))


@cache
def samples_of(folder: str, method: str, model: str) -> dict[int, dict[str, Samples]]:
    """By seed and data set."""
    samples: dict[int, dict[str, Samples]] = {}
    frame = counts_of(folder)[method]
    for (seed, dataset), rows in frame[frame["model"] == model].groupby(["seed", "dataset"], observed=True):
        of = Samples("", rows["correct"].to_numpy(), int(rows["samples"].iloc[0]), *[np.nan] * 5)
        samples.setdefault(seed, {})[dataset] = of
    return samples


def gain(folders: list[str], metric: str, plus: str, minus: str, models: tuple[str, ...]) -> Interval:
    """The difference in a score, points, over the evaluation sets and models, of the seeds of all folders."""
    weights = {(model, method): sign / len(models) for model in models for method, sign in ((plus, 1), (minus, -1))}
    samples: dict[tuple[str, str], dict[int, dict[str, Samples]]] = {}
    for model, method in weights:
        samples[model, method] = {}
        for folder in folders:
            samples[model, method] |= samples_of(folder, method, model)
    columns = score_columns(samples, weights, metric, dict.fromkeys(SETS, 1 / len(SETS)))
    return score_interval(columns).times(100)


def gain_shown(*arguments: Any) -> str:
    interval = gain(*arguments)
    return shown(interval.value, interval.low, interval.high)


def controls(scale: str) -> str:
    """Placebos and half the learning rate: a scale's verdicts on entropy, and differences in scores from its counts."""
    folder = REFERENCE / f"{scale}/controls/pooled"
    parts = [f"{scale}/controls/{part}" for part in read_run(folder).of]
    judged = verdicts_of(folder / "controls.json")

    def row(label: str, claims: str, plus: str, minus: str) -> list[str]:
        cells = [label]
        for model in ("qwen2.5", "qwen3"):
            entry = judged.get(claims.format("entropy") + f"_{model}")
            cells.append(shown(entry["effect"], entry["low"], entry["high"], 2) if entry else "")
        return [*cells, *(gain_shown(parts, metric, plus, minus, TOYS) for metric in ("pass", "avg"))]

    rows = []
    for method, mask, low_p in (("clip_b", "random_mask", "low_p_mask"), ("clip_v", "random_mask_v", "low_p_mask_v")):
        label = f"Clip_{method[-1].upper()}"
        rows += [
            row(f"{label} over GRPO", "-", method, "grpo"),
            row(f"{label} over its random mask", f"placebo_{{}}_{method}", method, mask),
            row(f"{label} over the lowest *p*", f"low_p_{{}}_{method}", method, low_p),
            row(f"random mask of {label} over GRPO", f"chance_{{}}_{method}", mask, "grpo"),
            row(f"{label} over half the rate", "-", method, "grpo_half_rate"),
        ]
    rows.append(row("half the learning rate over GRPO", "half_rate_{}", "grpo_half_rate", "grpo"))
    if scale == "laptop":
        rows.append(row("rejection sampling over GRPO", "-", "rft", "grpo"))
    heads = ["", "entropy, log ratio, toy Qwen2", "toy Qwen3", "Pass@K, both models", "Avg@K"]
    return table(heads, rows)


def what_is_left() -> str:
    frame = pd.read_csv(REFERENCE / "laptop/controls/pooled-path/left.csv")
    frame = frame[frame["scale"] == "laptop and desk"].set_index(["method", "model", "over"]).sort_index()
    names = dict(zip((*TOYS, "mean"), ("toy Qwen2", "toy Qwen3", "mean"), strict=True))
    rows = []
    for method in ("clip_b", "clip_v"):
        for model, name in names.items():
            of = frame.loc[method, model]
            grids = ("temperatures", "checkpoints", "half the rate")
            cells = [shown(*of.loc[grid, ["left", "left_low", "left_high"]], sign=False) for grid in grids]
            rows.append([f"Clip_{method[-1].upper()}, {name}", *cells, of.loc[grids[-1], "verdict"]])
    return table(["points of Pass@K", "GRPO's temperatures", "+ checkpoints", "+ half the learning rate", "then"], rows)


def methods_on_policy() -> str:
    """All methods: entropy at the end, of the run with metrics, and differences from GRPO of ten seeds."""
    folders = ["laptop/methods/seeds-0-4", "laptop/methods/seeds-50-54"]
    published = pd.read_csv(REFERENCE / folders[1] / "methods_on_policy.csv")
    rows = []
    for of in published[published["method"].isin(counts_of(folders[0]))].itertuples():
        cells = ["as GRPO"] * 2 if of.equals_baseline else [""] * 2
        if of.method != "grpo" and not of.equals_baseline:
            cells = [gain_shown(folders, metric, of.method, "grpo", TOYS[:1]) for metric in ("avg", "pass")]
        rows.append([of.label.partition(" (")[0], f"{of.entropy:.2f}", *cells])
    return table(["strictly on-policy", "entropy, nats", "Avg@K over GRPO", "Pass@K over GRPO"], rows)


def lens() -> str:
    """The share of GRPO's push on the entropy in each quadrant that a method keeps."""
    frame = pd.read_csv(REFERENCE / "laptop/methods/seeds-0-4/lens.csv")
    quadrants = {"+, >0": "pos_gt", "+, <0": "pos_lt", "−, >0": "neg_gt", "−, <0": "neg_lt"}
    rows = [
        [of["label"], *(f"{of[f'lens_{name}_share']:.2f}".replace("-", MINUS) for name in quadrants.values())]
        for of in frame[~frame["method"].str.startswith("s_star")].to_dict("records")
    ]
    return table(["sign of *A*, *S\\**", *quadrants], rows)


def matched_entropy() -> str:
    """Methods at the entropy of Clip_B, interpolated over their strengths."""
    rows = []
    for file in ("seeds-0-4/matched_entropy.csv", "seeds-0-4-opefo/figures/matched_entropy_opefo.csv"):
        frame = pd.read_csv(REFERENCE / "laptop/methods" / file)
        frame = frame[frame["avg_matched"].notna() & (frame["method"] != "clip_b")].drop_duplicates("method")
        for of in frame.to_dict("records"):
            scores = ([of[f"{metric}_matched{end}"] for end in ("", "_low", "_high")] for metric in ("avg", "pass"))
            rows.append([f"`{of['method']}`", *(shown(*score) for score in scores)])
    return table(["at Clip_B's 0.30 nats, over Clip_B", "Avg@K", "Pass@K"], rows)


def paper_and_code() -> str:
    """Each switch in which the paper and its code differ: Table 6."""
    folder = "laptop/extras/seeds-50-54"
    metrics = pd.read_parquet(REFERENCE / folder / "metrics.parquet")
    dropped = 100 * metrics.groupby("method")["clip_fraction"].mean()
    pairs = {
        "Clip_B over GRPO": ("clip_b", "grpo"),
        "Clip_B of eq. 15 over Clip_B": ("clip_b_paper", "clip_b"),
        "Clip_B with both bounds (`mu_plus=null`) over Clip_B": ("clip_b@mu_plus=null", "clip_b"),
        "Clip_B with the denominator of all tokens over Clip_B": ("clip_b@denominator=all", "clip_b"),
        "Clip_V over GRPO": ("clip_v", "grpo"),
        "Clip_V of Algorithm 2 over Clip_V": ("clip_v_paper", "clip_v"),
        "Clip_V with a cap of 0.2 % over GRPO": ("clip_v@max_frac=0.002", "grpo"),
        "GRPO, binary reward, over GRPO": ("grpo_binary_reward", "grpo"),
        "GRPO, loss per group, over GRPO": ("grpo_per_group", "grpo"),
    }
    rows = [
        [
            name,
            f"{dropped[plus]:.1f}" if dropped[plus] else "",
            *(gain_shown([folder], metric, plus, minus, TOYS[:1]) for metric in ("avg", "pass")),
        ]
        for name, (plus, minus) in pairs.items()
    ]
    return table(["", "dropped, %", "Avg@K", "Pass@K"], rows)


def commands() -> str:
    """The command line, as `--help` says it, by group."""
    parts = []
    for group, names in command_parser().get_default("groups").items():
        parts.append(f"## {group}")
        for name, parser in names.items():
            usage = re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage: ")).strip()
            actions = [action for action in parser._actions if action.dest not in COMMON]
            rows = [[f"`{option_of(action)}`", escaped(about_of(action))] for action in actions]
            text = [f"### {name}", escaped(parser.description), f"    {usage}", table(["", ""], rows) if rows else ""]
            parts += [part for part in (*text, parser.epilog and indented(parser.epilog)) if part]
    return "\n\n".join(parts)


def option_of(action: argparse.Action) -> str:
    metavar = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    return " ".join(filter(None, [*action.option_strings[:1], str(metavar)]))


def about_of(action: argparse.Action) -> str:
    choices = f"one of {', '.join(map(str, action.choices))}" if action.choices else ""
    return "; ".join(filter(None, [action.help, choices]))


def escaped(text: str) -> str:
    """A text of the code in one line of Markdown; what is between backticks stays."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part[:1] == "`" else re.sub(r"([*|<])", r"\\\1", part) for part in parts)


def indented(text: str) -> str:
    return "\n".join(f"    {line.strip()}" for line in text.splitlines() if line.strip())


def keys() -> str:
    """All keys of a config but a method's parameters, with base.yaml's value."""
    base = read_yaml(Path("configs/base.yaml"))
    parts = []
    for section, field in RunConfig.model_fields.items():
        kinds = [kind for kind in sections_in(field.annotation) if section != "method"]
        rows = list(key_rows(kinds[0], "", base.get(section) or {})) if kinds else []
        if rows:
            parts.append(f"## {section}\n\n{table(['key', 'in base.yaml', 'meaning'], rows)}")
    return "\n\n".join(parts)


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for part in get_args(annotation) if part is not NoneType for kind in sections_in(part)]


def key_rows(kind: type[BaseModel], prefix: str, base: dict[str, Any]) -> Iterator[list[str]]:
    for name, field in kind.model_fields.items():
        inner, value = sections_in(field.annotation), base.get(name)
        if inner and len(inner) == 1 and not prefix.count("."):
            yield from key_rows(inner[0], f"{prefix}{name}.", value if isinstance(value, dict) else {})
        else:
            told = f"`{'null' if value is None else value}`" if name in base and not isinstance(value, dict) else ""
            yield [f"`{prefix}{name}`", told, escaped(field.description or "")]


if __name__ == "__main__":
    main()
