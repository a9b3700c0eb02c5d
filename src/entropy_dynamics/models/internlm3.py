"""InternLM3 as a Llama: transformers has no class for it, but its weights have the names and shapes of a Llama.

Its published code is not run: config.json is rewritten, and the tokenizer, a slow class on top of sentencepiece, is
converted to a fast one, which must give the same ids as sentencepiece for every text that it will encode.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

INTERNLM3_KEYS = ("auto_map", "qkv_bias", "bias", "rope_scaling", "rope_theta")  # config.json keys not in a Llama's
NORMAL = 1  # piece type of merge results: not control, byte, unknown or user-defined
USER_DEFINED = 4


def llama_config(published: dict[str, Any], where: Path) -> dict[str, Any]:
    """The config.json of `LlamaForCausalLM` for the same weights.

    The "dynamic" RoPE scaling has no effect within max_position_embeddings. Raises UserError if the model has biases,
    which the Llama of transformers and of vLLM would silently ignore.
    """
    for key in ("qkv_bias", "bias"):
        if published.get(key):
            raise UserError(f"{where}: {key} is true; only an InternLM3 without biases runs as a Llama")
    kept = {key: value for key, value in published.items() if key not in INTERNLM3_KEYS}
    rope = published.get("rope_scaling") or {"rope_type": "default"}
    return kept | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": rope | {"rope_theta": published["rope_theta"]},
    }


def turn_end(settings: dict[str, Any], ends: int | list[int] | None) -> str:
    """The token that ends a turn. The published eos_token is </s>, but the model ends its turns with <|im_end|>.

    Of `ends`, the eos_token_id of generation_config.json, it is the one in the chat template of `settings`, the content
    of tokenizer_config.json.
    """
    added = settings["added_tokens_decoder"]
    contents = [added[str(end)]["content"] for end in ([ends] if isinstance(ends, int) else ends or [])]
    written = [content for content in contents if content in settings["chat_template"]]
    return written[0] if written else _content(settings["eos_token"])


def convert_tokenizer(source: Path) -> "PreTrainedTokenizerFast":
    """A fast tokenizer from `source`/tokenizer.model, a BPE model, with the published added tokens and template."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto
    from tokenizers import AddedToken, processors
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import SpmConverter
    from transformers.tokenization_utils_base import generate_merges

    settings = read_json(source / "tokenizer_config.json")
    if (template := source / "chat_template.jinja").is_file():
        settings["chat_template"] = template.read_text(encoding="utf-8")
    generation = source / "generation_config.json"
    proto = ModelProto()
    proto.ParseFromString((source / "tokenizer.model").read_bytes())
    added = {int(number): token for number, token in settings["added_tokens_decoder"].items()}
    vocabulary = {piece.piece: number for number, piece in enumerate(proto.pieces) if number not in added}
    vocabulary |= {token["content"]: number for number, token in added.items()}  # some reuse the id of an unused piece
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == NORMAL and piece.piece in vocabulary}
    merges = generate_merges(scores, scores)
    tokenizer = SpmConverter.build_tokenizer_from_spm_proto(proto, vocabulary, merges)
    user_defined = [piece.piece for piece in proto.pieces if piece.type == USER_DEFINED and piece.piece in vocabulary]
    tokenizer.add_tokens([AddedToken(piece, normalized=True) for piece in user_defined])
    tokenizer.add_special_tokens([AddedToken(token["content"], normalized=False) for token in added.values()])
    names = {name: _content(settings[name]) for name in ("bos_token", "pad_token", "unk_token") if settings.get(name)}
    if settings.get("add_bos_token", True):
        start = names["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, vocabulary[start])]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=turn_end(settings, read_json(generation).get("eos_token_id") if generation.is_file() else None),
        chat_template=settings["chat_template"],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **names,
    )


def check_tokenizer(tokenizer: "PreTrainedTokenizerFast", source: Path, texts: Iterable[str]) -> None:
    """Raise UserError unless ids agree with the published tokenizer on `texts`, both plain and as prompts."""
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(source / "tokenizer.model"))
    settings = read_json(source / "tokenizer_config.json")
    added = {token["content"]: int(number) for number, token in settings["added_tokens_decoder"].items()}
    # The published tokenizer splits a string at its added tokens and encodes the rest with sentencepiece.
    cut = re.compile("(" + "|".join(map(re.escape, sorted(added, key=len, reverse=True))) + ")")
    texts = list(texts)
    chats = [[{"role": "user", "content": text}] for text in texts]
    texts += tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    for text, converted in zip(texts, ids, strict=True):
        pieces = ([added[piece]] if piece in added else processor.encode(piece) for piece in cut.split(text))
        if converted != [number for piece in pieces for number in piece]:
            raise UserError(f"{source}: the converted tokenizer and sentencepiece disagree on {text[:60]!r}")


def _content(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else token["content"]
