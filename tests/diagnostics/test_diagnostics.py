"""The commands on other trainers' files: pass-at-k, lens."""

import itertools
import math
from math import comb

import numpy as np
import pandas as pd
import pytest
import torch

from command_line import error, output, run, write_lines
from entropy_dynamics.core.dynamics import batch_entropy_change
from entropy_dynamics.core.token_stats import token_stats

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
        ("skyrl.jsonl", "input_prompt", "score", []),
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


def test_problems_that_only_one_file_has_are_counted(tmp_path, capsys):
    for name, ids in (("one", "abc"), ("two", "cd")):
        write_lines(tmp_path / f"{name}.jsonl", [{"problem_id": id, "correct": 1} for id in ids for _ in range(2)])
    _, err = output(capsys, "pass-at-k", tmp_path / "one.jsonl", tmp_path / "two.jsonl")
    assert err == "the difference is of the 1 problems that both have, of 3 and 2\n"


def test_two_files_are_compared_at_all_k_at_once(tmp_path, capsys):
    """The second always solves half of 60 problems, and none of the others; the first each in one sample of four."""
    grades = {str(problem): [1, 0, 0, 0] for problem in range(60)}
    one = samples(tmp_path / "one.parquet", "problem_id", "correct", grades)
    half = {name: [int(name) % 2] * 4 for name in grades}
    two = samples(tmp_path / "two.parquet", "problem_id", "correct", half)
    _, err = output(capsys, "pass-at-k", one, two)
    assert err == "all k to 4 at once (95 % band): the second gains at k = 1, loses at k = 3 to 4\n"
    rng = np.random.default_rng(0)
    alike = {str(problem): rng.integers(0, 2, 4).tolist() for problem in range(60)}
    three = samples(tmp_path / "three.parquet", "problem_id", "correct", alike)
    other = samples(tmp_path / "other.parquet", "problem_id", "correct", alike | {"0": [1, 1, 1, 1], "1": [0] * 4})
    for files, change in (
        ((two, one), "gains at k = 3 to 4, loses at k = 1"),
        ((three, other), "neither gains nor loses"),
    ):
        _, err = output(capsys, "pass-at-k", *files)
        assert err == f"all k to 4 at once (95 % band): the second {change}\n"


def test_a_folder_is_all_of_its_files_and_columns_are_named_by_what_differs(tmp_path, capsys):
    halves = [{name: GRADES[name] for name in names} for names in ("ab", "cd")]
    for method in ("grpo", "clip_b@mu=2.5"):
        (folder := tmp_path / method / "seed0").mkdir(parents=True)
        for place, half in enumerate(halves):
            samples(folder / f"part{place}.{('parquet', 'jsonl')[place]}", "problem_id", "correct", half)
        (folder / "T1").mkdir()
        samples(folder / "T1" / "part0.parquet", "problem_id", "correct", {"z": [1, 1, 1, 1]})
        (folder / "notes.txt").write_text("")
    whole = samples(tmp_path / "whole.parquet", "problem_id", "correct", GRADES)
    header, *rows = run(
        capsys, "pass-at-k", tmp_path / "grpo" / "seed0", tmp_path / "clip_b@mu=2.5" / "seed0"
    ).splitlines()
    assert header.split() == ["k", "grpo", "low", "high", "clip_b@mu=2.5", "low", "high", "difference", "low", "high"]
    assert max(map(len, (header, *rows))) <= 80
    alone = run(capsys, "pass-at-k", whole).splitlines()
    assert alone[0].split() == ["k", "whole", "low", "high"]
    assert [row.split()[:4] for row in rows] == [row.split() for row in alone[1:]]
    (empty := tmp_path / "empty").mkdir()
    assert error(capsys, "pass-at-k", empty) == f"{empty} has no .parquet, .jsonl or .csv file"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.jsonl", None, "no file {}"),
        ("samples.txt", "a,b", "{} should be a .parquet, .jsonl or .csv file"),
        ("samples.csv", "input;score\n1;0\n", "{} cannot be read: its columns are separated by ;, not by commas"),
        ("broken.jsonl", "{", "{}: line 1 is not a JSON object"),
        ("no.jsonl", '{"input": "1+1", "output": "2"}', "{} has no column for the grade of an answer"),
        ("text.jsonl", '{"input": "1", "score": "good"}', "{}: score is 'good'; it should be true, false or a finite"),
        ("ungraded.jsonl", '{"input": "1", "score": null}', "{}: no sample has a value of score"),
        ("empty.jsonl", '{"input": "1", "score": 1}\n{"input": "", "score": 0}', "{}: 1 of 2 samples have no input"),
        ("latin.jsonl", b'{"input": 1}\n{"input": "\xe9"}', "{}: line 2 is not a JSON object"),
    ],
)
def test_a_mistake_is_one_line(name, text, message, tmp_path, capsys):
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert error(capsys, "pass-at-k", path).startswith(message.format(path))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_sample_without_a_grade_is_left_out_and_counted(suffix, tmp_path, capsys):
    grades = {"a": [True, None, True, False], "b": [None] * 4, "c": [False, False, None, False]}
    path = samples(tmp_path / f"some.{suffix}", "problem_id", "correct", grades)
    out, err = output(capsys, "pass-at-k", path)
    assert err == f"{path}: 6 of 12 samples have no correct and are left out; 2 of 3 problems are left\n"
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [["1", "33.3"], ["2", "50.0"], ["3", "50.0"]]  # 2 of 3, and 0 of 3


def test_ids_that_are_text_stay_apart(tmp_path, capsys):
    ids = {"007": 1, "7": 0, "7.0": 0}
    rows = [{"problem_id": name, "correct": grade} for name, grade in ids.items()]
    path = write_lines(tmp_path / "ids.jsonl", rows)
    [line] = run(capsys, "pass-at-k", path).splitlines()[1:]
    assert line.split()[:2] == ["1", "33.3"]  # one problem would have three samples


def as_expected(rates, n):
    """Grades of n samples per problem, c correct ones as often as the rates, in quarters, would have them."""
    often = [sum(comb(n, c) * rate**c * (4 - rate) ** (n - c) for rate in rates) for c in range(n + 1)]
    counts = np.repeat(range(n + 1), np.array(often) // math.gcd(*often))
    return {str(problem): [1] * c + [0] * (n - c) for problem, c in enumerate(counts)}


def true_variance(p, n, k):
    """Of Pass@k from n samples, over what they may be."""
    chances = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    estimates = [1 - comb(n - c, k) / comb(n, k) for c in range(n + 1)]
    return np.dot(chances, np.square(estimates)) - np.dot(chances, estimates) ** 2


@pytest.mark.parametrize(("rates", "n", "ks"), [((1, 3), 4, (1, 2)), ((2,), 8, (1, 2, 4))])
def test_the_power_from_few_samples_is_that_of_the_true_rates(rates, n, ks, tmp_path, capsys):
    """To put the file's rates for the true ones gives 1 - 1/n of it, for k = 1."""
    path = samples(tmp_path / "samples.parquet", "problem_id", "correct", as_expected(rates, n))
    _, header, *rows = map(str.split, run(capsys, "pass-at-k", path, "--power", 5).splitlines())
    assert header == ["samples", *(f"k={k}" for k in ks)]
    of_both = 2 * ((1.959964 + 1.281552) / 0.05) ** 2
    expected = [
        [m, *(math.ceil(of_both * np.mean([true_variance(rate / 4, m, k) for rate in rates])) for k in ks)]
        for m in (n // 2, n, 2 * n, 4 * n)
    ]
    assert [list(map(int, row)) for row in rows] == expected
    problems, rng, found = int(rows[1][1]), np.random.default_rng(0), 0
    p = np.resize(np.array(rates) / 4, problems)
    for _ in range(1000):
        difference = (rng.binomial(n, p + 0.05) - rng.binomial(n, p)) / n
        found += difference.mean() / (difference.std(ddof=1) / problems**0.5) > 1.96
    assert found / 1000 == pytest.approx(0.9, abs=0.03)


# ---------------------------------------------------------------- lens
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
    (path := tmp_path / "batch.jsonl").write_text('{"logp": -1.0, "entropy": 1.0, "advantage": 1.0}')
    assert error(capsys, "lens", path, "--methods", method).startswith(message)


def test_a_figure_of_an_unknown_format_is_refused_before_anything_is_read(tmp_path, capsys):
    message = error(capsys, "lens", tmp_path / "missing", "--figure", "lens.foo")
    assert message == "argument --figure: 'lens.foo' does not end in .png, .svg or .pdf"


def test_a_lens_without_what_it_needs_is_one_line(tmp_path, capsys):
    (path := tmp_path / "batch.jsonl").write_text('{"logp": -1.0, "advantage": 1.0}')
    assert error(capsys, "lens", path).startswith(f"{path} has no column for the entropy (entropy, entropys)")
    assert error(capsys, "lens", path, "--methods", "clip").startswith(f"{path} has no column for the entropy")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"logp": -1.0, "entropy": 1.0, "advantage": "good"}], "each token's advantage should be a number: could not"),
        ([{"logp": 0.5, "entropy": 1.0, "advantage": 1.0}], "a log p is 0.5; it should be 0 or less, in nats"),
        ([{"logp": -0.5, "entropy": -1.0, "advantage": 1.0}], "an entropy is -1; it should be 0 or more, in nats"),
        (
            [{"logits": [0.0] * n, "token": 0, "advantage": 1.0} for n in (3, 4)],
            "each token's logits should be a list of numbers, of one length for all tokens: all input",
        ),
        (
            [{"logits": [0.0] * 3, "token": token, "advantage": 1.0} for token in (2, 3)],
            "a sampled token is 3; it should be an id from 0 to 2, as the logits",
        ),
    ],
)
def test_a_mistake_in_a_batch_is_one_line(rows, message, tmp_path, capsys):
    path = write_lines(tmp_path / "batch.jsonl", rows)
    assert error(capsys, "lens", path).startswith(f"{path}: {message}")


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


def test_a_mask_without_tokens_or_of_other_values_is_one_line(tmp_path, capsys):
    row = {"logp": -1.0, "entropy": 1.0, "advantage": 1.0}
    path = write_lines(tmp_path / "batch.jsonl", [row | {"mask": 0}])
    assert error(capsys, "lens", path) == f"{path}: mask is 0 at every token"
    write_lines(path, [row | {"mask": 0.5}])
    assert error(capsys, "lens", path) == f"{path}: each token's mask should be 0 or 1"
    write_lines(path, [row | {"padding_mask": 0}])
    expected = "is padding_mask 1 at the tokens that count? If so, rename it to response_mask, else remove it"
    assert error(capsys, "lens", path) == f"{path}: {expected}"


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
    assert error(capsys, "lens", write_lines(path, rows[:1])) == f"{path}: logits is an empty list in every row"


@pytest.mark.parametrize(
    "of_token", [{"logits": [0.0] * 3, "token": 1}, {"logp": -1.0, "entropy": 1.0, "s_expected": 0.0}]
)
def test_an_expectation_of_zero_is_a_known_one(of_token, tmp_path, capsys):
    """As that of a uniform distribution."""
    path = write_lines(tmp_path / "batch.jsonl", [of_token | {"advantage": sign} for sign in (1.0, -1.0)])
    about, _, clip_v = run(capsys, "lens", path, "--methods", "clip_v").splitlines()
    assert "E[S]" not in about
    assert clip_v.split()[:3] == ["clip_v", "0", "0"]
