"""Claims about the best point of a path: a checkpoint at a temperature, chosen on the validation set."""

import numpy as np
import pytest

from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.claims import input_files, load_claims, read_field
from entropy_dynamics.experiments.load import Run, load_experiment
from single_claims import OTHER, SEEDS, finding
from synthetic_results import MODEL, ROOT, SCALE, write_evaluation

TEMPERATURES = (0.4, 0.7, 1.0, 1.15, 1.3, 1.6)
# At step 10 and 0.7 GRPO can solve 80 % of the problems, at a rate of 0.4: Avg@16 is 32 %. At the end and 1.15 it
# solves more, with an Avg@16 of 19 %. Any other point solves next to nothing.
GRPO = {("grpo@training.steps=10", 0.7): (0.8, 0.4), ("grpo", 1.15): (0.95, 0.2)}
EARLY = "grpo@training.steps=10"
CLAIM = {
    "test": "score_difference",
    "models": [MODEL],
    "runs": {"clip_b": "tables"},
    "against": {"grpo": "tables", EARLY: "tables"},
    "metric": "pass",
    "evaluations": ["aime24"],
    "temperature": "matched_avg",
    "above": 0,
}


def found(results, levels: dict[tuple[str, float], tuple[float, float]], **changes):
    """`levels`: by method and temperature, the share of problems that can be solved and the rate of correct samples."""
    claim = CLAIM | changes
    for method in claim["runs"] | claim["against"]:
        alone = claim["temperature"] == "matched_avg" and method in claim["runs"]  # its other temperatures are not read
        for at in (0.7,) if alone else TEMPERATURES:
            share, rate = levels.get((method, at), (0.1, 0.1))
            for seed in range(5):
                for dataset in ("aime24", "validation"):
                    rng = np.random.default_rng([seed, *f"{method}{at}{dataset}".encode()])
                    solvable = np.arange(200) < 200 * (share + 0.01 * rng.integers(3))
                    correct = (rng.random((200, 16)) < rate) & solvable[:, None]
                    write_evaluation(results, Run(MODEL, method, seed), dataset, correct, None if at == 0.7 else at)
    return finding(claim, results)


@pytest.mark.parametrize(("share", "verdict"), [(0.9, "holds"), (0.7, "does not hold")])
def test_pass_at_equal_avg_is_that_of_the_best_point_on_the_path(tmp_path, share, verdict):
    levels = GRPO | {("clip_b", 0.7): (share, 0.3)}
    result = found(tmp_path, levels)
    gain = (share + 0.01) * (1 - 0.7**16) - 0.81 * (1 - 0.6**16)
    assert (result.verdict, result.interval.value) == (verdict, pytest.approx(100 * gain, abs=2))
    assert result.seeds == 5
    assert f"clip_b at 0.7; {EARLY} at 0.7" in result.reason
    of_avg = finding(CLAIM | {"metric": "avg", "above": -1}, tmp_path)
    assert of_avg.verdict == "does not hold"
    assert of_avg.interval.value == pytest.approx(100 * ((share + 0.01) * 0.3 - 0.81 * 0.4), abs=2)


@pytest.mark.parametrize("solved", [1.0, 0.9])
def test_a_path_that_lacks_the_avg_is_compared_at_its_nearest_point(tmp_path, solved):
    levels = {("clip_b", 0.7): (1.0, 1.0), ("grpo", 1.0): (solved, 1.0)}
    result = found(tmp_path, levels, against={"grpo": "tables"})
    assert "clip_b at 0.7" in result.reason
    assert result.reason.endswith("grpo at 1")
    assert ("no point has that Avg@K on the validation set, the nearest is compared" in result.reason) == (solved < 1)


def test_each_path_at_its_own_best_point(tmp_path):
    """GRPO's highest Pass@K is at the end and 1.15, its highest Avg@K at step 10; Clip_B's are at step 30 and 1.6."""
    runs = {"clip_b": "tables", "clip_b@training.steps=30": "tables"}
    levels = GRPO | {("clip_b@training.steps=30", 1.6): (0.98, 0.5)}
    result = found(tmp_path, levels, runs=runs, temperature="best_point")
    assert result.interval.value == pytest.approx(100 * (0.99 - 0.96 * (1 - 0.8**16)), abs=2)
    assert "clip_b@training.steps=30 at 1.6; grpo at 1.15" in result.reason
    of_avg = finding(CLAIM | {"runs": runs, "temperature": "best_point", "metric": "avg"}, tmp_path)
    assert f"clip_b@training.steps=30 at 1.6; {EARLY} at 0.7" in of_avg.reason


@pytest.mark.parametrize(
    "changes", [{"models": [MODEL, OTHER]}, {"problems": "easy"}, {"runs": {"clip_b": "tables", "clip_v": "tables"}}]
)
def test_a_claim_that_has_no_point_is_refused(tmp_path, changes):
    with pytest.raises(UserError, match="temperature matched_avg takes one model, all problems and one method"):
        finding(CLAIM | changes, tmp_path)


def test_the_controls_read_what_the_workflow_makes(tmp_path):
    """Every run of the claims about controls is in a table or figure, and none of their own is needed by default."""
    claims = load_claims(SCALE, SEEDS, ROOT / "experiments", ROOT / "configs", folder="controls")
    assert len(claims) >= 36
    files = set(input_files(tmp_path, claims))
    assert Run(MODEL, EARLY, 4).evaluation_file(tmp_path, "validation", 1.6) in files
    files_of_claims = read_field(ROOT / "experiments", "controls").items()
    about = {claim.id for path, file in files_of_claims if path.stem != "paper_statements" for claim in file.claims}
    runs = {run for claim in claims if claim.spec.id in about for run in claim.all_runs()}
    drawn = [
        load_experiment(name, SCALE, SEEDS, ROOT / "experiments") for name in ("placebos", "path", "path_clipping")
    ]
    assert runs <= {run for experiment in drawn for run in experiment.runs}
    assert {experiment.folder for experiment in drawn} == {"controls"}
    default = input_files(tmp_path, load_claims(SCALE, SEEDS, ROOT / "experiments", ROOT / "configs"))
    assert not [file for file in default if "T1.6" in file.parts or "random_mask" in file.parts]
