"""Each percentage, difference in points, ratio, size and number of verdicts in README and docs is computed again from
published files, or is no measurement by a rule of `SET`. Intervals: test_numbers.py."""

import json
import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
from test_numbers import GENERATED, PAGES, QUOTED, REFERENCE, plain

from conftest import ROOT, SETS
from entropy_dynamics.analysis.claims_json import verdicts_of

NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = r" ?%| points?\b| nats\b| [GM]iB\b| s\b|x\b| tokens per| (?:claims|verdicts)\b"
MEASURED = re.compile(rf"(?<![-\d.,{{]){NUMBER}(?:(?: to| and| or) {NUMBER})?(?:{UNIT})")
BESIDE = ("smollm2", "smollm2-gpu", "smollm2-words", "laptop/methods", "laptop/controls")
BESIDE += ("share", "stale", "rates", "length")
RECORDS = [f"docs/reference/{name}/README.md" for name in BESIDE]  # beside their runs
WRITTEN = [page for page in PAGES if str(page.relative_to(ROOT)) not in RECORDS]
LAPTOP = ("laptop/paper/seeds-0-4", "laptop/paper/seeds-50-54")
DOSE = r"(?:0\.03|0\.1|0\.3|1|1\.5|3)"  # per cent of the tokens, tried in the pilots of docs/protocol.md
SET = {  # a number that is not measured -> what it is
    r"95 % (?:intervals?\b|\])|\(95 %; with five seeds 93\.75 %\)|\[95 %\]": "the level of an interval",
    r"90 % power|Six or more: 95 %": "the level of a test, or of an interval",
    r"highest, 93\.75 %|97 % are expected|about 10 % more": "arithmetic: 1 - 2 / 2**5; of two intervals; exp(0.1)",
    r"drops? (?:2|0\.1) % of|lowest 2 % of|(?:fifteen tokens|short answers) took \[?2 %": "the share of an example",
    r": about 2 %|begin with 0\.1 %": "the advice",
    r"paper's 0\.01 to 0\.1 %|paper drops 0\.01 to 0\.1 %": "the paper's number",
    rf"(?:up to|[Ff]rom|[Aa]t|\|) {DOSE} %|1, 1\.5 and 3 %|gave about 1\.5 %": "a dose that was tried",
    r"ke(?:eps|pt) entropy at 5 %|At 5 % Clip_B": "a dose that was tried",
    r"[Ll]ess than 3 points|within 2 points": "the smallest effect of interest",
    r"40 % in training and 60 % of|\(L40S: 30 % and 60 %\)": "assumed by `plan`, as the page says",
    r"within 3 s of CPU|at least 180 s": "a limit",
    r"covers 65 to 90 %": "simulated: python tests/simulated_seeds.py",
    r"1\.50 \| 0%|2\.33 \| 4\.8%": "printed by the script of the page, which test_integration_pages.py runs",
}


# ------------------------------------------------------------------ published files
@cache
def frame(file: str) -> pd.DataFrame:
    return pd.read_csv(REFERENCE / file) if file.endswith("csv") else pd.read_parquet(REFERENCE / file)


def frames(name: str, *folders: str) -> pd.DataFrame:
    return pd.concat([frame(f"{folder}/{name}").assign(scale=folder.partition("/")[0]) for folder in folders])


@cache
def benchmark(name: str) -> dict:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())


def effect(folder: str, claim: str) -> float:
    return verdicts_of(REFERENCE / folder)[claim]["effect"]


def answers() -> dict[str, float]:
    """SmolLM2's correct and different answers to a problem, of 16."""
    table = frame("smollm2/seeds-0-7/tables/answers.csv").set_index("method")
    return dict(table[["countdown3_unique", "countdown4_unique"]].mean(axis=1) * 16 / 100)


def not_reached() -> tuple[int, int]:
    """In how many cases (seed, model, method) GRPO has less Pass@K at every temperature, and of how many."""
    by = ("model", "seed", "temperature")
    grpo, *clipped = (scores(name, *LAPTOP, by=by)["passed"].unstack() for name in ("grpo", "clip_b", "clip_v"))
    drawn = list(frame("laptop/paper/pooled/figures/frontier.csv")["model"].unique())
    cases = pd.concat([one[0.7] > grpo.max(axis=1) for one in clipped]).loc[drawn]
    return cases.sum(), len(cases)


def judged(file: str) -> dict[str, str]:
    return {one["id"]: one["verdict"] for one in json.loads((REFERENCE / file).read_text())}


def verdicts(file: str) -> tuple[int, ...]:
    """How many claims there are, hold, do not, and are inconclusive; without those on the paper's numbers."""
    found = [verdict for claim, verdict in judged(file).items() if not claim.startswith("paper_")]
    return (len(found), *(found.count(verdict) for verdict in ("holds", "does not hold", "inconclusive")))


def came_back() -> tuple[int, int]:
    """The number of decided verdicts of the first run, and how many the second run repeats."""
    first, second = judged("laptop/methods/seeds-0-4/field.json"), judged("laptop/field/seeds-50-59/field.json")
    decided = {claim: verdict for claim, verdict in first.items() if verdict != "inconclusive"}
    return len(decided), sum(second[claim] == verdict for claim, verdict in decided.items())


def listed(page: str, part: str, column: int) -> list[float]:
    """The numbers with which the cells of a column begin, in a table that docs/lists.py writes."""
    [text] = re.findall(
        rf"<!-- {part}: python docs/lists.py -->\n(.*?)<!-- end -->", (ROOT / page).read_text(), re.DOTALL
    )
    cells = [row.split("|")[column].strip() for row in plain(text).strip().splitlines()[2:]]
    return [float(found[0]) for cell in cells if (found := re.match(r"[-+]?\d+(\.\d+)?", cell))]


def ends(values) -> tuple[float, float]:
    return min(values), max(values)


def dropped() -> tuple[float, float]:
    """Over scales, models, both methods and their rates, per cent of a run's tokens."""
    others = ("desk/paper/seeds-0-7", "desk/paper/seeds-50-57", "smollm2/seeds-0-7")
    runs = frames("metrics.parquet", *LAPTOP, *others, "rates/seeds-200-223", "rates-desk/seeds-200-206")
    runs = runs[runs["method"].isin(["clip_b", "clip_v", "clip_v_half_rate"])]
    return ends(100 * runs.groupby(["scale", "model", "method"], observed=True)["clip_fraction"].mean())


def scores(method: str, *folders: str, sets=SETS[:3], by=("temperature",)) -> pd.DataFrame:
    """Avg@K and Pass@K of two or of five toy models in per cent, means over data sets of equal weight."""
    counts = frames("counts.parquet", *folders)
    counts = counts[(counts["method"] == method) & counts["dataset"].isin(sets)]
    temperature = counts["temperature"].astype(float).round(2)
    counts = counts.assign(
        avg=100 * counts["correct"] / counts["samples"], passed=100 * (counts["correct"] > 0), temperature=temperature
    )
    return (
        counts.groupby(["dataset", *by], observed=True)[["avg", "passed"]]
        .mean()
        .groupby(list(by), observed=True)
        .mean()
    )


def smollm2(method: str, folder: str = "smollm2/seeds-0-7", last_seed: float = np.inf) -> tuple[float, ...]:
    """Entropy in the last tenth (of `base`: at step 0), dropped tokens in per cent, Avg@16 and Pass@16."""
    runs = frame(f"{folder}/metrics.parquet")
    runs = runs[(runs["method"] == method.replace("base", "grpo")) & (runs["seed"] <= last_seed)]
    shown = runs[runs["step"] == 0] if method == "base" else runs[runs["step"] >= 0.9 * (runs["step"].max() + 1)]
    sets = set(frame(f"{folder}/counts.parquet")["dataset"]) - {"validation"}
    by_seed = scores(method, folder, sets=sets, by=("temperature", "seed")).loc[0.7].loc[:last_seed]
    return shown["entropy"].mean(), 100 * runs["clip_fraction"].mean(), *by_seed.mean()


def untrained() -> list[float]:
    """The ends of Avg@K and of Pass@K over toy models and test sets."""
    found = pd.concat([scores("base", *LAPTOP, sets=(one,), by=("temperature", "model")).loc[0.7] for one in SETS[:3]])
    return [*ends(found["avg"]), *ends(found["passed"])]


def replicated() -> list[float]:
    """The ends of the share of effects that agree, per cent, and of the difference that would have been found."""
    text = (ROOT / "docs/reference/runs.md").read_text()
    agree = [100 * int(one) / int(of) for one, of in re.findall(r"M \| (\d+) of (\d+) \|", text)]
    return [*ends(agree), *ends(listed("docs/reference/runs.md", "replications", 4))]


def released() -> tuple[float, float]:
    """Over seeds, what Clip_B as released drops of SmolLM2's tokens, per cent."""
    runs = frame("smollm2/seeds-0-7/metrics.parquet").query("method == 'clip_b@mu=2.5'")
    return ends(100 * runs.groupby("seed")["clip_fraction"].mean())


def never_solved() -> list[float]:
    shares = frame("laptop/paper/pooled/figures/figure4.csv")
    shares = shares[(shares["model"] == "qwen2.5-7b-instruct") & (shares["correct"] == 0)].set_index("method")["share"]
    return [shares["clip_b"], shares["grpo"]]


def of_ten_seeds() -> list[float]:
    """What Clip_B loses in Avg@K in the runs with controls, over two toy models."""
    return [-listed("docs/reference/runs.md", "controls_laptop", 5)[0]]


def gains(metric: str, *methods: str, folders=("laptop/paper/pooled", "desk/paper/pooled")) -> tuple[float, float]:
    return ends([abs(effect(folder, f"{metric}_gain_{method}")) for folder in folders for method in methods])


ALL = ("laptop/paper/pooled", "desk/paper/pooled", "smollm2/seeds-0-7")
CLAIMS = "laptop/paper/pooled/claims.json"
AGAINST_GRPO = "training_step/all graphs/seconds_per_token_against_grpo"


def of(path: str) -> list[float]:
    """A value of benchmarks/results."""
    name, *keys = path.split("/")
    value = benchmark(name)
    for key in keys:
        value = value[key]
    return [value]


def few_tokens() -> list[float]:
    masks = [benchmark("single_steps")["masks"][name] for name in ("clip_b", "clip_v", "random_mask", "low_p_mask")]
    return [pd.DataFrame(masks)["predicted"].corr(pd.DataFrame(masks)["realised"])]


def core_seconds(run: int) -> list[float]:
    """The ratio of the core-seconds of this step to those of a GRPO step."""
    grpo, other = (benchmark("pretrained_step")[one]["core_seconds"]["training"] for one in (0, run))
    return [other / grpo]


# Words of a page, with `#` for each number in them -> the numbers, from published files.
FOUND = {
    "These runs drop # to # % of the tokens": dropped,
    "In our runs # to # % kept entropy up": dropped,
    "The runs drop # to # %": dropped,
    "yes, with # to # % of the tokens dropped": dropped,
    "on SmolLM2, by about # in toy models": lambda: [sum(gains("avg", "clip_v")) / 2],
    "Avg@K falls by # to # points with Clip_B": lambda: ends([*gains("avg", "clip_b", folders=ALL), *of_ten_seeds()]),
    "Clip_V by # points on SmolLM2": lambda: gains("avg", "clip_v", folders=ALL[2:])[:1],
    "with Clip_B, by # to # with Clip_V": lambda: gains("avg", "clip_v", folders=ALL),
    "of Clip_B's gain of # to # are left": lambda: gains("pass", "clip_b"),
    "yes, # to # points (toy models)": lambda: gains("pass", "clip_b", "clip_v"),
    "(toy models) and # (SmolLM2) more than GRPO": lambda: gains("pass", "clip_b", folders=ALL[2:])[:1],
    "no: Clip_B loses # to # points": lambda: ends([*gains("avg", "clip_b", folders=ALL), *of_ten_seeds()]),
    "Clip_V about # (toy models)": lambda: [sum(gains("avg", "clip_v")) / 2],
    "(toy models) or # (SmolLM2)": lambda: gains("avg", "clip_v", folders=ALL[2:])[:1],
    "solves # to # % of its samples, but # to # % of the problems": untrained,
    "raise Pass@K by # to # points": lambda: ends(sorted(listed("docs/methods-measured.md", "methods", 4))[-6:]),
    "lowest *p* has # points more Avg@K": lambda: [-listed("docs/reference/README.md", "controls_desk", 5)[2]],
    "own entropy is # % of the mean": lambda: [100 * of("shared_parameters/share_of_mean/same_rollout")[0]],
    "rollouts of its prompt are # %": lambda: [100 * of("shared_parameters/share_of_mean/same_prompt")[0]],
    "other prompts # %": lambda: [100 * of("shared_parameters/share_of_mean/other_prompts")[0]],
    "never solved (# instead of # %)": never_solved,
    "# to # % of the effects [agree](), where a difference of # to # points": replicated,
    "solve # % of the problems within": lambda: smollm2("clip_b")[3:],
    "tries, as before training, GRPO # %": lambda: smollm2("grpo")[3:],
    "less accurate, by # points": lambda: gains("avg", "clip_b", "clip_v", folders=ALL[2:])[:1],
    "Clip_B drops # to # % of the tokens and ends": released,
    "hardly at # %": lambda: listed("docs/smollm2.md", "words", 3)[-1:],
    "even GRPO's warmest samples have # to # points more Avg@16": lambda: ends(
        frame("smollm2/seeds-0-7/figures/left_rates.csv").query("over == 'temperatures'")["spare"]
    ),
    "released 2.5 of Clip_B drops # %": lambda: smollm2("clip_b@mu=2.5")[1:2],
    "Of # claims at 0.1 M, # hold, # do not, # are inconclusive": lambda: verdicts(CLAIMS),
    "# verdicts at 0.1 M (# hold, # do not, # are inconclusive)": lambda: verdicts(CLAIMS),
    "Of # claims about the paper at 0.1 M parameters, # hold": lambda: verdicts(CLAIMS)[:2],
    "many of the # verdicts are inconclusive": lambda: verdicts(CLAIMS)[:1],
    "of # claims # hold, # do not, # are inconclusive.": lambda: verdicts("laptop/field/seeds-50-59/field.json"),
    "Of the # verdicts of the first run ([five seeds]()) # came back": came_back,
    "In # of # cases GRPO does not reach": not_reached,
    "# are correct and different with GRPO": lambda: [answers()["grpo"]],
    "# with Clip_B and # with Clip_V. The model": lambda: [answers()["clip_b"], answers()["clip_v"]],
    "after its cold start finds #": lambda: [answers()["base"]],
    "correlate at # over all masks": lambda: of("single_steps/correlations/masks_realised"),
    "at # over the four that drop few tokens": few_tokens,
    "correlate with the exact ones at # over batches": lambda: of("single_steps/correlations/grpo_realised"),
    "at # over eight masks of tokens": lambda: of("single_steps/correlations/masks_realised"),
    "its ranks of tokens at #": lambda: of("single_steps/correlations/token_order"),
    "with a rank correlation of # on average": lambda: of("shared_parameters/rank_correlation_of_tokens/mean"),
    "A step takes # GiB": lambda: [benchmark("pretrained_step")[1]["peak_gib"]],
    "Clip_B step, laptop scale | #x": lambda: of(f"{AGAINST_GRPO}/clip_b"),
    "Clip_V step, laptop scale | #x": lambda: of(f"{AGAINST_GRPO}/clip_v"),
    "runs a prompt with each rollout | #x": lambda: of(f"{AGAINST_GRPO}/grpo, prompts repeated"),
    "V = 151,936 | #x": lambda: of("token_stats/logits/token_stats_over/log_softmax"),
    "Intel Xeon | #x | `log_softmax` alone": lambda: of("token_stats_xeon/logits/token_stats_over/log_softmax"),
    "#x | `log_softmax` into a buffer": lambda: of("token_stats/logits/token_stats_over/log_softmax into a buffer"),
    "#x | the authors' formula": lambda: of("token_stats/logits/token_stats_over/authors"),
    "memory of the same | # MiB": lambda: of("token_stats/logits/peak_mib/token_stats"),
    "the authors' formula, # MiB": lambda: of("token_stats/logits/peak_mib/authors"),
    "#x | the bare matrix product": lambda: of("token_stats/hidden/token_stats_over/product"),
    "#x | one pass": lambda: of("second_pass/hidden/two_passes_over_one/top=3"),
    "laptop scale, per generated token | #x": lambda: of("grpo_step/speedup_per_token"),
    "Intel Xeon | #x | TRL 1.16": lambda: of("grpo_update/ours_to_trl/seconds_per_update"),
    "at most 26 tokens | #x": lambda: of("sampler/speedup"),
    "takes # minutes on two shared cores": lambda: of("reproduce/wall_minutes"),
    "4 x 8 rollouts, fp32, per generated token | #x": lambda: of("grpo_step_smollm2_fp32/speedup_per_token"),
    "#x as fast | TRL 1.16 in bf16": lambda: of("grpo_step_smollm2_bf16/speedup_per_token"),
    "16 x 8 rollouts, fp32, per token | #x": lambda: of("sampler_smollm2/native_over/generate"),
    "#x as fast | vLLM 0.32": lambda: of("sampler_smollm2/native_over/vllm"),
    "Clip_B step | #x": lambda: core_seconds(1),
    "8192` | #x, 1.2 GiB more": lambda: core_seconds(2),
    "1.10x, # GiB more": lambda: [
        benchmark("pretrained_step")[2]["peak_gib"] - benchmark("pretrained_step")[1]["peak_gib"]
    ],
    "GRPO step in bf16 | #x": lambda: core_seconds(3),
}


# ------------------------------------------------------------------ pages
def prose(page) -> str:
    """The text of a page without its tables that docs/lists.py writes, its code, its links and its intervals."""
    text = plain(GENERATED.sub("", page.read_text(encoding="utf-8")))
    text = re.sub(r"^```.*?^```|^    .*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    return " ".join(re.sub(r"\]\([^)]*\)", "]()", QUOTED.sub("", text)).split())


def quoted(words: str, text: str) -> list[tuple[str, ...]]:
    """The numbers that stand in the places of `#`, wherever these words are."""
    return [found.groups() for found in re.finditer(re.escape(words).replace(r"\#", f"({NUMBER})"), text)]


def rounds_to(value: float, text: str) -> bool:
    """Within half of the last digit; halves may be rounded either way."""
    return abs(value - float(text.replace(",", ""))) <= 0.501 * 10 ** -len(text.partition(".")[2])


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {str(page.relative_to(ROOT)): prose(page) for page in WRITTEN}


@pytest.mark.parametrize("words", FOUND)
def test_each_measured_number_is_that_of_the_published_files(words, pages):
    found = [numbers for text in pages.values() for numbers in quoted(words, text)]
    assert found, "on no page"
    values = [float(value) for value in FOUND[words]()]
    for numbers in found:
        assert len(numbers) == len(values)
        assert all(map(rounds_to, values, numbers)), (numbers, values)


def test_no_other_number_with_a_unit_is_quoted(pages):
    known = "|".join([*SET, *(re.escape(words).replace(r"\#", NUMBER) for words in FOUND)])
    left = {name: MEASURED.findall(re.sub(known, "", text)) for name, text in pages.items()}
    assert {name: numbers for name, numbers in left.items() if numbers} == {}


@pytest.mark.parametrize("rule", SET)
def test_each_rule_is_used(rule, pages):
    assert any(re.search(rule, text) for text in pages.values())


def test_a_changed_digit_is_noticed(pages):
    """In each number that is known, one at a time."""
    for words, compute in FOUND.items():
        for value, text in zip(
            compute(), next(filter(None, (quoted(words, text) for text in pages.values())))[0], strict=True
        ):
            changed = f"{text[:-1]}{(int(text[-1]) + 5) % 10}"
            assert rounds_to(value, text)
            assert not rounds_to(value, changed)


@pytest.mark.parametrize(("seeds", "folder"), [("0 to 7", "smollm2/seeds-0-7"), ("0 to 2", "smollm2-words/seeds-0-2")])
def test_the_tables_of_smollm2_are_those_of_the_published_files(seeds, folder):
    methods = {"after the cold start": "base", "random mask": "random_mask", "Clip_B": "clip_b", "Clip_V": "clip_v"}
    methods |= {f"GRPO, step {step}": f"grpo@training.steps={step}" for step in (10, 20)} | {"GRPO": "grpo"}
    methods |= {"GRPO, half the rate": "grpo_half_rate", "Clip_V, half the rate": "clip_v_half_rate"}
    methods |= {"Clip_B as released": "clip_b@mu=2.5", "Clip_V as released": "clip_v@mu=8.5,max_frac=0.0001"}
    page = plain((ROOT / "docs/smollm2.md").read_text(encoding="utf-8"))
    rows = page.partition(f"means over seeds {seeds}")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) >= 4
    for label, *cells in (row.strip("|").split("|") for row in rows):
        name, _, of_seeds = label.strip().partition(" (seeds 0 to ")
        values = smollm2(methods[name.partition(" (")[0]], folder, float(of_seeds.rstrip(")") or np.inf))
        assert all(
            rounds_to(*of)
            for of in zip(values, (cell.split()[0] if cell.strip() else "" for cell in cells), strict=True)
            if of[1]
        )
