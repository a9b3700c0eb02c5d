"""The stand-ins' byte tokenizer: any text, through the real prompt path, and the warm start with it."""

import json

import pytest
from entropy_dynamics.tasks.grading import grade
from hypothesis import example, given, settings
from hypothesis import strategies as st

from entropy_dynamics.config import HabitsConfig, StandInConfig, WarmStartConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.loading import load_policy, save_policy
from entropy_dynamics.models.toy import build_stand_in
from entropy_dynamics.models.toy_tokenizer import build_tokenizer
from entropy_dynamics.models.warm_start import IGNORED, POOL, solution_batches, warm_start
from entropy_dynamics.tasks.prompts import SYSTEM, encode_prompt

BYTES = build_tokenizer("bytes")
PROBLEM = "Let $x$ be real with $x^2 = 2$ — find ⌊10x⌋.\n\tHinweis: é, 你好, 🙂"


@given(st.text())
@example(PROBLEM)
@example("  two spaces  \r\n\x00 Ġ Ċ ▁ \\boxed{} \\boxed{7}")
@example("<end> is </s>, and <assistant><user><pad> too")
@settings(deadline=None)
def test_any_text_comes_back(text):
    assert BYTES.decode(BYTES.encode(text, add_special_tokens=False)) == text


@given(st.text(st.characters(codec="utf-8", exclude_characters="\\<")))
@settings(deadline=None)
def test_a_token_is_a_byte(text):
    ids = BYTES.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert len({*ids, 0, 1, 2, 3, 4, 5}) == len({*text.encode()}) + 6  # no byte shares an id with another or a special


def test_special_tokens_and_the_box_are_those_of_the_other_stand_ins(tokenizer):
    text = "<pad><unk><user><assistant><end>\\boxed{"
    assert BYTES.encode(text, add_special_tokens=False) == tokenizer.encode(text, add_special_tokens=False)
    assert len(BYTES) == 6 + 256
    for name in ("pad_token_id", "unk_token_id", "bos_token_id", "eos_token_id", "padding_side"):
        assert getattr(BYTES, name) == getattr(tokenizer, name), name


def test_the_prompt_has_the_system_line_and_the_problem_as_it_is():
    tokens = encode_prompt(BYTES, PROBLEM, "chat", max_tokens=1000)
    assert BYTES.decode(tokens) == f"{SYSTEM}\n<user>{PROBLEM}<assistant>"
    with pytest.raises(UserError, match=r"over the limit.* 100"):
        encode_prompt(BYTES, PROBLEM, "chat", max_tokens=100)


def test_a_response_can_be_graded():
    ids = BYTES.encode("1+2=3, so \\boxed{3}<end>", add_special_tokens=False)
    assert ids[-1] == BYTES.eos_token_id
    assert grade(BYTES.decode(ids, skip_special_tokens=True), 3, "stop").correct


def test_another_kind_is_a_users_mistake():
    with pytest.raises(UserError, match="tokenizer is 'byte'; it must be one of characters, bytes"):
        build_tokenizer("byte")


def test_the_warm_start_teaches_the_prompt_that_is_sampled_from(tmp_path):
    lessons = WarmStartConfig(
        terms=[2, 3],
        steps=3 * POOL,
        batch_size=4,
        learning_rate=3e-3,
        habits=HabitsConfig(shuffled=0.5, shortcut=0.2, sloppy=0.1, unboxed=0.1, rambling=0.1),
    )
    spec = StandInConfig(
        architecture="qwen2",
        hidden_size=32,
        layers=1,
        head_size=32,
        heads=1,
        kv_heads=1,
        intermediate_size=48,
        tied_embeddings=True,
        tokenizer="bytes",
        seed=3,
        warm_start=lessons,
    )
    batches = solution_batches(BYTES, lessons, seed=1, exclude=set(), max_new_tokens=32)
    tokens_BT, labels_BT, _ = next(batches)
    for tokens, labels in zip(tokens_BT, labels_BT, strict=True):
        start = int((labels != IGNORED).nonzero()[0])
        problem = BYTES.decode(tokens[:start]).split("<user>")[1].removesuffix("<assistant>")
        assert tokens[:start].tolist() == encode_prompt(BYTES, problem, "chat", max_tokens=1000)

    model = build_stand_in(spec, BYTES)
    losses = warm_start(model, BYTES, lessons, seed=2, exclude=set(), max_new_tokens=32)
    assert sum(losses[-POOL:]) < 0.9 * sum(losses[:POOL])  # a pool: its batches differ in length
    save_policy(model, BYTES, tmp_path)
    loaded, tokenizer = load_policy(tmp_path)
    assert loaded.config.max_position_embeddings == 8192
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 262
    text = f"{PROBLEM}\\boxed{{1}}<end>"
    assert tokenizer.encode(text, add_special_tokens=False) == BYTES.encode(text, add_special_tokens=False)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert tokenizer.chat_template == BYTES.chat_template
