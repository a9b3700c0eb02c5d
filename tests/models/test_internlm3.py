"""InternLM3 as a Llama, on made-up checkpoints in the layout that is published: weights, config and tokenizer."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

import published_models
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.internlm3 import check_tokenizer, convert_tokenizer, turn_end
from entropy_dynamics.models.pretrained import prepare_pretrained
from entropy_dynamics.models.storage import load_policy, load_tokenizer
from entropy_dynamics.tasks import Problem

spm = pytest.importorskip("sentencepiece")

MODEL = "internlm3-8b-instruct"
PIECES = 400
SPECIAL = {0: "<unk>", 1: "<s>", 2: "</s>", PIECES: "<|im_start|>", PIECES + 1: "<|im_end|>", PIECES + 2: "<|plugin|>"}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PUBLISHED = {  # the keys of the published config.json; sizes reduced
    "architectures": ["InternLM3ForCausalLM"], "model_type": "internlm3", "torch_dtype": "bfloat16",
    "auto_map": {
        "AutoConfig": "configuration_internlm3.InternLM3Config",
        "AutoModel": "modeling_internlm3.InternLM3Model",
        "AutoModelForCausalLM": "modeling_internlm3.InternLM3ForCausalLM",
    },
    "bias": False, "qkv_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "tie_word_embeddings": False,
    "hidden_size": 32, "intermediate_size": 40, "vocab_size": PIECES + 16,
    "max_position_embeddings": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16,  # matters, as 4 x 16 is not hidden_size
    "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}, "rope_theta": 50000000,
}  # fmt: skip
# Where conversions of sentencepiece models are known to go wrong.
PROBES = (
    " a", "  two spaces", "trailing  ", "a  b   c", "\n\nFind x.\n", "\ta\r\nb",
    "0123456789 3.14 1,000", "   ", "求方程的解，答案是42。", "\u3000全角　ＡＢＣ１２３", "e\u0301\u00a0é",
    "▁a 🙂", r"$\frac{1}{2}$ \boxed{7}",
)  # fmt: skip
SHAPE = published_models.SHAPE | {"architecture": "llama", "intermediate_size": 40, "heads": 4, "kv_heads": 2}
SHAPE |= {"vocabulary": PIECES + 16}
PROBLEMS = [
    "  Find $x$ with $x^2 = 49$.\n\nGive the positive one.",
    "What is 12345 + 67890?",
    "求最大值，答案是整数。",
    "Tokens such as <|im_end|> or </s> inside a string, and \\boxed{}",
]


def train_sentencepiece(folder, **settings):
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join([*PROBES, *PROBLEMS, "the sum of the numbers is 2 + 2 = 4  and  then some"] * 20))
    spm.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "tokenizer"),
        **{"vocab_size": PIECES, "model_type": "bpe", "byte_fallback": True, "split_digits": True, "pad_id": -1}
        | {"unk_id": 0, "bos_id": 1, "eos_id": 2, "num_threads": 1, "minloglevel": 2}
        | settings,
    )


AS_IS = {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "normalization_rule_name": "identity"}


def write_tokenizer(folder, **settings):
    """The published files of the tokenizer, around a toy sentencepiece model."""
    train_sentencepiece(folder, **settings)
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    tokenizer_config = {
        "tokenizer_class": "InternLM3Tokenizer", "sp_model_kwargs": {},
        "clean_up_tokenization_spaces": False,
        "auto_map": {"AutoTokenizer": ["tokenization_internlm3.InternLM3Tokenizer", None]},
        "add_bos_token": True, "bos_token": "<s>", "add_eos_token": False, "eos_token": "</s>",
        "pad_token": "</s>", "unk_token": "<unk>",
        "added_tokens_decoder": {str(number): {"content": content} | flags for number, content in SPECIAL.items()},
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|plugin|>"],
        "chat_template": TEMPLATE,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A directory as InternLM3's: random weights under its names, in two shards, and no code."""
    folder = tmp_path_factory.mktemp("internlm3")
    write_tokenizer(folder, **AS_IS)
    (folder / "config.json").write_text(json.dumps(PUBLISHED))
    generation = {"bos_token_id": 1, "eos_token_id": [2, PIECES + 1], "pad_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    generator = torch.Generator().manual_seed(1)
    shapes = {"model.embed_tokens.weight": (PIECES + 16, 32), "model.norm.weight": (32,)}
    for layer in range(2):
        block = f"model.layers.{layer}"
        shapes |= {
            f"{block}.self_attn.{name}_proj.weight": (size, 32) for name, size in (("q", 64), ("k", 32), ("v", 32))
        }
        shapes |= {f"{block}.self_attn.o_proj.weight": (32, 64)}
        shapes |= {f"{block}.mlp.{name}_proj.weight": (40, 32) for name in ("gate", "up")}
        shapes |= {f"{block}.mlp.down_proj.weight": (32, 40)}
        shapes |= {f"{block}.{name}_layernorm.weight": (32,) for name in ("input", "post_attention")}
    shapes |= {"lm_head.weight": (PIECES + 16, 32)}
    tensors = {name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    tensors |= {name: 1 + tensor for name, tensor in tensors.items() if tensor.ndim == 1}
    names = sorted(tensors)
    where = {name: f"model-0000{1 + (number % 2)}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in names if where[name] == file}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def prepare(source, out):
    limits = ("sampling.max_prompt_tokens=32", "sampling.max_new_tokens=32")
    config = published_models.settings(f"model.path={source}", *limits, model=MODEL, shape=SHAPE)
    prepare_pretrained(config, out, [Problem(text, text, "1", "math") for text in PROBLEMS])
    return out


def internlm3_logits(weights, tokens, settings):
    """InternLM3's forward pass in float64, after its published description: RMSNorm, grouped-query attention, SwiGLU.

    The rope stretches its base where a sequence is longer than max_position_embeddings ("dynamic NTK").
    """
    weights = {name: tensor.double() for name, tensor in weights.items()}
    size, length = settings["head_dim"], len(tokens)
    longest = max(length, settings["max_position_embeddings"])
    factor = settings["rope_scaling"]["factor"]
    stretch = factor * longest / settings["max_position_embeddings"] - (factor - 1)
    base = settings["rope_theta"] * stretch ** (size / (size - 2))
    angles = torch.arange(length).double()[:, None] / base ** (torch.arange(0, size, 2).double() / size)
    turn = torch.polar(torch.ones_like(angles), angles)

    def norm(x, name):
        return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + settings["rms_norm_eps"]) * weights[f"{name}.weight"]

    def heads(x, name, count, turned=True):
        x = (x @ weights[f"{name}.weight"].T).view(length, count, size).transpose(0, 1)
        if not turned:
            return x
        pairs = torch.complex(x[..., : size // 2], x[..., size // 2 :]) * turn  # halves, not neighbors, are pairs
        return torch.cat([pairs.real, pairs.imag], -1)

    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(settings["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        h = norm(x, f"{block}.input_layernorm")
        all_heads, shared = settings["num_attention_heads"], settings["num_key_value_heads"]
        q = heads(h, f"{block}.self_attn.q_proj", all_heads)
        k = heads(h, f"{block}.self_attn.k_proj", shared).repeat_interleave(all_heads // shared, 0)
        v = heads(h, f"{block}.self_attn.v_proj", shared, turned=False).repeat_interleave(all_heads // shared, 0)
        scores = q @ k.transpose(1, 2) / math.sqrt(size)
        future = torch.ones(length, length).triu(1).bool()
        mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        x = x + mixed.transpose(0, 1).reshape(length, -1) @ weights[f"{block}.self_attn.o_proj.weight"].T
        h = norm(x, f"{block}.post_attention_layernorm")
        gate, up = (h @ weights[f"{block}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ weights[f"{block}.mlp.down_proj.weight"].T
    return norm(x, "model.norm") @ weights["lm_head.weight"].T


@pytest.mark.parametrize("length", [40, 100])  # within max_position_embeddings, and beyond
def test_the_llama_computes_what_internlm3_does(checkpoint, tmp_path, length):
    model, _ = load_policy(prepare(checkpoint, tmp_path / "model"))
    assert type(model).__name__ == "LlamaForCausalLM"
    tokens = torch.randint(PIECES, (length,), generator=torch.Generator().manual_seed(2))
    weights = {name: tensor for file in checkpoint.glob("*.safetensors") for name, tensor in load_file(file).items()}
    expected = internlm3_logits(weights, tokens, PUBLISHED)
    assert expected.std() > 0.5
    with torch.no_grad():
        torch.testing.assert_close(model(tokens[None]).logits[0].double(), expected, rtol=0, atol=1e-4)


def test_the_prepared_directory_is_a_llamas_and_has_no_code(checkpoint, tmp_path):
    source = linked(checkpoint, tmp_path / "source")
    for name in ("tokenization_internlm3.py", "modeling_internlm3.py"):
        (source / name).write_text("raise SystemExit('published code was run')")
    out = prepare(source, tmp_path / "model")
    assert not list(out.glob("*.py"))
    assert type(load_policy(out)[0]).__name__ == "LlamaForCausalLM"
    config = json.loads((out / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rope_parameters"] == {"rope_type": "dynamic", "factor": 6.0, "rope_theta": 50000000}
    assert not {"auto_map", "qkv_bias", "bias", "rope_theta", "rope_scaling"} & config.keys()
    facts = json.loads((out / "model.json").read_text())
    assert facts["architecture"] == "llama"
    assert json.loads((source / "config.json").read_text()) == PUBLISHED  # it stays as it is


def linked(checkpoint, folder, **config):
    """A copy of the checkpoint with other values in its config.json."""
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(PUBLISHED | config))
    return folder


def test_biases_are_refused(checkpoint, tmp_path):
    source = linked(checkpoint, tmp_path / "source", qkv_bias=True)
    with pytest.raises(UserError, match=r"config\.json: qkv_bias is true; only an InternLM3 without biases"):
        prepare(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()


# ---------------------------------------------------------------- tokenizer
def published_ids(processor, text):
    """Added tokens are cut out first; sentencepiece has the rest."""
    for number, content in SPECIAL.items():
        if content in text:
            left, _, right = text.partition(content)
            return [*published_ids(processor, left), number, *published_ids(processor, right)]
    return processor.encode(text)


def test_prompts_have_sentencepieces_ids_and_end_with_the_turn(checkpoint, tmp_path):
    tokenizer = load_tokenizer(prepare(checkpoint, tmp_path / "model"))
    processor = spm.SentencePieceProcessor(model_file=str(checkpoint / "tokenizer.model"))
    for text in [*PROBES, *PROBLEMS]:
        assert tokenizer.encode(text, add_special_tokens=False) == published_ids(processor, text), text
        assert tokenizer.encode(text) == [1, *published_ids(processor, text)], text
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text.replace("▁", " ")
    prompt = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Think."}, {"role": "user", "content": PROBLEMS[0]}],
        tokenize=False,
        add_generation_prompt=True,
    )
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert ids == published_ids(processor, prompt)
    assert ids[:2] == [1, PIECES]
    assert tokenizer.convert_ids_to_tokens(ids[-1]) == "<0x0A>"
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_token_id == PIECES + 1
    assert tokenizer.pad_token_id == 2


MODELS = {
    "as it is": AS_IS,
    "whitespace pieces": AS_IS | {"allow_whitespace_only_pieces": True},
    "user-defined symbols": AS_IS | {"user_defined_symbols": ["\n\n", "<code>"]},
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_is_converted_exactly(tmp_path, kind):
    write_tokenizer(tmp_path, **MODELS[kind])
    tokenizer = convert_tokenizer(tmp_path)
    processor = spm.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    generator = torch.Generator().manual_seed(3)
    alphabet = [*" \n\t▁1aé你.", "  ", "the", "\u3000", "\u00a0", "🙂", "<|im_end|>", "<code>"]
    lengths = torch.randint(0, 12, (500,), generator=generator).tolist()
    texts = ["".join(alphabet[i] for i in torch.randint(len(alphabet), (n,), generator=generator)) for n in lengths]
    for text in [*PROBES, *PROBLEMS, *texts]:
        assert tokenizer.encode(text, add_special_tokens=False) == published_ids(processor, text), repr(text)
    check_tokenizer(tokenizer, tmp_path, texts)  # says the same


def test_a_wrong_conversion_is_an_error(checkpoint):
    from tokenizers import normalizers

    tokenizer = convert_tokenizer(checkpoint)
    # What a Llama's tokenizer does, and this sentencepiece model does not: a space in front.
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    with pytest.raises(UserError, match="the converted tokenizer and sentencepiece disagree on 'What is"):
        check_tokenizer(tokenizer, checkpoint, [*PROBLEMS[1:], *PROBES])


def test_the_end_of_a_turn():
    settings = {"eos_token": {"content": "</s>"}, "chat_template": TEMPLATE}
    settings["added_tokens_decoder"] = {str(number): {"content": content} for number, content in SPECIAL.items()}
    assert turn_end(settings, [2, PIECES + 1]) == "<|im_end|>"
    assert turn_end(settings, 2) == "</s>"
    assert turn_end(settings, None) == "</s>"
