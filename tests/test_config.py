"""Configuration: the merge order, the schema, and which file an error names."""

import math
import shutil

import pytest
import yaml

from conftest import ROOT
from entropy_dynamics.config import (
    flatten,
    known_names,
    load_config,
    method_label,
    settings_of,
    split_method,
    to_yaml,
)
from entropy_dynamics.config.loading import USED, scale_files
from entropy_dynamics.config.schema import RunConfig, StageConfig, marked_keys
from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import method_types
from entropy_dynamics.validation import LOCATION, PER_MACHINE, parse

MODEL = "qwen2.5-7b-instruct"
CONFIGS = ROOT / "configs"


@pytest.fixture
def configs(tmp_path):
    """A copy of the configs, with a scale `mine` that extends laptop."""
    folder = tmp_path / "configs"
    shutil.copytree(CONFIGS, folder)
    (folder / "scale" / "mine.yaml").write_text("extends: laptop\nscale: mine\n")
    return folder


def message_of(configs, *arguments, **named) -> str:
    with pytest.raises(UserError) as error:
        load_config(*arguments, configs=configs, **named)
    message = str(error.value)
    assert "\n" not in message
    return message


# ---------------------------------------------------------------- merging


def test_merge_order(configs):
    """base <- laptop <- mine <- model <- method <- --set: the same key, set in one more file each time."""
    layers = ["base", "scale/laptop", "scale/mine", f"model/{MODEL}", "method/grpo"]
    samples = load_config("laptop", configs=configs).evaluation.samples
    for number, name in enumerate(layers, start=1):
        path = configs / f"{name}.yaml"
        content = yaml.safe_load(path.read_text())
        content.setdefault("evaluation", {})["temperature"] = number + 0.5
        path.write_text(yaml.safe_dump(content))
        config = load_config("mine", MODEL, "grpo", configs=configs)
        assert config.evaluation.temperature == number + 0.5
        assert config.evaluation.samples == samples  # other keys are kept
    entries = ["evaluation.temperature=9", "evaluation.temperature=8"]
    assert load_config("mine", MODEL, "grpo", entries, configs).evaluation.temperature == 8


def test_sections_of_a_model_and_a_method(configs):
    assert load_config("laptop", MODEL, configs=configs).training.group_size == 16
    assert load_config("laptop", "qwen3-4b-base", "grpo", configs=configs).training.group_size == 8
    assert load_config("laptop", "qwen3-4b-base", configs=configs).model.pretrained == "Qwen/Qwen3-4B-Base"
    assert not hasattr(load_config("laptop", configs=configs), "model")
    assert not hasattr(load_config("laptop", MODEL, configs=configs), "method")


def test_a_scale_extends_another(configs):
    assert scale_files("laptop", configs) == [configs / "scale" / "laptop.yaml"]
    assert scale_files("mine", configs) == [configs / "scale" / f"{name}.yaml" for name in ("laptop", "mine")]
    laptop, mine = (load_config(name, MODEL, "grpo", configs=configs) for name in ("laptop", "mine"))
    assert mine == laptop.model_copy(update={"scale": "mine"})
    for parent, message in [
        ("mine", "another scale that extends none"),
        ("labtop", "mine.yaml: unknown scale 'labtop' in extends; did you mean 'laptop'?"),
    ]:
        (configs / "scale" / "mine.yaml").write_text(f"extends: {parent}\n")
        assert message in message_of(configs, "mine")


def test_a_method_has_its_own_label_or_that_of_the_one_it_extends(configs):
    text = "extends: clip_b\nmethod: {params: {mu: 1.5}}\n"
    (configs / "method" / "mild.yaml").write_text(text)
    label = load_config("laptop", MODEL, "mild", configs=configs).method.label
    assert method_label("mild", configs) == label == "Clip_B"
    (configs / "method" / "mild.yaml").write_text(text.replace("{params", "{label: Mild, params"))
    assert method_label("mild", configs) == "Mild"
    with pytest.raises(UserError, match="unknown method 'clip_x'; did you mean 'clip_"):
        method_label("clip_x", configs)


def test_another_source_replaces_a_problem_set(configs):
    """The keys of the Hub would be unknown to a generated set."""
    (configs / "scale" / "mine.yaml").write_text(
        "extends: paper\nscale: mine\ndata: {train: {source: arithmetic, size: 5, terms: [2, 3]}}\n"
    )
    data = load_config("mine", configs=configs).data
    assert data.train.model_dump() == {"source": "arithmetic", "size": 5, "terms": (2, 3)}
    assert data.evaluation["aime24"].repository == "HuggingFaceH4/aime_2024"


def test_overrides_apply_where_their_condition_matches(configs):
    (configs / "method" / "grpo.yaml").write_text(
        """
method: {name: grpo, label: GRPO, params: {}}
overrides:
  - {for: {scale: laptop}, training: {steps: 101, prompts_per_step: 5}}
  - {for: {scale: [gpu, mine]}, training: {steps: 102}}
  - {for: {model: qwen3-4b-base, scale: laptop}, training: {prompts_per_step: 7}}
  - {for: {method: clip_b}, training: {steps: 103}}
"""
    )

    def settings(scale: str, model: str, *entries: str) -> tuple[int, int]:
        training = load_config(scale, model, "grpo", entries, configs).training
        return training.steps, training.prompts_per_step

    assert settings("laptop", MODEL) == (101, 5)
    assert settings("laptop", "qwen3-4b-base") == (101, 7)
    assert settings("mine", MODEL) == (102, 5)  # it extends laptop
    assert settings("mine", "qwen3-4b-base") == (102, 7)
    assert settings("paper", MODEL) == (300, 64)
    assert settings("mine", "qwen3-4b-base", "training.steps=5") == (5, 7)


def test_method_parameters_in_its_name():
    assert split_method("clip_b") == ("clip_b", [])
    assert split_method("clip_b@mu=1.2,apply_to=both") == ("clip_b", ["mu=1.2", "apply_to=both"])
    method = load_config("laptop", MODEL, "clip_v@mu=1.2,max_frac=1e-3,apply_to=both", configs=CONFIGS).method
    assert method.name == "clip_v"
    assert (method.params.mu, method.params.max_frac, method.params.apply_to) == (1.2, 0.001, "both")
    assert load_config("laptop", MODEL, "clip_b@mu=1.2", ["method.params.mu=3"], CONFIGS).method.params.mu == 3


@pytest.mark.parametrize(
    "name", ["clip_b@mu", "clip_b@", "clip_b@=2", "clip_b@mu=", "clip_b@mu=1,", "../grpo", "", "c@d=;"]
)
def test_malformed_method_names(name):
    with pytest.raises(UserError, match="is not of the form name or name@parameter=value"):
        split_method(name)


def test_a_built_method_is_fresh():
    """A method may keep state, which two runs of one process must not share."""
    config = load_config("laptop", MODEL, "adaptive_entropy", configs=CONFIGS).method
    one, other = config.build(), config.build()
    one.observe({"sampled_entropy": 0.01})
    assert one.state_dict() != other.state_dict() == config.build().state_dict()


def test_yaml_round_trip(configs):
    config = load_config("laptop", MODEL, "clip_v", ["training.steps=3"], configs)
    assert parse(RunConfig, yaml.safe_load(to_yaml(config)), "file") == config
    assert config.method.params.mu_plus == math.inf


def changed(config: StageConfig, other: StageConfig) -> list[str]:
    """The stages that use a setting in which the two differ."""
    return [stage for stage in USED if settings_of(stage, config) != settings_of(stage, other)]


@pytest.mark.parametrize(
    ("entry", "stages"),
    [
        ("models=[qwen2.5-7b-instruct]", []),
        ("experiments=[table1]", []),
        ("seeds.tables=9", []),
        ("toy_models[qwen3-4b-base].seed=9", []),
        ("method.label=x", []),
        ("plan.safety=9", []),
        ("training.compile=false", []),
        ("data.seed=9", ["problems"]),
        (f"toy_models[{MODEL}].seed=9", ["model"]),
        ("pass_rates.samples=9", ["pass_rates"]),
        ("evaluation.temperature=9", ["train", "evaluate"]),
        ("sampling.temperature=9", ["pass_rates", "train", "theory"]),
        ("training.steps=9", ["train"]),
        ("method.params.mu=9", ["train"]),
        ("engine.logit_noise=0.1", ["pass_rates", "train", "evaluate"]),
    ],
)
def test_a_stage_depends_on_the_settings_that_it_uses(entry, stages):
    before, after = (load_config("laptop", MODEL, "clip_b", given, configs=CONFIGS) for given in ([], [entry]))
    assert changed(after, before) == stages


def test_machine_file(configs):
    before = load_config("laptop", MODEL, "grpo", configs=configs)
    machine = configs / "machine.yaml"
    machine.write_text(
        "threads: 3\noverrides:\n"
        "  - for: {scale: laptop}\n    training: {tokens_per_micro_batch: 77}\n    plan: {safety: 5}\n"
        "  - for: {scale: smoke}\n    training: {tokens_per_micro_batch: 78}\n"
    )
    after = load_config("laptop", MODEL, "grpo", configs=configs)
    assert (after.threads, after.training.tokens_per_micro_batch, after.plan.safety) == (3, 77, 5)
    extending = load_config("mine", MODEL, "grpo", configs=configs)  # its own values come before this file
    assert (extending.threads, extending.training.tokens_per_micro_batch) == (3, before.training.tokens_per_micro_batch)
    for stage in USED:
        assert settings_of(stage, after) == settings_of(stage, before)
    assert settings_of("train", yaml.safe_load(to_yaml(after))) == settings_of("train", before)
    other = load_config("laptop", MODEL, "grpo", ["training.steps=7", "threads=4"], configs=configs)
    assert other.threads == 4
    assert settings_of("train", other) != settings_of("train", before)
    machine.write_text("data: {folder: mine}\nmodel: {path: /models/mine}\n")  # allowed, but they replace what runs
    replaced = load_config("laptop", MODEL, "grpo", configs=configs)
    assert changed(replaced, before) == ["problems"]  # a toy model has no path
    paper = [load_config("paper", MODEL, overrides=entries, configs=CONFIGS) for entries in ([], ["model.path=x"])]
    assert changed(*paper) == ["model"]
    machine.write_text("training: {steps: 7}\n")
    message = message_of(configs, "laptop")
    assert "machine.yaml: training.steps changes results, so it belongs in" in message
    allowed = message.partition("here only ")[2].removesuffix(" may be set").split(", ")
    assert {"threads", "engine.tolerance"} < set(allowed)
    assert len(set(allowed)) == len(allowed)
    for text, hint in {
        "foo: 1": "'foo'; known: ",
        "hardware: {rank: 2}": "'hardware.rank'; did you mean 'ranks'?",
    }.items():
        machine.write_text(text)
        assert message_of(configs, "laptop", MODEL, "grpo").startswith(f"{machine}: unknown key {hint}")


# ---------------------------------------------------------------- the files of the repository


@pytest.mark.parametrize("scale", known_names("scale", CONFIGS))
def test_every_model_and_method_loads_at_every_scale(scale):
    for model in load_config(scale, configs=CONFIGS).models:
        assert load_config(scale, model, configs=CONFIGS).model.name == model
    for name in known_names("method", CONFIGS):
        run = load_config(scale, MODEL, name, configs=CONFIGS)
        method = run.method
        assert method.label
        if name != "base":
            assert type(method.build()) is method_types()[method.name]
            assert method.build().note(run.training.on_policy) is None  # it has an effect
        assert name == method.name or name not in method_types()  # other names are settings of one of those


def test_every_key_is_set_in_a_file():
    """Defaults and their sources are in YAML; only sets of problems, methods and engines have optional keys."""
    names = ("base", "scale/laptop", f"model/{MODEL}", "method/clip_b")
    written = {key for name in names for key, _ in flatten(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()))}
    config = load_config("laptop", MODEL, "clip_b", configs=CONFIGS)
    optional = ("method.params", "toy_models", "data.train", "data.evaluation", "engine")
    assert [key for key, _ in flatten(config.model_dump()) if key not in written and not key.startswith(optional)] == []


@pytest.mark.parametrize("scale", known_names("scale", CONFIGS))
def test_json_schema_accepts_resolved_configs_and_refuses_unknown_keys(scale):
    jsonschema = pytest.importorskip("jsonschema")
    schema = RunConfig.model_json_schema()
    validator = jsonschema.Draft202012Validator(schema)
    config = yaml.safe_load(to_yaml(load_config(scale, MODEL, "clip_b", configs=CONFIGS)))
    assert [error.message for error in validator.iter_errors(config)] == []
    for key, value in (
        ("training", config["training"] | {"stepz": 3}),
        ("engine", config["engine"] | {"eagr": True}),
        ("method", {"name": "clip_b", "label": "x", "params": {"mmu": 3}}),
        ("method", {"name": "clip_c", "label": "x", "params": {}}),
        ("method", {"name": "grpo", "label": "x", "params": {"mu": 3}}),
    ):
        assert list(validator.iter_errors(config | {key: value})), key
    assert schema["$defs"]["TrainingConfig"]["properties"]["group_size"]["description"].startswith(
        "Rollouts per prompt"
    )


def test_marked_keys_exist():
    configs = [load_config(scale, MODEL, "grpo", configs=CONFIGS) for scale in ("laptop", "paper")]  # two engines
    keys = {key for config in configs for key, _ in flatten(config.model_dump())}
    for one in marked_keys(PER_MACHINE, LOCATION):
        assert any(key == one or key.startswith(f"{one}.") for key in keys), one


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("training.stepz=3", "--set training.stepz=3: unknown key 'training.stepz'; did you mean 'steps'?"),
        ("traning.steps=3", "unknown key 'traning'; did you mean 'training'?"),
        (f"toy_models[{MODEL}].sed=3", f"unknown key 'toy_models[{MODEL}].sed'; did you mean 'seed'?"),
        (
            "engine.tensor_parallel_size=2",
            "unknown key 'engine.tensor_parallel_size': a run is divided by FSDP2 only; raise hardware.ranks",
        ),
        ("hardware.pipeline_parallel=2", "'hardware.pipeline_parallel': a run is divided by FSDP2 only"),
        ("engine={name: vllm, logit_noise: 0.5}", "engine: logit_noise is 0.5; only the engine native has it"),
        ("engine.dtype=bfloat16", "engine.dtype=bfloat16 needs hardware.ranks or engine.name=vllm"),
        ("model.prompt_format=base", "model.prompt_format is 'base'; it should be 'chat' or 'completion'"),
        ("engine.warn_above=0.3", "engine: warn_above is 0.3; it should be at most tolerance = 0.0001"),
        ("data.train.sizes=3", "unknown key 'data.train.sizes'; did you mean 'size'?"),
        ("data.train.source=arithmetics", "data.train: unknown source 'arithmetics'; did you mean 'arithmetic'?"),
        ("method.params.mmu=3", "unknown key 'method.params.mmu'; did you mean 'mu'?"),
        ("training.steps=many", "--set training.steps=many: training.steps is 'many'; it should be a valid integer"),
        ("training.steps=2.5", "training.steps is 2.5; it should be a valid integer"),
        ("training.steps=true", "training.steps is True; it should be a valid integer"),
        ("training.steps=0", "training.steps is 0; it should be greater than 0"),
        ("training.steps=", "training.steps is None"),
        ("training=3", "training is 3; it should be"),
        ("threads=1048576", "threads is 1048576; it should be less than or equal to 4096"),
        ("training.group_size=1", "training.group_size is 1; it should be greater than or equal to 2"),
        ("training.reward=papers", "training.reward is 'papers'; it should be 'paper', 'binary' or 'random'"),
        ("training.optimizer.betas=[0.9]", "training.optimizer.betas"),
        ("training.optimizer.betas=[0.9, 1.0]", "training.optimizer.betas[1] is 1.0; it should be less than 1"),
        ("training.optimizer.learning_rate=.nan", "training.optimizer.learning_rate is nan; it should be"),
        ("training.optimizer.weight_decay=.inf", "it should be a finite number"),
        (
            "training.optimizer.max_grad_norm=.nan",
            "training.optimizer.max_grad_norm is nan; it should be greater than 0",
        ),
        ("method.params.mu=.inf", "method.params.mu is inf; it should be a finite number"),
        ("method.params.dual_clip=1", "method.params.dual_clip is 1; it should be greater than 1"),
        ("pass_rates.low=0.95", "pass_rates: low is 0.95 and high 0.9375: no rate lies between them"),
        ("evaluation.samples.aime24=0", "evaluation.samples.aime24 is 0; it should be greater than 0"),
        ("data.evaluation.x={source: split, size: 3}", "evaluation.samples has no 'x', a set of data.evaluation"),
        ("data.evaluation={../../evil: {source: split, size: 3}}", "'../../evil' cannot name an evaluation set"),
        ("data.train.numbers=[5, 2]", "data.train.numbers: [5, 2] should be [min, max]"),
        (f"toy_models[{MODEL}].heads=3", "heads x head_size is 3 x 32; it should be hidden_size = 64"),
        ("toy_models.new={architecture: qwen2}", "no value for toy_models.new.hidden_size"),
        ("hardware.ranks=3", "an update of 256 rollouts cannot be divided among 3 ranks evenly"),
        ("model.name=../../evil", "model.name is '../../evil'; it should be 'qwen2.5-7b-instruct'"),
        ("scale=smoke", "scale is 'smoke'; it should be 'laptop', like its file"),
        ("models=[qwen3-4b-base]", f"scale laptop has no model {MODEL!r}; known: qwen3-4b-base"),
        ("training.steps", "--set 'training.steps' is not of the form key=value"),
        ("=3", "is not of the form key=value"),
        ("training.steps=[1", "--set training.steps=[1: "),
        ("threads=${nowhere}", "Interpolation key 'nowhere' not found"),
    ],
)
def test_mistakes_in_settings(entry, message):
    assert message in message_of(CONFIGS, "laptop", MODEL, "clip_b", [entry])


@pytest.mark.parametrize("name", ["qae", "pass_at_k", "w_reinforce", "dr_grpo"])
def test_a_critic_does_not_replace_the_advantages_of_a_method(name):
    message = message_of(CONFIGS, "laptop", MODEL, f"{name}@training.advantage=gae")
    assert message.endswith(
        f"training.advantage is gae, but the method {name} has advantages of its own, which a critic would replace; "
        "set training.advantage=group"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {stepz: 3}\n", "unknown key 'training.stepz'; did you mean 'steps'?"),
        ("data: {evaluation: {aime24: {size: 3, tersm: [1, 2]}}}\n", "unknown key 'data.evaluation.aime24.tersm'"),
        ("training: {steps: many}\n", "training.steps is 'many'"),
        ("threads: [1\n", "not valid YAML"),
        ("training:\n\tsteps: 3\n", "YAML has no tabs, indent with spaces"),
        ("threads: 1\nthreads: 2\n", "not valid YAML"),
        ("threads: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("- threads\n", "a config is a mapping of keys to values"),
        ("overrides: 5\n", "overrides are entries like `- for: {scale: laptop}`"),
        ("overrides: [threads]\n", "overrides are entries like `- for: {scale: laptop}`"),
        ("overrides: [{for: {sale: mine}, threads: 2}]\n", "overrides are entries like `- for: {scale: laptop}`"),
        ("overrides: [{for: {scale: mine}, thread: 2}]\n", "unknown key 'thread'; did you mean 'threads'?"),
        ("hardware: {ranks: 3}\n", "an update of 256 rollouts cannot be divided among 3 ranks evenly"),
    ],
)
def test_mistakes_in_files(configs, text, message):
    (configs / "scale" / "mine.yaml").write_text(text if text[0] == "-" else "extends: laptop\nscale: mine\n" + text)
    got = message_of(configs, "mine", MODEL, "grpo")
    assert message in got
    assert "mine.yaml" in got or "rollouts" in got  # what no single key is to blame for names no file


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("two", "method.params.mu is 'two'; it should be a valid number"),
        ("-2.5", "method.params.mu is -2.5; it should be greater than or equal to 0"),
        ("", "method.params.mu is None; it should be a valid number"),
    ],
)
def test_a_value_that_an_override_replaces_is_checked(configs, value, message):
    path = configs / "method" / "clip_b.yaml"
    path.write_text(path.read_text().replace("mu: 2.5", f"mu: {value}", 1))
    for name in ("clip_b", "clip_b@mu=1.2"):
        assert message_of(configs, "laptop", MODEL, name) == f"{path}: {message}"
    path.write_text(path.read_text().replace(f"mu: {value}", "mu: ${oc.env:NOWHERE,2.5}", 1))
    assert load_config("laptop", MODEL, "clip_b", configs=configs).method.params.mu == 2.0


@pytest.mark.parametrize("file", ["scale/laptop", f"model/{MODEL}", "method/grpo", "machine"])
@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("scale: laptpo", "unknown scale 'laptpo' in for; did you mean 'laptop'?"),
        ("scale: [laptop, SMOKE]", "unknown scale 'SMOKE' in for; did you mean 'smoke'?"),
        ("scale: laptop, model: qwen3-4b", "unknown model 'qwen3-4b' in for; did you mean 'qwen3-4b-base'?"),
        ("method: clip_b@mu=2", "unknown method 'clip_b@mu=2' in for; did you mean 'clip_b"),
        ("model: grpo", "unknown model 'grpo' in for: it is a method"),
        ("scale: {laptop: 1}", "unknown scale {'laptop': 1} in for; did you mean 'laptop'?"),
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


def test_a_model_file_without_a_name(configs):
    """base.yaml sets other keys of the section."""
    (path := configs / "model" / f"{MODEL}.yaml").write_text("{}\n")
    assert message_of(configs, "laptop", MODEL) == f"{path}: no value for model.name"


def test_uneven_updates_are_checked_one_by_one():
    uneven = ["hardware.ranks=3", "training.prompts_per_step=9", "training.updates_per_batch=2"]
    assert "cannot be divided among 3 ranks" in message_of(CONFIGS, "laptop", MODEL, "grpo", uneven)
    load_config("laptop", MODEL, "grpo", [*uneven, "training.group_size=3"], configs=CONFIGS)
