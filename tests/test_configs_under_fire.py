"""Hostile settings and config files through the command: one line, exit code 2, nothing written."""

import io
import shutil
from contextlib import redirect_stderr, redirect_stdout

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import under_fire
from conftest import ROOT
from entropy_dynamics.config import load_config, to_yaml
from under_fire import LONG, MODEL, RUN, one_line, run_main

project, refused = under_fire.project, under_fire.refused  # fixtures
STAND_IN = f"stand_ins[{MODEL}]"

# ---------------------------------------------------------------- --set

# (entry, a part of what has to be said)
SETTINGS = [
    # no setting at all
    ("", "not of the form key=value"),
    ("=", "not of the form key=value"),
    ("training.steps", "not of the form key=value"),
    ("training.steps:3", "not of the form key=value"),
    ("../training.steps=3", "not of the form key=value"),
    ("training/steps=3", "not of the form key=value"),
    ("training steps=3", "not of the form key=value"),
    ("--training.steps=3", "unknown key '--training'"),
    ("training..steps=3", "training..steps"),
    (".=3", "--set .=3"),
    ("training.=3", "--set training.=3"),
    ("training[=3", "--set training[=3"),
    ("training]=3", "--set training]=3"),
    ("training[steps.optimizer]=3", "--set training[steps.optimizer]"),
    # unknown keys
    ("training.stepz=3", "did you mean 'steps'?"),
    ("Training.steps=3", "did you mean 'training'?"),
    ("training.steps.more=3", "training.steps"),
    ("training.optimizer.betas.5=0.1", "training.optimizer.betas"),
    ("data.train.sizes=3", "did you mean 'size'?"),
    ("__class__=3", "unknown key '__class__'"),
    ("training.__dict__.steps=3", "__dict__"),
    # wrong types
    ("training.steps=many", "training.steps"),
    ("training.steps=1.5", "training.steps"),
    ("training.steps=1e3", "training.steps"),
    ("training.steps=[3]", "training.steps"),
    ("training.steps={a: 3}", "training.steps"),
    ("training.steps=null", "training.steps"),
    ("training.steps=", "training.steps"),
    ("training.steps=true", "training.steps"),
    ("training=3", "training"),
    ("training=null", "training"),
    ("training.optimizer=[]", "training.optimizer"),
    ("training.activation_checkpointing=maybe", "training.activation_checkpointing"),
    ("training.optimizer.betas=0.9", "training.optimizer.betas"),
    ("training.optimizer.betas=[a, b]", "training.optimizer.betas"),
    ("training.optimizer.betas=[0.9, null]", "training.optimizer.betas"),
    ("models=qwen3-4b-base", "models"),
    ("models={a: b}", "models"),
    ("evaluation.samples=8", "evaluation.samples"),
    ("evaluation.samples={aime24: many}", "evaluation.samples"),
    ("evaluation.samples={1: 2}", "evaluation.samples"),
    ("evaluation.samples.aime24=null", "evaluation.samples"),
    ("data.evaluation.aime24=null", "data.evaluation"),
    ("data.train=null", "data.train"),
    ("trackers=[1, 2]", "trackers"),
    # broken or hostile YAML as a value
    ("training.steps=[1", "--set training.steps=[1"),
    ("training.steps=*a", "--set training.steps=*a"),
    ("training.steps=&a [*a]", "recursive"),
    ("training.steps=!!python/object/apply:os.getcwd []", "--set training.steps="),
    ("training.steps=!!python/name:os.system", "--set training.steps="),
    ("training.steps={a: 1, a: 2}", "duplicate key"),
    ("training.steps=\x00", "--set training.steps="),
    ("training.steps=" + "9" * 5000, "--set training.steps="),  # more digits than int() reads
    ("sampling.temperature=" + "9" * 400, "sampling.temperature"),  # an integer that no float holds
    ("training.steps=" + "[" * 100_000, "--set training.steps="),
    ("training.steps=one\ntwo", "training.steps"),
    ("training.steps='one\n\n  two'", "training.steps"),
    # values that are none
    ("training.steps=???", "??? stands for no value"),
    ("training.optimizer=???", "??? stands for no value"),
    ("training=???", "??? stands for no value"),
    ("evaluation.samples.aime24=???", "??? stands for no value"),
    ("training.optimizer.betas=[0.9, '???']", "??? stands for no value"),
    ("method.name=???", "??? stands for no value"),
    ("model.name=???", "??? stands for no value"),
    ("stand_ins.new.seed=3", "no value for stand_ins.new.architecture"),
    ("threads=${nowhere}", "threads: Interpolation key 'nowhere' not found"),
    ("data.seed=${nowhere.at.all}", "data.seed"),
    ("evaluation.samples.aime24=${nowhere}", "evaluation.samples.aime24"),
    ("training.optimizer.betas=[0.9, '${nowhere}']", "training.optimizer.betas"),
    ("method.params.mu=${nowhere}", "method.params.mu"),
    ("threads=${threads}", "threads"),
    ("threads=${sampling}", "threads"),
    ("threads=${oc.env:HOME}", "threads"),
    ("threads=${oc.env:NO_SUCH_VARIABLE}", "threads"),
    ("threads=${no_such_resolver:1}", "threads"),
    ("threads=${", "threads"),
    # more than PyTorch or a file holds, or than Python prints
    ("threads=99999999999999999999", "threads has to be a whole number of at most"),
    ("threads=-0x" + "f" * 5000, "threads has to be a whole number of at most"),
    (f"data.seed={2**63}", "data.seed has to be a whole number of at most"),
    (f"{STAND_IN}.seed=99999999999999999999999", ".seed has to be a whole number of at most"),
    (f"method.params.mu=-{2**63}", "method.params.mu has to be a whole number of at most"),
    (f"plan.problems.train={2**64}", "plan.problems.train has to be a whole number of at most"),
    ("model.label=0x" + "f" * 5000, "model.label"),
    ("threads=1048576", "4096 or less"),
    # out of range
    ("threads=-1", "threads is -1"),
    ("hardware.ranks=0", "hardware.ranks is 0"),
    ("hardware.ranks=-2", "hardware.ranks is -2"),
    ("hardware.ranks=7", "cannot be divided among 7 ranks"),
    ("hardware.device=tpu", "hardware.device is tpu"),
    ("seeds.tables=-1", "seeds.tables is -1"),
    ("training.steps=-1", "training.steps is -1"),
    ("training.group_size=1", "a group of one has no baseline"),
    ("training.group_size=-8", "training.group_size is -8"),
    ("training.prompts_per_step=0", "training.prompts_per_step is 0"),
    ("training.tokens_per_micro_batch=-1", "training.tokens_per_micro_batch is -1"),
    ("training.checkpoints_kept=0", "training.checkpoints_kept is 0"),
    ("training.optimizer.learning_rate=.nan", "training.optimizer.learning_rate is nan"),
    ("training.optimizer.learning_rate=-.inf", "training.optimizer.learning_rate is -inf"),
    ("training.optimizer.learning_rate=.inf", "has to be a finite number"),
    ("training.optimizer.weight_decay=.inf", "has to be a finite number"),
    ("training.optimizer.max_grad_norm=.nan", "training.optimizer.max_grad_norm is nan"),
    ("training.critic.weight_decay=-1", "training.critic.weight_decay is -1"),
    ("training.critic.gamma=1.1", "training.critic.gamma is 1.1"),
    ("training.objective.clip_low=.nan", "training.objective.clip_low is nan"),
    ("training.objective.dual_clip=.nan", "training.objective.dual_clip is nan"),
    ("sampling.temperature=.nan", "sampling.temperature is nan"),
    ("sampling.temperature=.inf", "has to be a finite number"),
    ("sampling.max_new_tokens=-5", "sampling.max_new_tokens is -5"),
    ("engine.tolerance=.nan", "engine.tolerance is nan"),
    ("engine.name=sglang", "engine.name is sglang"),
    ("pass_rates.samples=0", "pass_rates.samples is 0"),
    ("pass_rates.low=.nan", "pass_rates.low is nan"),
    ("pass_rates={low: 0.9, high: 0.1}", "no rate lies between"),
    ("evaluation.samples.aime24=-4", "1 or more for every data set"),
    ("evaluation.temperature=-.inf", "evaluation.temperature is -inf"),
    ("plan.safety=.inf", "has to be a finite number"),
    ("plan.measured=[]", "Cannot merge incompatible container types"),
    ("plan.tflops=-1", "plan.tflops is -1"),
    ("plan.startup_minutes=.nan", "plan.startup_minutes is nan"),
    ("plan.problems.train=0", "1 or more for every data set"),
    ("method.params.mu=nan", "method.params.mu is nan"),
    ("method.params.mu=1e999", "method.params.mu is inf"),
    ("plan.measured.a={sampled: 0, trained: 1}", "tokens a second, above 0"),
    ("model.shape.layers=-3", "1 or more for every size"),
    (f"{STAND_IN}.layers=-1", "sizes have to be 1 or more"),
    (f"{STAND_IN}.heads=0", "sizes have to be 1 or more"),
    (f"{STAND_IN}.seed=-1", "the seed 0 or more"),
    (f"{STAND_IN}.warm_start.steps=0", "have to be above 0"),
    (f"{STAND_IN}.warm_start.learning_rate=.nan", "have to be above 0"),
    (f"{STAND_IN}.warm_start.terms=[3]", "[fewest, most]"),
    (f"{STAND_IN}.warm_start.habits.sloppy=.nan", "a chance from 0 to 1"),
    # names that would be folders or files elsewhere
    ("model.name=../../../evil", "model.name is '../../../evil'"),
    ("model.name=/evil", "model.name is '/evil'"),
    ("scale=../../evil", "scale is '../../evil'; it has to be that of its file, 'laptop'"),
    ("scale=smoke", "scale is 'smoke'; it has to be that of its file, 'laptop'"),
    ("data.evaluation.x={source: arithmetic}", "evaluation.samples has no 'x'"),
    ("data.evaluation={../../evil: {source: split}}", "'../../evil' cannot name a set"),
    ("data.evaluation={/evil: {source: split}}", "'/evil' cannot name a set"),
    ("data.evaluation={..: {source: split}}", "'..' cannot name a set"),
    ('data.evaluation={"a\\0b": {source: split}}', "cannot name a set"),
    ("evaluation.samples={../../evil: 3}", "'../../evil' cannot name a set"),
    ("data.evaluation={pass_rates: {source: split}}", "'pass_rates' cannot name a set"),
    ("data.evaluation={train: {source: split}}", "'train' cannot name a set"),
]


@pytest.mark.parametrize(("entry", "said"), SETTINGS, ids=lambda value: value[:40])
def test_settings(refused, entry, said):
    assert said in refused("config", *RUN, f"--set={entry}")


def test_a_setting_that_only_a_step_can_refuse(refused):
    """What is measured against the data, or against the model's architecture."""
    for entry, said in [
        ("data.train.size=-1", "a number of problems above 0, not -1"),
        ("data.train.terms=[5, 2]", "2 <= fewest <= most"),
        ("data.train.terms=[2, 1000000000]", "2 <= fewest <= most"),
        ("data.train.terms=[-3, 2]", "2 <= fewest <= most"),
        ("data.train.terms=null", "terms"),
        ("data.train.source=magic", "'magic' is unknown"),
        ("data.evaluation.dapo500.size=100000", "leaves nothing"),
        ("data.train={source: file, path: nowhere.jsonl}", "no such file"),
        ('data.train={source: file, path: "a\\0b.jsonl"}', "without null characters"),
        (f"data.train={{source: file, path: {LONG}.jsonl}}", "File name too long"),
        ("data.train={source: hub, repository: a/b, revision: main}", "is not a commit"),
        ("data.folder=nowhere", "no folder nowhere"),
        ('data.folder="\\0"', "without null characters"),
    ]:
        assert said in refused("data", "--scale", "smoke", "--set", entry), entry


# ---------------------------------------------------------------- files

LAUGHS = "a0: &a0 [ha, ha]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)  # 10^11 times "ha"

FILES = [
    (b"", "no value for "),
    (b"\n\n# nothing\n", "no value for "),
    (b"--- \n...\n", "no value for "),
    (b"3\n", "mine.yaml"),
    (b"null\n", "no value for "),
    (b"words\n", "unknown key 'words'"),
    (b"- a\n- b\n", "a config is a mapping of keys to values"),
    (b"extends: laptop\nthreads: [1\n", "not valid YAML"),
    (b"extends: laptop\nthreads:\n\t1\n", "not valid YAML"),
    (b"extends: laptop\nthreads: 1\nthreads: 2\n", "duplicate key"),
    (b"extends: laptop\ntraining: {steps: 1, steps: 2}\n", "duplicate key"),
    (b"extends: laptop\n---\nthreads: 1\n", "not valid YAML"),
    (b"extends: laptop\nthreads: \x00\n", "not valid YAML"),
    (b"\x00" * 1000, "not valid YAML"),
    (bytes(range(256)) * 20, "not valid YAML"),
    (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "not valid YAML"),
    (b"PAR1" + bytes(range(128, 256)), "not valid YAML"),
    ("extends: laptop\n".encode("utf-16"), "not valid YAML"),
    (b"extends: laptop\nscale: \xff\xfe\n", "not valid YAML"),
    (b"a: &a [*a]\n", "recursive"),
    (b"extends: laptop\ntraining: &t {optimizer: *t}\n", "recursive"),
    (b"&a {training: *a}\n", "recursive"),
    (b"threads: *nobody\n", "not valid YAML"),
    (LAUGHS.encode(), "not valid YAML"),
    (b"extends: laptop\n<<: 3\n", "not valid YAML"),
    (b"extends: laptop\n? [a, b]\n: 3\n", "not valid YAML"),
    (b"extends: laptop\n? {a: b}\n: 3\n", "not valid YAML"),
    (b"[" * 100_000, "not valid YAML"),
    (b'"' + b"[" * 100_000 + b'"', "not valid YAML"),  # a text, which OmegaConf reads as YAML once more
    (b"{a: " * 100_000, "not valid YAML"),
    (b"- " * 100_000, "not valid YAML"),
    (b"extends: laptop\nthreads: !!python/object/apply:os.system [touch evil]\n", "not valid YAML"),
    (b"extends: laptop\nthreads: !!python/object/new:subprocess.Popen [[touch, evil]]\n", "not valid YAML"),
    (b"extends: laptop\nthreads: !!python/module:antigravity\n", "not valid YAML"),
    (b"extends: laptop\nthreads: !unknown 3\n", "not valid YAML"),
    (b"extends: laptop\nthreads: !!binary aGE=\n", "threads"),
    (b"extends: laptop\nthreads: !!set {a, b}\n", "mine.yaml"),
    (b"extends: laptop\nthreads: 2026-11-21\n", "threads"),
    (b"extends: laptop\n1: 2\n", "mine.yaml"),
    (b"extends: laptop\nnull: 2\n", "mine.yaml"),
    (b"extends: laptop\ntrue: 2\n", "mine.yaml"),
    (b"extends: laptop\n1.5: 2\n", "mine.yaml"),
    (b"extends: laptop\ntraining: {1: 2}\n", "mine.yaml"),
    (b"extends: laptop\n'': 2\n", "unknown key ''"),
    (b"extends: laptop\ntraining: null\n", "training"),
    (b"extends: laptop\ntraining: [steps]\n", "TrainingConfig"),
    (b"extends: mine\n", "has to be another scale"),
    (b"extends: ../scale/smoke\n", "unknown scale '../scale/smoke'"),
    (b"extends: [smoke]\n", "unknown scale"),
    (b"extends: {a: b}\n", "unknown scale"),
    (b"extends: ${nowhere}\n", "unknown scale"),
    (b"extends: ???\n", "unknown scale"),
    (f"extends: {LONG}\n".encode(), "unknown scale"),
    (b"extends: laptop\noverrides: 3\n", "overrides is a list"),
    (b"extends: laptop\noverrides: {for: {scale: mine}}\n", "overrides is a list"),
    (b"extends: laptop\noverrides: [3]\n", "overrides is a list"),
    (b"extends: laptop\noverrides: ???\n", "overrides is a list"),
    (b"extends: laptop\noverrides: ${nowhere}\n", "overrides is a list"),
    (b"extends: laptop\noverrides: [{for: 3, threads: 2}]\n", "overrides are `for`"),
    (b"extends: laptop\noverrides: [{for: null, threads: 2}]\n", "overrides are `for`"),
    (b"extends: laptop\noverrides: [{for: mine, threads: 2}]\n", "overrides are `for`"),
    (b"extends: laptop\noverrides: [{for: [scale], threads: 2}]\n", "overrides are `for`"),
    (b"extends: laptop\noverrides: [{for: {1: mine, a: b}, threads: 2}]\n", "overrides are `for`"),
    (b"extends: laptop\noverrides: [{for: {scale: mine}, training: 3}]\n", "TrainingConfig"),
    (b"extends: laptop\noverrides: [{for: {scale: mine}, 7: 3}]\n", "mine.yaml"),
    (b"extends: laptop\n", "scale is 'laptop'; it has to be that of its file, 'mine'"),
    (b"extends: laptop\nscale: smoke\n", "scale is 'smoke'; it has to be that of its file, 'mine'"),
    (b"extends: laptop\nscale: mine\ndata: {evaluation: {../../evil: {source: split, size: 3}}}\n", "evil"),
    (b"extends: laptop\nevaluation: {samples: {aime24: .inf}}\n", "evaluation.samples"),
    (b"extends: laptop\ntraining: {optimizer: {learning_rate: .nan}}\n", "learning_rate is nan"),
]


@pytest.mark.parametrize(("content", "said"), FILES, ids=lambda value: repr(value[:40]))
def test_scale_files(refused, project, content, said):
    (project / "configs" / "scale" / "mine.yaml").write_bytes(content)
    assert said in refused("config", "--scale", "mine", *RUN)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("base.yaml", None, "run this from the root of the repository"),
        ("base.yaml", "", "no value for "),
        ("scale/smoke.yaml", None, "unknown scale 'smoke'"),
        ("scale/laptop.yaml", None, "unknown scale 'laptop'"),  # which smoke extends
        ("scale/laptop.yaml", "extends: smoke\n", "extends none"),
        (f"model/{MODEL}.yaml", None, f"unknown model '{MODEL}'"),
        (f"model/{MODEL}.yaml", "", "no value for model."),
        (f"model/{MODEL}.yaml", "model: {name: ../../evil}\n", "no value for model."),
        (f"model/{MODEL}.yaml", "model: null\n", "model"),
        ("method/grpo.yaml", None, "unknown method 'grpo'"),
        ("method/grpo.yaml", "", "no value for method"),
        ("method/grpo.yaml", "method: {name: grpo}\n", "no value for method."),
        ("method/grpo.yaml", "method: {name: grpo, label: x, params: [1]}\n", "grpo.yaml"),
        ("method/grpo.yaml", "method: {name: grpo, label: x, params: {1: 2}}\n", "method"),
        ("machine.yaml", "training: {steps: 3}\n", "training.steps changes results"),
        ("machine.yaml", "trainin: {steps: 3}\n", "trainin.steps changes results"),
        ("machine.yaml", "plan: {gpuu: x}\n", "unknown key 'plan.gpuu'"),
        ("machine.yaml", "threads: &a [*a]\n", "recursive"),
        ("machine.yaml", "overrides: [{for: laptop, threads: 2}]\n", "overrides are `for`"),
        ("machine.yaml", "- 1\n", "a config is a mapping"),
        ("machine.yaml", "1: 2\n", "1 changes results"),
        ("machine.yaml", "threads: ${nowhere}\n", "threads: Interpolation key 'nowhere' not found"),
    ],
)
def test_the_other_files(refused, project, file, content, said):
    path = project / "configs" / file
    path.unlink() if content is None else path.write_text(content)
    assert said in refused("config", "--scale", "smoke", *RUN)


def test_a_folder_or_a_locked_file_in_place_of_a_config(refused, project):
    (project / "configs" / "scale" / "dir.yaml").mkdir()
    assert "dir.yaml" in refused("config", "--scale", "dir", *RUN)
    (project / "configs" / "scale" / "loop.yaml").symlink_to("loop.yaml")
    assert "loop" in refused("config", "--scale", "loop", *RUN)
    shutil.rmtree(project / "configs")
    assert "run this from the root of the repository" in refused("config", *RUN)


# ---------------------------------------------------------------- any value at any key


def known_keys() -> list[str]:
    def keys(value, prefix):
        yield prefix
        for name, one in value.items() if isinstance(value, dict) else ():
            yield from keys(one, f"{prefix}[{name}]" if "." in name else f"{prefix}.{name}" if prefix else name)

    config = load_config("laptop", MODEL, "clip_v", configs=ROOT / "configs")
    return [key for key in keys(yaml.safe_load(to_yaml(config)), "") if key]


FRAGMENTS = ["null", "???", "true", "[]", "{}", "[1, 2]", "{a: 1}", "[a", "}", "&a [*a]", "*a", "!!str 3", "${threads}"]
FRAGMENTS += ["${nowhere}", "${oc.env:HOME}", "${oc.decode:'[1'}", "${", "\\${x}", "'", '"', "\n", "../../x", "1e999"]
FRAGMENTS += [".nan", ".inf", "-.inf", "0x10", "1_000", "1:30", "2026-01-01", "!!python/name:os.system", "9" * 30, "-"]
VALUES = st.one_of(
    st.sampled_from(FRAGMENTS),
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(repr),
    st.text(max_size=20),
    st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join),
    st.lists(st.integers(-3, 3) | st.floats(), max_size=3).map(str),
)
FEW, MANY = 100, 10_000


def any_value_at_any_key(entries: list[tuple[str, str]]) -> None:
    arguments = [part for key, value in entries for part in ("--set", f"{key}={value}")]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code, usage = run_main(["config", "--model", MODEL, "--method", "clip_v", *arguments])
    if code == 0:
        assert err.getvalue() == ""
        assert yaml.safe_load(out.getvalue())["model"]["name"] == MODEL
    else:
        one_line(code, out.getvalue(), err.getvalue(), usage, same=True)


ENTRIES = st.lists(st.tuples(st.sampled_from(known_keys()), VALUES), min_size=1, max_size=3)
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=FEW, deadline=None, suppress_health_check=SLOW)
@given(ENTRIES)
@example([("threads", "${sampling.batch_size}"), ("sampling.batch_size", "${threads}")])
def test_any_value_at_any_key(monkeypatch, entries):
    monkeypatch.chdir(ROOT)
    any_value_at_any_key(entries)


@pytest.mark.long
@settings(max_examples=MANY, deadline=None, suppress_health_check=SLOW)
@given(ENTRIES)
def test_any_value_at_any_key_for_long(monkeypatch, entries):
    monkeypatch.chdir(ROOT)
    any_value_at_any_key(entries)
