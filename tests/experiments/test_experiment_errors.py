"""Mistakes in the files of experiments, claims and the paper's values: one line that names the file and the key."""

import copy
import shutil

import pytest
import yaml

from command_line import error
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.experiments.claims import load_claims
from entropy_dynamics.experiments.load import experiment_files, load_experiment
from mistakes import mistake
from synthetic_results import ROOT, SCALE, SEEDS


def changed(content: dict, keys: str, value) -> dict:
    """`content` with another value at a place such as runs.0.models."""
    content = copy.deepcopy(content)
    *way, last = [int(key) if key.lstrip("-").isdecimal() else key for key in keys.split(".")]
    place = content
    for key in way:
        place = place[key]
    place[last] = value
    return content


@pytest.fixture
def refused(tmp_path):
    """`refused(name, place, value, load)`: the error of `load(folder)` after a change of experiments/<name>.yaml."""
    folder = shutil.copytree(ROOT / "experiments", tmp_path / "experiments")

    def call(name: str, place: str, value, load) -> str:
        file = experiment_files(folder).get(name, folder / f"{name}.yaml")
        file.write_text(yaml.safe_dump(changed(yaml.safe_load(file.read_text()), place, value)))
        with mistake(match=f"^{file}: ") as error:
            load(folder)
        return str(error.value).removeprefix(f"{file}: ")

    return call


TWO_MODELS = ["qwen2.5-7b-instruct", "qwen3-4b-base"]
EXPERIMENTS = [
    ("table6", "kind", "score", "unknown kind 'score'; did you mean 'scores'"),
    ("table6", "evaluatons", ["aime24"], "unknown key 'evaluatons'; did you mean 'evaluations'"),
    ("table6", "seeds", "three", "seeds is 'three'; it should be 'tables', 'extras' or 'pilot'"),
    ("table6", "metrics", ["avg", "pas"], "metrics[1] is 'pas'; it should be 'avg', 'pass', 'majority', 'unique'"),
    ("table6", "runs.0.models", ["qwen3-4b-bass"], "unknown model 'qwen3-4b-bass'; did you mean 'qwen3-4b-base'?"),
    ("table6", "runs.0.methods", ["clip_bb", "grpo"], "unknown method 'clip_bb'; did you mean 'clip_b'?"),
    ("figure2", "panels.0.columns", ["entropy", "entropy"], "panels[0].columns: ['entropy', 'entropy'] has an entry"),
    ("figure2", "panels.0.methods", ["clip_c@*"], "panels[0].methods: no run of method 'clip_c@*'; known: clip_b@"),
    ("figure6", "panels.0.model", None, "panels[0].model is None; it should be one of qwen2.5-7b"),
    ("difficulty", "runs.0.methods", ["grpo", "clip_b"], "unknown method 'base'; known: clip_b, grpo"),
    ("figure2", "sweeps.0.values", {"paper": [1.0]}, "sweeps[0]: values should have an entry `default`"),
    ("figure4", "evaluations", ["aime24", "aime25"], "evaluations is ['aime24', 'aime25']; it should have at most 1"),
    ("lens", "runs.0.models", TWO_MODELS, "the runs are of 2 models; kind 'lens' shows one"),
]


@pytest.mark.parametrize(("name", "place", "value", "said"), EXPERIMENTS, ids=str)
def test_experiments(refused, name, place, value, said):
    assert said in refused(name, place, value, lambda folder: load_experiment(name, SCALE, SEEDS, folder))


CLAIMS = [
    ("claims.0.test", "over_seed", "claims[0]: unknown test 'over_seed'; did you mean 'over_seeds'"),
    ("claims.0.why", "", "claims[0]: `why` is the reason for a threshold other than 0, which needs one"),
    ("claims.1.id", "sampling_law", "claims: two claims have the id 'sampling_law'"),
    ("claims.0.model", "qwen2.5-7b-instrct", "unknown model 'qwen2.5-7b-instrct'; did you mean 'qwen2.5-7b-instruct'?"),
]


@pytest.mark.parametrize(("place", "value", "said"), CLAIMS, ids=str)
def test_claims(refused, place, value, said):
    assert said in refused("claims", place, value, lambda folder: load_claims(SCALE, SEEDS, folder))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("scores.Table 1.qwen3-4b-base.grpo.aime24.avg", 2073, "it should be less than or equal to 100"),
        ("scores.Table 1.qwen3-4b-base.grpo.aime24.median", 1.0, "it should be 'avg' or 'pass'"),
    ],
)
def test_paper_values(refused, place, value, said):
    def load(folder):
        return Results(folder, SCALE, SEEDS, ROOT / "configs", folder).paper

    assert said in refused("paper_values", place, value, load)


def test_a_gain_that_the_paper_does_not_print(tmp_path, monkeypatch, capsys):
    for name in ("configs", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name)
    file = tmp_path / "experiments/claims.yaml"
    file.write_text(yaml.safe_dump(changed(yaml.safe_load(file.read_text()), "paper.models", ["distill-llama-8b"])))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / SCALE).mkdir(parents=True)
    said = "claims.yaml: paper: paper_values.yaml has no pass of distill-llama-8b clip_b on aime24"
    assert error(capsys, "claims", "--scale", SCALE) == said
    assert list((tmp_path / "results" / SCALE).iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]\n", "kind: scores\ntitle: [\n"])
def test_files_that_are_no_experiments(tmp_path, content):
    (tmp_path / "mine.yaml").write_text(content)
    with mistake("mine.yaml: "):
        load_experiment("mine", SCALE, SEEDS, tmp_path)
