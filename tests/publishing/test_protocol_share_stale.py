"""The protocols of docs/reference/share and docs/reference/stale against their scales, tables and claims."""

import re
from pathlib import Path

import pandas as pd
import pytest

from conftest import ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.experiments.claims import load_claims
from entropy_dynamics.experiments.load import load_experiment

TOYS = ["qwen2.5-7b-instruct", "qwen3-4b-base"]
SEEDS = {"share": range(300, 305), "stale": range(310, 315)}
ARMS = re.findall(r"^\| [\w ]+ \| `([\w@.=,]+)`", (ROOT / "docs/reference/stale/protocol.md").read_text(), re.M)


def runs_of(scale: str) -> set[tuple[str, str, int]]:
    config = load_config(scale)
    folder = Path(config.experiments_folder)
    tables = [load_experiment(name, scale, dict(config.seeds), folder) for name in config.experiments]
    return {(run.model, run.method, run.seed) for table in tables for run in table.runs}


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
    assert runs_of("share") == {(toy, method, seed) for toy in TOYS for method in methods for seed in SEEDS["share"]}
    metrics = pd.read_parquet(ROOT / "docs/reference/share/seeds-300-304/metrics.parquet")
    dropped = metrics.groupby(["model", "method"])["clip_fraction"].mean()
    for toy in TOYS:
        for method in ("clip_b", "clip_v"):
            params = load_config("share", toy, f"{method}_share").method.params
            assert (params.mu, params.share) == (None, float(f"{dropped[toy, method]:.2g}"))


def test_arms_of_stale():
    assert len(ARMS) == 6
    staleness = {arm.replace("=S", f"={steps}") for arm in ARMS for steps in (1, 3, 8)}
    noise = {  # the tolerance is an exception: without it the check of the engine refuses the noise
        f"grpo@training.old_logp=engine,engine.logit_noise={level},engine.tolerance=1.0" for level in (0.1, 0.3)
    }
    methods = {"grpo", "clip_b"} | staleness | noise
    assert runs_of("stale") == {(TOYS[0], method, seed) for method in methods for seed in SEEDS["stale"]}
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
    assert {kind: kinds.count(kind) for kind in ("entropy", "accuracy", "avg", "pass")} == dict.fromkeys(
        ("entropy", "accuracy", "avg", "pass"), 15
    )
