"""InternLM3 as a Llama: transformers has no class for it, and its weights have Llama's names and shapes.

The code it is published with is not run: config.json is rewritten, and the tokenizer, a slow class over sentencepiece,
becomes a fast one, which must give sentencepiece's ids for every text that it will encode.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entropy_dynamics.errors import UserError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

OWN_KEYS = ("auto_map", "qkv_bias", "bias", "rope_scaling", "rope_theta")  # in config.json, unknown to a Llama
BPE = 2  # in sentencepiece's trainer_spec.model_type
NORMAL = 1  # the type of a piece that merging makes: no control, byte, unknown or user-defined symbol
USER_DEFINED = 4
PROBES = (  # where conversions of sentencepiece models are known to go wrong
    " a",
    "  two spaces",
    "trailing  ",
    "a  b   c",
    "\n\nFind x.\n",
    "\ta\r\nb",
    "0123456789 3.14 1,000",
    "求方程的解，答案是42。",
    "\u3000全角　ＡＢＣ１２３",
    "e\u0301\u00a0é",
    "▁a 🙂",
    r"$\frac{1}{2}$ \boxed{7}",
    "   ",
)


def llama_config(published: dict[str, Any], where: Path) -> dict[str, Any]:
    """The config.json of `LlamaForCausalLM` for the same weights.

    The "dynamic" RoPE scaling has no effect within max_position_embeddings.

    Raises:
        UserError: the model has biases, which transformers' and vLLM's Llama would silently ignore.
    """
    for key in ("qkv_bias", "bias"):
        if published.get(key):
            raise UserError(f"{where}: {key} is true; only an InternLM3 without biases runs as a Llama")
    kept = {key: value for key, value in published.items() if key not in OWN_KEYS}
    rope = published.get("rope_scaling") or {"rope_type": "default"}
    return kept | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": rope | {"rope_theta": published["rope_theta"]},
    }


def read_settings(source: Path) -> dict[str, Any]:
    """tokenizer_config.json of an InternLM3, with the chat template, which may be in a file of its own."""
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = source / "chat_template.jinja"
    if template.is_file():
        settings["chat_template"] = template.read_text(encoding="utf-8")
    for key in ("added_tokens_decoder", "chat_template"):
        if not settings.get(key):
            raise UserError(f"{source / 'tokenizer_config.json'}: no {key}, which InternLM3 needs")
    return settings


def turn_end(settings: dict[str, Any], ends: int | list[int] | None) -> str:
    """The token that ends a turn: the one of generation_config.json's `ends` that the chat template writes.

    The published eos_token is </s>, but the model ends its turns with <|im_end|>.
    """
    added = settings["added_tokens_decoder"]
    contents = [added[str(end)]["content"] for end in ([ends] if isinstance(ends, int) else ends or [])]
    written = [content for content in contents if content in settings["chat_template"]]
    return written[0] if written else _content(settings["eos_token"])


def convert_tokenizer(source: Path, end: str, settings: dict[str, Any]) -> "PreTrainedTokenizerFast":
    """`source`/tokenizer.model as a fast tokenizer with the added tokens and the chat template of `settings`.

    Args:
        end: its eos_token.

    Raises:
        UserError: sentencepiece is not installed, or the model is not BPE.
    """
    sentencepiece_model = _import("sentencepiece.sentencepiece_model_pb2")
    from tokenizers import AddedToken, processors
    from transformers import PreTrainedTokenizerFast

    proto = sentencepiece_model.ModelProto()
    proto.ParseFromString((source / "tokenizer.model").read_bytes())
    if proto.trainer_spec.model_type != BPE:
        raise UserError(f"{source / 'tokenizer.model'}: only a BPE model of sentencepiece can be converted")
    added = {int(number): token for number, token in settings["added_tokens_decoder"].items()}
    vocabulary = {piece.piece: number for number, piece in enumerate(proto.pieces) if number not in added}
    vocabulary |= {token["content"]: number for number, token in added.items()}  # some take an unused piece's id
    tokenizer = _bpe(proto, vocabulary)
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
        eos_token=end,
        chat_template=settings["chat_template"],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **names,
    )


def check_tokenizer(
    tokenizer: "PreTrainedTokenizerFast", source: Path, settings: dict[str, Any], texts: Iterable[str]
) -> None:
    """Raise UserError for the first text whose ids differ from the published tokenizer's.

    The published one splits a text at its added tokens and encodes the rest with sentencepiece.
    """
    processor = _import("sentencepiece").SentencePieceProcessor(model_file=str(source / "tokenizer.model"))
    added = {token["content"]: int(number) for number, token in settings["added_tokens_decoder"].items()}
    longest_first = sorted(added, key=len, reverse=True)
    cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
    texts = list(texts)
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    for text, converted in zip(texts, ids, strict=True):
        if converted != _published_ids(text, cut, added, processor):
            raise UserError(
                f"{source}: the converted tokenizer and sentencepiece disagree on {text[:60]!r}; "
                "model.remote_tokenizer=true runs the tokenizer's own code instead, from the pinned revision"
            )


def _published_ids(text: str, cut: re.Pattern, added: dict[str, int], processor: "SentencePieceProcessor") -> list[int]:
    ids: list[int] = []
    for piece in cut.split(text):
        ids += [added[piece]] if piece in added else processor.encode(piece)
    return ids


def _bpe(proto: Any, vocabulary: dict[str, int]) -> "Tokenizer":
    """Merges by descending score, and the model's own normalization of spaces and characters."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers

    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == NORMAL and piece.piece in vocabulary}
    merges = [
        (score, piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    merges.sort(key=lambda merge: -merge[0])
    spec = proto.normalizer_spec
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[(left, right) for _, left, right in merges],
            unk_token=proto.trainer_spec.unk_piece,
            fuse_unk=True,
            byte_fallback=proto.trainer_spec.byte_fallback,
        )
    )
    chain: list[Any] = []
    if spec.precompiled_charsmap:
        chain.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        chain += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        chain.append(normalizers.Prepend("▁"))
    tokenizer.normalizer = normalizers.Sequence([*chain, normalizers.Replace(" ", "▁")])
    ends = [decoders.Strip(content=" ", left=1)] if spec.add_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    return tokenizer


def _import(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            'converting InternLM3\'s tokenizer needs sentencepiece: pip install "entropy-dynamics[internlm3]"'
        ) from None


def _content(token: str | dict[str, Any]) -> str:
    """A special token of tokenizer_config.json, which is either a string or an object with `content`."""
    return token if isinstance(token, str) else token["content"]
