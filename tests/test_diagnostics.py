"""The commands on other trainers' files: pass-at-k, lens, entropy-watch."""

import itertools
import json
import math
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from entropy_dynamics.cli import main
from entropy_dynamics.core.dynamics import batch_entropy_change
from entropy_dynamics.core.token_stats import token_stats


def run(capsys, *arguments) -> str:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


def error(capsys, *arguments) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line.removeprefix("error: ")


# ---------------------------------------------------------------- pass-at-k

GRADES = {"a": [1, 0, 0, 0], "b": [1, 1, 0, 0], "c": [0, 0, 0, 0], "d": [1, 1, 1, 1]}


def samples(path, problem, correct, grades):
    frame = pd.DataFrame([(name, grade) for name, row in grades.items() for grade in row], columns=[problem, correct])
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_json(path, orient="records", lines=True)
    return path


@pytest.mark.parametrize(
    ("file", "problem", "correct", "options"),
    [
        ("ours.parquet", "problem_id", "correct", []),
        ("verl.jsonl", "input", "score", []),
        ("trl.parquet", "prompt", "my_reward", ["--correct", "my_reward"]),
    ],
)
def test_pass_at_k_is_the_mean_over_all_subsets(file, problem, correct, options, tmp_path, capsys):
    path = samples(tmp_path / file, problem, correct, GRADES)
    printed = run(capsys, "pass-at-k", path, *options).splitlines()[1:]
    for line, k in zip(printed, (1, 2, 4), strict=True):
        subsets = [any(subset) for row in GRADES.values() for subset in itertools.combinations(row, k)]
        shown, value, low, high = map(float, line.split())
        assert shown == k
        assert value == pytest.approx(100 * np.mean(subsets), abs=0.05)
        assert 0 <= low < value < high <= 100


def test_two_files_are_compared_on_the_same_problems(tmp_path, capsys):
    one = samples(tmp_path / "one.parquet", "problem_id", "correct", GRADES)
    better = {name: [*row[1:], 1] for name, row in GRADES.items()} | {"e": [0, 0, 0, 0]}
    two = samples(tmp_path / "two.parquet", "problem_id", "correct", better)
    first = run(capsys, "pass-at-k", one, two).splitlines()[1].split()
    rates = [np.mean(row) for row in GRADES.values()], [np.mean(better[name]) for name in GRADES]
    assert float(first[7]) == pytest.approx(100 * (np.mean(rates[1]) - np.mean(rates[0])), abs=0.05)
    assert float(first[8]) < float(first[7]) < float(first[9])


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("missing.jsonl", None, [], "no file {}"),
        ("samples.csv", "a,b", [], "{}: should be a .parquet or a .jsonl file"),
        ("broken.jsonl", "{", [], "{} cannot be read: "),
        ("no.jsonl", '{"input": "1+1", "output": "2"}', [], "{} has no column for the grade of an answer"),
        (
            "text.jsonl",
            '{"input": "1+1", "score": "good"}',
            [],
            "{}: score is 'good'; it should be true, false or a number",
        ),
        (
            "typo.jsonl",
            '{"input": "1", "score": 1}',
            ["--correct", "scor"],
            "{} has no column 'scor'; did you mean 'score'?",
        ),
        ("ungraded.jsonl", '{"input": "1", "score": null}', [], "{}: no sample has a value of score"),
        (
            "unnamed.jsonl",
            '{"input": "1", "score": 1}\n{"input": null, "score": 0}',
            [],
            "{}: 1 of 2 samples have no input",
        ),
        ("list.jsonl", "[1, 2]\n3", [], "{} cannot be read: line 1 is not a JSON object"),
    ],
)
def test_a_mistake_is_one_line(name, text, options, message, tmp_path, capsys):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert error(capsys, "pass-at-k", path, *options).startswith(message.format(path))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_sample_without_a_grade_is_left_out_and_counted(suffix, tmp_path, capsys):
    grades = {"a": [True, None, True, False], "b": [None] * 4, "c": [False, False, None, False]}
    path = samples(tmp_path / f"some.{suffix}", "problem_id", "correct", grades)
    assert main(["pass-at-k", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"{path}: 6 of 12 samples have no correct and are left out; 2 of 3 problems are left\n"
    rows = [line.split() for line in printed.out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [["1", "33.3"], ["2", "50.0"], ["3", "50.0"]]  # 2 of 3, and 0 of 3


def test_ids_that_are_text_stay_apart(tmp_path, capsys):
    ids = {"007": 1, "7": 0, "7.0": 0}
    (path := tmp_path / "ids.jsonl").write_text(
        "\n".join(json.dumps({"problem_id": name, "correct": grade}) for name, grade in ids.items())
    )
    [line] = run(capsys, "pass-at-k", path).splitlines()[1:]
    assert line.split()[:2] == ["1", "33.3"]  # one problem would have three samples


def test_the_power_is_that_of_a_simulation(tmp_path, capsys):
    """Two evaluations of as many problems as it says, one better by the difference on each."""
    rates = np.array([0.2, 0.4, 0.5, 0.7])
    grades = {
        name: [1] * round(20 * rate) + [0] * (20 - round(20 * rate)) for name, rate in zip("abcd", rates, strict=True)
    }
    path = samples(tmp_path / "samples.parquet", "problem_id", "correct", grades)
    text = run(capsys, "pass-at-k", path, "--power", 5)
    header, *rows = [line.split() for line in text.splitlines()[1:]]
    assert header == ["samples", "k=1", "k=2", "k=4", "k=8", "k=16"]
    assert [row[0] for row in rows] == ["10", "20", "40", "80"]
    assert rows[0][-1] == "-"  # no Pass@16 from 10 samples
    problems, rng = int(rows[1][1]), np.random.default_rng(0)
    p = np.resize(rates, problems)
    found = 0
    for _ in range(2000):
        difference = (rng.binomial(20, p + 0.05) - rng.binomial(20, p)) / 20
        found += difference.mean() / (difference.std(ddof=1) / problems**0.5) > 1.96
    assert found / 2000 == pytest.approx(0.9, abs=0.03)
    assert error(capsys, "pass-at-k", path, path, "--power", 5) == "--power takes the rates of one file"


# ---------------------------------------------------------------- lens


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(400, 30, generator=generator)
    sampled = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    return logits, sampled, torch.where(torch.arange(400) < 200, 1.0, -1.0)


def test_the_lens_predicts_corollary_4_and_clip_b_counts_its_outliers(tokens, tmp_path, capsys):
    logits, sampled, advantages = tokens
    columns = {"logits": logits.tolist(), "token": sampled.tolist(), "advantage": advantages.tolist()}
    pd.DataFrame(columns).to_parquet(path := tmp_path / "batch.parquet")
    printed = run(capsys, "lens", path, "--methods", "grpo", "clip_b@mu=1.5", "clip_v@max_frac=1e-4")
    about, _, grpo, clip_b, clip_v = printed.splitlines()
    stats = token_stats(logits, sampled)
    assert about.startswith(f"400 tokens, entropy {stats.entropy.mean():.4g} nats")
    predicted = float(batch_entropy_change(advantages, stats.s_centered, torch.ones(400), 1.0))
    assert grpo.split()[1:4] == ["0", "0", f"{predicted:.4g}"]
    low = stats.s_star < stats.s_star.mean() - 1.5 * stats.s_star.std(correction=0)
    assert float(clip_b.split()[1]) == pytest.approx(float((low & (advantages < 0)).double().mean()), rel=1e-3)
    assert grpo.split()[4:] == ["1"] * 4
    kept, corner = ~(low & (advantages < 0)), (advantages < 0) & (stats.s_star < 0)
    share = float(stats.s_star[corner & kept].sum() / stats.s_star[corner].sum() / kept.double().mean())
    assert float(clip_b.split()[-1]) == pytest.approx(share, rel=1e-3)
    assert clip_v.split()[0] == "clip_v@max_frac=1e-4"


def test_the_lens_reads_log_p_and_entropy_per_response(tokens, tmp_path, capsys):
    logits, sampled, advantages = tokens
    stats = token_stats(logits, sampled)
    rows = [
        {name: values[cut].tolist() for name, values in (("logp", stats.logp), ("entropy", stats.entropy))}
        | {"advantage": float(advantages[cut][0])}
        for cut in (slice(0, 90), slice(90, 200), slice(200, 400))
    ]
    (path := tmp_path / "batch.jsonl").write_text("\n".join(map(json.dumps, rows)))
    about, _, *lines = run(capsys, "lens", path, "--methods", "clip_b@mu=1.5", "clip_v").splitlines()
    assert about.startswith("400 tokens")
    assert "E[S] is not in the file" in about
    shown = {line.split()[0]: line.split()[1:] for line in lines}
    assert float(shown["clip_b@mu=1.5"][0]) > 0
    assert set(shown["clip_v"]) == {"-"}


def test_a_lens_of_all_methods_is_drawn(tokens, tmp_path, capsys):
    logits, sampled, advantages = tokens
    columns = {"logits": logits.tolist(), "token_id": sampled.tolist(), "advantage": advantages.tolist()}
    pd.DataFrame(columns).to_parquet(path := tmp_path / "batch.parquet")
    _, _, *rows = run(capsys, "lens", path, "--figure", tmp_path / "lens.svg").splitlines()
    svg = (tmp_path / "lens.svg").read_text()
    for row in rows:
        assert f"<!-- {row.split()[0]} -->" in svg
    run(capsys, "lens", path, "--methods", "grpo", "--figure", tmp_path / "grpo.svg")
    assert (tmp_path / "grpo.svg").read_text().count("<!-- 1.00 -->") == 4  # what GRPO keeps of its own


def test_methods_that_act_on_rollouts_have_no_numbers(tokens, tmp_path, capsys):
    logits, sampled, advantages = tokens
    columns = {"logits": logits.tolist(), "token": sampled.tolist(), "advantage": advantages.tolist()}
    pd.DataFrame(columns).to_parquet(path := tmp_path / "batch.parquet")
    methods = ("qae", "pass_at_k", "nsr", "unlikeliness", "dr_grpo", "gspo", "stare")
    about, _, *rows, stare = run(capsys, "lens", path, "--methods", *methods).splitlines()
    assert about.endswith("; a method without numbers needs whole rollouts or whole distributions")
    assert [line.split()[0] for line in rows] == [*methods[:-1]]
    assert {value for line in rows for value in line.split()[1:]} == {"-"}
    assert "-" not in stare.split()


@pytest.mark.parametrize("command", ["lens", "entropy-watch"])
def test_a_figure_of_an_unknown_format_is_refused_before_anything_is_read(tmp_path, capsys, command):
    with pytest.raises(SystemExit):
        main([command, str(tmp_path / "missing"), "--figure", "lens.foo"])
    assert "'lens.foo' does not end in .png, .svg or .pdf" in capsys.readouterr().err


def test_a_lens_without_what_it_needs_is_one_line(tmp_path, capsys):
    (path := tmp_path / "batch.jsonl").write_text('{"logp": -1.0, "advantage": 1.0}')
    assert error(capsys, "lens", path).startswith(f"{path} has no column for the entropy (entropy, entropys)")
    assert error(capsys, "lens", path, "--methods", "clip").startswith(f"{path} has no column for the entropy")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"logp": -1.0, "entropy": 1.0, "advantage": "good"}], "each token's advantage should be a number: could not"),
        (
            [{"logp": [-1.0], "entropy": [1.0], "advantage": [[1.0]]}],
            "each token's advantage should be a number: got [",
        ),
        ([{"logp": 0.5, "entropy": 1.0, "advantage": 1.0}], "a log p is 0.5; it should be 0 or less, in nats"),
        (
            [{"logits": [0.0] * n, "token": 0, "advantage": 1.0} for n in (3, 4)],
            "each token's logits should be logits, as many for every token: all input arrays must have the same shape",
        ),
        ([{"logits": 1.0, "token": 0, "advantage": 1.0}], "each token's logits should be logits, as many"),
        (
            [{"logits": [0.0] * 3, "token": token, "advantage": 1.0} for token in (2, 3)],
            "a sampled token is 3; it should be an id from 0 to 2, as the logits",
        ),
        ([{"logits": [0.0] * 3, "token": -1, "advantage": 1.0}], "a sampled token is -1; it should be an id from 0 to"),
    ],
)
def test_a_mistake_in_a_batch_is_one_line(rows, message, tmp_path, capsys):
    (path := tmp_path / "batch.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert error(capsys, "lens", path).startswith(f"{path}: {message}")


# ---------------------------------------------------------------- entropy-watch

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


# ---------------------------------------------------------------- entropy-check


@pytest.fixture
def golden(tmp_path, capsys) -> dict[str, torch.Tensor]:
    run(capsys, "entropy-check", "--write", tmp_path / "golden.npz")
    return {name: torch.from_numpy(values) for name, values in np.load(tmp_path / "golden.npz").items()}


def entropy_of(golden, temperature=0.7, shift=1):
    """By torch, of the token at each position."""
    entropies = torch.distributions.Categorical(logits=golden["logits"] / temperature).entropy()
    return entropies.roll(shift, 1)


def check(capsys, value) -> str:
    return run(capsys, "entropy-check", float(value))


def test_the_golden_batch_has_the_entropy_of_its_closed_form(golden, capsys):
    def closed(p):
        return -p * math.log(p) - (1 - p) * math.log((1 - p) / 63)

    expected = sum(count * closed(p) for count, p in ((3, 0.98), (6, 0.8), (13, 0.3))) / 22
    mask = golden["response_mask"]
    assert mask.sum() == 22
    assert entropy_of(golden)[mask].mean().item() == pytest.approx(expected, rel=1e-5)
    assert check(capsys, expected) == f"{expected:g} nats is right: the mean over response tokens.\n"
    rounded = golden | {"logits": golden["logits"].bfloat16().float()}
    assert "is right" in check(capsys, entropy_of(rounded)[mask].mean())


def test_planted_mistakes_are_found(golden, capsys):
    mask, entropies = golden["response_mask"], entropy_of(golden)
    means = torch.stack([values[row].mean() for values, row in zip(entropies, mask, strict=True)])
    sampled = -(golden["logits"] / 0.7).log_softmax(-1)[:, :-1].gather(-1, golden["input_ids"][:, 1:, None])[..., 0]
    after_prompt = mask.cumsum(1) > 0
    planted = {
        "the mean over sequences of their means": means.mean(),
        "the mean over sequences of their sums": (entropies * mask).sum(1).mean(),
        "the sum over all tokens": entropies[mask].sum(),
        "without the temperature": entropy_of(golden, 1.0)[mask].mean(),
        "with the temperature applied twice": entropy_of(golden, 0.49)[mask].mean(),
        "shifted by one": entropy_of(golden, shift=0)[mask].mean(),
        "the mean over responses and their padding": entropies[after_prompt].mean(),
        "the padding counted in the divisor": entropies[mask].sum() / after_prompt.sum(),
        "the mean over prompts and responses": entropies[:, 1:][golden["attention_mask"][:, 1:]].mean(),
        "in bits, not nats": entropies[mask].mean() / math.log(2),
        "-log p of the sampled tokens": sampled[mask[:, 1:]].mean(),
        "with the sign of a loss": -entropies[mask].mean(),
    }
    for mistake, value in planted.items():
        assert f" is {mistake}" in check(capsys, value), mistake
    assert " is none of 12 known mistakes; the mean over response tokens is 2.462 nats" in check(capsys, 5.0)


def test_entropy_check_takes_one_of_two_things(capsys):
    assert error(capsys, "entropy-check").startswith("entropy-check takes --write FILE")
