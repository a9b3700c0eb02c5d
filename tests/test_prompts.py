"""Prompts: what a chat model and a base model are given, without doubled special tokens."""

import pytest

from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks.prompts import SYSTEM, encode_prompt, preview_messages, render_prompt

PROBLEM = "What is 1+1?"
TEMPLATE = (
    "<s>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def tokenizer():
    """One token a character, and a post-processor that puts <s> before every text, as Llama's does."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<s>": 0} | {chr(code): code for code in range(10, 128)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="~"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", unk_token="~")
    made.chat_template = TEMPLATE
    return made


def test_chat_is_the_template_with_the_system_line_first(tokenizer):
    assert render_prompt(tokenizer, PROBLEM, "chat") == (
        "<s><|system|>Please reason step by step, and put your final answer within \\boxed{}."
        "<|user|>What is 1+1?<|assistant|>"
    )


def test_base_is_trinitys_format(tokenizer):
    expected = f"System:{SYSTEM}\nUser:\nWhat is 1+1?\nAssistant:\n"
    assert render_prompt(tokenizer, PROBLEM, "base") == expected
    assert preview_messages(PROBLEM, "base") == expected


@pytest.mark.parametrize("prompt_format", ["chat", "base"])
def test_begins_once(tokenizer, prompt_format):
    text = render_prompt(tokenizer, PROBLEM, prompt_format).removeprefix("<s>")
    expected = [0] + [ord(character) for character in text]
    assert encode_prompt(tokenizer, PROBLEM, prompt_format, len(expected)) == expected


def test_a_prompt_over_the_limit_names_the_problem_and_both_lengths(tokenizer):
    length = len(encode_prompt(tokenizer, PROBLEM, "chat", 10_000))
    with pytest.raises(UserError, match=rf"What is 1\+1.* {length} tokens.* {length - 1}$") as error:
        encode_prompt(tokenizer, PROBLEM, "chat", length - 1)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError) as error:
        encode_prompt(tokenizer, "long\n" * 10_000, "chat", 100)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_preview_has_both_messages():
    assert preview_messages(PROBLEM, "chat") == f"[system]\n{SYSTEM}\n[user]\n{PROBLEM}"


def test_mistakes_are_named(tokenizer):
    with pytest.raises(UserError, match="prompt_format 'chats'"):
        render_prompt(tokenizer, PROBLEM, "chats")
    with pytest.raises(UserError, match="prompt_format ''"):
        preview_messages(PROBLEM, "")
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        render_prompt(tokenizer, PROBLEM, "chat")
