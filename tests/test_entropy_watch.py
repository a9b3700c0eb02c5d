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
from entropy_dynamics.diagnostics.logs import read_metrics

STEPS = 40
FALLING = [1.2 / (1 + math.exp((step - 12) / 2)) + 0.2 for step in range(STEPS)]


def ours(folder):
    frame = pd.DataFrame({"step": range(STEPS), "entropy": FALLING, "reward_mean": np.linspace(0, 1, STEPS)})
    frame["predicted_entropy_change"] = np.gradient(FALLING)
    parts = {"lens_pos_lt": 1.0, "lens_pos_gt": -3.0, "lens_neg_gt": 2.0, "lens_neg_lt": -1.0}
    frame.assign(**parts).to_parquet(folder / "metrics.parquet")


def tensorboard(folder):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, value in enumerate(FALLING):
            writer.add_scalar("actor/entropy", value, step)


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def trainer_state(folder, rows):
    """TRL; the last entry is that of the whole training."""
    rows = [*rows, {"step": STEPS, "train_loss": 0.1}]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))


def file_logger(folder, rows):
    """verl/utils/tracking.py, FileLogger."""
    lines(folder / "gsm8k.jsonl", ({"step": row.pop("step"), "data": row} for row in rows))


def monitors(folder, rows):
    """prime_rl/monitors/file.py: the trainer has a file, and the orchestrator, which logs no entropy."""
    for part, orchestrator in (("trainer", False), ("orchestrator", True)):
        of_part = [
            {key: value for key, value in row.items() if key == "step" or key.startswith("train/agg") is orchestrator}
            for row in rows
        ]
        lines(folder / part / "metrics.jsonl", of_part)


def json_lines(folder, rows):
    lines(folder / "metrics.jsonl", rows)


def export(folder, rows):
    """What W&B exports of a run."""
    columns = {"Step": [row["step"] for row in rows]}
    for key in rows[0].keys() - {"step"}:
        columns |= {
            f"run 1 - {key}": [row[key] for row in rows],
            f"run 1 - {key}__MIN": 0.0,
            f"run 1 - {key}__MAX": 1.0,
        }
    pd.DataFrame(columns).to_csv(folder / "export.csv", index=False)


def parquet(folder, rows):
    pd.DataFrame(rows).to_parquet(folder / "metrics.parquet")


TRUNCATED, MISMATCH = "the share of truncated responses", "the mismatch of engine and trainer"
# The keys of a step: entropy, reward, and what entropy may rise with. SkyRL and Tinker log no share of truncated ones.
TRAINERS = {
    "this project": (
        *(parquet, "entropy", "reward_mean"),
        {"truncated": TRUNCATED, "engine_logp_difference": MISMATCH},
    ),
    # huggingface/trl trl/trainer/grpo_trainer.py@f2cd5771
    "TRL": (
        *(trainer_state, "entropy", "reward"),
        {"completions/clipped_ratio": TRUNCATED, "sampling/sampling_logp_difference/mean": MISMATCH},
    ),
    # verl-project/verl verl/trainer/ppo/{metric_utils,rollout_corr_helper}.py, verl/utils/debug/metrics.py@1dda039b
    "verl": (
        *(file_logger, "actor/entropy", "critic/score/mean"),
        {
            "response_length/clip_ratio": TRUNCATED,
            "rollout_corr/kl": MISMATCH,
            "training/rollout_probs_diff_mean": MISMATCH,
        },
    ),
    # PrimeIntellect-ai/prime-rl src/prime_rl/trainer/rl/train.py, src/prime_rl/orchestrator/metrics.py@559b4477
    "prime-rl": (
        *(monitors, "entropy/all/mean", "train/agg/effective/agent/reward/mean"),
        {
            "train/agg/effective/agent/is_truncated/mean": TRUNCATED,
            "mismatch_kl/all/mean": MISMATCH,
            "kl_ent_ratio/mean": MISMATCH,
        },
    ),
    # NovaSky-AI/SkyRL skyrl/train/trainer.py, skyrl/backends/skyrl_train/workers/worker_utils.py@a9564572
    "SkyRL": (
        *(export, "policy/policy_entropy", "reward/avg_raw_reward"),
        {
            "policy/rollout_train_logprobs_abs_diff_mean": MISMATCH,
            "policy/minibatch_rollout_logprobs_abs_diff_mean": MISMATCH,
        },
    ),
    # OpenRLHF/OpenRLHF openrlhf/trainer/ppo_trainer.py, openrlhf/trainer/ray/ppo_actor.py@3c3be623
    "OpenRLHF": (
        *(export, "train/entropy_loss", "train/reward"),
        {"train/rollout/truncated_rate": TRUNCATED, "train/vllm_kl": MISMATCH},
    ),
    # THUDM/slime slime/observability/rollout_metrics.py, slime/backends/megatron_utils/loss.py@624b824a
    "slime": (
        *(export, "train/entropy_loss", "rollout/raw_reward"),
        {"rollout/truncated_ratio": TRUNCATED, "train/train_rollout_logprob_abs_diff": MISMATCH},
    ),
    # NVIDIA-NeMo/RL nemo_rl/algorithms/loss/loss_functions.py, nemo_rl/experience/rollouts.py@7ea279ab
    "NeMo RL": (
        *(export, "train/approx_entropy", "train/reward"),
        {"train/truncation_rate": TRUNCATED, "train/gen_kl_error": MISMATCH},
    ),
    # thinking-machines-lab/tinker-cookbook tinker_cookbook/rl/{metrics,metric_util}.py@9dfcc3a2
    "Tinker": (
        *(json_lines, "optim/entropy", "env/all/reward/total"),
        {"optim/kl_sample_train_v1": MISMATCH},
    ),
}


def of_trainer(name):
    write, entropy, reward, _ = TRAINERS[name]
    return lambda folder: write(
        folder, [{"step": step, entropy: value, reward: step / STEPS} for step, value in enumerate(FALLING)]
    )


@pytest.mark.parametrize(
    "write", [ours, tensorboard, *map(of_trainer, TRAINERS)], ids=["with the lens", "TensorBoard", *TRAINERS]
)
def test_entropy_watch_says_when_entropy_fell(write, tmp_path, capsys):
    write(tmp_path)
    text = run(capsys, "entropy-watch", tmp_path)
    assert text.startswith("Entropy fell from 1.39 to 0.2 nats (-86%; means of the first and the last 4 of 40 steps).")
    assert "Half of it was over by step 13; it moved fastest between the steps 10 and 14" in text
    if write is ours:
        assert "75% from likely tokens of positive samples and 25% from unlikely tokens of negative samples" in text
        assert "goes with the predicted change (Corollary 4) (+" in text


CASES = [(name, key) for name, (*_, keys) in TRAINERS.items() for key in keys]


@pytest.mark.parametrize(("name", "key"), CASES)
def test_what_entropy_may_rise_with_is_known_in_every_trainer(name, key, tmp_path, capsys):
    write, entropy, reward, keys = TRAINERS[name]
    rows = [
        {"step": step, entropy: 0.2 + step / 20, reward: step / STEPS, key: 0.01 + step / 100} for step in range(STEPS)
    ]
    write(tmp_path, rows)
    text = run(capsys, "entropy-watch", tmp_path)
    assert f"Over these steps {reward} went from " in text
    assert f"Over the run {keys[key]} ({key}) grew from 0.025 to 0.385: such tokens may be where entropy rises." in text


def watch(capsys, tmp_path, **columns) -> str:
    pd.DataFrame({"step": range(len(columns["entropy"]))} | columns).to_parquet(tmp_path / "metrics.parquet")
    return run(capsys, "entropy-watch", tmp_path)


def test_entropy_watch_says_when_entropy_rose(tmp_path, capsys):
    """It falls first, and farther at step 6 than it rises in the end."""
    text = watch(capsys, tmp_path, entropy=[1.0] * 4 + [0.5, 0.2, 0.1, 0.2, 0.5] + [1.0] * 20 + [1.5] * 11)
    assert text.startswith("Entropy rose from 1 to 1.5 nats (+50%;")
    assert "Half of it was over by step 29;" in text


RISING = np.linspace(0.2, 2, STEPS)


@pytest.mark.parametrize(
    ("key", "start", "end", "entropy", "named"),
    [
        ("completions/clipped_ratio", 0.0, 0.02, RISING, True),
        ("completions/clipped_ratio", 0.0, 0.02, RISING[::-1], False),  # entropy fell
        ("completions/clipped_ratio", 0.0, 0.005, RISING, False),  # by less than one response in a hundred
        ("completions/clipped_ratio", 0.4, 0.5, RISING, False),  # by less than a half
        ("mismatch_kl/all/mean", 1e-4, 1e-2, RISING, True),
        ("mismatch_kl/all/mean", 1e-6, 1e-4, RISING, False),  # below what a sound run has
        ("vllm_kl", -1e-3, -1e-2, RISING, True),  # an estimate of either sign
    ],
)
def test_entropy_watch_names_only_what_grew_and_only_if_entropy_rose(key, start, end, entropy, named, tmp_path, capsys):
    text = watch(capsys, tmp_path, entropy=entropy, **{key: np.linspace(start, end, STEPS)})
    assert text.startswith("Entropy rose" if entropy is RISING else "Entropy fell")
    assert ("such tokens may be where entropy rises" in text) is named
    assert (f"({key}) grew from " in text) is named


def test_entropy_watch_takes_the_column_that_it_is_given(tmp_path, capsys):
    pd.DataFrame({"step": range(STEPS), "my/H": FALLING, "entropy": 1.0}).to_parquet(path := tmp_path / "log.parquet")
    assert run(capsys, "entropy-watch", path).startswith("Entropy did not change")
    assert run(capsys, "entropy-watch", path, "--entropy", "my/H").startswith("Entropy fell from 1.39 to 0.2 nats")
    assert "logs no my/h; did you mean 'my/H'?" in error(capsys, "entropy-watch", path, "--entropy", "my/h")


def test_an_export_of_several_runs_is_one_line(tmp_path, capsys):
    pd.DataFrame({"Step": [0], "a - entropy": [1.0], "b - entropy": [1.0]}).to_csv(path := tmp_path / "e.csv")
    assert error(capsys, "entropy-watch", path) == f"{path} cannot be read: it has several runs; export one of them"


WRONG = [
    ([{"step": 0, "entropy": 1.0}, {"step": 1, "entropy": "n/a"}], "entropy is 'n/a' at step 1; it should be a finite"),
    ([{"step": 0, "entropy": 1.0}, {"step": "s1", "entropy": 1.0}], "step is 's1' in row 2; it should be a finite"),
    ([{"step": "2,600", "entropy": 1.0}], "step is '2,600' in row 1; it should be a finite number"),
    ([{"step": [0], "entropy": 1.0}], "step is [0] in row 1; it should be a finite number"),
    ([{"step": 0, "entropy": float("inf")}], "entropy is inf at step 0; it should be a finite number"),
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
    """A run that was started again twice, and appended to its log."""
    rows = [{"step": step, "entropy": 2.0} for step in range(20)] * 2
    rows += [{"step": step, "entropy": value} for step, value in enumerate(FALLING)]
    lines(path := tmp_path / "log.jsonl", rows)
    assert main(["entropy-watch", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Entropy fell from 1.39 to 0.2 nats (-86%; means of the first and the last 4 of 40 steps).")
    assert err == f"{path} logs the entropy of 20 steps more than once; the last value counts\n"


def test_entropy_watch_of_a_constant_or_from_zero_has_no_nan(tmp_path, capsys):
    constant = watch(capsys, tmp_path, entropy=[0.0] * STEPS)
    said = "Entropy did not change: 0 nats (means of the first and the last 4 of 40 steps)."
    assert constant == f"{said} Read from {tmp_path / 'metrics.parquet'}.\n"
    risen = watch(capsys, tmp_path, entropy=[0.0] * 20 + [1.0] * 20)
    assert risen.startswith("Entropy rose from 0 to 1 nats (means of the first and the last 4 of 40 steps).")


def test_entropy_watch_does_not_relate_unrelated_trends(tmp_path, capsys):
    """The noise of either is its own. Both flatten out, so their rank correlation over the steps is above 0.5."""
    rng, t = np.random.default_rng(0), np.arange(100)
    entropy = np.exp(-t / 30) + 0.002 * rng.standard_normal(100)
    norm = 1 - np.exp(-t / 30) + 0.02 * rng.standard_normal(100)
    assert abs(pd.Series(np.diff(entropy)).corr(pd.Series(norm[:-1]), method="spearman")) > 0.5
    text = watch(capsys, tmp_path, entropy=entropy, grad_norm=norm, lr=np.linspace(1e-6, 0, 100))
    assert "None of the logged quantities goes with its change per step." in text


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
    write_wandb(path, [row if row["_step"] < 20 else row | {"actor/entropy": math.nan} for row in rows])
    assert main(["entropy-watch", str(path)]) == 0
    assert capsys.readouterr().err == f"{path}: actor/entropy is NaN at 20 of 40 steps, first at step 20\n"
    write_wandb(path, [{"actor/entropy": value} for value in FALLING])
    assert error(capsys, "entropy-watch", path).startswith(f"{path} cannot be read: it logs no step (step, ")


def test_entropy_watch_reads_all_checkpoints_of_a_run_and_one_run_only(tmp_path, capsys):
    for last in (5, 40):  # by name checkpoint-40 comes first
        (folder := tmp_path / f"run/checkpoint-{last}").mkdir(parents=True)
        history = [{"step": step, "entropy": value} for step, value in enumerate(FALLING[:last])]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    text = run(capsys, "entropy-watch", tmp_path / "run")
    assert "last 4 of 40 steps" in text
    assert text.endswith(f"Read from {tmp_path}/run/checkpoint-40/trainer_state.json and 1 more.\n")
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
    message = f"{tmp_path}/metrics.parquet logs no entropy (entropy, actor/entropy"
    assert error(capsys, "entropy-watch", tmp_path).startswith(message)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.jsonl", None, "no file {}"),
        (
            "notes.txt",
            "x",
            "{} should be one of metrics.parquet, trainer_state.json, *tfevents*, *.wandb, metrics.jsonl",
        ),
        ("empty.jsonl", "", "{} has no rows"),
        ("empty.csv", "Step,entropy\n", "{} has no rows"),
        ("trainer_state.json", '{"log_history": []}', "{} has no rows"),
        (
            "german.csv",
            "Step;entropy\n1;0,5\n",
            "{} cannot be read: its header is one column, 'Step;entropy'; columns need a comma between them",
        ),
        (
            "true.jsonl",
            '{"step": 0, "entropy": true}\n',
            "{} cannot be read: entropy is True at step 0; it should be a finite number",
        ),
    ],
)
def test_a_file_that_is_no_log_is_one_line(name, text, message, tmp_path, capsys):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert error(capsys, "entropy-watch", path).startswith(message.format(path))


def nan_in_json_lines(folder, values):
    rows = [{"step": step, "entropy": value} for step, value in enumerate(values)]
    lines(
        folder / "log.jsonl", [row for place, row in enumerate(rows) for row in (row, {"step": place, "reward": 1.0})]
    )


def nan_in_trainer_state(folder, values):
    trainer_state(folder, [{"step": step, "entropy": value, "loss": math.nan} for step, value in enumerate(values)])


def nan_in_csv(folder, values):
    text = "\n".join(f"{step},{value},\n{step},,1" for step, value in enumerate(values))
    (folder / "log.csv").write_text(f"Step,run - entropy,run - reward\n{text.replace('nan', 'NaN')}\n")


def nan_in_parquet(folder, values):
    pd.DataFrame({"step": range(len(values)), "entropy": values}).to_parquet(folder / "metrics.parquet")


def nan_in_tensorboard(folder, values):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, value in enumerate(values):
            writer.add_scalar("actor/entropy", value, step)
            writer.add_scalar("loss", 1.0, step + 1)  # of a step without an entropy, in the end


@pytest.mark.parametrize(
    "write", [nan_in_json_lines, nan_in_trainer_state, nan_in_csv, nan_in_parquet, nan_in_tensorboard]
)
def test_an_entropy_that_is_nan_is_counted(write, tmp_path, capsys):
    """Not the steps that log no entropy: those of other rows, or after the last."""
    write(tmp_path, [*FALLING[:20], *[math.nan] * 20])
    assert main(["entropy-watch", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Entropy fell from 1.4 to ")
    assert err.endswith("entropy is NaN at 20 of 40 steps, first at step 20\n")
    assert err.startswith(f"{tmp_path}/")
    assert len(err.splitlines()) == 1
    assert out.endswith(f"Read from {err.partition(': ')[0]}.\n")


def test_events_after_a_restart_replace_those_before_it(tmp_path, capsys):
    """It crashed at step 30, was resumed at 20 and has not come as far yet."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for time, steps, value in ((1, range(31), 1.4), (2, range(20, 28), 0.2)):
        with SummaryWriter(str(tmp_path)) as writer:
            for step in steps:
                writer.add_scalar("entropy", value, step)
        (file,) = tmp_path.glob("events*")
        file.rename(tmp_path / f"{time}.tfevents")  # as if a second had passed
    metrics = read_metrics(tmp_path)[0]["entropy"]
    assert metrics[:20].tolist() == pytest.approx([1.4] * 20)
    assert metrics[20:].tolist() == pytest.approx([0.2] * 8 + [1.4] * 3)


def test_checkpoints_are_read_in_the_order_of_their_steps(tmp_path):
    """Checkpoint 9 comes after checkpoint 10 by name, and has an entropy of its own run before a restart."""
    for step, value in ((9, 2.0), (10, 1.0)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        history = [{"step": at, "entropy": value} for at in range(step)]
        (tmp_path / f"checkpoint-{step}/trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert set(read_metrics(tmp_path)[0]["entropy"]) == {1.0}


def test_rounding_below_zero_is_a_collapsed_policy(tmp_path, capsys):
    rows = [{"step": step, "entropy": value} for step, value in enumerate([1.0, 0.5, 0.1, 0.0, -1e-7, -2e-3])]
    lines(path := tmp_path / "log.jsonl", rows)
    assert main(["entropy-watch", str(path)]) == 0
    assert capsys.readouterr().out.startswith("Entropy fell from 1 to ")


def test_rows_with_and_without_verls_data_are_both_read(tmp_path):
    rows = [{"step": step, "entropy": 2.0} for step in range(3)]
    rows += [{"step": step, "data": {"entropy": 1.0}} for step in range(3, 6)]
    lines(path := tmp_path / "log.jsonl", rows)
    assert read_metrics(path)[0]["entropy"].tolist() == [2.0] * 3 + [1.0] * 3


def test_a_step_that_no_integer_holds_is_refused(tmp_path, capsys):
    lines(path := tmp_path / "log.jsonl", [{"step": 1e300, "entropy": 1.0}])
    assert "step is 1e+300; it should be at most 2**53" in error(capsys, "entropy-watch", path)


def test_steps_without_an_entropy_are_not_nan(tmp_path, capsys):
    rows = [{"step": step, "entropy": value} for step, value in enumerate(FALLING)]
    lines(path := tmp_path / "log.jsonl", [*rows, *({"step": step, "loss": 1.0} for step in range(STEPS, 60))])
    assert main(["entropy-watch", str(path)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "entropy"), [("log.parquet", "entropy"), ("metrics.parquet", "actor/entropy")], ids=["name", "column"]
)
@pytest.mark.parametrize("sparse", ["a row for the reward", "every second step"])
def test_a_null_of_others_parquet_is_no_nan(sparse, name, entropy, tmp_path, capsys):
    """Only our metrics.parquet has an entropy in every row."""
    rows = [{"step": 2 * place, entropy: value} for place, value in enumerate(FALLING)]
    other = int(sparse == "every second step")
    rows = [both for row in rows for both in (row, {"step": row["step"] + other, "reward": 0.1})]
    pd.DataFrame(rows).to_parquet(path := tmp_path / name)
    assert main(["entropy-watch", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Entropy fell from 1.39 to 0.2 nats (-86%; means of the first and the last 4 of 40 steps).")
    assert err == ""


MISSING = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None"]


@pytest.mark.parametrize("missing", MISSING)
def test_what_stands_for_a_missing_value_in_a_csv_file_is_one(missing, tmp_path, capsys):
    text = "".join(f"{step},{value},{missing}\n{step},{missing},1\n" for step, value in enumerate(FALLING))
    (path := tmp_path / "log.csv").write_text(f"step,entropy,reward\n{text}50,NaN,1\n")
    assert main(["entropy-watch", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "means of the first and the last 4 of 40 steps" in out
    assert "reward went from 1 to 1." in out
    assert err == f"{path}: entropy is NaN at 1 of 41 steps, first at step 50\n"


def test_a_signal_that_is_nan_once_is_still_read(tmp_path, capsys):
    """verl logs this one as NaN where its input is not valid."""
    key = "training/rollout_probs_diff_mean"
    rows = [{"step": step, "entropy": 1 + step, key: step / 100} for step in range(STEPS)]
    rows[20][key] = math.nan
    lines(path := tmp_path / "log.jsonl", rows)
    assert f"({key}) grew from 0.015 to 0.375" in run(capsys, "entropy-watch", path)


def test_of_several_kinds_the_first_with_an_entropy_is_read_and_named(tmp_path, capsys):
    pd.DataFrame({"step": [0, 1], "loss": [1.0, 2.0]}).to_parquet(tmp_path / "metrics.parquet")
    json_lines(tmp_path, [{"step": step, "entropy": value} for step, value in enumerate(FALLING)])
    text = run(capsys, "entropy-watch", tmp_path)
    assert text.startswith("Entropy fell from 1.39 to 0.2 nats")
    assert text.endswith(f"Read from {tmp_path}/metrics.jsonl.\n")
    pd.DataFrame({"step": range(STEPS), "entropy": FALLING[::-1]}).to_parquet(tmp_path / "metrics.parquet")
    text = run(capsys, "entropy-watch", tmp_path)
    assert text.startswith("Entropy rose from 0.2 to 1.39 nats")
    assert text.endswith(f"Read from {tmp_path}/metrics.parquet.\n")


def prompts(folder):
    lines(folder / "data.jsonl", [{"prompt": "1 + 1"}])


def dataset(folder):
    pd.DataFrame({"prompt": ["1 + 1"]}).to_parquet(folder / "train.parquet")


def events(folder):
    (folder / "events.out.tfevents.1").write_bytes(b"")


@pytest.mark.parametrize("unrelated", [prompts, dataset, events])
def test_an_unrelated_file_does_not_hide_what_the_log_lacks(unrelated, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)  # not installed
    unrelated(tmp_path)
    assert "logs no entropy" not in error(capsys, "entropy-watch", tmp_path)  # alone, its own error is the answer
    log = tmp_path / "metrics.parquet"
    pd.DataFrame({"step": range(STEPS), "loss": 1.0}).to_parquet(log)
    message = error(capsys, "entropy-watch", tmp_path)
    assert message.startswith(f"{log} logs no entropy (")
    assert message.endswith("; it logs loss")
    pd.DataFrame({"step": range(STEPS), "entropy": FALLING}).to_parquet(log)
    message = error(capsys, "entropy-watch", tmp_path, "--entropy", "entropi")
    assert message.startswith(f"{log} logs no entropi; did you mean 'entropy'?")
