"""Claims about the temperature of the evaluation: hand-worked frontiers, and verdicts from synthetic evaluations."""

import re
import shutil
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from entropy_dynamics.analysis.finding import Finding
from entropy_dynamics.analysis.problem_scores import score_columns
from entropy_dynamics.analysis.run_data import Results, Samples
from entropy_dynamics.analysis.temperatures import best_point, matched_pass, reached
from entropy_dynamics.analysis.verdicts import judge
from entropy_dynamics.config import load_config
from entropy_dynamics.experiments.claims import input_files, load_claims
from entropy_dynamics.experiments.load import Run
from single_claims import no_interval
from synthetic_results import DATASETS, MODEL, ROOT, SCALE, SEEDS, write_evaluation

FIVE = SEEDS | {"tables": 5}
Level = dict[float, tuple[float, float]]


def samples(correct: list[int], k: int = 4) -> Samples:
    return Samples("", np.array(correct), k, 0.0, 0.0, *[np.full(0, np.nan)] * 3)


def mean(scores: dict[str, np.ndarray], weights: dict[str, float]) -> float:
    return float(sum(weight * scores[dataset].mean() for dataset, weight in weights.items()))


# Four problems, four samples each: (Pass@4, Avg@4) is (1/4, 1/4) and (3/4, 3/16).
COLD, WARM = {"d": samples([4, 0, 0, 0])}, {"d": samples([1, 1, 1, 0])}
FRONT = [COLD, WARM]
ONE = {"d": 1.0}


def test_a_frontier_by_hand():
    """At Pass@4 = 1/2, halfway, the frontier has 7/32; the policy has 5/16."""
    policy = {"d": samples([4, 1, 0, 0])}
    worse = {"d": samples([1, 1, 0, 0])}  # (1/2, 1/8): WARM is better in both, so it is not on the frontier
    for others in (FRONT, FRONT[::-1], [*FRONT, worse]):
        assert mean(matched_pass(policy, others, ONE), ONE) == pytest.approx(5 / 16 - 7 / 32)
    better = {"d": samples([3, 1, 0, 0])}  # (1/2, 1/4): as good as COLD in one, better in the other
    assert mean(matched_pass(policy, [*FRONT, better], ONE), ONE) == pytest.approx(5 / 16 - 1 / 4)


def test_as_many_problems_of_other_sets_are_reached():
    """A third of 1/4, 1/4 and 1 is 1/2, and a third of 1/4, 1 and 1/4 is less by rounding."""
    quarter, whole = samples([4, 0, 0, 0]), samples([4, 4, 4, 4])
    policy, other = ({"a": quarter, "b": quarter, "c": whole}, {"a": quarter, "b": whole, "c": quarter})
    thirds = dict.fromkeys("abc", 1 / 3)
    assert reached(policy, [other], thirds)
    assert not reached(policy, [{**other, "a": samples([0, 0, 0, 0])}], thirds)


def test_nothing_is_extrapolated():
    for counts, others in (([4] * 4, FRONT), ([0] * 4, FRONT), ([4, 0, 0, 0], [COLD, COLD])):
        assert np.isnan(mean(matched_pass({"d": samples(counts)}, others, ONE), ONE))
    ends = [matched_pass(policy, FRONT, ONE) for policy in FRONT]
    assert [mean(end, ONE) for end in ends] == pytest.approx([0, 0])


def test_data_sets_are_pooled_before_they_are_matched():
    """Two sets with the weights 1/4 and 3/4: Pass@4 is 1/4 cold and 3/4 hot, the policy's 1/8 + 1/2."""
    weights = {"a": 0.25, "b": 0.75}
    cold, hot = {"a": samples([4, 4]), "b": samples([0, 0, 0])}, {"a": samples([0, 0]), "b": samples([1, 1, 1])}
    policy = {"a": samples([2, 0]), "b": samples([3, 3, 0])}
    frontier = 0.25 + (0.625 - 0.25) / (0.75 - 0.25) * (0.1875 - 0.25)
    assert mean(matched_pass(policy, [cold, hot], weights), weights) == pytest.approx(1 / 16 + 3 / 8 - frontier)


def test_the_spread_of_the_scores_is_that_of_the_difference():
    """Problems drawn again move the mean of the scores as much as the difference itself, Pass@K included."""
    rng = np.random.default_rng(0)
    problems, k = 4000, 8
    share, rate = {"policy": 0.6, "cold": 0.5, "hot": 0.75}, {"policy": 0.5, "cold": 0.9, "hot": 0.4}
    counts = {name: rng.binomial(k, rate[name] * (rng.random(problems) < share[name])) for name in share}

    def scores(chosen):
        policy, *others = ({"d": samples(of[chosen], k)} for of in counts.values())
        return matched_pass(policy, others, ONE)["d"]

    drawn = [rng.integers(0, problems, problems) for _ in range(400)]
    spread = np.std([scores(chosen).mean() for chosen in drawn])
    assert spread == pytest.approx(scores(np.arange(problems)).std() / problems**0.5, rel=0.1)
    # The frontier falls from 0.45 to 0.3 over 0.25 of Pass@8, so 0.6 has 0.39: a constant, if Pass@8 were known.
    known = np.std([(counts["policy"][chosen] / k).mean() for chosen in drawn])
    assert spread > 1.15 * known


def test_the_best_point_is_that_of_the_highest_mean():
    validation = {0.0: [samples([1], 1), samples([0], 1)], 0.4: [samples([3]), samples([2])], 0.7: [samples([4])]}
    assert best_point("avg", validation) == 0.7
    assert best_point("avg", validation | {0.7: [samples([1])]}) == 0.4
    assert best_point("pass", validation) == 0.4  # equal to that at 0.7, and before it
    assert best_point("pass", validation, least=0.7) == 0.7  # 0.4 has 5/8
    assert best_point("pass", validation | {0.7: [samples([2])]}, least=0.7) == 0.4  # none has 0.7: the highest Avg@K
    ties = {0.4: [samples([3, 2, 1], 10)], 0.7: [samples([1, 2, 3], 10)]}  # whose means differ by rounding
    assert [best_point("avg", order) for order in (ties, dict(reversed(ties.items())))] == [0.4, 0.7]
    assert best_point("pass", ties, least=0.2) == 0.4


def test_problems_of_equal_difficulty_stay_in_order():
    """The first two have six of thirty each; their mean rates differ by rounding."""
    untrained = {seed: {"d": samples(counts, 10)} for seed, counts in enumerate([[1, 4, 9], [1, 1, 9], [4, 1, 9]])}
    trained = {seed: {"d": samples([0, 5, 10], 10)} for seed in range(3)}
    arms = {("model", "base"): untrained, ("model", "grpo"): trained}
    [hard] = score_columns(arms, {("model", "grpo"): 1}, "avg", ONE, "hard")
    assert hard.tolist() == [[0], [0], [0]]


# Verdicts


def with_temperatures(project: Path, temperatures: list[float]) -> Path:
    """A folder with configs/ of which the scale has these further temperatures."""
    shutil.copytree(ROOT / "configs", project / "configs")
    scale = project / f"configs/scale/{SCALE}.yaml"
    text, count = re.subn(r"(?m)^  temperatures: .*$", f"  temperatures: {temperatures}", scale.read_text())
    assert count == 1
    scale.write_text(text)
    return project


@pytest.fixture
def project(tmp_path) -> Path:
    return with_temperatures(tmp_path, [0, 0.4, 1])  # besides 0.7, that of all tables


def write_policies(project: Path, seeds: Iterable[int] = range(5), **levels: Level) -> None:
    """Per method and temperature the share of problems that can be solved, and the rate of correct samples of these."""
    for method, seed, dataset in product(levels, seeds, (*DATASETS, "validation")):
        for temperature, (share, rate) in levels[method].items():
            rates = np.where(np.arange(200) < 200 * (share + 0.01 * (seed % 3)), rate, 0.0)
            rng = np.random.default_rng([seed, *f"{method}{temperature}{dataset}".encode()])
            correct = rng.random((200, 1 if temperature == 0 else 16)) < rates[:, None]
            at = None if temperature == 0.7 else temperature
            write_evaluation(project / SCALE, Run(MODEL, method, seed), dataset, correct, at)


def found_in(project: Path, claim_id: str) -> Finding:
    claims = load_claims(SCALE, FIVE, ROOT / "experiments", project / "configs")
    claim = next(claim for claim in claims if claim.spec.id == claim_id)
    return judge(claim, Results(project / SCALE, SCALE, FIVE, project / "configs", ROOT / "experiments"))


# GRPO can solve 50, 60 and 70 % of the problems, at rates of 0.6, 0.45 and 0.35: Avg@16 is 30, 27 and 24.5 %.
GRPO = {0.0: (0.32, 1.0), 0.4: (0.5, 0.6), 0.7: (0.6, 0.45), 1.0: (0.7, 0.35)}


@pytest.mark.parametrize(("greedy", "verdict"), [(0.4, "holds"), (0.2, "does not hold")])
def test_greedy(project, greedy, verdict):
    write_policies(project, grpo=GRPO, clip_b=GRPO | {0.0: (greedy, 1.0)})
    found = found_in(project, "greedy_clip_b_qwen2.5")
    assert (found.verdict, found.interval.value) == (verdict, pytest.approx(100 * (greedy - 0.32), abs=0.6))
    if greedy > 0.3:  # then the best temperature of both is 0
        best = found_in(project, "best_clip_b_qwen2.5")
        assert best.interval == found.interval
        assert "clip_b at 0; grpo at 0; greedy decoding, about which there is a claim of its own" in best.reason


def test_each_method_at_its_own_best_temperature(project):
    """Clip_B's best is 0.7 with 42 %, GRPO's greedy decoding with 32 %."""
    write_policies(project, grpo=GRPO, clip_b=GRPO | {0.7: (0.6, 0.7)})
    found = found_in(project, "best_clip_b_qwen2.5")
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(100 * (0.61 * 0.7 - 0.33), abs=1))
    assert "clip_b at 0.7; grpo at 0" in found.reason
    assert "claim of its own" not in found.reason


@pytest.mark.parametrize(("rate", "further", "verdict"), [(0.5, [1], "holds"), (0.41, [0, 0.4, 1], "inconclusive")])
def test_at_equal_pass(tmp_path, rate, further, verdict):
    """65 % of the problems, halfway between GRPO at 0.7 and 1.0, where the frontier has 26.1 % (with seeds 0 to 2).

    Greedy decoding, with one sample per problem, is no point of the frontier.
    """
    project = with_temperatures(tmp_path, further)
    write_policies(project, grpo=GRPO | {0.0: (0.9, 1.0)}, clip_b=GRPO | {0.7: (0.65, rate)})
    found = found_in(project, "matched_pass_clip_b_qwen2.5")
    frontier = (0.61 * 0.45 + 0.71 * 0.35) / 2
    assert (found.verdict, found.interval.value) == (verdict, pytest.approx(100 * (0.66 * rate - frontier), abs=1))
    assert found.seeds == 5


def test_seeds_off_the_frontier_are_counted(tmp_path):
    """GRPO can solve 60 to 72 % of the problems."""
    project = with_temperatures(tmp_path, [1])
    for seed, share in enumerate([0.95, 0.95, 0.2, 0.65, 0.65]):
        clip_b = dict.fromkeys([0.7, 1.0], (share, 0.4))
        write_policies(project, [seed], grpo={0.7: GRPO[0.7], 1.0: GRPO[1.0]}, clip_b=clip_b)
    found = found_in(project, "matched_pass_clip_b_qwen2.5")
    above = "grpo does not reach the Pass@K of clip_b at any temperature in 2 of 5 seeds"
    assert found.reason == f"{above}; the Pass@K of clip_b is below the frontier of grpo in 1 of 5 seeds"
    assert no_interval(found)


def test_missing_evaluations_are_named(project):
    write_policies(project, grpo=GRPO, clip_b=GRPO)
    Run(MODEL, "grpo", 1).evaluation_file(project / SCALE, "aime25", 1.0).unlink()
    found = found_in(project, "matched_pass_clip_b_qwen2.5")
    assert found.verdict == "inconclusive"
    assert found.reason == f"evaluations/{MODEL}/grpo/seed1/T1/aime25.parquet is missing"
    assert no_interval(found)
    Run(MODEL, "grpo", 1).evaluation_file(project / SCALE, "validation", 1.0).unlink()
    best = found_in(project, "best_clip_b_qwen2.5")
    assert best.reason.startswith(f"evaluations/{MODEL}/grpo/seed1/T1/validation.parquet is missing")
    assert "greedy" not in best.reason


def test_temperatures_that_the_scale_lacks_are_named(tmp_path):
    project = with_temperatures(tmp_path, [])
    write_policies(project, grpo={0.7: (0.6, 0.45)}, clip_b={0.7: (0.6, 0.45)})
    greedy, matched = (found_in(project, f"{name}_clip_b_qwen2.5") for name in ("greedy", "matched_pass"))
    assert greedy.reason == "this scale has no evaluations at temperature 0"
    assert matched.reason == "this scale has evaluations at temperature 0.7 alone"


def test_inputs_at_the_temperatures_that_the_scale_has(project, tmp_path_factory):
    single = with_temperatures(tmp_path_factory.mktemp("single"), [])

    def files(configs: Path) -> set[str]:
        found = input_files(project / SCALE, load_claims(SCALE, FIVE, ROOT / "experiments", configs))
        return {path.relative_to(project / SCALE).as_posix() for path in found}

    more = files(project / "configs") - files(single / "configs")
    run = f"evaluations/{MODEL}/clip_b/seed0"
    assert {f"{run}/T{name}/aime24.parquet" for name in ("0", "0.4", "1")} <= more
    assert f"{run}/T0.4/validation.parquet" in more  # for the best temperature
    assert {path.split("/")[2] for path in more} == {"grpo", "clip_b", "clip_v"}


def test_a_temperature_that_two_keys_name_belongs_to_the_first():
    """The samples at a temperature have one path, so that two jobs never write them."""
    keys = ("temperature=0.4", "temperatures=[0.4,0,1.0,1]", "control_temperatures=[1.0,1.6,0.4]")
    evaluation = load_config(SCALE, overrides=[f"evaluation.{key}" for key in keys]).evaluation
    assert (evaluation.temperatures, evaluation.control_temperatures) == ([0, 1.0], [1.6])
