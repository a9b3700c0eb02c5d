"""What published models have and toy models lack: several end tokens, settings for sampling, tied heads, a context."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from packaging.version import Version
from safetensors.torch import load_file, save_file

from command_line import output
from conftest import ROOT
from entropy_dynamics.cli import main
from entropy_dynamics.config import load_config
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import empty_model
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.pretrained import checkpoint_shape, prepare_pretrained
from entropy_dynamics.models.storage import (
    check_directory,
    load_model,
    load_policy,
    save_description,
    save_policy,
)
from entropy_dynamics.models.toy_tokenizer import MAX_LENGTH
from entropy_dynamics.planning.footprint import shape_of
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sampling import open_sampler
from entropy_dynamics.sampling.vllm import open_engine as open_vllm
from fake_vllm import FakeLLM
from published_models import MODEL, SHAPE, prepare, write_model


@pytest.fixture
def source(tmp_path):
    return write_model(tmp_path / "source")


def edit(file, **changed):
    """Change entries of a JSON file; None removes one."""
    content = (json.loads(file.read_text()) if file.is_file() else {}) | changed
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


# ---------------------------------------------------------------- generation_config.json
SAMPLING = {"temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 7], "max_length": 77}


def test_settings_for_sampling_without_do_sample_can_be_saved_again(source, tmp_path):
    edit(source / "generation_config.json", do_sample=None, **SAMPLING)
    model, tokenizer = load_policy(prepare(source, tmp_path / MODEL))
    save_policy(model, tokenizer, tmp_path / "trained")
    kept = json.loads((tmp_path / "trained" / "generation_config.json").read_text())
    assert kept.items() >= (SAMPLING | {"do_sample": True}).items()


@pytest.mark.parametrize("published", [True, False])
def test_a_sharded_policy_is_described_like_one_in_a_plain_process(source, tmp_path, published):
    if published:
        edit(source / "generation_config.json", do_sample=True, **SAMPLING)
    else:
        (source / "generation_config.json").unlink()
    directory = prepare(source, tmp_path / MODEL)
    _, tokenizer = load_policy(directory)
    written = []
    for name, model in (("plain", load_model(directory)), ("sharded", empty_model(directory))):
        save_description(model, tokenizer, tmp_path / name, torch.bfloat16)
        written.append({file.name: file.read_text() for file in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert ('"top_p": 0.9' in written[1]["generation_config.json"]) == published


@pytest.mark.skipif(
    Version(transformers.__version__) >= Version("5.24"), reason="such settings are saved, with a warning"
)
def test_a_policy_that_cannot_be_saved_is_an_error_before_the_first_step(small_results, monkeypatch, capsys):
    base = next(small_results.folder.glob("smoke/**/generation_config.json"))
    edit(base, temperature=0.6)
    monkeypatch.setattr("entropy_dynamics.training.trainer.Trainer.step", lambda *_: pytest.fail("a step was taken"))
    _, err = output(capsys, *small_results.train("grpo"), code=2)
    assert f"config and tokenizer of {base.parent} cannot be written (GenerationConfig is invalid" in err
    assert "`temperature`" in err
    assert not small_results.run("grpo").exists()


# ---------------------------------------------------------------- end tokens
@pytest.fixture
def two_ends(shared_model, tokenizer, tmp_path):
    """A model whose generation_config.json has a second end token, the digit 1, which it often samples."""
    save_policy(shared_model, tokenizer, tmp_path)
    second = tokenizer.convert_tokens_to_ids("1")
    edit(tmp_path / "generation_config.json", eos_token_id=[tokenizer.eos_token_id, second])
    return SimpleNamespace(directory=tmp_path, ends={tokenizer.eos_token_id, second}, second=second)


HOW = {"samples": 8, "temperature": 1.0, "max_new_tokens": 20, "stream": "test"}


def test_every_end_token_of_the_model_ends_a_response(two_ends, tokenizer, prompts):
    config = load_config("smoke", MODEL)
    with open_sampler(config, two_ends.directory, tokenizer, Ranks()) as sampler:
        rollouts = sampler.sample(prompts, **HOW)
    assert {one.token_ids[-1] for one in rollouts} >= two_ends.ends
    for one in rollouts:
        assert not two_ends.ends & set(one.token_ids[:-1])
        assert (one.finish_reason == "stop") == (one.token_ids[-1] in two_ends.ends)
        assert one.finish_reason == "stop" or len(one.token_ids) == HOW["max_new_tokens"]


def test_vllm_stops_at_every_end_token(two_ends, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=FakeLLM, SamplingParams=SimpleNamespace))
    config = load_config("rehearsal", MODEL)
    sampler = open_vllm(config, two_ends.directory, tokenizer, with_training=False)
    with pytest.raises(ValueError, match="zip"):  # fewer outputs than samples
        sampler.sample([SimpleNamespace(problem_id="p", token_ids=[2])], **HOW)
    assert {tuple(sorted(each.stop_token_ids)) for each in sampler._llm.settings} == {tuple(sorted(two_ends.ends))}
    assert all(each.ignore_eos for each in sampler._llm.settings)  # the engine has no tokenizer, so all are stated


# ---------------------------------------------------------------- the context
def test_a_prompt_and_its_response_fit_the_context(source, tmp_path):
    edit(source / "config.json", max_position_embeddings=1000)
    limits = ("sampling.max_prompt_tokens=400", "sampling.max_new_tokens=600")
    out = prepare(source, tmp_path / MODEL, *limits)
    over = r"max_prompt_tokens \+ sampling.max_new_tokens is 1001; it should be at most 1000, max_position_embeddings"
    with pytest.raises(UserError, match=over):
        prepare(source, tmp_path / "other", *limits[:1], "sampling.max_new_tokens=601")
    longer = load_config("paper", MODEL, None, [*limits[:1], "sampling.max_new_tokens=601"])
    with pytest.raises(UserError, match=over):  # the config may change after the model was prepared
        check_directory(out, longer)


@pytest.mark.parametrize(
    "command", [["pass_rates"], ["train", "--method", "grpo"], ["evaluate", "--method", "grpo"]], ids=lambda it: it[0]
)
def test_every_stage_that_samples_checks_the_context(small_results, monkeypatch, capsys, command):
    monkeypatch.setattr(
        "entropy_dynamics.stages.inputs.check_chain", lambda *_, **__: None
    )  # it refuses other settings first
    if command[0] == "evaluate":
        base = next(small_results.folder.glob("smoke/**/generation_config.json")).parent
        shutil.copytree(base, small_results.run("grpo") / "policy")
    options = [] if command == ["pass_rates"] else ["--model", MODEL, "--seed", "0"]
    where = ["--scale", "smoke", "--results", str(small_results.folder), *small_results.settings]
    if command == ["pass_rates"]:
        Layout.of("smoke", small_results.folder).pass_rates(0).unlink()
    assert main([*command, *options, *where, "--set", "sampling.max_new_tokens=250"]) == 2
    assert "is 290; it should be at most 256, max_position_embeddings in " in capsys.readouterr().err


def test_the_toy_models_of_every_scale_have_the_context_they_need():
    for file in sorted((ROOT / "configs" / "scale").glob("*.yaml")):
        config = load_config(file.stem)
        for toy in config.toy_models.values():
            longest = config.sampling.max_prompt_tokens + config.sampling.max_new_tokens
            assert longest <= MAX_LENGTH[toy.tokenizer], file.stem


# ---------------------------------------------------------------- the head
def change_weights(source, change):
    file = source / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def head(weights, scale):
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone() * scale


TIED = "model.shape.tied_embeddings=true"


def test_a_tied_model_may_have_a_copy_for_its_head_and_no_other_head(tmp_path):
    source = write_model(tmp_path / "source", tied=True)
    change_weights(source, lambda weights: head(weights, 1))
    model, _ = load_policy(prepare(source, tmp_path / MODEL, TIED))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    change_weights(source, lambda weights: head(weights, 2))
    with pytest.raises(UserError, match=r"lm_head.weight differs from model.embed_tokens.weight, but config.json ties"):
        prepare(source, tmp_path / "other", TIED)
    assert not (tmp_path / "other").exists()


def test_an_untied_model_without_its_head_is_refused(source, tmp_path):
    change_weights(source, lambda weights: weights.pop("lm_head.weight"))
    with pytest.raises(UserError, match=r"source: 1 weights are missing, unknown .*, for example lm_head.weight$"):
        prepare(source, tmp_path / MODEL)


# ---------------------------------------------------------------- the shape
def of_path(source, *overrides):
    return load_config("paper", MODEL, None, [f"model.path={source}", "model.shape=null", *overrides])


def test_a_directory_states_its_own_shape(source, tmp_path):
    config = of_path(source)
    prepare_pretrained(config, tmp_path / MODEL, [])
    assert load_policy(tmp_path / MODEL)[0].config.num_hidden_layers == 2
    stated = {key: value for key, value in SHAPE.items() if key != "tied_embeddings"} | {"tied_embeddings": False}
    assert dict(checkpoint_shape(source)) == dict(shape_of(config)) == stated
    for key in ("head_dim", "num_key_value_heads", "tie_word_embeddings"):  # Llama 1 has none of these
        edit(source / "config.json", **{key: None})
    assert dict(checkpoint_shape(source)) == stated | {"kv_heads": 2}


def test_a_config_without_a_known_shape(source, tmp_path):
    edit(source / "config.json", num_hidden_layers=None)
    for use in (shape_of, lambda config: prepare_pretrained(config, tmp_path / MODEL, [])):
        with pytest.raises(UserError, match=r"source/config\.json: no value for layers"):
            use(of_path(source))
    edit(source / "config.json", num_hidden_layers=2, model_type="qwen99")
    with pytest.raises(UserError, match=r"model_type is 'qwen99', which transformers \d.+ does not know$"):
        prepare_pretrained(of_path(source), tmp_path / MODEL, [])


def test_a_model_of_the_hub_states_its_shape(source):
    with pytest.raises(UserError, match=r"model.shape is null; it should have the sizes in config.json"):
        load_config("paper", MODEL, None, ["model.shape=null"])
    with pytest.raises(UserError, match="toy-32 has no pretrained model: it runs at scales that list it in toy_models"):
        load_config("paper", "toy-32", None, ["models=[toy-32]"])
    with pytest.raises(UserError, match=r"no model in .*nowhere: it has no config.json"):
        shape_of(of_path(source.parent / "nowhere"))
