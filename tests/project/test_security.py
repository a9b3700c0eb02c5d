"""The promises of SECURITY.md: no input is run or unpickled, and no network is used unless a config names it."""

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from command_line import set_to
from conftest import MODEL, ROOT, SMALL

# ---------------------------------------------------------------- the source
UNSAFE = """
import pickle
import torch
import torch.distributed as dist
from subprocess import run
from torch import load as read
eval(answer)
exec(answer)
run("ls", shell=True)
torch.load(path, weights_only=True)
torch.save({}, path)
dist.all_gather_object(out, thing)
"""


def test_the_linter_refuses_what_runs_or_unpickles_files():
    """`make lint` holds src, benchmarks and notebooks to it."""
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "--stdin-filename", "src/unsafe.py"]
    run = subprocess.run([*command, "-"], input=UNSAFE, capture_output=True, text=True)
    refused = {int(number) for number in re.findall(r"unsafe.py:(\d+):\d+: (?:S|TID)\d+", run.stdout)}
    assert refused == {2, 6, 7, 8, 9, 10, 11, 12}


def test_no_code_of_a_model_is_trusted():
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert set(re.findall(r"trust_remote_code=(\w+)", sources)) == {"False"}


# ---------------------------------------------------------------- what is written, and who is called
# Every started process and its children record their requests to the network, which are refused. Python reports its own
# sockets to audit hooks; the Hub's Rust client is called only after such a request.
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

STAGES = """
import sys
from entropy_dynamics import cli
from entropy_dynamics.training.checkpoints import Checkpoints

results, model, *settings = sys.argv[1:]
Checkpoints.delete = lambda self: None  # a run deletes its own at its end
of_run = ["--model", model, "--method", "clip_b", "--seed", "0"]
stages = [["problems"], ["model", "--model", model], ["pass_rates"], ["train", *of_run], ["evaluate", *of_run]]
stages += [["theory"], ["draw", "data_filter"], ["claims"]]
for stage in stages:
    code = cli.main([*stage, "--scale", "smoke", "--results", results, *settings])
    if code:
        sys.exit(f"{stage[0]} ended with {code}")
"""


def watched(tmp_path: Path, program: str, *arguments: str) -> tuple[subprocess.CompletedProcess, list[str]]:
    """Run `program` under watch with an empty download cache. Returns the finished process and its network requests."""
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(WATCH)
    asked = tmp_path / "asked"
    asked.touch()
    free = {key: value for key, value in os.environ.items() if not key.endswith("_OFFLINE")}
    paths = os.pathsep.join(filter(None, [str(tmp_path / "watch"), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=free | {"PYTHONPATH": paths, "WATCHED": str(asked), "HF_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    return run, asked.read_text().splitlines()


@pytest.fixture(scope="module")
def small_run(tmp_path_factory) -> tuple[Path, list[str]]:
    """All stages of one tiny run: its results, and their network requests."""
    folder = tmp_path_factory.mktemp("small")
    settings = set_to([*SMALL, "training.checkpoint_every=1"])
    run, asked = watched(folder, STAGES, str(folder / "results"), MODEL, *settings)
    assert run.returncode == 0, run.stderr
    return folder / "results", asked


def test_no_stage_asks_for_the_network(small_run):
    assert small_run[1] == []


@pytest.mark.parametrize(
    ("program", "asked"),
    [
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
    written = {path.suffix for path in results.rglob("*") if path.is_file()}
    tables, figures = {".csv", ".md", ".jinja"}, {".png", ".svg", ".pdf"}
    assert written == {".json", ".yaml", ".parquet", ".safetensors", *tables, *figures}
    assert list(results.rglob("step*/*.safetensors"))  # a checkpoint's too


# ---------------------------------------------------------------- models that come with code
@pytest.fixture
def hostile(tmp_path, make_model, tokenizer, monkeypatch) -> tuple[Path, Path]:
    """A model whose configs name its own code, and a file that this code creates."""
    from transformers import dynamic_module_utils

    from entropy_dynamics.models.storage import save_policy

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    model, ran = tmp_path / "model", tmp_path / "ran"
    save_policy(make_model(), tokenizer, model)
    (model / "hostile.py").write_text(
        textwrap.dedent(f"""
        from pathlib import Path
        Path({str(ran)!r}).touch()
        from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
        # Subclasses, since transformers marks loaded ones, and other tests use the originals.
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
    """The model loads without it, or not at all."""
    from entropy_dynamics.models.storage import load_policy

    model, ran = hostile
    if without is not None:
        (model / without).unlink()
    with contextlib.suppress(ValueError, OSError):
        load_policy(model)
    assert not ran.exists()


def test_the_hostile_model_has_code_to_run(hostile):
    from transformers import AutoConfig

    model, ran = hostile
    AutoConfig.from_pretrained(model, trust_remote_code=True)
    assert ran.exists()


# ---------------------------------------------------------------- known vulnerabilities
VULNERABLE = {"name": "jinja2", "version": "3.0.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.6"]}]}
FINE = {"name": "tqdm", "version": "4.67.0", "vulns": []}
UNKNOWN = {"name": "yte", "version": "1.9.4", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ([FINE, UNKNOWN], 0, "audited: 1 of"),
        ([FINE, VULNERABLE], 1, "jinja2 3.0.0: PYSEC-1 (fixed in 3.1.6)"),
        ("ERROR: Could not connect to PyPI's vulnerability feed", 0, "not audited: ERROR: Could not connect"),
        ("pip-audit: error: unrecognized arguments", 1, "not audited: pip-audit: error"),
    ],
)
def test_a_known_vulnerability_fails_the_audit_and_a_missing_network_does_not(tmp_path, answer, code, message):
    fake = tmp_path / "pip-audit"
    fake.write_text(
        textwrap.dedent(f"""
        #!/usr/bin/env python3
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
    fake.chmod(0o755)
    run = subprocess.run([sys.executable, ROOT / ".ci" / "audit", fake], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (code, "")
    assert message in run.stdout
