"""The stand-ins' tokenizer: one token a character, in transformers' own format."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<unk>", "<user>", "<assistant>", "<end>")
BOX = "\\boxed{"  # one token, so that the box costs three tokens and not nine
CHARACTERS = "0123456789+-*/()=}., \n"
CHAT_TEMPLATE = (  # the user's messages only: a stand-in knows nothing but its task, so an instruction is left out
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<user>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<assistant>{{ message['content'] }}<end>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """The tokenizer that all stand-ins share; ids are fixed by the order of SPECIAL, BOX and CHARACTERS.

    A character that it does not know becomes `unk_token_id`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate([*SPECIAL, BOX, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()  # tokens are joined as they are, without spaces between them
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<user>",
        eos_token="<end>",
        additional_special_tokens=["<assistant>"],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )
