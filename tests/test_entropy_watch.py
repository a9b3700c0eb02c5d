"""entropy-watch on the logs of other trainers."""

import json
import math
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from command_line import error, run
from entropy_dynamics.cli import main

STEPS = 40
FALLING = [1.2 / (1 + math.exp((step - 12) / 2)) + 0.2 for step in range(STEPS)]


def ours(folder):
    frame = pd.DataFrame({"step": range(STEPS), "entropy": FALLING, "reward_mean": np.linspace(0, 1, STEPS)})
    frame["predicted_entropy_change"] = np.gradient(FALLING)
    parts = {"lens_pos_lt": 1.0, "lens_pos_gt": -3.0, "lens_neg_gt": 2.0, "lens_neg_lt": -1.0}
    frame.assign(**parts).to_parquet(folder / "metrics.parquet")


def trl(folder):
    history = [{"step": step, "entropy": value, "reward": step} for step, value in enumerate(FALLING)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": [*history, {"step": 40, "train_loss": 0.1}]}))


def tensorboard(folder):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, value in enumerate(FALLING):
            writer.add_scalar("actor/entropy", value, step)


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def verl(folder):
    """verl/utils/tracking.py, FileLogger."""
    rows = [{"actor/entropy": value, "critic/score/mean": 0.5} for value in FALLING]
    lines(folder / "gsm8k.jsonl", ({"step": step, "data": row} for step, row in enumerate(rows)))


def prime_rl(folder):
    """prime_rl/utils/monitor/file.py: a file of the trainer, and one of the orchestrator, which logs no entropy."""
    rows = [{"step": step, "time": 1e9 + step, "entropy/all/mean": value} for step, value in enumerate(FALLING)]
    lines(folder / "trainer/metrics.jsonl", rows)
    lines(folder / "orchestrator/metrics.jsonl", ({"step": step, "reward/mean": 0.5} for step in range(STEPS)))


def tinker(folder):
    """tinker_cookbook/rl/metrics.py."""
    lines(folder / "metrics.jsonl", ({"step": step, "optim/entropy": value} for step, value in enumerate(FALLING)))


def of_wandb(name):
    """What W&B exports of SkyRL (skyrl/train), slime and OpenRLHF (status of the actor), NeMo RL (ClippedPGLossFn)."""

    def write(folder):
        columns = {"Step": range(STEPS), f"run 1 - {name}": FALLING}
        columns |= {f"run 1 - {name}__MIN": np.zeros(STEPS), f"run 1 - {name}__MAX": np.ones(STEPS)}
        pd.DataFrame(columns).to_csv(folder / "export.csv", index=False)

    return write


EXPORTS = ("policy/policy_entropy", "train/entropy_loss", "train/approx_entropy", "train/entropy")


@pytest.mark.parametrize("write", [ours, trl, tensorboard, verl, prime_rl, tinker, *map(of_wandb, EXPORTS)])
def test_entropy_watch_says_when_entropy_fell(write, tmp_path, capsys):
    write(tmp_path)
    text = run(capsys, "entropy-watch", tmp_path)
    assert text.startswith("Entropy fell from 1.39 to 0.2 nats (-86%; means of the first and the last 4 of 40 steps).")
    assert "Half of it was over by step 13; it moved fastest between the steps 10 and 14" in text
    if write is ours:
        assert "75% from likely tokens of positive samples and 25% from unlikely tokens of negative samples" in text
        assert "goes with the predicted change (Corollary 4) (+" in text


def watch(capsys, tmp_path, **columns) -> str:
    pd.DataFrame({"step": range(len(columns["entropy"]))} | columns).to_parquet(tmp_path / "metrics.parquet")
    return run(capsys, "entropy-watch", tmp_path)


def test_entropy_watch_says_when_entropy_rose(tmp_path, capsys):
    """It falls first, and farther at step 6 than it rises in the end."""
    text = watch(capsys, tmp_path, entropy=[1.0] * 4 + [0.5, 0.2, 0.1, 0.2, 0.5] + [1.0] * 20 + [1.5] * 11)
    assert text.startswith("Entropy rose from 1 to 1.5 nats (+50%;")
    assert "Half of it was over by step 29;" in text


def test_entropy_watch_names_what_entropy_may_have_risen_with(tmp_path, capsys):
    rising = np.linspace(0.2, 2, STEPS)
    columns = {"completions/clipped_ratio": np.linspace(0.01, 0.4, STEPS), "kl_ent_ratio/mean": np.full(STEPS, 0.1)}
    text = watch(capsys, tmp_path, entropy=rising, **columns)
    assert "Over the run the share of truncated responses (completions/clipped_ratio) grew from 0.025 to 0.385:" in text
    assert "mismatch" not in text  # it stayed
    columns["mismatch_kl/all/mean"] = np.linspace(1e-4, 1e-2, STEPS)
    assert "the mismatch of engine and trainer (mismatch_kl/all/mean) grew from " in watch(
        capsys, tmp_path, entropy=rising, **columns
    )


def test_entropy_watch_takes_the_column_that_it_is_given(tmp_path, capsys):
    pd.DataFrame({"step": range(STEPS), "my/H": FALLING, "entropy": 1.0}).to_parquet(path := tmp_path / "log.parquet")
    assert run(capsys, "entropy-watch", path).startswith("Entropy did not change")
    assert run(capsys, "entropy-watch", path, "--entropy", "my/H").startswith("Entropy fell from 1.39 to 0.2 nats")
    assert "logs no my/h; did you mean 'my/H'?" in error(capsys, "entropy-watch", path, "--entropy", "my/h")


def test_an_export_of_several_runs_is_one_line(tmp_path, capsys):
    pd.DataFrame({"Step": [0], "a - entropy": [1.0], "b - entropy": [1.0]}).to_csv(path := tmp_path / "e.csv")
    assert error(capsys, "entropy-watch", path) == f"{path} cannot be read: it has several runs; export one of them"


WRONG = [
    ([{"step": 0, "entropy": 1.0}, {"step": 1, "entropy": "n/a"}], "entropy is 'n/a' in row 2; it should be a finite"),
    ([{"step": 0, "entropy": 1.0}, {"step": "s1", "entropy": 1.0}], "step is 's1' in row 2; it should be a finite"),
    ([{"step": "2,600", "entropy": 1.0}], "step is '2,600' in row 1; it should be a finite number"),
    ([{"step": [0], "entropy": 1.0}], "step is [0] in row 1; it should be a finite number"),
    ([{"step": 0, "entropy": float("inf")}], "entropy is inf in row 1; it should be a finite number"),
    ([{"step": float("inf"), "entropy": 1.0}], "step is inf in row 1; it should be a finite number"),
]


@pytest.mark.parametrize(("rows", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_not_a_number_is_one_line(rows, message, tmp_path, capsys):
    lines(path := tmp_path / "log.jsonl", rows)
    assert error(capsys, "entropy-watch", path).startswith(f"{path} cannot be read: {message}")


def test_numbers_that_are_text_are_numbers(tmp_path, capsys):
    """As text, step 10 comes before step 2."""
    rows = [{"step": str(step), "entropy": str(value)} for step, value in enumerate(FALLING)]
    lines(path := tmp_path / "log.jsonl", rows)
    assert "Half of it was over by step 13; it moved fastest between the steps 10 and 14" in run(
        capsys, "entropy-watch", path
    )


def test_an_entropy_below_zero_is_one_line(tmp_path, capsys):
    lines(path := tmp_path / "log.jsonl", [{"step": step, "entropy": -value} for step, value in enumerate(FALLING)])
    assert error(capsys, "entropy-watch", path).startswith(
        f"{path}: entropy is -1.397 at step 0; it should be 0 or more, in nats"
    )


@pytest.mark.parametrize("text", ["Step,entropy\n0,9,95\n1,9,74\n", "Step,entropy\n10,9,95\n20,9,74\n"])
def test_a_csv_with_more_fields_than_names_is_one_line(text, tmp_path, capsys):
    (path := tmp_path / "log.csv").write_text(text)
    message = f"{path} cannot be read: its rows have more fields than its header;"
    assert error(capsys, "entropy-watch", path).startswith(message)


def test_a_line_that_is_cut_off_is_named(tmp_path, capsys):
    (path := tmp_path / "log.jsonl").write_text('{"step": 0, "entropy": 1.0}\n{"step": 1, "ent')
    assert error(capsys, "entropy-watch", path).startswith(f"{path} cannot be read: line 2 is not a JSON object")


def test_files_of_two_runs_in_one_folder_are_not_averaged(tmp_path, capsys):
    for name, values in (("grpo", FALLING), ("clip_b", FALLING[::-1])):
        lines(tmp_path / f"{name}.jsonl", [{"step": step, "entropy": value} for step, value in enumerate(values)])
    message = f"{tmp_path} contains 2 runs; name one of them: {tmp_path}/clip_b.jsonl, {tmp_path}/grpo.jsonl"
    assert error(capsys, "entropy-watch", tmp_path).startswith(message)


def test_the_last_value_of_a_step_counts(tmp_path, capsys):
    """A run that was started again, and appended to its log."""
    rows = [{"step": step, "entropy": 2.0} for step in range(20)]
    rows += [{"step": step, "entropy": value} for step, value in enumerate(FALLING)]
    lines(path := tmp_path / "log.jsonl", rows)
    assert main(["entropy-watch", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Entropy fell from 1.39 to 0.2 nats (-86%; means of the first and the last 4 of 40 steps).")
    assert err == f"{path} logs the entropy of 20 steps more than once; the last value counts\n"


def test_entropy_watch_of_a_constant_or_from_zero_has_no_nan(tmp_path, capsys):
    constant = watch(capsys, tmp_path, entropy=[0.0] * STEPS)
    assert constant == "Entropy did not change: 0 nats (means of the first and the last 4 of 40 steps).\n"
    risen = watch(capsys, tmp_path, entropy=[0.0] * 20 + [1.0] * 20)
    assert risen.startswith("Entropy rose from 0 to 1 nats (means of the first and the last 4 of 40 steps).")


def test_entropy_watch_does_not_relate_unrelated_trends(tmp_path, capsys):
    """The noise of either is its own. Both flatten out, so their rank correlation over the steps is above 0.5."""
    rng, t = np.random.default_rng(0), np.arange(100)
    entropy = np.exp(-t / 30) + 0.002 * rng.standard_normal(100)
    norm = 1 - np.exp(-t / 30) + 0.02 * rng.standard_normal(100)
    assert abs(pd.Series(np.diff(entropy)).corr(pd.Series(norm[:-1]), method="spearman")) > 0.5
    text = watch(capsys, tmp_path, entropy=entropy, grad_norm=norm, lr=np.linspace(1e-6, 0, 100))
    assert text.endswith("None of the logged quantities goes with its change per step.\n")


@pytest.mark.parametrize(("text", "message"), [("[1, 2]", "it has no log_history"), ("{}", "it has no log_history")])
def test_a_state_without_a_history_is_one_line(text, message, tmp_path, capsys):
    (path := tmp_path / "trainer_state.json").write_text(text)
    assert error(capsys, "entropy-watch", path) == f"{path} cannot be read: {message}"


class Record:
    """Stands in for the message of wandb, which is not installed here: a row of numbers, as JSON."""

    def ParseFromString(self, data):
        items = [SimpleNamespace(key=key, value_json=json.dumps(value)) for key, value in json.loads(data).items()]
        self.history = SimpleNamespace(item=items)

    def HasField(self, name):
        return name == "history"


def write_wandb(path, rows):
    """LevelDB's log, records across its blocks of 32 KiB in parts; checksums are not read."""
    data = bytearray(7)
    for row in rows:
        left, begun = json.dumps(row).encode(), False
        while left:
            if (room := 2**15 - len(data) % 2**15) < 7:
                data += bytes(room)
                continue
            part, left = left[: room - 7], left[room - 7 :]
            data += bytes(4) + struct.pack("<HB", len(part), (3 if left else 4) if begun else (2 if left else 1)) + part
            begun = True
    path.write_bytes(data)


def test_an_offline_wandb_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace())
    protobuf = SimpleNamespace(wandb_internal_pb2=SimpleNamespace(Record=Record))
    monkeypatch.setitem(sys.modules, "wandb.proto", protobuf)
    rows = [{"actor/entropy": value, "_step": step, "text": "x" * 3000} for step, value in enumerate(FALLING)]
    write_wandb(path := tmp_path / "run.wandb", rows)
    assert "last 4 of 40 steps). Half of it was over by step 13;" in run(capsys, "entropy-watch", path)
    write_wandb(path, [{"actor/entropy": value} for value in FALLING])
    assert error(capsys, "entropy-watch", path).startswith(f"{path} cannot be read: it logs no step (step, ")


def test_entropy_watch_reads_all_checkpoints_of_a_run_and_one_run_only(tmp_path, capsys):
    for last in (5, 40):  # by name checkpoint-40 comes first
        (folder := tmp_path / f"run/checkpoint-{last}").mkdir(parents=True)
        history = [{"step": step, "entropy": value} for step, value in enumerate(FALLING[:last])]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert "last 4 of 40 steps" in run(capsys, "entropy-watch", tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert error(capsys, "entropy-watch", tmp_path).startswith(f"{tmp_path} contains 2 runs; name one of them: ")


def test_entropy_watch_draws(tmp_path, capsys):
    ours(tmp_path)
    run(capsys, "entropy-watch", tmp_path, "--figure", tmp_path / "watch.png")
    assert (tmp_path / "watch.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_entropy_is_one_line(tmp_path, capsys):
    assert error(capsys, "entropy-watch", tmp_path).startswith(f"{tmp_path}: no metrics.parquet, trainer_state.json")
    pd.DataFrame({"step": [0, 1], "loss": [1.0, 2.0]}).to_parquet(tmp_path / "metrics.parquet")
    assert error(capsys, "entropy-watch", tmp_path).startswith(f"{tmp_path} logs no entropy (entropy, actor/entropy")
