"""Sizes of models and shards, and memory of a GPU, against transformers, autograd and files."""

import pytest
import torch
from test_plan import paper
from transformers import AutoModel, AutoModelForCausalLM

from conftest import ARCHITECTURES
from entropy_dynamics.config import load_config
from entropy_dynamics.config.schema.model import ShapeConfig
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.models.toy import build_toy_model, transformers_config
from entropy_dynamics.models.toy_tokenizer import build_tokenizer
from entropy_dynamics.planning.footprint import (
    GIB,
    block_activation_bytes,
    checkpoint_buffers,
    checkpoint_bytes,
    critic_parameters,
    parameters,
    sampling_memory,
    shape_of,
    shard_bytes,
    training_memory,
)
from entropy_dynamics.training.checkpoints import Checkpoints
from entropy_dynamics.training.critic import Critic

# Parameters in the safetensors files on the Hugging Face Hub.
PUBLISHED = {
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen3-4B-Base": 4_022_468_096,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": 8_030_261_248,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen3-0.6B-Base": 596_049_920,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
}


# ---------------------------------------------------------------- sizes
@pytest.mark.parametrize(
    ("scale", "model"),
    [(scale, model) for scale in ("paper", "gpu") for model in load_config(scale).models],
)
def test_parameters_are_those_of_the_real_architecture(scale, model):
    config = paper(scale=scale, model=model).model
    with torch.device("meta"):
        real = AutoModelForCausalLM.from_config(transformers_config(config.shape))
    assert parameters(config.shape) == real.num_parameters()
    assert critic_parameters(config.shape) == real.model.num_parameters() + config.shape.hidden_size + 1
    assert parameters(config.shape) == PUBLISHED.get(config.pretrained, real.num_parameters())


@pytest.mark.parametrize("scale", ["laptop", "rehearsal", "gpu-toy"])
def test_the_shape_of_a_toy_model_is_its_own(scale):
    for model in load_config(scale).models:
        config = load_config(scale, model)
        spec = config.toy_models[model]
        with torch.device("meta"):
            toy = build_toy_model(spec, build_tokenizer(spec.tokenizer))
        assert parameters(shape_of(config)) == toy.num_parameters()


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [*zip(ARCHITECTURES, [(64, 192, 4, 2), (128, 192, 8, 2), (64, 384, 4, 4)], strict=True)],
)
def test_a_block_keeps_as_many_bytes_as_autograd_saves(architecture, sizes):
    sizes = dict(zip(("hidden_size", "intermediate_size", "heads", "kv_heads"), sizes, strict=True))
    same = {"layers": 1, "head_size": 16, "vocabulary": 32, "tied_embeddings": True}
    shape = ShapeConfig(architecture=architecture, **sizes, **same)
    model = AutoModel.from_config(transformers_config(shape, attn_implementation="sdpa")).to(torch.bfloat16)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    tokens, kept = 64, {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    states = torch.randn(1, tokens, shape.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    positions = torch.arange(tokens)[None]
    rope = model.rotary_emb(states, positions)
    outside = weights | {each.untyped_storage().data_ptr() for each in rope}  # shared by all blocks
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.layers[0](states, position_embeddings=rope, position_ids=positions, attention_mask=None)
    saved = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in outside)
    assert block_activation_bytes(shape) == saved / tokens


# ---------------------------------------------------------------- memory of a GPU
def test_bytes_of_a_shard():
    assert shard_bytes(paper(), 16) == 16 * 7_615_616_512 / 4
    critic = 7_615_616_512 - 152_064 * 3_584 + 3_584 + 1  # without the output head, with one value instead
    assert shard_bytes(paper("ppo"), 16) == 16 * (7_615_616_512 + critic) / 8


def test_the_engine_gets_its_share_of_the_gpu():
    half = paper("grpo", "engine.gpu_memory_utilization=0.5", "plan.gpus.A100.memory_gib=80")
    parts = sampling_memory(half, trains=False)
    assert parts["engine weights"] + parts["KV cache"] + parts["engine"] == pytest.approx(40 * GIB)
    assert parts["engine weights"] == 2 * 7_615_616_512
    fixed = sampling_memory(paper("grpo", "engine.kv_cache_gib=10"), trains=True)
    assert fixed["KV cache"] == 10 * GIB
    assert set(fixed) - set(parts) == {"shards"}


@pytest.mark.parametrize(("method", "tied"), [("grpo", True), ("grpo", False), ("ppo", False)])
def test_a_checkpoint_on_disk_is_as_large_as_planned(tmp_path, monkeypatch, method, tied):
    for module in ("training.checkpoints", "planning.footprint"):
        monkeypatch.setattr(f"entropy_dynamics.{module}.CHECKPOINT_FILE_BYTES", 2**20)
    sizes = {"layers": 2, "hidden_size": 192, "intermediate_size": 512, "heads": 4, "kv_heads": 2, "head_size": 48}
    shape = ShapeConfig(architecture="qwen2", vocabulary=2000, tied_embeddings=tied, **sizes)
    config = paper(method)
    config = config.model_copy(update={"model": config.model.model_copy(update={"shape": shape})})
    policy = AutoModelForCausalLM.from_config(transformers_config(shape))
    modules = {"policy": policy}
    if method == "ppo":
        modules["critic"] = Critic(AutoModel.from_config(transformers_config(shape)), 192)
    trained = {name: (module, torch.optim.AdamW(module.parameters())) for name, module in modules.items()}
    Checkpoints(tmp_path, Ranks(), made_from={}, made_by={}, kept=1).save(trained, [{"step": 0}], {})
    on_disk = [path.stat().st_size for path in tmp_path.rglob("*.*") if path.is_file()]
    assert checkpoint_bytes(config) == pytest.approx(sum(on_disk), rel=0.01)
    assert len(on_disk) > 5
    assert 3 * max(on_disk) <= checkpoint_buffers(config)  # a file is held three times while it is written


def test_a_native_engine_on_ranks_keeps_its_weights_during_an_update():
    """The native engine does not sleep; without ranks it samples from the policy itself."""
    vllm, native = training_memory(paper()), training_memory(paper("grpo", "engine.name=native"))
    assert native == vllm | {"engine weights": 2 * 7_615_616_512}
    assert "engine weights" not in training_memory(paper(scale="laptop"))


def test_an_accumulated_gradient_is_unsharded():
    """FSDP2 without gradient sync accumulates micro-batches in fp32, unsharded: 4 bytes per parameter of 14.77e9."""
    model = "qwen2.5-14b-instruct"
    often = training_memory(paper(model=model))
    once = training_memory(paper("grpo", "training.reduce_every_micro_batch=false", model=model))
    root = 2 * 152_064 * 5_120 + 5_120
    whole = 4 * 14_770_033_664
    assert once["gradients in flight"] == pytest.approx(whole - whole / 8 + 2 * root)  # an eighth is in the shards
    assert often["gradients in flight"] == 6 * root


def test_checkpointing_keeps_one_block_instead_of_all():
    configs = (paper("grpo", f"training.activation_checkpointing={kind}") for kind in ("full", "none"))
    few, many = (training_memory(config)["activations"] for config in configs)
    shape = paper().model.shape
    assert few == training_memory(paper())["activations"]
    assert many - few == 27 * 16_384 * block_activation_bytes(shape)
