"""lens: on the files of other trainers."""

import pandas as pd
import pytest
import torch

from command_line import error, run, write_lines
from entropy_dynamics.core.dynamics import batch_entropy_change
from entropy_dynamics.core.token_stats import token_stats


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(400, 30, generator=generator)
    sampled = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    return logits, sampled, torch.where(torch.arange(400) < 200, 1.0, -1.0)


@pytest.fixture
def batch(tokens, tmp_path):
    """A file of these tokens."""
    columns = zip(("logits", "token", "advantage"), (values.tolist() for values in tokens), strict=True)
    pd.DataFrame(dict(columns)).to_parquet(path := tmp_path / "batch.parquet")
    return path


def test_the_lens_predicts_corollary_4_and_clip_b_counts_its_outliers(tokens, batch, capsys):
    logits, sampled, advantages = tokens
    printed = run(capsys, "lens", batch, "--methods", "grpo", "clip_b@mu=1.5", "clip_v@max_frac=1e-4")
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


def test_the_lens_shows_a_share_of_the_tokens(batch, capsys):
    methods = ["clip_b@share=0.02", "clip_v@share=0.02", "random_mask@share=0.02"]
    _, _, *lines = run(capsys, "lens", batch, "--methods", *methods).splitlines()
    assert [line.split()[:3] for line in lines] == [[method, "0.02", "0.04"] for method in methods]  # of 400, of 200
    message = error(capsys, "lens", batch, "--methods", "clip_b@share=0.02,mu=1")
    assert message == "method clip_b: give share or mu, not both: share replaces mu, mu_plus"


def test_the_lens_reads_log_p_and_entropy_per_response(tokens, tmp_path, capsys):
    logits, sampled, advantages = tokens
    stats = token_stats(logits, sampled)
    rows = [
        {name: values[cut].tolist() for name, values in (("logp", stats.logp), ("entropy", stats.entropy))}
        | {"advantage": float(advantages[cut][0])}
        for cut in (slice(0, 90), slice(90, 200), slice(200, 400))
    ]
    path = write_lines(tmp_path / "batch.jsonl", rows)
    about, _, *lines = run(capsys, "lens", path, "--methods", "clip_b@mu=1.5", "clip_v").splitlines()
    assert about.startswith("400 tokens")
    assert "E[S] is not in the file" in about
    shown = {line.split()[0]: line.split()[1:] for line in lines}
    assert float(shown["clip_b@mu=1.5"][0]) > 0
    assert set(shown["clip_v"]) == {"-"}
    for table in (pd.DataFrame(rows), pd.DataFrame(rows).explode(["logp", "entropy"])):  # lists as JSON, and numbers
        table.to_csv(tmp_path / "batch.csv", index=False)
        printed = run(capsys, "lens", tmp_path / "batch.csv", "--methods", "clip_b@mu=1.5", "clip_v")
        assert printed.splitlines() == [about, _, *lines]


def test_a_lens_of_all_methods_is_drawn(batch, tmp_path, capsys):
    pd.read_parquet(batch).rename(columns={"token": "token_id"}).to_parquet(batch)
    _, _, *rows = run(capsys, "lens", batch, "--figure", tmp_path / "lens.svg").splitlines()
    svg = (tmp_path / "lens.svg").read_text()
    for row in rows:
        assert f"<!-- {row.split()[0]} -->" in svg
    run(capsys, "lens", batch, "--methods", "grpo", "--figure", tmp_path / "grpo.svg")
    assert (tmp_path / "grpo.svg").read_text().count("<!-- 1.00 -->") == 4  # what GRPO keeps of its own


def test_methods_that_act_on_rollouts_have_no_numbers(batch, capsys):
    methods = ("qae", "pass_at_k", "nsr", "unlikeliness", "dr_grpo", "gspo", "stare")
    about, _, *rows, stare = run(capsys, "lens", batch, "--methods", *methods).splitlines()
    assert about.endswith("; a method without numbers needs whole rollouts or whole distributions")
    assert [line.split()[0] for line in rows] == [*methods[:-1]]
    assert {value for line in rows for value in line.split()[1:]} == {"-"}
    assert "-" not in stare.split()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("ppo", "the lens cannot show 'ppo': configs/method/ppo.yaml only sets how another method is trained; "),
        ("Clip_V", "unknown method 'Clip_V'; did you mean 'clip_v'?"),
    ],
)
def test_a_method_that_the_lens_lacks(tmp_path, capsys, method, message):
    path = write_lines(tmp_path / "batch.jsonl", [{"logp": -1.0, "entropy": 1.0, "advantage": 1.0}])
    assert error(capsys, "lens", path, "--methods", method).startswith(message)


def test_a_figure_of_an_unknown_format_is_refused_before_anything_is_read(tmp_path, capsys):
    message = error(capsys, "lens", tmp_path / "missing", "--figure", "lens.foo")
    assert message == "argument --figure: 'lens.foo' does not end in .png, .svg or .pdf"


ROW = {"logp": -1.0, "entropy": 1.0, "advantage": 1.0}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"logp": -1.0, "advantage": 1.0}], " has no column for the entropy (entropy, entropys)"),
        ([ROW | {"advantage": "good"}], ": each token's advantage should be a number: could not"),
        ([ROW | {"logp": 0.5}], ": a log p is 0.5; it should be 0 or less, in nats"),
        ([ROW | {"entropy": -1.0}], ": an entropy is -1; it should be 0 or more, in nats"),
        (
            [{"logits": [0.0] * n, "token": 0, "advantage": 1.0} for n in (3, 4)],
            ": each token's logits should be a list of numbers, of one length for all tokens: all input",
        ),
        (
            [{"logits": [0.0] * 3, "token": token, "advantage": 1.0} for token in (2, 3)],
            ": a sampled token is 3; it should be an id from 0 to 2, as the logits",
        ),
        ([{"logits": [], "token": [], "advantage": []}], ": logits is an empty list in every row"),
        ([ROW | {"mask": 0}], ": mask is 0 at every token"),
        ([ROW | {"mask": 0.5}], ": each token's mask should be 0 or 1"),
        (
            [ROW | {"padding_mask": 0}],
            ": is padding_mask 1 at the tokens that count? If so, rename it to response_mask, else remove it",
        ),
    ],
)
def test_a_mistake_in_a_batch_is_one_line(rows, message, tmp_path, capsys):
    """It comes before one in a method's name."""
    path = write_lines(tmp_path / "batch.jsonl", rows)
    assert error(capsys, "lens", path, "--methods", "clip").startswith(f"{path}{message}")


def test_a_lens_of_a_folder_names_its_files_and_the_file_comes_before_methods(tmp_path, capsys):
    (path := tmp_path / "step0.parquet").touch()
    named = f"{tmp_path} is a folder; name a file in it, such as step0.parquet"
    assert error(capsys, "lens", tmp_path) == named
    first = "lens takes its FILE first: lens FILE --methods METHOD ..."
    assert error(capsys, "lens", "--methods", "clip_b", path) == first
    assert error(capsys, "lens") == first


# ---------------------------------------------------------------- masks of the lens
LOGP, ENTROPY = [-0.5, -2.0, -1.0], [0.9, 1.5, 0.2]


@pytest.mark.parametrize("name", ["response_mask", "loss_masks", "attention_mask"])
def test_padding_is_left_out(name, tmp_path, capsys):
    plain = {"old_log_probs": LOGP, "entropys": ENTROPY, "advantages": [-1.0, -1.0, 1.0]}
    padded = {key: [*values, float("nan"), 0.0] for key, values in plain.items()} | {name: [1, 1, 1, 0, 0]}
    files = (write_lines(tmp_path / f"{length}.jsonl", [row]) for length, row in ((3, plain), (5, padded)))
    expected, found = (run(capsys, "lens", file, "--methods", "grpo", "clip_b@mu=0.5") for file in files)
    assert found == expected
    assert expected.startswith("3 tokens")
    rows = [
        {"logp": logp, "entropy": 1.0, "advantage": 1.0, name: inside}
        for logp, inside in ((-1.0, True), (5.0, False), (-2.0, True))
    ]
    assert run(capsys, "lens", write_lines(tmp_path / "tokens.jsonl", rows), "--methods", "grpo").startswith("2 tokens")


def test_zeros_without_a_mask_are_named_and_empty_responses_left_out(tmp_path, capsys):
    padded = {"old_log_probs": [*LOGP, 0, 0], "entropys": [*ENTROPY, 0, 0], "advantages": [1.0] * 5}
    empty: dict[str, list[float]] = {key: [] for key in padded}
    text = run(capsys, "lens", write_lines(tmp_path / "batch.jsonl", [empty, padded]), "--methods", "grpo")
    assert text.startswith("5 tokens")
    assert "2 have log p and entropy 0: if they are padding, add a column response_mask" in text
    of_logits = {"logits": [[0.0, 1.0], [2.0, 0.0]], "token": [0, 1], "advantages": [1.0, -1.0]}
    rows = [{key: [] for key in of_logits}, of_logits]
    for order in (rows, rows[::-1]):
        path = write_lines(tmp_path / "batch.jsonl", order)
        assert run(capsys, "lens", path, "--methods", "grpo").startswith("2 tokens")


@pytest.mark.parametrize(
    "of_token", [{"logits": [0.0] * 3, "token": 1}, {"logp": -1.0, "entropy": 1.0, "s_expected": 0.0}]
)
def test_an_expectation_of_zero_is_a_known_one(of_token, tmp_path, capsys):
    """As that of a uniform distribution."""
    path = write_lines(tmp_path / "batch.jsonl", [of_token | {"advantage": sign} for sign in (1.0, -1.0)])
    about, _, clip_v = run(capsys, "lens", path, "--methods", "clip_v").splitlines()
    assert "E[S]" not in about
    assert clip_v.split()[:4] == ["clip_v", "0", "0", "0"]
