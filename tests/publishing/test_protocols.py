"""Protocols of docs/reference against the configs and experiments of their scales."""

import re
from pathlib import Path

import pandas as pd
import pytest

from conftest import ROOT
from entropy_dynamics.analysis.envelope import RESAMPLES
from entropy_dynamics.config import load_config
from entropy_dynamics.experiments.claims import load_claims
from entropy_dynamics.experiments.load import load_experiment
from tables import length

FILES = {name: f"{name}/protocol.md" for name in ("long", "rates", "length")}
FILES["smollm2-rates"] = "smollm2/protocol-rates.md"
TEXT = {name: (ROOT / "docs/reference" / file).read_text() for name, file in FILES.items()}
TOYS = ["qwen2.5-7b-instruct", "qwen3-4b-base"]
METHODS = {
    "GRPO": "grpo",
    "GRPO, half the rate": "grpo_half_rate",
    "GRPO, a quarter of the rate": "grpo_quarter_rate",
    "Clip_B": "clip_b",
    "Clip_V": "clip_v",
    "Clip_V, half the rate": "clip_v_half_rate",
}


def planned(scale: str):
    """The config of a scale and its experiments."""
    config = load_config(scale)
    seeds, folder = dict(config.seeds), Path(config.experiments_folder)
    return config, [load_experiment(name, scale, seeds, folder) for name in config.experiments]


def at_steps(method: str, last: int, *steps: int) -> list[str]:
    return [method if step == last else f"{method}@training.steps={step}" for step in steps]


def temperatures(config, experiment) -> str:
    *most, last = sorted({config.evaluation.temperature, *experiment.temperatures})
    return f"**Temperatures** are {', '.join(map(str, most))} and {last}"


# 150 steps, and SmolLM2 at half the rate

STATED = {scale: re.findall(r"^\| (.+) \| ([\de.-]+) \| (\d+) \| ([\d, ]+) \|$", TEXT[scale], re.M) for scale in TEXT}
ARMS = {
    "long": ["grpo", "grpo_half_rate", "clip_b", "clip_v"],
    "smollm2-rates": ["grpo", "grpo_half_rate", "clip_v", "clip_v_half_rate"],
}


@pytest.mark.parametrize("scale", ARMS)
def test_arms(scale):
    assert [METHODS[name] for name, *_ in STATED[scale]] == ARMS[scale]
    for model in TOYS if scale == "long" else ["smollm2-135m-instruct"]:
        for name, rate, steps, checkpoints in STATED[scale]:
            config = load_config(scale, model, METHODS[name])
            assert config.training.optimizer.learning_rate == float(rate)
            assert config.training.steps == int(steps)
            assert [*config.training.keep_steps, config.training.steps] == [*map(int, checkpoints.split(", "))]


@pytest.mark.parametrize("model", TOYS)
def test_all_else_of_150_steps_is_as_at_the_laptop_scale(model):
    for method in ARMS["long"]:
        config, parent = (load_config(scale, model, method) for scale in ("long", "laptop"))
        for section in ("training", "method", "sampling", "pass_rates"):
            ours, theirs = (getattr(of, section) for of in (config, parent))
            differs = {key for key, value in ours if value != getattr(theirs, key)}
            assert differs <= {"steps", "keep_steps", "entropy_change_every", "entropy_change_first_order"}
        assert config.toy_models == parent.toy_models
        assert f"`data.train.size` is {config.data.train.size}" in TEXT["long"]


def test_all_else_of_smollm2_is_as_on_the_gpu():
    for method in ARMS["smollm2-rates"]:
        of_parent = method.removesuffix("_half_rate")
        config = load_config("smollm2-rates", "smollm2-135m-instruct", method)
        parent = load_config("smollm2-gpu", "smollm2-135m-instruct", of_parent)
        assert config.method.params == parent.method.params
        assert config.sampling == parent.sampling
        assert config.gate == parent.gate


@pytest.mark.parametrize(
    ("scale", "last", "seeds"), [("long", 150, range(240, 256)), ("smollm2-rates", 50, range(200, 208))]
)
def test_what_is_compared(scale, last, seeds):
    config, (first, left) = planned(scale)
    steps = [*map(int, STATED[scale][0][3].split(", "))]
    points = {name for method in ARMS[scale] for name in at_steps(method, last, *steps)}
    assert {run.method for run in left.runs} == points
    assert {run.method for run in first.runs} == ({*ARMS[scale]} if scale == "long" else points)
    assert {run.seed for run in left.runs} == {*seeds}
    assert f"**Seeds** are {seeds[0]} to {seeds[-1]}." in TEXT[scale]
    assert [*left.spec.averages.values()] == [
        at_steps(method, last, last - 20, last - 10, last)
        for method in sorted(ARMS[scale], key=lambda name: name.startswith("grpo"))
    ]
    assert temperatures(config, left) in TEXT[scale]


def test_margin_and_problems_of_smollm2():
    config, (_, left) = planned("smollm2-rates")
    assert f"The margin is {left.spec.margin:g} points" in TEXT["smollm2-rates"]
    sizes = [config.data.evaluation[name].size for name in left.evaluations]
    assert "{} problems of three numbers and {} of four".format(*sizes) in TEXT["smollm2-rates"]
    assert {config.evaluation.samples[name] for name in left.evaluations} == {8}


# The learning rate as a frontier

RATES = {"rates": "laptop", "rates-desk": "desk"}


def rate_arms(scale):
    """Method -> (learning rate, steps, checkpoints) of the protocol's table of arms."""
    at = [*RATES].index(scale)
    pattern = r"^\| (.+) \| ([\de.-]+); ([\de.-]+) \| (\d+)(?: \(1 M: (\d+)\))? \| ([\d, ]+) \|$"
    for name, *rates, steps, desk, checkpoints in re.findall(pattern, TEXT["rates"], re.M):
        last = int(desk or steps) if at else int(steps)
        kept = [step for step in map(int, checkpoints.split(", ")) if step <= last]
        yield METHODS[name], (float(rates[at]), last, kept)


@pytest.mark.parametrize("scale", RATES)
def test_arms_of_the_rates(scale):
    stated = dict(rate_arms(scale))
    assert list(stated) == [method for method in METHODS.values() if method != "clip_b"]
    for model in TOYS:
        for method, (rate, steps, checkpoints) in stated.items():
            config = load_config(scale, model, method)
            assert config.training.optimizer.learning_rate == rate
            assert config.training.steps == steps
            assert {*checkpoints} <= {*config.training.keep_steps, steps}
            plain = load_config(scale, model, method.removesuffix("_half_rate").removesuffix("_quarter_rate"))
            assert config.method.params == plain.method.params
        for method in ("grpo", "clip_v"):
            ours, theirs = (load_config(name, model, method).model_dump() for name in (scale, RATES[scale]))
            for section in ("training", "method", "sampling", "data", "pass_rates"):
                differs = {key for key in ours[section] if ours[section][key] != theirs[section][key]}
                assert differs <= {"entropy_change_every", "entropy_change_first_order"}, (section, differs)


@pytest.mark.parametrize("scale", RATES)
def test_points_of_the_rates(scale):
    config, (experiment, left) = planned(scale)
    points = {name for method, (_, last, steps) in rate_arms(scale) for name in at_steps(method, last, *steps)}
    assert {run.method for run in experiment.runs} == points
    assert {run.model for run in experiment.runs} == {*TOYS}
    assert set(left.runs) == set(experiment.runs)
    seeds, protocol = {run.seed for run in experiment.runs}, " ".join(TEXT["rates"].split())
    assert f"**Seeds** are {min(seeds)} to {max(seeds)} at both sizes" in protocol
    assert temperatures(config, experiment) in protocol


@pytest.mark.parametrize("scale", RATES)
def test_what_is_left_is_over_the_grid_of_the_protocol(scale):
    _, (_, left) = planned(scale)
    spec, model = left.spec, TOYS[0]
    last = {method: steps for method, (_, steps, _) in rate_arms(scale)}

    def at(method, *steps):
        return at_steps(method, last[method], *steps)

    compared = [at(of, 30, 40, 50) for of in ("clip_v", "clip_v_half_rate")]
    assert [spec.averages[name] for name in spec.compared] == compared
    of_rates = ["grpo", "grpo_half_rate", "grpo_quarter_rate"]
    wanted = [at(method, 30, 40, 50) for method in of_rates]
    if scale == "rates":
        wanted += [at("grpo_half_rate", 80, 90, 100), at("grpo_quarter_rate", 180, 190, 200)]
    means = {name: of for name, of in spec.averages.items() if name not in spec.compared}
    assert sorted(means.values()) == sorted(wanted)
    added = [{*left.methods(model, patterns), *means.keys() & set(patterns)} for patterns in spec.grids.values()]
    of_grpo = {method for method in left.methods(model) if method.startswith("grpo")}
    assert set.union(*added) == of_grpo | means.keys()
    for method, names in zip(of_rates, added, strict=True):
        assert {means.get(name, [name])[0].partition("@")[0] for name in names} == {method}
        assert not names.isdisjoint(means)
        assert not names <= means.keys()


# The length of an answer

SHARES = re.findall(r"^\| `(.+)` \| 6; 1 \| (\d+) \|$", TEXT["length"], re.M)


@pytest.mark.parametrize(("scale", "problems", "needed", "size"), [("length", 6, 2, 1150), ("length-one", 1, 1, 1650)])
def test_what_runs(scale, problems, needed, size):
    text, model = TEXT["length"], TOYS[0]
    config, [experiment] = planned(scale)
    assert [method for method, _ in SHARES] == [*dict.fromkeys(run.method for run in experiment.runs)]
    seeds = {run.seed for run in experiment.runs}
    rate = float(re.search(r"learning rate of ([\de.-]+)", text)[1])
    assert f"**Seeds** are {min(seeds)} to {max(seeds)}." in text
    for method, steps in SHARES:
        ours, laptop = (load_config(name, model, method) for name in (scale, "laptop"))
        assert ours.training.steps == int(steps)
        assert ours.training.optimizer == laptop.training.optimizer.model_copy(update={"learning_rate": rate})
        assert ours.training.prompts_per_step == laptop.training.prompts_per_step
        assert ours.method == laptop.method
        for of in (ours.data.train, *(ours.data.evaluation[name] for name in ("aime24", "aime25"))):
            assert (of.per_prompt, of.needed) == (problems, needed)
        starts = (of.toy_models[model].warm_start.solutions for of in (ours, laptop))
        ours, theirs = (getattr(start, "each", start).habits for start in starts)
        assert ours == theirs.model_copy(update={"rambling": 0.0})
    split_off = sum(config.data.evaluation[name].size for name in ("dapo500", "validation"))
    assert config.data.train.size - split_off == size
    samples = re.search(r"1,150 with six problems and 1,650 with one. (\d+) samples", text)[1]
    assert samples == f"{config.pass_rates.samples}"
    assert f"a response at most {config.sampling.max_new_tokens} tokens" in text
    assert config.toy_models[model].warm_start.solutions.per_prompt == problems


def test_what_reads_it_has_the_same_arms_and_bounds():
    assert [f"clip_b@share={share}" for share in length.SHARES.values()] == [method for method, _ in SHARES[1:]]
    assert "within {:g} to {:g} |".format(*length.ALIKE) in TEXT["length"]
    assert f"{RESAMPLES:,} resamples" in TEXT["length"]


# A share of tokens in place of mu, and stale rollouts

SEEDS = {"share": range(300, 305), "stale": range(310, 315)}
STALE = re.findall(r"^\| [\w ]+ \| `([\w@.=,]+)`", (ROOT / "docs/reference/stale/protocol.md").read_text(), re.M)


def runs_at(scale: str) -> set[tuple[str, str, int]]:
    return {(run.model, run.method, run.seed) for table in planned(scale)[1] for run in table.runs}


@pytest.mark.parametrize("scale", SEEDS)
def test_all_else_is_as_at_the_laptop_scale(scale):
    config = load_config(scale)
    assert config.models == (TOYS if scale == "share" else TOYS[:1])
    assert config.evaluation.temperature == 0.7
    for model in config.models:
        for method in ("grpo", "clip_b", "clip_v"):
            own, of_parent = load_config(scale, model, method), load_config("laptop", model, method)
            assert own.method == of_parent.method
            keep = {"keep_steps": own.training.keep_steps}  # does not change a run
            assert own.training == of_parent.training.model_copy(update=keep)
            assert (own.sampling, own.gate, own.data) == (of_parent.sampling, of_parent.gate, of_parent.data)


def test_arms_of_share():
    methods = ["grpo", "clip_b", "clip_b_share", "clip_v", "clip_v_share"]
    assert runs_at("share") == {(toy, method, seed) for toy in TOYS for method in methods for seed in SEEDS["share"]}
    metrics = pd.read_parquet(ROOT / "docs/reference/share/seeds-300-304/metrics.parquet")
    dropped = metrics.groupby(["model", "method"])["clip_fraction"].mean()
    for toy in TOYS:
        for method in ("clip_b", "clip_v"):
            params = load_config("share", toy, f"{method}_share").method.params
            assert (params.mu, params.share) == (None, float(f"{dropped[toy, method]:.2g}"))


def test_arms_of_stale():
    assert len(STALE) == 6
    staleness = {arm.replace("=S", f"={steps}") for arm in STALE for steps in (1, 3, 8)}
    noise = {  # the tolerance is an exception: without it the check of the engine refuses the noise
        f"grpo@training.old_logp=engine,engine.logit_noise={level},engine.tolerance=1.0" for level in (0.1, 0.3)
    }
    methods = {"grpo", "clip_b"} | staleness | noise
    assert runs_at("stale") == {(TOYS[0], method, seed) for method in methods for seed in SEEDS["stale"]}
    for method in ("score_centering", "score_centering_clip_b"):
        assert load_config("stale", TOYS[0], method).method.params.top is None


def test_claims_are_the_comparisons():
    share, stale = (
        [claim.spec for claim in load_claims(scale, dict(load_config(scale).seeds), ROOT / "experiments" / scale)]
        for scale in SEEDS
    )
    margins = {claim.id.split("_")[1]: claim.within for claim in share}
    assert margins == {"entropy": [-0.2, 0.2], "avg": [-3, 3], "pass": [-8, 8]}
    assert len(share) == 3 * 4
    kinds = [claim.id.split("_")[0] for claim in stale if claim.id.endswith(("_1", "_3", "_8"))]
    assert [kinds.count(kind) for kind in ("entropy", "accuracy", "avg", "pass")] == [15] * 4
