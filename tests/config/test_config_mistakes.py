"""Mistakes in a configuration: their line names the file and the right word."""

import pytest

from conftest import MODEL, ROOT
from entropy_dynamics.config import flatten, load_config
from entropy_dynamics.config.layers import merge, setting
from entropy_dynamics.config.schema import RunConfig
from entropy_dynamics.sections import parse
from mistakes import message_of, mistake

CONFIGS = ROOT / "configs"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("training.stepz=3", "--set training.stepz=3: unknown key 'training.stepz'; did you mean 'steps'?"),
        (f"toy_models[{MODEL}].sed=3", f"unknown key 'toy_models[{MODEL}].sed'; did you mean 'seed'?"),
        ("engine={name: vllm, logit_noise: 0.5}", "engine: logit_noise is 0.5; only the engine native has it"),
        ("model.prompt_format=base", "model.prompt_format is 'base'; it should be 'chat' or 'completion'"),
        ("training.steps=many", "--set training.steps=many: training.steps is 'many'; it should be a valid integer"),
        ("training.steps=0", "training.steps is 0; it should be greater than 0"),
        ("training.optimizer={eps: 1, eps: 2}", "found duplicate key eps"),
        ("models=[my model]", "models[0] is 'my model'; it should match pattern"),
        ("training.steps=", "training.steps is None"),
        ("training=3", "training is 3; it should be"),
        ("training.reward=papers", "training.reward is 'papers'; it should be 'paper', 'binary' or 'random'"),
        ("method.params.dual_clip=1", "method.params.dual_clip is 1; it should be greater than 1"),
        ("pass_rates.low=0.95", "pass_rates: low is 0.95 and high 0.9375: no rate lies between them"),
        ("data.evaluation.x={source: split, size: 3}", "evaluation.samples has no 'x', a set of data.evaluation"),
        ("data.evaluation={../../evil: {source: split, size: 3}}", "'../../evil' cannot name an evaluation set"),
        ("data.train.numbers=[5, 2]", "data.train.numbers: [5, 2] should be [min, max]"),
        (f"toy_models[{MODEL}].kv_heads=3", "kv_heads is 3; it should divide heads = 2"),
        ("toy_models.new={architecture: qwen2}", "no value for toy_models.new.hidden_size"),
        ("hardware.ranks=3", "an update has 256 rollouts; it should be a multiple of hardware.ranks = 3"),
        ("scale=smoke", "--set scale=smoke: scale is 'smoke'; it should be 'laptop', like its file"),
        ("model.name=x", f"--set model.name=x: model.name is 'x'; it should be '{MODEL}'"),
        ("models=[qwen3-4b-base]", f"scale laptop has no model {MODEL!r}; known: qwen3-4b-base"),
        ("training.steps", "--set 'training.steps' is not of the form key=value"),
        ("training.steps=[1", "--set training.steps=[1: "),
        ("threads=${nowhere}", "Interpolation key 'nowhere' not found"),
    ],
)
def test_mistakes_in_settings(entry, message):
    assert message in message_of(CONFIGS, "laptop", MODEL, "clip_b", [entry])


@pytest.mark.parametrize("name", ["qae", "dr_grpo"])
def test_a_critic_does_not_replace_the_advantages_of_a_method(name):
    message = message_of(CONFIGS, "laptop", MODEL, f"{name}@training.advantage=gae")
    assert message.endswith(f"training.advantage should be group: {name} has advantages of its own")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {stepz: 3}\n", "unknown key 'training.stepz'; did you mean 'steps'?"),
        ("threads: [1\n", "not valid YAML"),
        ("threads: 1\nthreads: 2\n", "not valid YAML"),
        ("threads: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("3\n", "not valid YAML: a single value"),
        ("- threads\n", "a config is a mapping of keys to values"),
        ("overrides: [{for: {scale: mine}, thread: 2}]\n", "unknown key 'thread'; did you mean 'threads'?"),
        ("hardware: {ranks: 3}\n", "an update has 256 rollouts; it should be a multiple of hardware.ranks = 3"),
    ],
)
def test_mistakes_in_files(configs, text, message):
    (configs / "scale" / "mine.yaml").write_text(text if text[0] in "-3" else "extends: laptop\nscale: mine\n" + text)
    got = message_of(configs, "mine", MODEL, "grpo")
    assert message in got
    assert "mine.yaml" in got or "rollouts" in got  # what no single key is to blame for names no file


@pytest.mark.parametrize(
    ("file", "condition", "message"),
    [
        ("scale/laptop", "scale: [laptop, SMOKE]", "unknown scale 'SMOKE' in for; did you mean 'smoke'?"),
        (f"model/{MODEL}", "method: clip_b@mu=2", "unknown method 'clip_b@mu=2' in for; did you mean 'clip_b"),
        ("method/grpo", "model: grpo", "unknown model 'grpo' in for"),
        ("machine", "scale: {laptop: 1}", "unknown scale {'laptop': 1} in for; did you mean 'laptop'?"),
    ],
)
def test_a_condition_names_what_exists(configs, file, condition, message):
    path = configs / f"{file}.yaml"
    path.write_text(path.read_text().partition("\noverrides:")[0] + f"\noverrides: [{{for: {{{condition}}}}}]\n")
    assert message_of(configs, "laptop", MODEL, "grpo").startswith(f"{path}: {message}")


def test_a_file_without_a_key_that_it_should_have(configs):
    for kind, names in {"scale": ["mine"], "method": ["laptop", MODEL, "mine"]}.items():
        (path := configs / kind / "mine.yaml").write_text("{}\n")
        assert message_of(configs, *names) == f"{path}: no value for {kind}"


def test_uneven_updates_are_checked_one_by_one():
    uneven = ["hardware.ranks=3", "training.prompts_per_step=9", "training.updates_per_batch=2"]
    assert "multiple of hardware.ranks = 3" in message_of(CONFIGS, "laptop", MODEL, "grpo", uneven)
    load_config("laptop", MODEL, "grpo", [*uneven, "training.group_size=3"])


THRESHOLDS = {  # inf: never
    *("engine.tolerance", "training.optimizer.max_grad_norm", "training.importance_truncation"),
    *("training.critic.max_grad_norm", "training.critic.value_clip"),
    *("method.params.clip_high", "method.params.dual_clip", "method.params.mu_plus"),
}


def test_no_number_may_be_nan_and_none_but_thresholds_infinite():
    whole = load_config("paper", MODEL, "clip_b").model_dump()
    numbers = [key for key, value in flatten(whole) if isinstance(value, float) and "toy_models" not in key]
    assert len(numbers) > 15
    for key in numbers:
        for value in (".nan", *([] if key in THRESHOLDS else [".inf", "-.inf"])):
            with mistake() as error:
                parse(RunConfig, merge(whole, setting(f"{key}={value}")), "config")
            assert value.strip(".") in str(error.value) or "-inf" in str(error.value), key
