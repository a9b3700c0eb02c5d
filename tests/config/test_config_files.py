"""The files of configs/: all load, and what must be equal in them is."""

import pytest
import yaml

from conftest import MODEL, ROOT
from entropy_dynamics.config import flatten, known_names, load_config, to_yaml
from entropy_dynamics.config.schema import RunConfig, marked_keys
from entropy_dynamics.methods import method_types
from entropy_dynamics.sections import LOCATION, PER_MACHINE

CONFIGS = ROOT / "configs"


@pytest.mark.parametrize("scale", known_names("scale", CONFIGS))
def test_every_model_and_method_loads_at_every_scale(scale):
    models = load_config(scale).models
    for model in models:
        assert load_config(scale, model).model.name == model
    for name in known_names("method", CONFIGS):
        config = load_config(scale, models[0], name)
        method = config.method
        assert method.label
        if name != "base":
            assert type(method.build()) is method_types()[method.name]
            assert method.build().on_policy_note is None or not config.training.on_policy  # it has an effect
        assert name == method.name or name not in method_types()  # other names are settings of one of those


def test_every_key_is_set_in_a_file():
    """Defaults and their sources are in YAML; only sets of problems, methods and engines have optional keys."""
    names = ("base", "scale/laptop", f"model/{MODEL}", "method/clip_b")
    written = {key for name in names for key, _ in flatten(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()))}
    config = load_config("laptop", MODEL, "clip_b")
    optional = ("method.params", "toy_models", "data.train", "data.evaluation", "engine")
    assert [key for key, _ in flatten(config.model_dump()) if key not in written and not key.startswith(optional)] == []


def test_json_schema_accepts_resolved_configs_and_refuses_unknown_keys():
    jsonschema = pytest.importorskip("jsonschema")
    schema = RunConfig.model_json_schema()
    validator = jsonschema.Draft202012Validator(schema)
    config = yaml.safe_load(to_yaml(load_config("paper", MODEL, "clip_b")))
    assert [error.message for error in validator.iter_errors(config)] == []
    for key, value in (
        ("training", config["training"] | {"stepz": 3}),
        ("engine", config["engine"] | {"eagr": True}),
        ("method", {"name": "clip_b", "label": "x", "params": {"mmu": 3}}),
    ):
        assert list(validator.iter_errors(config | {key: value})), key
    training = schema["$defs"]["TrainingConfig"]["properties"]
    assert training["group_size"]["description"].startswith("Rollouts per prompt")


@pytest.mark.parametrize("scale", known_names("scale", CONFIGS))
def test_strengths_that_must_be_equal_are(scale):
    """docs/protocol.md: PPO uses what GRPO uses, variants of a method its strength; baselines have its updates."""
    for model in load_config(scale).models:

        def of(name, model=model):
            return load_config(scale, model, name)

        for name in ("clip_b", "clip_v"):
            assert of(f"ppo_{name}").method.params == of(name).method.params
            assert of(f"{name}_paper").method.params.mu == of(name).method.params.mu
        updates = of("grpo_off_policy").training.updates_per_batch
        for name in ("ce_gppo", "cispo", "clip_higher", "dppo", "importance_sampling", "kl_cov", "ppo_clip"):
            assert of(name).training.updates_per_batch == updates
        rate, half = (of(name).training.optimizer.learning_rate for name in ("grpo", "grpo_half_rate"))
        assert half == pytest.approx(rate / 2) or model.startswith("toy-")  # sizes of a ladder have their own rates


def test_marked_keys_exist():
    configs = [load_config(scale, MODEL, "grpo") for scale in ("laptop", "paper")]  # two engines
    keys = {key for config in configs for key, _ in flatten(config.model_dump())}
    for one in marked_keys(PER_MACHINE, LOCATION):
        assert any(key == one or key.startswith(f"{one}.") for key in keys), one


def test_every_method_has_one_config():
    names = [path.stem for path in (CONFIGS / "method").rglob("*.yaml")]
    assert sorted(names) == known_names("method", CONFIGS)
