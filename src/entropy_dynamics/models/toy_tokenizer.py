"""Tokenizers of toy models in transformers' format, with one token per character of a toy task, or per byte."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<unk>", "<user>", "<assistant>", "<end>")
BOX = "\\boxed{"  # a single token, so that a box costs three tokens instead of nine
CHARACTERS = "0123456789+-*/()=}., \n"  # those of Countdown, its sheets and their solutions
VOCABULARY = {kind: len(SPECIAL) + 1 + count for kind, count in (("characters", len(CHARACTERS)), ("bytes", 256))}
MAX_LENGTH = {"characters": 256, "bytes": 8192}  # tokens
SYSTEM_TURN = "{% if message['role'] == 'system' %}{{ message['content'] }}\n{% endif %}"


def build_tokenizer(kind: str = "characters") -> "PreTrainedTokenizerFast":
    """The tokenizer of all toy models of one `kind`; its ids are fixed.

    "characters" has one token per character of the toy tasks, and unk_token_id for all others. "bytes" has one token
    per byte, so it can encode and decode any text.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from entropy_dynamics.tasks.prompts import TOY_TEMPLATE

    # ByteLevel represents each of the 256 bytes by a printable character.
    alphabet = CHARACTERS if kind == "characters" else sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, BOX, *alphabet])}
    if kind == "characters":
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), behavior="isolated")
        tokenizer.decoder = decoders.Fuse()  # no spaces between tokens
    else:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_tokens([AddedToken(BOX, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<user>",
        eos_token="<end>",
        additional_special_tokens=["<assistant>"],
        chat_template=TOY_TEMPLATE.replace("{% if", ("" if kind == "characters" else SYSTEM_TURN) + "{% if", 1),
        padding_side="left",
        model_max_length=MAX_LENGTH[kind],
        clean_up_tokenization_spaces=False,
    )
