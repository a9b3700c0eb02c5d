"""Trackers: what TensorBoard's own reader finds in its files, what wandb is told, and nothing where none is wanted."""

import math
import os
import re
import sys
import types

import pytest

from conftest import MODEL
from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.training.trackers import Trackers


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "smoke")


def config_with(*trackers):
    return load_config("smoke", MODEL, "grpo", [f"trackers=[{','.join(trackers)}]"])


def test_tensorboard_has_the_numbers_and_no_nan(layout):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Trackers(config_with("tensorboard"), layout, "clip_b@mu=1.2", 3) as trackers:
        trackers.log(0, {"step": 0, "entropy": 0.5, "validation_accuracy": 0.25})
        trackers.log(1, {"step": 1, "entropy": 0.375, "validation_accuracy": math.nan})
        trackers.log(2, {"step": 2, "entropy": 99.0, "validation_accuracy": math.nan})
    with Trackers(config_with("tensorboard"), layout, "clip_b@mu=1.2", 3) as trackers:  # resumes from a checkpoint
        trackers.log(2, {"step": 2, "entropy": 0.125, "validation_accuracy": 0.75})
    found = EventAccumulator(str(layout.root / "logs/tensorboard" / MODEL / "clip_b@mu=1.2/seed3")).Reload()
    assert set(found.Tags()["scalars"]) == {"entropy", "validation_accuracy"}
    assert [(one.step, one.value) for one in found.Scalars("entropy")] == [(0, 0.5), (1, 0.375), (2, 0.125)]
    assert [(one.step, one.value) for one in found.Scalars("validation_accuracy")] == [(0, 0.25), (2, 0.75)]


class Fake(types.ModuleType):
    """Takes down what it is told."""

    class Error(Exception):
        pass

    def __init__(self, name, fails=False):
        super().__init__(name)
        self.told, self.fails = [], fails

    def init(self, **settings):
        if self.fails:
            raise self.Error("api_key not configured\n(no-tty)")
        self.told.append(settings)
        return types.SimpleNamespace(
            log=lambda numbers, step: self.told.append((step, numbers)), finish=lambda: self.told.append("finished")
        )


@pytest.mark.parametrize(("tracker", "suffix"), [("wandb", ""), ("trackio", " [0-9a-f]{6}")])
def test_a_tracker_gets_the_run_in_a_folder_of_the_results(layout, monkeypatch, tracker, suffix):
    fake = Fake(tracker)
    monkeypatch.setitem(sys.modules, tracker, fake)
    monkeypatch.setenv("TRACKIO_DIR", "elsewhere")
    monkeypatch.delenv("TRACKIO_DIR")
    with Trackers(config_with(tracker), layout, "grpo", 1) as trackers:
        trackers.log(4, {"step": 4, "entropy": 0.5, "accuracy": math.nan})
    start, *rest = fake.told
    assert start["project"] == "entropy-dynamics"
    assert re.fullmatch(rf"smoke/{MODEL}/grpo/seed1{suffix}", start["name"])
    assert rest == [(4, {"entropy": 0.5}), "finished"]
    if tracker == "wandb":
        assert start["config"]["training"]["group_size"] == 16
        assert start["dir"] == str(layout.root / "logs")
    else:
        assert start["resume"] == "allow"
        assert os.environ["TRACKIO_DIR"] == str(layout.root / "logs/trackio")


@pytest.mark.parametrize(("tracker", "key"), [("wandb", "id"), ("trackio", "name")])
def test_the_same_run_of_other_results_is_another_run(layout, tmp_path, monkeypatch, tracker, key):
    fake = Fake(tracker)
    monkeypatch.setitem(sys.modules, tracker, fake)
    monkeypatch.setenv("TRACKIO_DIR", "shared")
    for root in (layout, Layout(tmp_path / "again" / "smoke"), layout):
        Trackers(config_with(tracker), root, "grpo", 1).close()
    first, second, resumed = (settings[key] for settings in fake.told[::2])  # then each is finished
    assert first == resumed != second


def test_a_wandb_that_does_not_start_is_one_line(layout, monkeypatch):
    """And those that have started are closed."""
    monkeypatch.setitem(sys.modules, "wandb", Fake("wandb", fails=True))
    monkeypatch.setitem(sys.modules, "trackio", trackio := Fake("trackio"))
    monkeypatch.setenv("TRACKIO_DIR", "elsewhere")
    with pytest.raises(UserError, match=r"^wandb does not start: api_key not configured \(no-tty\)$"):
        Trackers(config_with("trackio", "wandb"), layout, "grpo", 1)
    assert trackio.told[-1] == "finished"


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_is_reported_before_anything_runs(layout, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)  # importing it now fails
    with pytest.raises(ModuleNotFoundError, match=name):
        Trackers(config_with(name), layout, "grpo", 1)
    assert not layout.root.exists()


@pytest.mark.parametrize(("names", "enabled"), [((), True), (("tensorboard", "wandb"), False)])
def test_without_trackers_nothing_is_imported_or_written(layout, monkeypatch, names, enabled):
    for name in ("tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with Trackers(config_with(*names), layout, "grpo", 1, enabled=enabled) as trackers:
        trackers.log(0, {"step": 0, "entropy": 0.5})
    assert not layout.root.exists()
