"""The stand-ins: their tokenizer, their architectures, their warm start."""

import itertools

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from entropy_dynamics.config import HabitsConfig, StandInConfig, WarmStartConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.loading import load_policy, save_policy
from entropy_dynamics.models.toy import build_stand_in
from entropy_dynamics.models.toy_tokenizer import build_tokenizer
from entropy_dynamics.models.warm_start import IGNORED, POOL, solution_batches, warm_start

SHAPE = {
    "hidden_size": 64,
    "layers": 2,
    "head_size": 32,
    "heads": 2,
    "kv_heads": 1,
    "intermediate_size": 96,
    "tied_embeddings": True,
    "seed": 11,
}


def stand_in(**changed) -> StandInConfig:
    return StandInConfig(**({"architecture": "qwen2"} | SHAPE | changed))


def lessons(**changed) -> WarmStartConfig:
    habits = HabitsConfig(shuffled=0.5, shortcut=0.2, sloppy=0.1, unboxed=0.1, rambling=0.1)
    values = {"terms": [2, 5], "steps": 8, "batch_size": 8, "learning_rate": 3e-3}
    return WarmStartConfig(**(values | {"habits": habits} | changed))


# Tokenizer


def test_a_solution_is_a_token_a_character_and_comes_back_as_it_was(tokenizer):
    text = "7+5=12+9=21\n7-5 = (2).\\boxed{21}"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text) - len("\\boxed{") + 1
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text


def test_ids_are_fixed(tokenizer):
    # A change of any id would make every saved model useless.
    text = "<pad><unk><user><assistant><end>\\boxed{019+=}\n"
    assert tokenizer.encode(text, add_special_tokens=False) == [0, 1, 2, 3, 4, 5, 6, 7, 15, 16, 22, 23, 27]
    assert build_tokenizer().get_vocab() == tokenizer.get_vocab()
    assert 20 <= len(tokenizer) <= 40


def test_what_it_does_not_know_is_unknown(tokenizer):
    assert tokenizer.encode("7x", add_special_tokens=False)[1] == tokenizer.unk_token_id


def test_the_prompt_is_the_users_message_only(tokenizer):
    messages = [{"role": "system", "content": "Reason."}, {"role": "user", "content": "7+5"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == "<user>7+5<assistant>"
    told = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": "12"}], tokenize=False)
    assert told == "<user>7+5<assistant>12<end>"


def test_the_tokenizer_survives_saving(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "<user>7+5<assistant>7+5=12\\boxed{12}<end>"
    assert loaded.encode(text, add_special_tokens=False) == tokenizer.encode(text, add_special_tokens=False)
    assert loaded.decode(loaded.encode(text)) == text
    for name in ("pad_token_id", "unk_token_id", "bos_token_id", "eos_token_id", "padding_side", "chat_template"):
        assert getattr(loaded, name) == getattr(tokenizer, name), name


# Architectures


@pytest.mark.parametrize(
    ("architecture", "class_name", "own_weight"),
    [
        ("qwen2", "Qwen2ForCausalLM", "model.layers.0.self_attn.q_proj.bias"),
        ("qwen3", "Qwen3ForCausalLM", "model.layers.0.self_attn.q_norm.weight"),
        ("llama", "LlamaForCausalLM", None),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_stand_in_is_the_same_model_again(tokenizer, tmp_path, architecture, class_name, own_weight, tied):
    model = build_stand_in(stand_in(architecture=architecture, tied_embeddings=tied), tokenizer).eval()
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
    one = build_stand_in(stand_in(), tokenizer)
    assert torch.equal(torch.rand(3), expected)
    same, other = (build_stand_in(stand_in(seed=seed), tokenizer) for seed in (11, 12))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.model.embed_tokens.weight, other.model.embed_tokens.weight)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architecture": "gpt2"}, "one of qwen2, qwen3, llama"),
        ({"head_size": 16, "heads": 4}, "32 or 64.*vLLM"),
        ({"heads": 3}, "3 x 32 = 96.*hidden_size = 64"),
        ({"kv_heads": 3}, "must divide heads = 2"),
        ({"kv_heads": 0}, "must divide heads = 2"),
    ],
)
def test_a_shape_that_cannot_be_is_a_users_mistake(tokenizer, changed, message):
    with pytest.raises(UserError, match=message):
        build_stand_in(stand_in(**changed), tokenizer)


# Warm start


def batches(tokenizer, number: int, **changed):
    settings = {"seed": 4, "exclude": set(), "max_new_tokens": 24}
    config = lessons(**{key: value for key, value in changed.items() if key not in settings})
    settings |= {key: value for key, value in changed.items() if key in settings}
    return list(itertools.islice(solution_batches(tokenizer, config, **settings), number))


def test_labels_are_the_response_and_nothing_else(tokenizer):
    whole = 0
    for tokens_BT, labels_BT, _ in batches(tokenizer, 2 * POOL):
        assert tokens_BT.shape == labels_BT.shape
        for tokens, labels in zip(tokens_BT, labels_BT, strict=True):
            start = tokens.tolist().index(tokenizer.convert_tokens_to_ids("<assistant>")) + 1
            length = int((tokens != tokenizer.pad_token_id).sum())
            assert (labels[:start] == IGNORED).all()
            assert torch.equal(labels[start:length], tokens[start:length])
            assert (labels[length:] == IGNORED).all()
            assert 1 <= length - start <= 24
            ended = tokens[length - 1] == tokenizer.eos_token_id
            assert ended or length - start == 24  # only the limit cuts a solution short
            whole += int(ended)
    assert 0 < whole < 2 * POOL * 8  # rambling ones have no end


def test_every_token_weighs_the_same_in_a_pool(tokenizer):
    pool = batches(tokenizer, POOL)
    responses = sum(int((labels != IGNORED).sum()) for _, labels, _ in pool)
    assert all(mean == pytest.approx(responses / POOL) for *_, mean in pool)


def prompts_of(tokenizer, pool) -> set[tuple[str, ...]]:
    texts = [tokenizer.decode(row).split("<user>")[1].split("<assistant>")[0] for tokens, *_ in pool for row in tokens]
    return {tuple(sorted(text.split("+"))) for text in texts}


def test_excluded_problems_are_never_taught_in_any_order(tokenizer):
    held = {(str(a), str(b)) for a in range(1, 10) for b in range(a, 10) if a + b != 10}
    taught = prompts_of(tokenizer, batches(tokenizer, POOL, terms=[2, 2]))
    assert taught & held
    exclude = {f"{b}+{a}" for a, b in held}
    taught = prompts_of(tokenizer, batches(tokenizer, POOL, terms=[2, 2], exclude=exclude))
    assert taught == {("1", "9"), ("2", "8"), ("3", "7"), ("4", "6"), ("5", "5")}


def train(tokenizer, seed=2, **changed):
    model = build_stand_in(stand_in(), tokenizer)
    steps = []
    losses = warm_start(
        model,
        tokenizer,
        lessons(**changed),
        seed=seed,
        exclude=set(),
        max_new_tokens=24,
        progress=lambda step, loss: steps.append((step, loss)),
    )
    return model, losses, steps


def test_warm_start_is_the_same_for_a_seed(tokenizer):
    one, losses, steps = train(tokenizer)
    same, again, _ = train(tokenizer)
    _, other, _ = train(tokenizer, seed=3)
    assert steps == list(enumerate(losses))
    assert len(losses) == 8
    assert losses == again
    assert losses != other
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not one.training


def test_warm_start_learns(tokenizer):
    careful = HabitsConfig(shuffled=0.0, shortcut=0.0, sloppy=0.0, unboxed=0.0, rambling=0.0)
    _, losses, _ = train(tokenizer, terms=[2, 2], steps=120, batch_size=16, habits=careful)
    assert sum(losses[-8:]) < 0.4 * sum(losses[:8])


def test_a_loss_that_is_not_finite_is_said_with_its_step(tokenizer):
    model = build_stand_in(stand_in(), tokenizer)
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(UserError, match="nan at step 0"):
        warm_start(model, tokenizer, lessons(), seed=0, exclude=set(), max_new_tokens=24)
