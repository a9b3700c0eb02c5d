"""Checkpoints of one process; those of several ranks are in test_ranks.py."""

import json
import math
from functools import partial
from pathlib import Path
from shutil import copy

import pandas as pd
import pytest
import torch

from entropy_dynamics.cli import main
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.training.checkpoints import Checkpoints
from entropy_dynamics.training.trainer import Trainer
from fault_harness import differences, flip_a_bit, truncate
from mistakes import mistake


def trained(make_model, steps=0):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        step(model, optimizer)
    return {"policy": (model, optimizer)}


def step(model, optimizer):
    ids = torch.arange(5, 15)[None]
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()


def checkpoints(root, run=1, kept=1, code="a") -> Checkpoints:
    made_by = {"git": {"commit": None}, "code_sha256": code, "packages": {"torch": "2"}}
    return Checkpoints(root, Ranks(), made_from={"run": run}, made_by=made_by, kept=kept)


def rows(steps: int) -> list[dict]:
    return [{"step": step} for step in range(steps)]


def names(one: Checkpoints) -> list[str]:
    return sorted(path.name for path in one.folder.iterdir())


@pytest.mark.parametrize("file_bytes", [2**30, 20_000])
def test_resumed_training_is_bitwise_the_same(tmp_path, make_model, monkeypatch, file_bytes):
    monkeypatch.setattr("entropy_dynamics.training.checkpoints.CHECKPOINT_FILE_BYTES", file_bytes)
    metrics = [{"step": 0, "validation_accuracy": math.nan, "entropy": 0.1 + 0.2}]
    before = trained(make_model, steps=3)
    checkpoints(tmp_path).save(before, metrics, {"coefficient": 0.7})
    files = list(tmp_path.rglob("*.safetensors"))
    assert (len(files) > 3) == (file_bytes == 20_000)  # a file is in memory while it is written
    after = trained(make_model)
    found, method_state = checkpoints(tmp_path).resume(after)
    assert method_state == {"coefficient": 0.7}
    assert math.isnan(found[0].pop("validation_accuracy"))
    assert found == [{"step": 0, "entropy": 0.1 + 0.2}]
    for pair in (before, after):
        step(*pair["policy"])
    for one, other in zip(before["policy"][0].parameters(), after["policy"][0].parameters(), strict=True):
        assert torch.equal(one, other)
    assert after["policy"][0].lm_head.weight is after["policy"][0].model.embed_tokens.weight


def test_the_last_ones_are_kept_and_those_of_another_config_left_alone(tmp_path, make_model):
    foreign = checkpoints(tmp_path, run=2)
    foreign.save(trained(make_model), rows(200), {})
    own = checkpoints(tmp_path, kept=2)
    assert own.resume(trained(make_model)) == ([], {})
    assert own.others() == [foreign.folder]
    for done in (20, 40, 60):
        own.save(trained(make_model), rows(done), {})
    assert names(own) == ["step40", "step60"]
    assert own.resume(trained(make_model)) == (rows(60), {})
    assert foreign.resume(trained(make_model))[0] == rows(200)
    own.delete()
    assert not own.folder.exists()
    assert foreign.resume(trained(make_model))[0] == rows(200)
    foreign.delete()
    assert not tmp_path.exists() or not list(tmp_path.iterdir())


def test_an_unfinished_save_is_no_checkpoint(tmp_path, make_model):
    one = checkpoints(tmp_path)
    one.save(trained(make_model), rows(2), {})
    (one.folder / "step2").rename(one.folder / ".step2.partial")
    (one.folder / "step9.bak").mkdir()  # somebody's own
    again = checkpoints(tmp_path)
    assert again.resume(trained(make_model)) == ([], {})
    again.save(trained(make_model), rows(3), {})
    assert names(again) == ["step3", "step9.bak"]


def test_nothing_is_left_of_a_save_that_was_interrupted(tmp_path, make_model, monkeypatch):
    one = checkpoints(tmp_path)
    one.save(trained(make_model), rows(2), {})

    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("entropy_dynamics.training.checkpoints.flush", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.save(trained(make_model), rows(4), {})
    assert names(one) == ["step2"]


def test_the_latest_is_not_written_again(tmp_path, make_model):
    """An error in the first step after it asks for the same state once more, and the disk may be full by then."""
    one = checkpoints(tmp_path)
    one.save(trained(make_model), rows(2), {})
    again = checkpoints(tmp_path)
    again.resume(trained(make_model))
    before = (again.folder / "step2").stat().st_ino
    again.save(trained(make_model), rows(2), {})
    assert (again.folder / "step2").stat().st_ino == before


@pytest.mark.parametrize("steps", [30, 40])
@pytest.mark.parametrize("kept", [1, 2])
def test_damaged_checkpoints_do_not_count_as_kept(tmp_path, make_model, kept, steps):
    early = checkpoints(tmp_path, kept=9)
    for done in (20, 40, 60):
        early.save(trained(make_model), rows(done), {})
    for done in (40, 60):
        truncate(early.folder / f"step{done}" / "checkpoint.json")
    one = checkpoints(tmp_path, kept=kept)
    assert one.resume(trained(make_model))[0] == rows(20)
    one.save(trained(make_model), rows(steps), {})
    assert names(one) == ["step20", f"step{steps}"][-kept:]
    assert checkpoints(tmp_path).resume(trained(make_model)) == (rows(steps), {})


def test_steps_by_other_code_are_resumed_and_recorded(tmp_path, make_model):
    first = checkpoints(tmp_path)
    first.save(trained(make_model), rows(1), {})
    same, other = checkpoints(tmp_path), checkpoints(tmp_path, code="b", kept=2)
    assert same.resume(trained(make_model))[0] == other.resume(trained(make_model))[0] == rows(1)
    assert same.earlier == []
    assert other.earlier == [first.made_by]
    other.save(trained(make_model), rows(2), {})
    back = checkpoints(tmp_path)
    assert back.resume(trained(make_model))[0] == rows(2)
    assert back.earlier == [other.made_by]


def test_a_place_that_cannot_be_written_to_is_one_line(tmp_path, make_model):
    (tmp_path / "file").write_text("in the way")
    with mistake(match=r"^checkpoint .*step2\.partial: "):
        checkpoints(tmp_path / "file").save(trained(make_model), rows(2), {})


def change_a_number(path):
    text = path.read_text()
    assert '"step": 1' in text
    path.write_text(text.replace('"step": 1', '"step": 7'))


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("*.safetensors", truncate),
        ("*.safetensors", partial(flip_a_bit, position=-1)),
        ("*.safetensors", Path.unlink),
        ("*.safetensors", lambda path: copy(path, path.with_name("foreign.safetensors"))),
        ("checkpoint.json", truncate),
        ("checkpoint.json", Path.unlink),
        ("checkpoint.json", change_a_number),
    ],
)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(tmp_path, make_model, capsys, file, harm):
    one = checkpoints(tmp_path, kept=2)
    early, late = trained(make_model, steps=1), trained(make_model, steps=2)
    one.save(early, rows(1), {})
    one.save(late, rows(2), {})
    [path] = (one.folder / "step2").glob(file)
    harm(path)
    found = trained(make_model)
    assert one.resume(found) == (rows(1), {})
    for mine, other in zip(found["policy"][0].parameters(), early["policy"][0].parameters(), strict=True):
        assert torch.equal(mine, other)
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"note: checkpoint {one.folder / 'step2'} is damaged and is skipped"
    truncate(one.folder / "step1" / "checkpoint.json")
    assert one.resume(trained(make_model)) == ([], {})
    assert len(capsys.readouterr().err.splitlines()) == 2


# ---------------------------------------------------------------- a shorter run of a longer one
@pytest.mark.parametrize("method", ["random_mask", "ppo"])
def test_a_shorter_run_is_the_same_alone_and_from_a_longer_one(small_results, monkeypatch, capfd, method):
    """The longer one is interrupted, and resumes before the last step that it keeps."""
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
