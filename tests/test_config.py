"""The configuration: what is merged over what, and one line for every mistake."""

import dataclasses
import shutil

import pytest
import yaml
from omegaconf import OmegaConf

from conftest import ROOT
from entropy_dynamics.config import Config, identity, known_names, load_config, scale_files, split_method, to_yaml
from entropy_dynamics.errors import UserError

MODEL = "qwen2.5-7b-instruct"


@pytest.fixture
def configs(tmp_path):
    """A copy of the configs, with a scale `mine` that extends laptop."""
    folder = tmp_path / "configs"
    shutil.copytree(ROOT / "configs", folder)
    write(folder / "scale" / "mine.yaml", "extends: laptop\nscale: mine\n")
    return folder


def write(path, text):
    path.write_text(text)


def message_of(configs, *arguments, **named):
    with pytest.raises(UserError) as error:
        load_config(*arguments, configs=configs, **named)
    message = str(error.value)
    assert "\n" not in message
    return message


# ---------------------------------------------------------------- the order of merging


def test_each_layer_wins_over_the_one_before(configs):
    """base <- laptop <- mine <- model <- method <- --set, with one knob set by more and more of them."""
    layers = ["base", "scale/laptop", "scale/mine", f"model/{MODEL}", "method/grpo"]
    for number, name in enumerate(layers, start=1):
        path = configs / f"{name}.yaml"
        content = yaml.safe_load(path.read_text())
        content.setdefault("evaluation", {})["temperature"] = number + 0.5
        write(path, yaml.safe_dump(content))
        config = load_config("mine", MODEL, "grpo", configs=configs)
        assert config.evaluation.temperature == number + 0.5
        assert config.evaluation.samples == {"aime24": 32, "aime25": 32, "dapo500": 8}  # its neighbours stay
    overridden = load_config("mine", MODEL, "grpo", ["evaluation.temperature=9"], configs)
    assert overridden.evaluation.temperature == 9
    twice = load_config("mine", MODEL, "grpo", ["evaluation.temperature=9", "evaluation.temperature=8"], configs)
    assert twice.evaluation.temperature == 8


def test_only_the_chosen_model_and_method_count(configs):
    assert load_config("laptop", MODEL, "grpo", configs=configs).training.group_size == 16
    assert load_config("laptop", "qwen3-4b-base", "grpo", configs=configs).training.group_size == 8
    assert load_config("laptop", "qwen3-4b-base", configs=configs).model.pretrained == "Qwen/Qwen3-4B-Base"
    bare = load_config("laptop", configs=configs)
    assert "method" not in to_yaml(bare) or OmegaConf.is_missing(bare, "method")
    assert OmegaConf.is_missing(bare.model, "name")


def test_a_scale_extends_another(configs):
    assert scale_files("laptop", configs) == [configs / "scale" / "laptop.yaml"]
    assert scale_files("mine", configs) == [configs / "scale" / f"{name}.yaml" for name in ("laptop", "mine")]
    laptop, mine = (load_config(name, MODEL, "grpo", configs=configs) for name in ("laptop", "mine"))
    assert mine.scale == "mine"
    mine.scale = "laptop"
    assert to_yaml(mine) == to_yaml(laptop)


def test_overrides_are_for_what_they_name(configs):
    write(
        configs / "method" / "grpo.yaml",
        """
method: {name: grpo, label: GRPO, params: {}}
overrides:
  - {for: {scale: [mine, smoke]}, training: {steps: 101}}
  - {for: {scale: laptop}, training: {steps: 102}}
  - {for: {model: qwen3-4b-base, scale: laptop}, training: {steps: 103, prompts_per_step: 7}}
  - {for: {method: clip_b}, training: {steps: 104}}
""",
    )
    steps = {
        (scale, model): load_config(scale, model, "grpo", configs=configs).training.steps
        for scale in ("mine", "laptop")
        for model in (MODEL, "qwen3-4b-base")
    }
    assert steps == {
        ("mine", MODEL): 101,
        ("mine", "qwen3-4b-base"): 101,
        ("laptop", MODEL): 102,
        ("laptop", "qwen3-4b-base"): 103,
    }
    assert load_config("laptop", "qwen3-4b-base", "grpo", ["training.steps=5"], configs).training.steps == 5
    clip_b = load_config("laptop", MODEL, "clip_b", configs=configs)
    assert clip_b.training.steps == load_config("laptop", configs=configs).training.steps


def test_a_method_with_parameters():
    assert split_method("clip_b") == ("clip_b", [])
    assert split_method("clip_b@mu=1.2,apply_to=both") == ("clip_b", ["mu=1.2", "apply_to=both"])
    config = load_config("laptop", MODEL, "clip_v@mu=1.2,max_frac=1e-3,apply_to=both", configs=ROOT / "configs")
    assert config.method.name == "clip_v"
    assert config.method.params["mu"] == 1.2
    assert config.method.params["max_frac"] == 0.001
    assert config.method.params["apply_to"] == "both"
    stronger = load_config("laptop", MODEL, "clip_b@mu=1.2", ["method.params.mu=3"], ROOT / "configs")
    assert stronger.method.params["mu"] == 3


@pytest.mark.parametrize(
    "name", ["clip_b@mu", "clip_b@=2", "clip_b@mu=", "clip_b@mu=1,", "../grpo", "", "a b", "c@d=;"]
)
def test_a_method_of_another_form(name):
    with pytest.raises(UserError, match="is not of the form name or name@parameter=value"):
        split_method(name)


def test_names_with_dots_can_be_set(configs):
    config = load_config("laptop", overrides=[f"stand_ins[{MODEL}].seed=12345"], configs=configs)
    assert config.stand_ins[MODEL].seed == 12345


def test_what_is_written_down_is_what_was_loaded(configs):
    config = load_config("laptop", MODEL, "clip_v", ["training.steps=3"], configs)
    again = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.create(to_yaml(config)))
    assert again == config


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("training.stepz=3", "--set training.stepz=3: unknown key 'training.stepz'; did you mean 'steps'?"),
        ("traning.steps=3", "unknown key 'traning'; did you mean 'training'?"),
        ("training.optimizer.learningrate=3", "did you mean 'learning_rate'?"),
        (f"stand_ins[{MODEL}].sed=3", "did you mean 'seed'?"),
        ("zzz=3", "unknown key 'zzz'; known: data, engine, evaluation,"),
        ("training.steps=many", "training.steps: Value 'many' of type 'str' could not be converted to Integer"),
        ("training.steps=2.5", "training.steps: Value '2.5' of type 'float' could not be converted to Integer"),
        ("training.steps=", "training.steps: "),
        ("training=3", "--set training=3: "),
        ("training.optimizer.betas=0.9", "training.optimizer.betas: "),
        ("training.steps=[1", "--set training.steps=[1: "),
        ("training.steps", "--set 'training.steps' is not of the form key=value"),
        ("=3", "is not of the form key=value"),
        ("threads=${nowhere}", "threads: Interpolation key 'nowhere' not found"),
        ("threads=${oc.env:HOME}", "threads: "),
        ("stand_ins.new.seed=3", "no value for stand_ins.new.architecture"),
    ],
)
def test_bad_overrides(configs, entry, message):
    assert message in message_of(configs, "laptop", MODEL, "grpo", [entry])


@pytest.mark.parametrize(
    ("entry", "right"),
    [
        ("threads=0", "1 or more"),
        ("seeds.tables=0", "1 or more"),
        ("sampling.temperature=0", "above 0"),
        ("sampling.max_new_tokens=0", "1 or more"),
        ("sampling.batch_size=0", "1 or more"),
        ("pass_rates.samples=0", "1 or more"),
        ("pass_rates.low=1", "a share from 0 to 1"),
        ("pass_rates.high=1.5", "a share from 0 to 1"),
        ("training.steps=0", "1 or more"),
        ("training.prompts_per_step=-4", "1 or more"),
        ("training.group_size=1", "2 or more: a group of one has no baseline"),
        ("training.updates_per_batch=0", "1 or more"),
        ("training.reward=papers", "'paper' or 'binary'"),
        ("training.tokens_per_micro_batch=0", "1 or more"),
        ("training.held_tokens=-1", "0 (hold none) or more"),
        ("training.entropy_change_every=-1", "0 (never) or more"),
        ("training.validation_every=-1", "0 (never) or more"),
        ("training.validation_problems=0", "1 or more"),
        ("training.validation_samples=0", "1 or more"),
        ("training.optimizer.learning_rate=0", "above 0"),
        ("training.optimizer.learning_rate=nan", "above 0"),
        ("training.optimizer.eps=-1", "above 1e-38"),
        ("training.optimizer.weight_decay=-0.1", "0 or more"),
        ("training.optimizer.max_grad_norm=0", "above 0"),
        ("training.optimizer.betas=[0.9]", "two numbers in [0, 1)"),
        ("training.optimizer.betas=[0.9, 1.0]", "two numbers in [0, 1)"),
        ("training.objective.clip_low=0", "in (0, 1]"),
        ("training.objective.clip_high=0", "above 0"),
        ("training.objective.dual_clip=1", "above 1"),
        ("training.objective.loss_scope=token", "'global_token' or 'per_group'"),
        ("evaluation.temperature=0", "above 0"),
        ("evaluation.samples.aime24=0", "1 or more for every data set"),
        ("model.prompt_format=plain", "'chat' or 'base'"),
    ],
)
def test_values_out_of_range(configs, entry, right):
    message = message_of(configs, "laptop", MODEL, "grpo", [entry])
    assert message.startswith(f"{entry.split('=')[0].removesuffix('.aime24')} is ")
    assert message.endswith(f"it has to be {right}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {stepz: 3}\n", "unknown key 'training.stepz'; did you mean 'steps'?"),
        ("data: {evaluation: {aime24: {sorce: file}}}\n", "did you mean 'source'?"),
        ("training: {steps: many}\n", "training.steps: "),
        ("training: 3\n", "scale/mine.yaml: "),
        ("training: null\n", "training: "),
        ("threads: [1\n", "not valid YAML"),
        ("threads:\n\t1\n", "not valid YAML"),
        ("threads: 1\nthreads: 2\n", "not valid YAML"),
        ("threads: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("- threads\n", "a config is a mapping of keys to values"),
        ("words\n", "unknown key 'words'; known: "),
        ("overrides: 3\n", "overrides is a list of entries"),
        ("overrides: {for: {scale: mine}, threads: 2}\n", "overrides is a list of entries"),
        ("overrides: [threads]\n", "overrides is a list of entries"),
        ("overrides: [{for: {sale: mine}, threads: 2}]\n", "overrides are `for` a scale, model or method, not 'sale'"),
        ("overrides: [{for: {scale: mine}, thread: 2}]\n", "unknown key 'thread'; did you mean 'threads'?"),
    ],
)
def test_bad_files(configs, text, message):
    write(configs / "scale" / "mine.yaml", text if text[0] in "-w" else "extends: laptop\n" + text)
    got = message_of(configs, "mine", MODEL, "grpo")
    assert message in got
    assert "mine.yaml" in got


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("labtop",), "unknown scale 'labtop'; did you mean 'laptop'?"),
        (("laptop", "qwen2.5-7b"), "unknown model 'qwen2.5-7b'; did you mean 'qwen2.5-7b-instruct'?"),
        (("laptop", MODEL, "clip_a"), "unknown method 'clip_a'; did you mean 'clip_"),
        (("../scale/laptop",), "unknown scale '../scale/laptop'"),
    ],
)
def test_unknown_names(configs, arguments, message):
    assert message in message_of(configs, *arguments)


def test_extends(configs):
    write(configs / "scale" / "mine.yaml", "extends: mine\n")
    assert "extends 'mine', which has to be another scale" in message_of(configs, "mine")
    write(configs / "scale" / "mine.yaml", "extends: labtop\n")
    assert "unknown scale 'labtop'; did you mean 'laptop'?" in message_of(configs, "mine")
    write(configs / "scale" / "mine.yaml", "extends: 3\n")
    assert "unknown scale 3" in message_of(configs, "mine")


def test_a_scale_names_its_models_and_all_values(configs):
    message = message_of(configs, "laptop", MODEL, "grpo", ["models=[qwen3-4b-base]"])
    assert message == f"scale laptop has no model {MODEL!r}; known: qwen3-4b-base"
    write(configs / "scale" / "mine.yaml", "scale: mine\n")  # extends nothing
    assert message_of(configs, "mine", MODEL, "grpo").startswith("no value for ")


def test_outside_of_the_repository(tmp_path):
    assert "run this from the root of the repository" in message_of(tmp_path / "configs", "laptop")


# ---------------------------------------------------------------- the files of the repository


@pytest.mark.parametrize("scale", known_names("scale", ROOT / "configs"))
def test_every_model_of_a_scale_loads(scale):
    config = load_config(scale, configs=ROOT / "configs")
    assert config.scale == scale  # its results stand in a folder of this name
    for model in config.models:
        loaded = load_config(scale, model, "grpo", configs=ROOT / "configs")
        assert loaded.model.name == model
        assert set(loaded.data.evaluation) == set(loaded.evaluation.samples)
        assert not OmegaConf.missing_keys(loaded)


def test_model_files_are_named_after_their_model():
    for name in known_names("model", ROOT / "configs"):
        assert yaml.safe_load((ROOT / "configs" / "model" / f"{name}.yaml").read_text())["model"]["name"] == name


def test_every_knob_stands_in_a_file_and_none_has_a_hidden_default():
    """Sections of a problem set apart, whose keys depend on its source."""

    def leaves(cls, prefix=""):
        for field in dataclasses.fields(cls):
            if dataclasses.is_dataclass(field.type):
                yield from leaves(field.type, f"{prefix}{field.name}.")
            else:
                yield f"{prefix}{field.name}", field.default

    knobs = dict(leaves(Config))
    assert {name for name, default in knobs.items() if default != "???" and not name.startswith("data.train.")} == set()
    written = [yaml.safe_load((ROOT / "configs" / name).read_text()) for name in ("base.yaml", "scale/laptop.yaml")]
    of_model = yaml.safe_load((ROOT / "configs" / "model" / f"{MODEL}.yaml").read_text())
    of_method = yaml.safe_load((ROOT / "configs" / "method" / "clip_b.yaml").read_text())
    together = OmegaConf.merge(*map(OmegaConf.create, [*written, of_model, of_method]))
    optional = {name for name in knobs if name.startswith("data.train.")}
    assert [name for name in set(knobs) - optional if OmegaConf.select(together, name, default="none") == "none"] == []


def test_the_machine_has_a_file_of_its_own_that_changes_no_result(configs):
    before = load_config("laptop", MODEL, "grpo", configs=configs)
    machine = configs / "machine.yaml"
    machine.write_text(
        "threads: 3\noverrides:\n"
        "  - for: {scale: laptop}\n    training: {tokens_per_micro_batch: 77}\n    plan: {safety: 5}\n"
        "  - for: {scale: smoke}\n    training: {tokens_per_micro_batch: 78}\n"
    )
    after = load_config("laptop", MODEL, "grpo", configs=configs)
    assert (after.threads, after.training.tokens_per_micro_batch, after.plan.safety) == (3, 77, 5)
    assert identity(after) == identity(before)
    changed = load_config("laptop", MODEL, "grpo", ["training.steps=7", "threads=4"], configs=configs)
    assert changed.threads == 4
    assert identity(changed) != identity(before)
    machine.write_text("training: {steps: 7}\n")
    with pytest.raises(UserError, match=r"machine\.yaml: training\.steps changes results, so it belongs into"):
        load_config("laptop", MODEL, "grpo", configs=configs)


def test_rollouts_have_to_be_dealt_to_ranks_evenly(configs):
    ranks = ["engine.name=native", "hardware.ranks=3"]
    said = message_of(configs, "laptop", MODEL, "grpo", ranks)
    assert "an update of 256 rollouts cannot be divided among 3 ranks" in said
    load_config("laptop", MODEL, "grpo", [*ranks, "training.prompts_per_step=3"], configs=configs)
    uneven = [*ranks, "training.prompts_per_step=9", "training.updates_per_batch=2", "training.group_size=3"]
    load_config("laptop", MODEL, "grpo", uneven, configs=configs)
