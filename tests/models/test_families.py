"""Model families by what they compute: tiny random models of transformers' classes, trained, sampled, refused."""

import copy
import json

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM
from transformers.cache_utils import DynamicLayer

from command_line import error, set_to
from conftest import ARCHITECTURES, ROOT, SMALL
from entropy_dynamics.cli import main
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.models.families import _small, check_family, shape_in
from entropy_dynamics.models.storage import load_model
from entropy_dynamics.models.tree import fits
from entropy_dynamics.planning.footprint import MEASURED, block_activation_bytes
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.training.checkpoints import Checkpoints
from entropy_dynamics.training.policy import Policy
from mistakes import mistake
from published_models import byte_level_tokenizer
from reference import (
    assert_close,
    batch_of,
    gradients,
    interrupt,
    log_probabilities,
    parameters,
    rollouts_of,
    slow_stats,
)

SHAPE = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 2}
SHAPE |= {"num_key_value_heads": 1, "head_dim": 32, "vocab_size": 320, "max_position_embeddings": 512}
TEMPERATURE = 0.8
WINDOW = {"sliding_window": 5}  # tokens: shorter than prompt and response
FAMILIES = {  # what sets each apart; the last ones attend to a window
    **{name: {} for name in (*ARCHITECTURES, "phi3", "smollm3", "olmo2", "gemma", "glm4", "granite", "mistral")},
    "hunyuan_v1_dense": {},
    "mistral with a window": WINDOW,
    "phi3 with a window": WINDOW,
    "gemma3_text": WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
    "olmo3": WINDOW | {"layer_types": ["full_attention", "sliding_attention"]},
}
MIXED = {"layer_types": ["full_attention", "conv"], "block_auto_adjust_ff_dim": False, "intermediate_size": 3000}
REFUSED = {
    "gemma2": ({}, "nats off transformers' logits: final_logit_softcapping is 30$"),
    "cohere": ({}, "nats off transformers' logits: logit_scale is 0.0625$"),
    "granite": ({"logits_scaling": 8.0}, "nats off transformers' logits: logits_scaling is 8$"),
    "mixtral": ({}, r"it has 558,400 parameters; with blocks of attention and one gated MLP, .* it would be 127,296$"),
    "starcoder2": ({}, "with blocks of attention and one gated MLP"),
    "lfm2": (MIXED, "the trainer's calls fail"),
    "stablelm": ({}, "the trainer's calls fail"),
    "gpt2": ({}, "no value for hidden_size$"),
}


def config_of(family: str, **changes):
    name = family.split()[0]
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return CONFIG_MAPPING[name](**SHAPE | special | FAMILIES.get(family, {}) | changes)


@pytest.fixture(scope="module")
def family_model(tokenizer):
    def make(family: str):
        config = config_of(family, vocab_size=len(tokenizer), initializer_range=0.25)
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config).float().eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight) * (weight.ndim == 1))
        return model

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_and_samples(family, family_model, make_trainer):
    """Log p of the trainer, with and without a tree, and of the native engine, against one sequence at a time."""
    check_family(config_of(family), "config.json")
    model = family_model(family)
    assert fits(model) == (FAMILIES[family] == {})
    trainer = make_trainer(model, importance_truncation=2.0, max_new=12)
    prompts, rollouts = rollouts_of(trainer)
    batch = batch_of(trainer)
    rows = torch.arange(len(batch)).flip(0)
    assert len(batch.prompt_lengths.unique()) > 1
    with torch.no_grad():
        expected = list(slow_stats(model, prompts, rollouts, TEMPERATURE))
        for rollout, log_p in zip(rollouts, log_probabilities(model, prompts, rollouts), strict=True):
            own = log_p.gather(-1, torch.tensor(rollout.token_ids)[:, None])[:, 0]
            assert (torch.tensor(rollout.logp).double() - own).abs().max() < 2e-5
    found = []
    for share in (True, False):
        model.zero_grad()
        stats = Policy(model, share=share).stats(batch, rows, TEMPERATURE, entropy_gradient=True)
        for place, row in enumerate(rows.tolist()):
            length = len(rollouts[row].token_ids)
            for name, values in expected[row].items():
                got = getattr(stats, name)[place].detach().double()
                assert (got[:length] - values).abs().max() < 2e-5
                assert not got[length:].any()
        (stats.logp + stats.entropy).sum().backward()
        found.append(gradients(model))
    assert_close(*found, relative=1e-5)
    assert sum(len(rollout.token_ids) for rollout in rollouts) > 5 * len(rollouts)  # longer than the window


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ARCHITECTURES])
def test_a_resumed_run_is_bitwise_the_same(family, family_model, make_trainer, tmp_path):
    def run(folder, until=9):
        trainer = make_trainer(copy.deepcopy(model), steps=3, learning_rate=1e-2, checkpoint_every=1)
        interrupt(trainer, before=until)
        trainer.run(folder, Checkpoints(tmp_path / folder, Ranks(), made_from={}, made_by={}, kept=1), lambda *_: None)
        return parameters(trainer.policy.model)

    model = family_model(family)
    with pytest.raises(KeyboardInterrupt):
        run("b", until=2)
    assert [*(tmp_path / "b").rglob("checkpoint.json")]
    assert torch.equal(run("a"), run("b"))


@pytest.mark.parametrize("family", REFUSED)
def test_another_family_is_refused_with_the_reason(family):
    changes, reason = REFUSED[family]
    with mistake(match=f"^config.json: a {family} cannot be trained here: .*{reason}|^config.json: {reason}"):
        check_family(config_of(family, **changes), "config.json")


def test_states_over_a_tree_and_with_a_cache_are_compared_too(monkeypatch):
    """As if a family's window were not in its config, or its attention kept another cache."""
    config = config_of("mistral with a window")
    check_family(config, "config.json")
    with monkeypatch.context() as patch:
        patch.setattr("entropy_dynamics.models.tree.fits", lambda model: True)
        with mistake(match="over a tree of prefixes its hidden states are others$"):
            check_family(config, "config.json")
    update = DynamicLayer.update
    monkeypatch.setattr(
        DynamicLayer, "update", lambda self, key, value, *rest, **more: update(self, key, 2 * value, *rest, **more)
    )
    with mistake(match="with a KV cache its hidden states are others$"):
        check_family(config, "config.json")


def test_an_uneven_model_is_checked_with_a_block_of_each_kind():
    types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"]
    small = _small(config_of("gemma3_text", num_hidden_layers=5, layer_types=types, vocab_size=1000))
    assert (small.num_hidden_layers, small.layer_types) == (2, types[:2])
    ropes = _small(config_of("smollm3", num_hidden_layers=5, layer_types=None, no_rope_layers=[1, 1, 1, 0, 1]))
    assert ropes.no_rope_layers == [1, 0]


@pytest.mark.parametrize("family", [name for name in FAMILIES if FAMILIES[name] != WINDOW])
def test_a_block_keeps_about_as_many_bytes_as_planned(family):
    """The difference of two blocks and one."""
    config = config_of(family)
    model = AutoModel.from_config(config).to(torch.bfloat16)
    outside = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept, ids = {}, torch.randint(0, 9, (1, 64))

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in outside:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    sizes, layers = [], model.layers
    for count in (1, 2):
        model.layers = layers[:count]
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(input_ids=ids, use_cache=False)
        sizes.append(sum(tensor.untyped_storage().nbytes() for tensor in kept.values()))
    planned, saved = block_activation_bytes(shape_in(config.to_dict(), "config.json")), (sizes[1] - sizes[0]) / 64
    assert saved == planned if family in MEASURED else saved <= planned <= 2 * saved


def test_a_family_is_accepted_or_refused_by_the_command(tmp_path, capsys):
    """`plan` and `model` of a directory with another family; the weights of a refused one are not needed."""
    folder = tmp_path / "published"
    chosen = ["--scale", "smollm2-mini", "--set", f"model.path={folder}", "--set", "model.shape=null"]
    chosen += ["--set", "cold_start=null", "--results"]
    of_model = ["--model", "smollm2-135m-instruct"]
    config = config_of("phi3", max_position_embeddings=4096)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    for results in (str(tmp_path / "a"), str(tmp_path / "b")):
        assert main(["problems", *chosen, results]) == 0
    assert main(["plan", *chosen, results]) == 0
    assert main(["model", *chosen, results, *of_model]) == 0
    out = Layout(tmp_path / "b" / "smollm2-mini").model(of_model[1], 0)
    assert json.loads((out / "model.json").read_text())["architecture"] == "phi3"
    assert type(load_model(out)).__name__ == "Phi3ForCausalLM"
    capsys.readouterr()
    for file in folder.glob("*.safetensors"):
        file.unlink()
    config_of("gemma2", max_position_embeddings=4096).save_pretrained(folder)
    refused = error(capsys, "model", *chosen, str(tmp_path / "a"), *of_model)
    assert refused.startswith(f"{folder}/config.json: a gemma2 cannot be trained here: log p ")


def test_a_toy_of_another_family_goes_through_the_stages(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    toy, of_model = "qwen2.5-7b-instruct", ["--model", "qwen2.5-7b-instruct"]
    settings = set_to([*SMALL, f"toy_models[{toy}].architecture=olmo2"])
    common = ["--scale", "smoke", "--results", str(tmp_path), *settings]
    for stage in (["problems"], ["model", *of_model], ["pass_rates"], ["train", *of_model, "--method", "clip_b"]):
        assert main([*stage, *common, *(["--seed", "0"] if stage[0] == "train" else [])]) == 0
    layout = Layout.of("smoke", tmp_path)
    assert type(load_model(layout.policy(toy, "clip_b", 0))).__name__ == "Olmo2ForCausalLM"
    capsys.readouterr()
    other = [part.replace("olmo2", "gemma2") for part in common[2:]]
    refused = error(capsys, "model", *of_model, "--scale", "smoke", *other, "--seed", "1")
    assert refused.startswith(f"toy_models[{toy}]: a gemma2 cannot be trained here: log p from hidden states")
