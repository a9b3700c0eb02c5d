"""Configuration: the merge order, where values are from, and what a stage depends on."""

import math

import pytest
import yaml

from command_line import error, output, run
from conftest import MODEL
from entropy_dynamics.config import (
    USED,
    configured_shorter_runs,
    load_config,
    method_label,
    origins,
    read_yaml,
    released_settings,
    scale_names,
    settings_of,
    split_method,
    to_yaml,
)
from entropy_dynamics.config.layers import setting
from entropy_dynamics.config.schema import RunConfig, StageConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.sections import parse
from mistakes import message_of, mistake


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


def test_a_scale_extends_another(configs):
    assert scale_names("laptop", configs) == ["laptop"]
    assert scale_names("mine", configs) == ["laptop", "mine"]
    laptop, mine = (load_config(name, MODEL, "grpo", configs=configs) for name in ("laptop", "mine"))
    assert mine == laptop.model_copy(update={"scale": "mine"})
    for parent, message in [
        ("mine", "mine.yaml: extends is 'mine', which extends this file"),
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
        "extends: paper\nscale: mine\n"
        "data: {train: {source: countdown, size: 5, numbers: [2, 3], values: [1, 9], targets: [1, 9]}}\n"
    )
    data = load_config("mine", configs=configs).data
    assert (data.train.source, data.train.size, data.train.numbers) == ("countdown", 5, (2, 3))
    assert data.evaluation["aime24"].repository == "HuggingFaceH4/aime_2024"


@pytest.mark.parametrize(
    ("toys", "of_toys"),
    [("{}", {}), ("{qwen3-4b-base: null}", {MODEL}), ("{qwen3-4b-base: {seed: 9}}", {MODEL, "qwen3-4b-base"})],
)
def test_a_pretrained_model_inherits_nothing_that_is_meant_for_toy_models(configs, toys, of_toys):
    (configs / "scale" / "mine.yaml").write_text(f"extends: laptop\nscale: mine\ntoy_models: {toys}\n")
    for model in (MODEL, "qwen3-4b-base"):
        scales = ("mine", "paper", "laptop")
        mine, paper, laptop = (load_config(scale, model, "clip_v", configs=configs) for scale in scales)
        same = laptop if model in of_toys else paper
        assert (model in mine.toy_models) == (model in of_toys)
        assert (mine.method, mine.model) == (same.method, same.model)
        assert mine.sampling.batch_size == same.sampling.batch_size
        assert mine.training.optimizer == same.training.optimizer
        assert mine.training.single_forward_tokens == same.training.single_forward_tokens
        assert mine.training.steps == laptop.training.steps


# What YAML would take for something else if it were not quoted.
MISREAD = ("1e5", "0o17", "yes", "010", "1:30", "null", "2026-01-01", "- x", "<<")


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        (r"\${a b}", "${a b}"),
        (r"a\${", "a${"),
        (r"\\\${scale}", r"\${scale}"),
        (r"\${scale} of ${scale}", "${scale} of laptop"),
        (r"${method.name}\${oc.env:HOME}\ ", r"grpo${oc.env:HOME}\ "),
        *zip(MISREAD, MISREAD, strict=True),
    ],
)
def test_a_text_stays_as_it_is(tmp_path, text, literal):
    """In a config, in the config.yaml of a run, and in the config of a run with that file's values."""
    config = load_config("laptop", MODEL, "grpo", [f"method.label='{text}'"])
    assert config.method.label == literal
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert read_yaml(tmp_path / "config.yaml", resolve=True)["method"]["label"] == literal
    written = read_yaml(tmp_path / "config.yaml")["method"]["label"]
    assert load_config("laptop", MODEL, "grpo", [f"method.label='{written}'"]) == config


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("1e-3", 1e-3), ("5e-6", 5e-6), ("-3", -3), ("", None), ("null", None), ("true", True), ("[0, 1]", [0, 1])],
        *[("010", 8), ("1:30", 90), ("yes", True), ("a: b", {"a": "b"}), ("a=b", "a=b"), ("${x}", "${x}")],
        ("2026-01-01", "2026-01-01"),
    ],
)
def test_values_of_settings(text, value):
    assert setting(f"training.x={text}") == {"training": {"x": value}}
    assert setting(f"toy_models[qwen2.5-7b].x={text}") == {"toy_models": {"qwen2.5-7b": {"x": value}}}


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


def test_the_origin_of_a_value_is_named_with_what_it_overrides(capsys):
    why, of_run = ["config", "--why"], ["--model", "qwen3-4b-base", "--method", "clip_b"]
    layers = [
        (1.55, "configs/method/clip_b.yaml, for {toy: laptop, model: qwen3-4b-base}"),
        (2.0, "configs/method/clip_b.yaml, for {toy: laptop}"),
        (2.5, "configs/method/clip_b.yaml"),
    ]
    below = [f"    instead of {value}, from {name}" for value, name in layers]
    key = "method.params.mu"
    assert run(capsys, *why, key, *of_run).splitlines() == [f"{key} is 1.55, from {layers[0][1]}", *below[1:]]
    lines = run(capsys, *why, key, *of_run, "--set", f"{key}=3").splitlines()
    assert lines == [f"{key} is 3.0, from --set {key}=3", *below]
    assert f"{key}_plus is inf, from the default of its class\n" in run(capsys, *why, "method.params", *of_run)
    seed = f"toy_models[{MODEL}].seed"
    assert run(capsys, *why, seed) == f"{seed} is 7, from configs/scale/laptop.yaml\n"
    assert error(capsys, *why, "training.step") == "unknown key 'training.step'; did you mean 'training.steps'?"
    assert error(capsys, *why, key) == f"{key} is a key of a run: give its --model and --method"


def test_a_replaced_section_gives_no_value(configs):
    text = "extends: laptop\nscale: mine\ndata: {train: {source: file, path: x, task: countdown}}\n"
    (configs / "scale" / "mine.yaml").write_text(text)
    lines = [*origins("data.train.source", "mine", None, None, (), configs)]
    assert [line.rpartition("/")[2] for line in lines] == ["mine.yaml", "laptop.yaml"]
    with mistake("unknown key 'data.train.numbers'"):
        [*origins("data.train.numbers", "mine", None, None, (), configs)]


@pytest.mark.parametrize("value", ["10", "[ten]", "{a: 1}", "null"])
def test_a_wrong_value_is_named_before_it_is_used(configs, value):
    (configs / "machine.yaml").write_text(f"overrides: [{{for: {{scale: laptop}}, training: {{keep_steps: {value}}}}}]")
    for load in (load_config, configured_shorter_runs):
        with mistake("machine.yaml, for {scale: laptop}: training.keep_steps"):
            load("laptop", MODEL, "grpo", configs=configs)


def test_a_toy_model_never_trains_with_the_settings_of_a_large_one(configs):
    """A copy of laptop.yaml, whose overrides are for laptop; then without them; then with them for itself."""
    laptop, mine = ((configs / "scale" / f"{name}.yaml") for name in ("laptop", "mine"))
    copied = laptop.read_text().replace("\nscale: laptop", "\nscale: mine")
    mine.write_text(copied)
    message = message_of(configs, "mine")
    assert message.startswith(f"{mine}: overrides for laptop never apply, as laptop does not extend mine; ")
    mine.write_text(copied.partition("\noverrides:")[0])
    for method, source in {"clip_b": "4e-07 of {}/base.yaml", "grpo_half_rate": "2e-07 of {}/method/grpo_half"}.items():
        message = message_of(configs, "mine", MODEL, method)
        needed = "training.optimizer.learning_rate of its own: "
        assert message.startswith(f"{mine}: the toy model {MODEL} needs a {needed}")
        assert source.format(configs) in message
    mine.write_text(copied.replace("toy: laptop", "toy: mine"))
    assert load_config("mine", MODEL, "clip_b", configs=configs).training.optimizer.learning_rate == 6e-4
    assert "clip_b.yaml are for the toy models of laptop, desk, none" in released_settings("mine", "clip_b", configs)
    extending = released_settings("mine", "random_mask", configs)  # clip_b
    assert "clip_b.yaml are for the toy models" in extending
    assert released_settings("mine", "grpo", configs) is None
    for scale in ("laptop", "smoke", "desk"):
        assert released_settings(scale, "clip_b", configs) is None


@pytest.mark.parametrize(("setting", "is_said"), [([], True), (["--set", "method.params.mu=2"], False)])
def test_a_run_says_that_a_toy_model_has_released_settings(configs, tmp_path, monkeypatch, capsys, setting, is_said):
    text = (configs / "scale" / "laptop.yaml").read_text().replace("scale: laptop", "scale: mine")
    (configs / "scale" / "mine.yaml").write_text(text.replace("toy: laptop", "toy: mine"))
    monkeypatch.chdir(configs.parent)
    of_run = ["--scale", "mine", "--model", MODEL, "--method", "clip_b", "--seed", 0, "--results", tmp_path / "none"]
    err = output(capsys, "train", *of_run, *setting, code=2)[1]
    assert err.startswith("this toy model runs with settings for billions of parameters: ") == is_said
    assert "; make it with: entropy-dynamics problems" in err.splitlines()[-1]


def test_method_parameters_in_its_name():
    assert split_method("clip_b") == ("clip_b", [])
    assert split_method("clip_b@mu=1.2,apply_to=both") == ("clip_b", ["mu=1.2", "apply_to=both"])
    method = load_config("laptop", MODEL, "clip_v@mu=1.2,max_frac=1e-3,apply_to=both").method
    assert method.name == "clip_v"
    assert (method.params.mu, method.params.max_frac, method.params.apply_to) == (1.2, 0.001, "both")
    assert load_config("laptop", MODEL, "clip_b@mu=1.2", ["method.params.mu=3"]).method.params.mu == 3


@pytest.mark.parametrize("method", ["clip_b", "clip_v", "clip_b_paper", "clip_v_paper", "random_mask", "ppo_clip_v"])
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_a_share_replaces_the_bounds_in_the_files(scale, method, configs):
    params = load_config(scale, MODEL, f"{method}@share=0.02").method.params
    assert (params.share, params.mu, params.mu_plus) == (0.02, None, math.inf)
    assert getattr(params, "max_frac", None) is None
    (configs / "method/mine.yaml").write_text(f"extends: {method}\nmethod: {{params: {{share: 0.03}}}}\n")
    mine, named = (load_config(scale, MODEL, name, configs=configs) for name in ("mine", f"{method}@share=0.03"))
    assert mine.method.params == named.method.params
    params = load_config(scale, MODEL, "mine@mu=1.5", configs=configs).method.params
    assert (params.share, params.mu) == (None, 1.5)


@pytest.mark.parametrize(
    ("method", "overrides", "other"),
    [
        ("clip_b@share=0.02,mu=1.2", [], "mu"),
        ("clip_b@mu=1.2", ["method.params.share=0.02"], "mu"),
        ("clip_v", ["method.params={share: 0.02, max_frac: 0.1}"], "max_frac"),
    ],
)
def test_a_share_beside_a_bound_is_refused(method, overrides, other):
    with mistake(f"method {method}: give share or {other}, not both"):
        load_config("laptop", MODEL, method, overrides)


def test_runs_made_before_the_share_existed_are_current():
    before, now = (load_config("laptop", MODEL, "clip_b").model_dump() | {"versions": {}} for _ in range(2))
    del before["method"]["params"]["share"]
    assert settings_of("train", before) == settings_of("train", now)


def test_a_built_method_is_fresh():
    """A method may keep state, which two runs of one process must not share."""
    config = load_config("laptop", MODEL, "adaptive_entropy").method
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
        ("toy_models[qwen3-4b-base].seed=9", []),
        ("method.label=x", []),
        ("plan.safety=9", []),
        ("data.seed=9", ["problems"]),
        (f"toy_models[{MODEL}].seed=9", ["model"]),
        ("pass_rates.samples=9", ["pass_rates"]),
        ("pass_rates.low=0.1", ["train"]),
        ("evaluation.temperature=9", ["train", "evaluate"]),
        ("sampling.temperature=9", ["pass_rates", "train", "theory"]),
        ("training.steps=9", ["train"]),
        ("method.params.mu=9", ["train"]),
        ("engine.logit_noise=0.1", ["pass_rates", "train", "evaluate"]),
    ],
)
def test_a_stage_depends_on_the_settings_that_it_uses(entry, stages):
    before, after = (load_config("laptop", MODEL, "clip_b", given) for given in ([], [entry]))
    assert changed(after, before) == stages


def test_a_toy_model_does_not_depend_on_another_whose_name_begins_like_its_own(configs):
    model = yaml.safe_load((configs / f"model/{MODEL}.yaml").read_text())
    model["model"]["name"] = "qwen2"
    (configs / "model/qwen2.yaml").write_text(yaml.safe_dump(model))
    toy = yaml.safe_load((configs / "scale/laptop.yaml").read_text())["toy_models"][MODEL]
    scale = {"extends": "laptop", "scale": "mine", "models": ["qwen2", MODEL], "toy_models": {"qwen2": toy}}
    (configs / "scale/mine.yaml").write_text(yaml.safe_dump(scale))
    one, other = (
        load_config("mine", "qwen2", overrides=[f"toy_models[{MODEL}].seed={n}"], configs=configs) for n in (1, 2)
    )
    assert changed(one, other) == []


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
    paper = [load_config("paper", MODEL, overrides=entries) for entries in ([], ["model.path=x"])]
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
