"""A run of fewer steps, made by the longer run whose first steps it is (`training.keep_steps`)."""

import json

import pandas as pd
import pytest

from conftest import ROOT
from entropy_dynamics.cli import main
from entropy_dynamics.training.trainer import Trainer
from fault_harness import differences


@pytest.mark.parametrize("method", ["random_mask", "ppo"])
def test_a_shorter_run_is_the_same_alone_and_from_a_longer_one(small_results, monkeypatch, capfd, method):
    """The longer one is interrupted, and resumes before the last step that it keeps."""
    monkeypatch.chdir(ROOT)
    results, name = small_results.folder / "smoke", f"{method}@training.steps=2"
    shorter, run = [*small_results.train(name), "--set", "training.checkpoint_every=1"], small_results.run(name)
    longer = [*small_results.train(method), "--set", "training.keep_steps=[2, 3, 9]"]
    assert main(shorter) == 0
    evaluation = results / "evaluations" / run.relative_to(results / "runs")
    alone = [folder.rename(small_results.folder / folder.parts[-4]) for folder in (run, evaluation)]

    def interrupted(self, step, whole_step=Trainer.step):
        if step == 2:
            raise KeyboardInterrupt
        return whole_step(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", interrupted)
        assert main([*longer, "--set", "training.checkpoint_every=1"]) == 130
    assert main(longer) == 0
    left = {path.parent.name for path in results.glob("checkpoints/*/*/seed0")}
    assert left == {name, f"{method}@training.steps=3"}  # before the last of 4 steps
    capfd.readouterr()
    assert main(shorter) == 0
    assert "resumes from the checkpoint after step 2; a longer run, " in capfd.readouterr().err
    assert [differences(*pair) for pair in zip((run, evaluation), alone, strict=True)] == [["provenance.json"], []]
    whole, beginning = (pd.read_parquet(folder / "metrics.parquet") for folder in (small_results.run(method), run))
    assert len(whole) == 4
    pd.testing.assert_frame_equal(beginning, whole[:2])  # times, too
    [maker] = json.loads((run / "provenance.json").read_text())["earlier_steps_by"]
    assert maker["method"] == method
    assert not list(results.glob(f"checkpoints/*/{name}/*"))
    assert main(["verify", str(results), *small_results.settings]) == 0
