"""The YAML files of tables and figures, and the paper's numbers."""

import shutil
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from command_line import error
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.config import _merged, flatten, load_config, split_method, stored_as
from entropy_dynamics.experiments.claims import load_claims
from entropy_dynamics.experiments.load import FURTHER, PAPER, experiment_files, load_experiment
from mistakes import mistake
from synthetic_results import MODEL, ROOT, SCALE, SEEDS

MEASURED = ("method.label", "training.entropy_change_", "training.token_samples")


def touch(files) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def test_a_pretrained_model_is_evaluated_once():
    runs = load_experiment("table1", "gpu", SEEDS, ROOT / "experiments").runs
    assert {run.seed for run in runs if run.method == "base"} == {0}
    assert {run.seed for run in runs if run.method == "grpo"} == {0, 1, 2}


def test_a_sweep_takes_the_values_of_its_scale():
    def methods(scale):
        experiment = load_experiment("figure2", scale, SEEDS, ROOT / "experiments")
        return {run.method for run in experiment.runs if run.method.startswith("clip_b@")}

    assert methods("paper") == {"clip_b@mu=2.0", "clip_b@mu=2.5", "clip_b@mu=3.0"}
    assert methods("laptop") != methods("paper")
    assert methods("desk") == methods("laptop")  # which it extends


@pytest.mark.parametrize("scale", ["laptop", "gpu"])  # an untrained model per seed; one for all seeds
def test_an_experiment_so_far_has_the_seeds_with_all_files(tmp_path, scale):
    whole = load_experiment("placebos", scale, SEEDS, ROOT / "experiments")  # scores, and entropies from the metrics
    touch(whole.input_files(tmp_path))
    assert whole.so_far(tmp_path) is whole
    lost = {seed: next(run for run in whole.runs if (run.method, run.seed) == ("rft", seed)) for seed in range(3)}
    lost[1].metrics_file(tmp_path).unlink()
    part = whole.so_far(tmp_path)
    assert {run.seed for run in part.runs} == {0, 2}
    assert set(whole.runs) - set(part.runs) == {run for run in whole.runs if run.seed == 1}
    assert (part.seeds_in_words, part.has_one_seed) == ("2 of 3 seeds", False)
    lost[0].evaluation_file(tmp_path, "aime24").unlink()
    part = whole.so_far(tmp_path)
    assert (part.seeds_in_words, part.has_one_seed) == ("1 of 3 seeds", True)
    lost[2].evaluation_file(tmp_path, "aime24").unlink()
    assert whole.so_far(tmp_path) is whole  # so that what is missing is named


def test_one_untrained_model_is_in_what_there_is_so_far(tmp_path):
    whole = load_experiment("table1", "gpu", SEEDS, ROOT / "experiments")
    touch(whole.input_files(tmp_path))
    next(run for run in whole.runs if run.method == "grpo").evaluation_file(tmp_path, "aime24").unlink()
    part = whole.so_far(tmp_path)
    assert {run.seed for run in part.runs if run.method == "base"} == {0}
    assert {run.seed for run in part.runs if run.method != "base"} == {1, 2}


def test_no_method_is_left_out_of_what_there_is_so_far(tmp_path):
    """Those with fewer seeds than the others would be, if one of their seeds counted for all."""
    whole = load_experiment("lens", SCALE, SEEDS, ROOT / "experiments")
    assert whole.seeds_in_words == "1 to 3 seeds per method"
    touch(whole.input_files(tmp_path))
    next(run for run in whole.runs if len(whole.of(run.model, run.method)) == 1).metrics_file(tmp_path).unlink()
    assert whole.so_far(tmp_path) is whole


def test_paper_values_against_the_resolution_and_the_gains_the_paper_prints():
    source = Results(Path(), SCALE, SEEDS, ROOT / "configs", ROOT / "experiments")
    count = 0
    for models in source.paper.scores.values():
        for model, methods in models.items():
            for method, datasets in methods.items():
                for dataset, metrics in datasets.items():
                    for metric, value in metrics.items():
                        problems, k = (500, 8) if dataset == "dapo500" else (30, 32)
                        unit = 100 / (problems * (k if metric == "avg" else 1))
                        # One evaluation gives multiples of this; the paper rounds to 0.01, at times downwards.
                        assert abs(value / unit - round(value / unit)) * unit < 0.0101, (model, method, dataset)
                        assert source.paper.score(model, method, dataset, metric) == value  # stands once
                        count += 1
    assert count == 2 * 4 * 6 + 3 * 3 + 4 * 3 + 3 * 3  # Tables 1, 2, 3 and 4 without their repeated rows
    printed = {  # Table 1, in parentheses
        ("qwen2.5-7b-instruct", "clip_b"): [2.81, 6.67, 0.93, 3.33, 1.65, 3.4],
        ("qwen2.5-7b-instruct", "clip_v"): [1.24, 3.33, 0.52, 6.67, 1.62, 2.2],
        ("qwen3-4b-base", "clip_b"): [0.10, 0.00, 0.52, -3.34, -0.68, 1.2],
        ("qwen3-4b-base", "clip_v"): [0.83, 3.34, 1.46, 3.33, 0.57, 0.8],
    }
    cells = [(d, m) for d in ("aime24", "aime25", "dapo500") for m in ("avg", "pass")]
    for (model, method), gains in printed.items():
        ours = [source.paper.score(model, method, *c) - source.paper.score(model, "grpo", *c) for c in cells]
        assert ours == pytest.approx(gains, abs=1e-6)


@pytest.mark.parametrize("scale", sorted(path.stem for path in (ROOT / "configs/scale").glob("*.yaml")))
def test_no_run_is_trained_twice_under_two_names(scale):
    """Nor one that differs in what is measured alone."""
    configs = ROOT / "configs"
    config = load_config(scale, configs=configs)
    folder, seeds = ROOT / config.experiments_folder, dict(config.seeds)
    items = [load_experiment(name, scale, seeds, folder, configs).runs for name in experiment_files(folder)]
    for target in [None, *(target for target in ("field", "controls") if (folder / target).is_dir())]:
        items += [claim.all_runs() for claim in load_claims(scale, seeds, folder, configs, folder=target)]
    names = defaultdict(set)
    for model, method in {run.path[:2] for runs in items for run in runs if run.model in config.models}:
        merged, *_ = _merged(scale, model, method, ("data.folder=null",), configs)
        settings = {key: str(value) for key, value in flatten(merged) if not key.startswith(MEASURED)}
        names[model, *sorted(settings.items())].add(method)
    assert [same for same in names.values() if len(same) > 1] == []


def test_a_parameter_that_changes_nothing_is_not_in_the_path():
    """Labels and sweeps keep the name that the experiment gives."""
    runs = load_experiment("figure2", SCALE, SEEDS, ROOT / "experiments", ROOT / "configs").runs
    [default] = [run for run in runs if run.method == "clip_b@mu=2.0"]
    assert default.metrics_file(Path("r")) == Path("r/runs", MODEL, "clip_b/seed0/metrics.parquet")
    [other] = [run for run in runs if run.method == "clip_b@mu=1.5"]
    assert other.metrics_file(Path("r")) == Path("r/runs", MODEL, "clip_b@mu=1.5/seed0/metrics.parquet")
    several = "clip_b@mu=2.0,apply_to=both"
    assert stored_as(SCALE, MODEL, several, ROOT / "configs") == "clip_b@apply_to=both"


@pytest.mark.parametrize(
    "folder", [path.parent for path in (ROOT / "experiments").glob("**/claims.yaml")], ids=lambda path: path.name
)
def test_what_is_further_trains_nothing_beyond_the_paper(folder):
    """Tables and figures of `further` are built by default, so they may not make everybody's reproduction longer."""
    scale = SCALE if folder.name == "experiments" else folder.name
    seeds = dict(load_config(scale).seeds)
    every = [load_experiment(name, scale, seeds, folder) for name in experiment_files(folder)]
    paper = {run.path for one in every if one.folder == PAPER for run in one.runs}
    paper |= {run.path for claim in load_claims(scale, seeds, folder) for run in claim.all_runs()}
    assert {run.path for one in every if one.folder == FURTHER for run in one.runs} <= paper


def test_the_paper_s_methods_are_those_that_its_experiments_train():
    """configs/method shows them beside their variants and placebos; `field` has none of them."""
    trained = set()
    for name in experiment_files(ROOT / "experiments"):
        experiment = load_experiment(name, SCALE, SEEDS, ROOT / "experiments")
        trained |= {split_method(run.method)[0] for run in experiment.runs if experiment.by_default}
    for claim in load_claims(SCALE, SEEDS, ROOT / "experiments"):
        trained |= {split_method(run.method)[0] for run in claim.all_runs()}
    shown = {path.stem for path in (ROOT / "configs/method").glob("*.yaml")}
    assert trained <= shown
    variants = {"clip_b_paper", "clip_v_paper", "grpo_binary_reward", "grpo_per_group"}
    placebos = {"random_mask", "random_mask_v", "low_p_mask", "low_p_mask_v", "random_positive"}
    doses = {name for name in shown if name.endswith(("_rate", "_share"))}
    assert shown - trained == variants | placebos | doses


def test_two_files_of_one_name_are_refused(tmp_path):
    folder = shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    shutil.copy(folder / "table1.yaml", folder / "further/table1.yaml")
    with mistake(f"further/table1.yaml has the name of {folder}/table1.yaml; rename one of them"):
        experiment_files(folder)


# ---------------------------------------------------------------- mistakes in the files
def change(file: Path, keys: str, value) -> None:
    """Another value at a place of a YAML file, such as runs.0.models."""
    *way, last = [int(key) if key.isdecimal() else key for key in keys.split(".")]
    content = place = yaml.safe_load(file.read_text())
    for key in way:
        place = place[key]
    place[last] = value
    file.write_text(yaml.safe_dump(content))


TWO_MODELS = ["qwen2.5-7b-instruct", "qwen3-4b-base"]
OF_GRPO = "scores.Table 1.qwen3-4b-base.grpo.aime24"
MISTAKES = [
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
    ("paper_values", f"{OF_GRPO}.avg", 2073, "it should be less than or equal to 100"),
    ("paper_values", f"{OF_GRPO}.median", 1.0, "it should be 'avg' or 'pass'"),
]
CLAIMS = [
    ("claims.0.test", "over_seed", "claims[0]: unknown test 'over_seed'; did you mean 'over_seeds'"),
    ("claims.0.why", "", "claims[0]: `why` is the reason for a threshold other than 0, which needs one"),
    ("claims.1.id", "sampling_law", "claims: two claims have the id 'sampling_law'"),
    ("claims.0.model", "qwen3-4b-bass", "unknown model 'qwen3-4b-bass'; did you mean 'qwen3-4b-base'?"),
]
MISTAKES += [("claims", *row) for row in CLAIMS]
LOADS = {
    "claims": lambda folder: load_claims(SCALE, SEEDS, folder),
    "paper_values": lambda folder: Results(folder, SCALE, SEEDS, ROOT / "configs", folder).paper,
}


@pytest.mark.parametrize(("name", "place", "value", "said"), MISTAKES, ids=str)
def test_a_mistake_is_named_with_its_file(tmp_path, name, place, value, said):
    folder = shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    file = experiment_files(folder).get(name, folder / f"{name}.yaml")
    change(file, place, value)
    with mistake(said, match=f"^{file}: "):
        LOADS.get(name, lambda folder: load_experiment(name, SCALE, SEEDS, folder))(folder)


def test_a_gain_that_the_paper_does_not_print(tmp_path, monkeypatch, capsys):
    for name in ("configs", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name)
    change(tmp_path / "experiments/claims.yaml", "paper.models", ["distill-llama-8b"])
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
