"""Toy models: their tokenizers, their architectures, their warm start."""

import itertools
import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from conftest import HABITS, toy_model_config
from entropy_dynamics.config.schema.model import ToyModelConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.storage import load_policy, save_policy
from entropy_dynamics.models.toy import build_toy_model
from entropy_dynamics.models.toy_tokenizer import build_tokenizer
from entropy_dynamics.models.warm_start import IGNORED, POOL, solution_batches, warm_start
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.countdown.problems import canonical
from entropy_dynamics.tasks.prompts import prompt_tokens

BYTES = build_tokenizer("bytes")
RULES = {"task": "countdown", "values": (1, 9), "targets": (1, 40)}


def toy_model(numbers=(2, 3), habits=HABITS, lessons=None, **changes) -> ToyModelConfig:
    shape = {"hidden_size": 64, "layers": 2, "heads": 2, "intermediate_size": 96, "seed": 11}
    solutions = RULES | {"numbers": numbers, "habits": habits}
    values = {"steps": 8, "batch_size": 8, "learning_rate": 3e-3, "solutions": solutions}
    return toy_model_config(**shape | {"warm_start": values | (lessons or {})} | changes)


# Tokenizer
def test_a_solution_has_one_token_per_character_and_round_trips(tokenizer):
    text = "7+5=12+9=21\n7-5 = (2).\\boxed{21}"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text) - len("\\boxed{") + 1
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text


def test_ids_are_fixed(tokenizer):
    # Changing any id would make every saved model useless.
    text = "<pad><unk><user><assistant><end>\\boxed{019+=}\n"
    assert tokenizer.encode(text, add_special_tokens=False) == [0, 1, 2, 3, 4, 5, 6, 7, 15, 16, 22, 23, 27]
    assert build_tokenizer().get_vocab() == tokenizer.get_vocab()
    assert 20 <= len(tokenizer) <= 40


def test_a_chat_has_the_users_message_and_the_answer_only(tokenizer):
    said = {"system": "Reason.", "user": "7+5", "assistant": "12"}
    turns = [{"role": role, "content": text} for role, text in said.items()]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == "<user>7+5<assistant>12<end>"


# Architectures
@pytest.mark.parametrize(
    ("architecture", "class_name", "own_weight", "tied"),
    [
        ("qwen2", "Qwen2ForCausalLM", "model.layers.0.self_attn.q_proj.bias", True),
        ("qwen3", "Qwen3ForCausalLM", "model.layers.0.self_attn.q_norm.weight", False),
        ("llama", "LlamaForCausalLM", None, True),
    ],
)
def test_a_saved_toy_model_loads_as_the_same_model(tokenizer, tmp_path, architecture, class_name, own_weight, tied):
    model = build_toy_model(toy_model(architecture=architecture, tied_embeddings=tied), tokenizer).eval()
    save_policy(model, tokenizer, tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    own = {"model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_norm.weight"}
    assert names & own == ({own_weight} if own_weight else set())  # what sets the family apart
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded).__name__ == class_name
    assert loaded.dtype == torch.float32
    assert loaded.config._attn_implementation == "sdpa"
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    tokens = torch.arange(20)[None] % len(tokenizer)
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=0, atol=0)
    policy, its_tokenizer = load_policy(tmp_path)  # not the tokenizer that the architecture's real models have
    assert its_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert policy.config.eos_token_id == tokenizer.eos_token_id


def test_weights_belong_to_the_seed_and_leave_the_global_generator_alone(tokenizer):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    model = build_toy_model(toy_model(), tokenizer)
    assert torch.equal(torch.rand(3), expected)
    same, other = (build_toy_model(toy_model(seed=seed), tokenizer) for seed in (11, 12))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    assert not torch.equal(model.model.embed_tokens.weight, other.model.embed_tokens.weight)


def test_an_impossible_shape_is_a_users_mistake():
    with pytest.raises(ValidationError, match="32 or 64"):
        toy_model(head_size=16, heads=4)


def test_an_unknown_architecture_is_a_users_mistake(tokenizer):
    with pytest.raises(UserError, match=r"^architecture is 'lama', which transformers \d.+ does not know$"):
        build_toy_model(toy_model(architecture="lama"), tokenizer)


# Warm start
def batches(tokenizer, number: int, numbers=(2, 3), exclude=()):
    config = toy_model(numbers).warm_start
    return list(
        itertools.islice(solution_batches(tokenizer, config, seed=4, exclude=exclude, max_new_tokens=24), number)
    )


def test_labels_are_the_response_and_nothing_else(tokenizer):
    whole = 0
    for tokens, labels, _ in batches(tokenizer, 2 * POOL):
        assert tokens.shape == labels.shape
        for row, label in zip(tokens, labels, strict=True):
            start = row.tolist().index(tokenizer.convert_tokens_to_ids("<assistant>")) + 1
            length = int((row != tokenizer.pad_token_id).sum())
            assert (label[:start] == IGNORED).all()
            assert torch.equal(label[start:length], row[start:length])
            assert (label[length:] == IGNORED).all()
            assert 1 <= length - start <= 24
            ended = row[length - 1] == tokenizer.eos_token_id
            assert ended or length - start == 24  # only the limit cuts a solution short
            whole += int(ended)
    assert 0 < whole < 2 * POOL * 8  # rambling ones have no end


def test_every_token_of_a_pool_has_the_same_weight(tokenizer):
    pool = batches(tokenizer, POOL)
    responses = sum(int((labels != IGNORED).sum()) for _, labels, _ in pool)
    assert all(mean == pytest.approx(responses / POOL) for *_, mean in pool)


def prompts_of(tokenizer, pool) -> set[str]:
    texts = [tokenizer.decode(row).split("<user>")[1].split("<assistant>")[0] for tokens, *_ in pool for row in tokens]
    return {canonical(text) for text in texts}


def test_excluded_problems_are_never_taught_in_any_order(tokenizer):
    held = set(sorted(prompts_of(tokenizer, batches(tokenizer, POOL, numbers=(2, 2))))[::2])
    exclude = {re.sub("(.+),(.+)=", r"\2,\1=", text) for text in held}
    taught = prompts_of(tokenizer, batches(tokenizer, 2 * POOL, numbers=(2, 2), exclude=exclude))
    assert len(taught) > 50
    assert not taught & held


def train(tokenizer, seed=2, **changes):
    config = toy_model(**changes)
    model, reported = build_toy_model(config, tokenizer), []
    batches = solution_batches(tokenizer, config.warm_start, seed=seed, exclude=set(), max_new_tokens=24)
    losses = warm_start(model, config.warm_start, batches, reported.append)
    return model, losses, reported


def test_warm_start_depends_on_the_seed_only(tokenizer):
    model, losses, reported = train(tokenizer)
    same, again, _ = train(tokenizer)
    _, other, _ = train(tokenizer, seed=3)
    assert reported == losses
    assert len(losses) == 8
    assert losses == again
    assert losses != other
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    assert not model.training


def test_a_loss_that_is_not_finite_is_reported_with_its_step(tokenizer):
    model, config = build_toy_model(toy_model(), tokenizer), toy_model().warm_start
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(UserError, match="nan at step 0"):
        warm_start(model, config, solution_batches(tokenizer, config, seed=0, exclude=set(), max_new_tokens=24), float)


# Byte tokenizer
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


def test_the_byte_prompt_has_the_system_line_and_the_problem_unchanged():
    problem = Problem("p", PROBLEM, "14", "math")
    instruction = r"Please reason step by step, and put your final answer within \boxed{}."
    assert BYTES.decode(prompt_tokens(BYTES, problem, "chat")) == f"{instruction}\n<user>{PROBLEM}<assistant>"


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_the_warm_start_uses_the_prompt_that_is_sampled_from(kind, tmp_path):
    tokenizer, config = build_tokenizer(kind), toy_model(tokenizer=kind, lessons={"steps": 3 * POOL, "batch_size": 4})
    batches = solution_batches(tokenizer, config.warm_start, seed=1, exclude=set(), max_new_tokens=32)
    tokens, labels, _ = next(batches)
    for row, label in zip(tokens, labels, strict=True):
        start = int((label != IGNORED).nonzero()[0])
        text = tokenizer.decode(row[:start]).split("<user>")[1].removesuffix("<assistant>")
        assert row[:start].tolist() == prompt_tokens(tokenizer, Problem("p", text, "", "countdown"), "chat")
    model = build_toy_model(config, tokenizer)
    batches = solution_batches(tokenizer, config.warm_start, seed=2, exclude=set(), max_new_tokens=32)
    losses = warm_start(model, config.warm_start, batches, float)
    assert sum(losses[-POOL:]) < 0.9 * sum(losses[:POOL])  # a pool: its batches differ in length
    save_policy(model, tokenizer, tmp_path)
    loaded, loaded_tokenizer = load_policy(tmp_path)
    assert loaded.config.max_position_embeddings == tokenizer.model_max_length
    text = f"{PROBLEM}\\boxed{{1}}<end>"
    assert loaded_tokenizer.encode(text) == tokenizer.encode(text)
    assert loaded_tokenizer.chat_template == tokenizer.chat_template
