"""Small models in the format of published ones, and their preparation."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from entropy_dynamics.config import load_config
from entropy_dynamics.models.pretrained import prepare_pretrained
from entropy_dynamics.models.toy import SIZES as KEYS

MODEL = "qwen2.5-7b-instruct"
SHAPE = {
    "architecture": "qwen2",
    "layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "heads": 2,
    "kv_heads": 1,
    "head_size": 16,
    "vocabulary": 320,
    "tied_embeddings": "false",
}
SIZES = {KEYS[key]: size for key, size in SHAPE.items() if key in KEYS}  # in a config.json
del SIZES["head_dim"], SIZES["tie_word_embeddings"]
TEXT = "Find $x$ such\n that  2 + 2 = x, é."


def byte_level_tokenizer(special=("<s>", "</s>")):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=list(special))
    tokenizer.train_from_iterator([TEXT, "such that such that Find Find"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=special[0],
        eos_token=special[1],
        pad_token=special[1],
        chat_template="{{ messages }}",
    )


def write_model(folder, max_shard_size="5GB", tied=False):
    config = Qwen2Config(**SIZES, tie_word_embeddings=tied)
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    byte_level_tokenizer().save_pretrained(folder)
    return folder


def settings(*overrides, scale="paper", model=MODEL, shape=SHAPE):
    sizes = [f"model.shape.{key}={value}" for key, value in shape.items()]
    return load_config(scale, model, None, [*sizes, *overrides])


def prepare(source, out, *overrides):
    prepare_pretrained(settings(f"model.path={source}", *overrides), out, [])
    return out
