"""The lens: only tokens in a file's mask count, whatever padding holds."""

import pytest

from command_line import error, run, write_lines

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
