"""What SECURITY.md promises: nothing read is ever run, nothing is pickled, and there is no network unless asked for."""

import contextlib
import json
import os
import pickle
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch

from conftest import ROOT
from unsafe import unsafe_calls, unsafe_files

MODEL = "qwen2.5-7b-instruct"

# ---------------------------------------------------------------- the source

ALLOWED = {  # the tokenizer's own code of an InternLM3, from a pinned commit, with model.remote_tokenizer only
    "src/entropy_dynamics/models/loading.py": ["trust_remote_code=trusted"],
}


def test_no_source_runs_or_unpickles_what_it_reads():
    sources = {path: path.read_text() for folder in ("src", "benchmarks") for path in (ROOT / folder).rglob("*.py")}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        sources[path] = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert len(sources) > 70
    found = {path.relative_to(ROOT).as_posix(): unsafe_calls(source) for path, source in sources.items()}
    assert {path: calls for path, calls in found.items() if calls} == ALLOWED


@pytest.mark.parametrize("name", ["Snakefile", *sorted(path.name for path in (ROOT / "workflow").rglob("*.smk"))])
def test_no_rule_of_the_workflow_does(name):
    """Rules as Snakemake compiles them to Python."""
    [path] = [ROOT / name] if name == "Snakefile" else (ROOT / "workflow").rglob(name)
    command = [Path(sys.executable).parent / "snakemake", "--snakefile", path, "--print-compilation"]
    run = subprocess.run([*command, "--config", "scale=smoke"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("@workflow.rule(" in run.stdout) == (name != "common.smk")
    assert unsafe_calls(run.stdout) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import dill as d",
        "from marshal import loads",
        "import importlib\nimportlib.import_module('shelve')",
        "eval(answer)",
        "exec(answer)",
        "code = compile(answer, '', 'eval')",
        "values = list(map(eval, answers))",
        "__import__(name)",
        "import os\nos.system('ls')",
        "from os import system as run",
        "import subprocess as s\ns.run('ls', shell=True)",
        "from subprocess import run\nrun('ls', shell=asked)",
        "import torch\ntorch.load(path)",
        "import torch as t\nt.save({}, path)",
        "from torch import load",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch.distributed as dist\ndist.all_gather_object(out, thing)",
        "import torch.distributed.checkpoint as dcp\ndcp.save(state, checkpoint_id=path)",
        "import torch.distributed.checkpoint as dcp\ndcp.save(state, storage_writer=dcp.FileSystemWriter(path))",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import pandas\npandas.read_pickle(path)",
        "frame.to_pickle(path)",
        "import yaml\nyaml.load(text, Loader=yaml.FullLoader)",
        "from yaml import unsafe_load",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=asked)",
        "AutoModel.from_pretrained(name, use_safetensors=False)",
        "import sympy\nsympy.sympify(answer)",
    ],
)
def test_the_check_of_the_source_finds(source):
    assert unsafe_calls(source)


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "import re\nre.compile('a')",
        "import torch\ntorch.compile(model)",
        "import yaml\nyaml.safe_load(text)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import subprocess\nsubprocess.run(['ls'], check=True, shell=False)",
        "AutoModel.from_pretrained(name, trust_remote_code=False, use_safetensors=True)",
        "import torch.distributed.checkpoint as dcp\ndcp.save(state, storage_writer=writer)",
        "from safetensors.torch import load",
        "'pickle.loads is what this text is about'",
    ],
)
def test_the_check_of_the_source_leaves_alone(source):
    assert unsafe_calls(source) == []


# ---------------------------------------------------------------- what is written, and who is called

# Every process that is started, workers of workers too, writes down what it asks of the network, and does not get it.
# Python tells its audit hooks of all of its own sockets; the Hub's Rust client is called after such a request only.
WATCH = """
import os, socket, sys

def watch(event, arguments):
    if not event.startswith("socket.") or event in ("socket.__new__", "socket.gethostname"):
        return
    if getattr(arguments[0], "family", None) == getattr(socket, "AF_UNIX", -1):
        return
    with open(os.environ["WATCHED"], "a") as file:
        print(event, *(one for one in arguments if not hasattr(one, "family")), file=file)
    raise OSError(f"{event}: there is no network in this test")

sys.addaudithook(watch)
"""

STEPS = """
import sys
from entropy_dynamics import cli
from entropy_dynamics.training.checkpoints import Checkpoints

results, model, *settings = sys.argv[1:]
Checkpoints.delete = Checkpoints.finish  # a run deletes its own at its end
of_run = ["--model", model, "--method", "clip_b", "--seed", "0"]
steps = [["data"], ["model", "--model", model], ["pass-rates"], ["train", *of_run], ["evaluate", *of_run]]
steps += [["theory", "--model", model], ["report", "data_filter"], ["claims"]]
for step in steps:
    code = cli.main([*step, "--results", results, *settings])
    if code:
        sys.exit(f"{step[0]} ended with {code}")
"""

SMALL = [
    *("data.train.size=24", "data.evaluation.aime24.size=3", "data.evaluation.aime25.size=3"),
    *("data.evaluation.dapo500.size=4", f"stand_ins[{MODEL}].warm_start.steps=2"),
    *("pass_rates.low=null", "pass_rates.high=null", "pass_rates.samples=2"),
    *("sampling.max_new_tokens=8", "training.steps=2", "training.prompts_per_step=3", "training.group_size=4"),
    *("training.validation_problems=2", "training.validation_samples=2", "training.checkpoint_every=1"),
    "evaluation.samples={aime24: 2, aime25: 2, dapo500: 2}",
]


def watched(tmp_path: Path, program: str, *arguments: str) -> tuple[subprocess.CompletedProcess, list[str]]:
    """Run `program` under watch, with an empty cache of downloads; how it ended, and what it asked of the network."""
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(WATCH)
    asked = tmp_path / "asked"
    asked.touch()
    free = {key: value for key, value in os.environ.items() if not key.endswith("_OFFLINE")}
    paths = os.pathsep.join(filter(None, [str(tmp_path / "watch"), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env=free | {"PYTHONPATH": paths, "WATCHED": str(asked), "HF_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    return run, asked.read_text().splitlines()


@pytest.fixture(scope="module")
def small_run(tmp_path_factory) -> tuple[Path, list[str]]:
    """All steps of one tiny run: its results, and what they asked of the network."""
    folder = tmp_path_factory.mktemp("small")
    settings = [part for entry in SMALL for part in ("--set", entry)]
    run, asked = watched(folder, STEPS, str(folder / "results"), MODEL, *settings)
    assert run.returncode == 0, run.stderr
    return folder / "results", asked


def test_no_step_asks_for_the_network(small_run):
    assert small_run[1] == []


@pytest.mark.parametrize(
    ("program", "asked"),
    [
        ("import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)", "192.0.2.1"),
        ("import urllib.request; urllib.request.urlopen('https://example.org', timeout=1)", "example.org"),
        (
            "import subprocess, sys; subprocess.run([sys.executable, '-P', '-c', "
            "'import socket; socket.socket().connect((\"192.0.2.1\", 80))'], check=True)",
            "192.0.2.1",
        ),
    ],
)
def test_the_watch_sees_a_program_that_does(tmp_path, program, asked):
    run, seen = watched(tmp_path, program)
    assert run.returncode != 0
    assert any(asked in line for line in seen)


def test_every_written_file_is_of_a_kind_that_runs_nothing(small_run):
    results, _ = small_run
    assert unsafe_files(results) == []
    written = {path.suffix for path in results.rglob("*") if path.is_file()}
    assert written >= {".json", ".yaml", ".parquet", ".safetensors", ".csv", ".md", ".html", ".png", ".svg"}
    assert list(results.rglob("step1/*.safetensors"))  # a checkpoint is among them


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps([1]))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("metrics.pkl", lambda path: path.write_bytes(pickle.dumps([1]))),
        ("metrics.json", lambda path: path.write_bytes(pickle.dumps([1]))),
        ("metrics.parquet", lambda path: path.write_bytes(pickle.dumps([1]))),
        ("run.log", lambda path: path.write_bytes(pickle.dumps([1]))),
        ("policy.safetensors", lambda path: torch.save({"weight": torch.zeros(2)}, path)),
        ("notes.txt", zipped),
        ("figure.png", zipped),
        ("policy.pt", lambda path: path.write_text("")),
        ("code.py", lambda path: path.write_text("")),
    ],
)
def test_the_check_of_written_files_finds(tmp_path, name, write):
    (tmp_path / "runs").mkdir()
    write(tmp_path / "runs" / name)
    (tmp_path / "runs" / "fine.json").write_text("[1]")
    assert unsafe_files(tmp_path) == [f"runs/{name}"]


# ---------------------------------------------------------------- models that come with code


@pytest.fixture
def hostile(tmp_path, make_model, tokenizer, monkeypatch) -> tuple[Path, Path]:
    """A model whose configs name code of its own, and a file that is there once that has run."""
    from transformers import dynamic_module_utils

    from entropy_dynamics.models.loading import save_policy

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    model, ran = tmp_path / "model", tmp_path / "ran"
    save_policy(make_model(), tokenizer, model)
    (model / "hostile.py").write_text(
        textwrap.dedent(f"""
        from pathlib import Path
        Path({str(ran)!r}).touch()
        from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
        # Classes of its own: what is loaded from here is marked as such, and these are not to be for the other tests.
        class Config(Qwen2Config): pass
        class Model(Qwen2ForCausalLM): pass
        class Tokenizer(PreTrainedTokenizerFast): pass
        """)
    )
    for name, mapping in (
        ("config.json", {"AutoConfig": "hostile.Config", "AutoModelForCausalLM": "hostile.Model"}),
        ("tokenizer_config.json", {"AutoTokenizer": [None, "hostile.Tokenizer"]}),
    ):
        settings = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(settings | {"auto_map": mapping}))
    return model, ran


@pytest.mark.parametrize("without", [None, "tokenizer.json"])
def test_a_models_own_code_is_not_run(hostile, without):
    """It is left aside, or, where there is no other way to load the model, that is not loaded."""
    from entropy_dynamics.models.loading import load_policy

    model, ran = hostile
    if without is not None:
        (model / without).unlink()
    with contextlib.suppress(ValueError, OSError):
        load_policy(model)
    assert not ran.exists()


def test_the_model_above_does_have_code_to_run(hostile):
    from transformers import AutoConfig

    model, ran = hostile
    AutoConfig.from_pretrained(model, trust_remote_code=True)
    assert ran.exists()


# ---------------------------------------------------------------- known vulnerabilities

HOLE = {"name": "jinja2", "version": "3.0.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.6"]}]}
FINE = {"name": "tqdm", "version": "4.67.0", "vulns": []}
UNKNOWN = {"name": "yte", "version": "1.9.4", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ([FINE, UNKNOWN], 0, "audited: 1 of"),
        ([FINE, HOLE], 1, "jinja2 3.0.0: PYSEC-1 (mended in 3.1.6)"),
        ("ERROR: Could not connect to PyPI's vulnerability feed", 0, "not audited: ERROR: Could not connect"),
        ("pip-audit: error: unrecognized arguments", 1, "not audited: pip-audit: error"),
    ],
)
def test_a_known_hole_fails_the_audit_and_a_missing_network_does_not(tmp_path, answer, code, said):
    stand_in = tmp_path / "pip-audit"
    stand_in.write_text(
        textwrap.dedent(f"""
        #!{sys.executable}
        import json, sys
        from pathlib import Path
        asked = Path(sys.argv[sys.argv.index("--requirement") + 1]).read_text()
        names = [line.partition("==")[0] for line in asked.split()]
        assert len(names) == len(set(names)) and "--hash" not in asked
        answer = {answer!r} if {{"torch", "jinja2"}} < set(names) else []
        if isinstance(answer, str):
            sys.exit(answer)
        Path(sys.argv[sys.argv.index("--output") + 1]).write_text(json.dumps({{"dependencies": answer}}))
        sys.exit(any(one.get("vulns") for one in answer))
        """).lstrip()
    )
    stand_in.chmod(0o755)
    run = subprocess.run([sys.executable, ROOT / ".ci" / "audit", stand_in], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (code, "")
    assert said in run.stdout
