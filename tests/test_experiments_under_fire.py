"""Hostile files of tables, figures and claims through the commands: one line, exit code 2, nothing written."""

import copy

import pytest
import under_fire
import yaml

from made_up import SCALE, SEEDS, write_all

project, refused = under_fire.project, under_fire.refused  # fixtures

EXPERIMENTS = [
    "",
    "3\n",
    "[]\n",
    "kind: [scores]\n",
    "kind: {a: b}\n",
    "kind: nothing\n",
    "kind: scores\n",
    "kind: scores\nkind: curves\n",
    "kind: &a [*a]\n",
    "kind: theory\ntitle: !!python/object/apply:os.system [touch evil]\nshows: a\nseeds: tables\nruns: []\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: 3\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: null\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: [3]\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: 3, methods: [grpo]}]\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: [[a]], methods: [grpo]}]\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: 3\nruns: [{models: [a], methods: [grpo]}]\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: [tables]\nruns: [{models: [a], methods: [grpo]}]\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: [a], methods: [grpo], seeds: -1}]\n",
    "kind: scores\ntitle: a\nshows: a\nseeds: tables\nruns: []\nevaluations: 3\nmetrics: [avg]\n",
    "kind: scores\ntitle: a\nshows: a\nseeds: tables\nruns: []\nevaluations: [a]\nmetrics: avg\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: [a], methods: [b]}]\npanels: {a: b}\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: [a], methods: [b]}]\npanels: [3]\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: [a], methods: [b]}]\npanels: [{columns: 3}]\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: []\npanels: [{columns: [entropy]}]\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: []\npanels: []\nsweeps: [{models: [a], method: b, "
    "parameter: c, values: 3}]\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: []\npanels: []\nsweeps: [{models: [a], method: b, "
    "parameter: c, values: {default: 3}}]\n",
]


@pytest.mark.parametrize("content", EXPERIMENTS, ids=lambda content: repr(content[-50:]))
def test_experiment_files(refused, project, content):
    (project / "experiments" / "mine.yaml").write_text(content)
    assert "mine.yaml" in refused("report", "mine", "--scale", "smoke")


# ---------------------------------------------------------------- files of the project with one value changed


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All that these tables and figures are made from: whatever is refused, is refused for its file."""
    folder = tmp_path_factory.mktemp("results")
    write_all(folder / SCALE, SEEDS, names=["table6", "figure2", "figure4", "figure6", "lens", "theory_check"])
    return folder


def changed(content: dict, keys: str, value) -> dict:
    """`content` with another value at a place such as runs.0.models."""
    content = copy.deepcopy(content)
    *way, last = [int(key) if key.isdecimal() else key for key in keys.split(".")]
    place = content
    for key in way:
        place = place[key]
    place[last] = value
    return content


NESTED = [[[[[[[[["a"]]]]]]]]]
TWO_MODELS = ["qwen2.5-7b-instruct", "qwen3-4b-base"]

# (name, place, value, a part of what has to be said)
CHANGED = [
    ("table6", "metrics", ["nope"], "unknown metric 'nope'; known: avg, pass"),
    ("table6", "metrics", ["avg", "pas"], "unknown metric 'pas'; did you mean 'pass'"),
    ("table6", "metrics", ["avg", "avg"], "metrics is ['avg', 'avg']; it has to be a list of different texts"),
    ("table6", "metrics", [], "metrics is []; it has to be a list of different texts"),
    ("table6", "evaluations", [], "evaluations is []"),
    ("table6", "evaluations", [3], "evaluations is [3]"),
    ("table6", "runs", [], "runs is []; it has to be a list of mappings"),
    ("table6", "runs", NESTED, "runs is [[[[[[[[['a']]]]]]]]]"),
    ("table6", "runs.0.models", [], "runs: models is []"),
    ("table6", "runs.0.methods", ["grpo", NESTED], "runs: methods is ['grpo', [["),
    ("figure2", "panels", [], "panels is []; it has to be a list of mappings"),
    ("figure2", "panels.0.columns", [], "panel 1: columns is []"),
    ("figure2", "panels.0.columns", ["entropy", "entropy"], "panel 1: columns is ['entropy', 'entropy']"),
    ("figure2", "panels.1.columns", ["step"], "panel 2: columns is ['step']"),
    ("figure2", "panels.0.methods", [], "panel 1: methods is []"),
    ("figure6", "panels.0.points", "accuracy", "panel 1: points is 'accuracy'; it has to be none of columns"),
    ("figure6", "panels.0.points", "step", "panel 1: points is 'step'"),
    ("figure2", "labels", {"grpo": 3}, "labels is {'grpo': 3}; it has to map methods to texts"),
    ("figure2", "sweeps.0.values", {"default": 3}, "values is {'default': 3}"),
    ("figure2", "sweeps.0.values", {"default": []}, "have to be a list of numbers"),
    ("figure2", "sweeps.0.values", {"default": ["../../x"]}, "have to be a list of numbers"),
    ("figure2", "sweeps.0.values", {"default": [float("nan")]}, "have to be a list of numbers"),
    ("figure4", "evaluations", ["aime24", "aime25"], "one of kind 'pass_rate_distribution' shows one"),
    ("figure4", "runs.0.models", TWO_MODELS, "runs are of several models"),
    ("lens", "runs.0.models", TWO_MODELS, "runs are of several models"),
    ("theory_check", "runs.0.models", TWO_MODELS, "runs are of several models"),
]


@pytest.mark.parametrize(("name", "place", "value", "said"), CHANGED, ids=str)
def test_experiments_with_one_value_changed(refused, project, results, name, place, value, said):
    file = project / "experiments" / f"{name}.yaml"
    file.write_text(yaml.safe_dump(changed(yaml.safe_load(file.read_text()), place, value)))
    line = refused("report", name, "--scale", SCALE, "--results", str(results))
    assert line.startswith(f"experiments/{name}.yaml: ")
    assert said in line


WITHIN, SWEPT, SCORES = "figure5_sign", "mu_clip_b", "figure4_middle"
CLAIMS = [
    (None, "claims", 3, "claims is 3; it has to be a list of claims"),
    (None, "claims", None, "claims is None; it has to be a list of claims"),
    (None, "claims", [], "claims is []; it has to be a list of claims"),
    (None, "claims", [3], "claim 1: unknown test None"),
    (None, "tests", 3, "tests is 3; it has to be a mapping"),
    (None, "tests.over_seeds", 3, "tests: over_seeds is 3; it has to be a text"),
    (None, "paper", NESTED, "it has to be a mapping"),
    (None, "paper.models", 3, "paper: models is 3; it has to be a list of different texts"),
    (None, "paper.models", ["nope"], "paper_values.yaml has no 'nope' in nope.clip_b.aime24; known: "),
    (None, "paper.models", ["distill-llama-8b"], "does not have both avg and pass of distill-llama-8b.clip_b.aime24"),
    (None, "paper.methods", ["clip_c"], "did you mean 'clip_"),
    (None, "paper.against", "grpoo", "did you mean 'grpo'"),
    (None, "paper.against", 3, "paper: against is 3; it has to be a text"),
    (None, "paper.evaluations", 3, "paper: evaluations is 3; it has to map data sets to"),
    (None, "paper.evaluations", {"aime24": 3}, "paper: evaluations is {'aime24': 3}"),
    (None, "paper.evaluations", {"aime24": {"problems": 0, "samples": 1}}, "1 or more"),
    (None, "paper.evaluations", {"aime24": {"problems": 1}}, "paper: evaluations is"),
    (None, "paper.evaluations", {"place": {"problems": 1, "samples": 1}}, "does not have both avg and pass of"),
    (WITHIN, "id", ["x"], "id is ['x']; it has to be a text"),
    (WITHIN, "test", ["x"], "unknown test ['x']"),
    (WITHIN, "test", {"a": "b"}, "unknown test {'a': 'b'}"),
    (WITHIN, "statement", 3, "statement is 3; it has to be a text"),
    (WITHIN, "label", None, "label is None; it has to be a text"),
    (WITHIN, "model", 3, "model is 3; it has to be a text"),
    (WITHIN, "runs", 3, "runs is 3; it has to map methods to 'tables' or 'extras'"),
    (WITHIN, "runs", {3: "tables"}, "runs is {3: 'tables'}; it has to map methods"),
    (WITHIN, "statistic", NESTED, "statistic is [[["),
    (WITHIN, "columns", 3, "columns is 3; it has to be a list of different columns"),
    (WITHIN, "columns", [[]], "columns is [[]]"),
    (WITHIN, "columns", ["step"], "columns is ['step']"),
    (WITHIN, "below", float("nan"), "below is nan; it has to be a number"),
    (WITHIN, "below", True, "below is True; it has to be a number"),
    (WITHIN, "below", 10**400, "it has to be a number"),
    ("theorem1_slope", "theorem", 3, "theorem is 3; it has to be 1 or 2"),
    ("theorem1_slope", "within", 3, "within is 3; it has to be a list of two numbers"),
    (SWEPT, "against", {}, "against is {}; it has to map methods"),
    (SWEPT, "spread", ["clip_b"], "spread is ['clip_b']; it has to map methods"),
    (SWEPT, "sweep", 3, "sweep is 3; it has to be a text"),
    (SCORES, "models", 3, "models is 3; it has to be a list of different texts"),
    (SCORES, "models", [], "models is []; it has to be a list of different texts"),
    (SCORES, "evaluations", 3, "evaluations is 3; it has to be a list of different texts"),
    (SCORES, "evaluations", [], "evaluations is []; it has to be a list of different texts"),
    (SCORES, "metric", ["avg"], "metric is ['avg']; it has to be a text"),
]


@pytest.mark.parametrize(("claim", "place", "value", "said"), CLAIMS, ids=str)
def test_claims_with_one_value_changed(refused, project, claim, place, value, said):
    (project / "results" / SCALE).mkdir(parents=True)
    file = project / "experiments" / "claims.yaml"
    content = yaml.safe_load(file.read_text())
    names = [one["id"] for one in content["claims"]]
    place = place if claim is None else f"claims.{names.index(claim)}.{place}"
    file.write_text(yaml.safe_dump(changed(content, place, value)))
    line = refused("claims", "--scale", SCALE)
    assert "claims.yaml: " in line
    assert said in line
