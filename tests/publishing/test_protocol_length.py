"""docs/reference/length/protocol.md against the configs and the experiment of the scales `length` and `length-one`."""

import re
from pathlib import Path

import pytest

from conftest import ROOT
from entropy_dynamics.analysis.envelope import RESAMPLES
from entropy_dynamics.config import load_config
from entropy_dynamics.experiments.load import load_experiment
from tables import length

TEXT = (ROOT / "docs/reference/length/protocol.md").read_text()
MODEL = "qwen2.5-7b-instruct"
ARMS = re.findall(r"^\| `(.+)` \| 6; 1 \| (\d+) \|$", TEXT, re.M)


@pytest.mark.parametrize(("scale", "problems", "needed", "size"), [("length", 6, 2, 1150), ("length-one", 1, 1, 1650)])
def test_what_runs(scale, problems, needed, size):
    config = load_config(scale)
    experiment = load_experiment("length", scale, dict(config.seeds), Path(config.experiments_folder))
    assert [method for method, _ in ARMS] == [*dict.fromkeys(run.method for run in experiment.runs)]
    seeds = {run.seed for run in experiment.runs}
    rate = float(re.search(r"learning rate of ([\de.-]+)", TEXT)[1])
    assert f"**Seeds** are {min(seeds)} to {max(seeds)}." in TEXT
    for method, steps in ARMS:
        ours, laptop = (load_config(name, MODEL, method) for name in (scale, "laptop"))
        assert ours.training.steps == int(steps)
        assert ours.training.optimizer == laptop.training.optimizer.model_copy(update={"learning_rate": rate})
        assert ours.training.prompts_per_step == laptop.training.prompts_per_step
        assert ours.method == laptop.method
        for of in (ours.data.train, *(ours.data.evaluation[name] for name in ("aime24", "aime25"))):
            assert (of.per_prompt, of.needed) == (problems, needed)
        starts = (of.toy_models[MODEL].warm_start.solutions for of in (ours, laptop))
        ours, theirs = (getattr(start, "each", start).habits for start in starts)
        assert ours == theirs.model_copy(update={"rambling": 0.0})
    split_off = sum(config.data.evaluation[name].size for name in ("dapo500", "validation"))
    assert config.data.train.size - split_off == size
    assert (
        re.search(r"1,150 with six problems and 1,650 with one. (\d+) samples", TEXT)[1]
        == f"{config.pass_rates.samples}"
    )
    assert f"a response at most {config.sampling.max_new_tokens} tokens" in TEXT
    start = config.toy_models[MODEL].warm_start.solutions
    assert start.per_prompt == problems


def test_what_reads_it_has_the_same_arms_and_bounds():
    assert [f"clip_b@share={share}" for share in length.SHARES.values()] == [method for method, _ in ARMS[1:]]
    assert "within {:g} to {:g} |".format(*length.ALIKE) in TEXT
    assert f"{RESAMPLES:,} resamples" in TEXT
