"""Tiny models, their tokenizer and problems, shared by all tests."""

import copy
import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import jaxtyping
import pytest
import torch

if find_spec("beartype"):
    jaxtyping.install_import_hook(["entropy_dynamics.core", "entropy_dynamics.methods"], "beartype.beartype")

import preloaded
from command_line import set_to
from entropy_dynamics.cli import main
from entropy_dynamics.config import known_names, load_config
from entropy_dynamics.config.schema.model import ToyModelConfig
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.methods import load_method
from entropy_dynamics.models.toy import build_toy_model
from entropy_dynamics.models.toy_tokenizer import build_tokenizer
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sampling import Prompt
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.tasks.prompts import prompt_tokens
from entropy_dynamics.training.modules import load_critic
from entropy_dynamics.training.policy import Policy
from entropy_dynamics.training.trainer import Trainer
from project_copy import copy_project, snakemake
from reference import even_sum, sums, training_config

ROOT = Path(__file__).parents[1]
MODEL = "qwen2.5-7b-instruct"
HABITS = {
    "solved": 0.5,
    "attempts": 2,
    "gives_up": 0.5,
    "sloppy": 0.1,
    "shortcut": 0.2,
    "unboxed": 0.1,
    "rambling": 0.1,
}
SETS = ("aime24", "aime25", "dapo500", "validation")
# Published problems as JSONL, such as dapo_slice.jsonl and aime24.jsonl; the tests that read them are skipped without.
REAL_PROBLEMS = Path(os.environ.get("ENTROPY_DYNAMICS_REAL_PROBLEMS", ROOT.parent / "shared" / "data"))
ARCHITECTURES = ("llama", "qwen2", "qwen3")  # the paper's; test_families.py has others
METHODS = [name for name in known_names("method", ROOT / "configs") if name != "base"]
# All eight S* ablations are one class, whose masks test_methods.py holds against their definition.
DISTINCT_METHODS = [name for name in METHODS if not name.startswith("s_star") or name == "s_star_keep_neg_gt"]
pytest_plugins = ["recorded_results", "fault_harness"]
# The longest first, so that no worker is left with one at the end.
LONGEST = ("gpu_check", "disks", "workflow", "ranks", "device_rules", "verify")
LONGEST += ("tasks_page", "kills", "degenerate_batches", "token_stats_triton", "preload", "report_page")
LONGEST += ("chain", "config", "plan", "time_limit", "jobs")
# Tests of seconds that share nothing: dealt out one by one at the end, so that all workers are busy until then.
DEALT_OUT = ("test_reference_runs",)
# Every method's training step, and the tests of each module that is annotated; none passes a wrong shape on purpose.
TYPED = {
    "test_shapes",
    "test_dynamics",
    "test_objective",
    "test_critic",
    "test_all_methods",
    "test_every_response_is_cut_off",
}


def smallest_group(method: str) -> int:
    """Number of rollouts, so that a step is short: Pass@k training needs more than k = 4."""
    return 6 if method == "pass_at_k" else 2


def pytest_configure(config):
    os.chdir(ROOT)  # where commands find configs/ and experiments/
    # A shell's background jobs ignore Ctrl-C, and so would the commands that tests send it to.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist share it
        preloaded.start()


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items):
    """For `--dist loadgroup`: a file goes to one worker as a whole, but the tests of DEALT_OUT, which come last."""
    order = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order) + (item.path.stem in DEALT_OUT)))
    for item in items:
        if item.path.stem not in DEALT_OUT:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    if find_spec("vllm") is None:
        for item in items:
            if item.get_closest_marker("vllm"):
                item.add_marker(pytest.mark.skip("vLLM is not installed here: `make test-vllm` runs these tests"))


@pytest.fixture(autouse=True)
def shapes(request):
    """jaxtyping and beartype check the annotated shapes of all calls of core and methods, in the tests of TYPED."""
    typed = TYPED & {request.path.stem, getattr(request.node, "originalname", None)}
    jaxtyping.config.update("jaxtyping_disable", not typed)


torch.set_num_threads(1)


@pytest.fixture(scope="session")
def smoke_project(tmp_path_factory) -> Path:
    """A copy of the project with the whole smoke scale built in it, by one worker for all. Tests leave it as it is.

    Its path has what a shell would take apart.
    """
    name = 'the smoke scale\'s "project" $HOME'
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with open(shared / "smoke.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / name).is_dir():
            (shared / f"unfinished {name}").mkdir()
            project = copy_project(shared / f"unfinished {name}")
            run = snakemake(project)
            assert run.returncode == 0, run.stdout + run.stderr
            project.rename(shared / name)
    return shared / name


@dataclass(frozen=True)
class SmallResults:
    """Problems, a barely trained model and pass rates at the smoke scale with `settings`: what training needs."""

    folder: Path
    settings: tuple[str, ...]
    model: str = MODEL

    @property
    def layout(self) -> Layout:
        return Layout.of("smoke", self.folder)

    def run(self, method: str) -> Path:
        return self.layout.run(self.model, method, 0)

    def command(self, *words: str) -> list[str]:
        return [*words, "--scale", "smoke", "--results", str(self.folder), *self.settings]

    def train(self, method: str) -> list[str]:
        """The command of a run."""
        return self.command("train", "--model", self.model, "--method", method, "--seed", "0")


SMALL = (  # settings of the smoke scale
    *("data.train.size=12", "data.evaluation.aime24.size=2", "data.evaluation.aime25.size=2"),
    *("data.evaluation.dapo500.size=2", "data.evaluation.validation.size=2"),
    *(f"toy_models[{SmallResults.model}].warm_start.steps=1", "sampling.max_new_tokens=8"),
    *("pass_rates.low=null", "pass_rates.high=null", "pass_rates.samples=2"),
    *("training.prompts_per_step=2", "training.group_size=4", "training.checkpoint_every=0"),
    *("training.validation_problems=1", "training.validation_samples=2"),
)


@pytest.fixture(scope="session")
def prepared_results(tmp_path_factory) -> SmallResults:
    made = SmallResults(tmp_path_factory.mktemp("small"), tuple(set_to(SMALL)))
    for stage in (["problems"], ["model", "--model", made.model], ["pass_rates"]):
        assert main(made.command(*stage)) == 0
    return made


@pytest.fixture
def small_results(prepared_results, tmp_path) -> SmallResults:
    """A test's own copy."""
    shutil.copytree(prepared_results.folder, tmp_path, dirs_exist_ok=True)
    return replace(prepared_results, folder=tmp_path)


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="session")
def problems():
    """Twelve sums of two to six numbers, so that prompts have five lengths."""
    return sums()


@pytest.fixture(scope="session")
def prompts(tokenizer, problems) -> list[Prompt]:
    return [Prompt(one.id, prompt_tokens(tokenizer, one, "chat")) for one in problems]


def toy_model_config(**changes) -> ToyModelConfig:
    """One layer, one head and one warm-start step, unless `changes` say otherwise."""
    solutions = {"task": "countdown", "numbers": (2, 3), "values": (1, 9), "targets": (1, 40), "habits": HABITS}
    values = {
        "architecture": "qwen2",
        "hidden_size": 32,
        "layers": 1,
        "head_size": 32,
        "heads": 1,
        "kv_heads": 1,
        "intermediate_size": 48,
        "tied_embeddings": True,
        "seed": 5,
        "warm_start": {"steps": 1, "batch_size": 2, "learning_rate": 1e-3, "solutions": solutions},
    }
    return ToyModelConfig.model_validate(values | changes)


@pytest.fixture(scope="session")
def make_model(tokenizer) -> Callable:
    """`make_model(architecture)`: a fresh untrained model of one or two layers, the same weights each time."""

    def make(architecture: str = "qwen2", *, heads: int = 1, tied: bool = True, **more: int):
        """`more`: layers, kv_heads or seed."""
        own = {"hidden_size": 32 * heads, "heads": heads, "tied_embeddings": tied}
        spec = toy_model_config(architecture=architecture, **own, **more)
        model = build_toy_model(spec, tokenizer).eval()
        with torch.no_grad():  # weights as large as a trained model's, so that its distributions are not nearly uniform
            for parameter in model.parameters():
                parameter.mul_(2 if parameter.ndim > 1 else 1)
        return model

    return make


@pytest.fixture(scope="session")
def shared_model(make_model):
    """For tests that only look at it."""
    return make_model("qwen2", layers=2)


@pytest.fixture
def model(shared_model):
    """For tests that train it."""
    return copy.deepcopy(shared_model)


@pytest.fixture
def make_trainer(prompts, tokenizer) -> Callable:
    """`make_trainer(model, method, ...)`: a trainer of `model`; other keywords are those of `training_config`."""

    def make(
        model, method="grpo", grade=even_sum, params=None, seed=0, validate=None, max_new=16, ranks=None, **changes
    ):
        config, policy = training_config(**changes), Policy(model)
        sampler = NativeSampler(model, end_tokens=[tokenizer.eos_token_id], batch_size=64)
        sampler.returns_logp = config.off_policy or config.reweighted
        return Trainer(
            config,
            policy=policy,
            method=load_method(method, **(params or {})),
            sampler=sampler,
            grade=grade,
            prompts=prompts,
            temperature=1.0,
            max_new_tokens=max_new,
            seed=seed,
            critic=load_critic(Path(), policy, config, ranks or Ranks()) if config.advantage == "gae" else None,
            validate=validate,
            ranks=ranks or Ranks(),
        )

    return make


@pytest.fixture
def trainer_on(make_trainer):
    """`trainer_on(device, method, model, ...)`: a trainer with the settings of the method's file, and `changes`."""

    def make(device, name, model, **changes):
        config = load_config("laptop", MODEL, name)
        training = config.training
        own = {key: getattr(training, key) for key in ("reward", "advantage", "updates_per_batch")}
        own |= {"critic": training.critic.model_dump(), "single_forward_tokens": 0}
        ranks = Ranks(device=device)
        params = config.method.params.model_dump() | changes.pop("params", {})
        return make_trainer(model.to(device), config.method.name, params=params, ranks=ranks, **(own | changes))

    return make


@pytest.fixture
def fake_program(tmp_path, monkeypatch):
    """`fake_program("srun", script)`: the script is the first program of this name on PATH."""

    def make(name: str, script: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    return make


@pytest.fixture
def configs(tmp_path):
    """A copy of the configs, with a scale `mine` that extends laptop."""
    folder = tmp_path / "configs"
    shutil.copytree(ROOT / "configs", folder)
    (folder / "scale" / "mine.yaml").write_text("extends: laptop\nscale: mine\n")
    return folder
