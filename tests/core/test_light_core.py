"""What a plain `pip install entropy-dynamics` brings: core, methods and analysis, without the harness."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT

# Fails the import of what only an extra installs, and of everything that such a package would bring.
BLOCKED = """
import sys
BLOCKED = {"transformers", "tokenizers", "huggingface_hub", "safetensors", "snakemake", "datasets", "matplotlib",
           "tabulate", "trl", "accelerate", "vllm", "ray"}  # not what torch itself imports: jinja2, filelock, tqdm
class Harness:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)
sys.meta_path.insert(0, Harness())
"""

CLIP_B = """
import torch
from entropy_dynamics.core.token_stats import token_stats
from entropy_dynamics.methods import load_method, method_types
torch.manual_seed(0)
stats = token_stats(torch.randn(8, 32, 50) * 3, torch.randint(50, (8, 32)))
advantages = torch.tensor([1.0, -1.0] * 4)[:, None].expand(8, 32)
weights = load_method("clip_b", mu=1.0).token_weights(stats, advantages, torch.ones(8, 32))
assert (weights[::2] == 1).all() and 0 < (weights == 0).sum() < 64, weights
assert len(method_types()) > 20
"""

ANALYSIS = """
import importlib, pkgutil
from entropy_dynamics import analysis, experiments
for room in (experiments, analysis):
    for module in pkgutil.iter_modules(room.__path__):
        importlib.import_module(f"{room.__name__}.{module.name}")
"""


def python(code: str, executable: str = sys.executable, **environment: str) -> str:
    done = subprocess.run([executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_core_methods_and_analysis_run_without_the_harness():
    python(BLOCKED + CLIP_B + ANALYSIS)


def test_a_stage_without_the_harness_names_the_extra():
    code = BLOCKED + ("from entropy_dynamics.cli import main\nsys.exit(main(['theory', '--scale', 'smoke']))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    expected = "is not installed; it comes with this project's extra 'harness'"
    assert re.fullmatch(f"error: .*{expected}.*\n", done.stderr)


def test_core_and_methods_import_little_beyond_torch_and_pydantic():
    code = """
import sys, torch, pydantic
from entropy_dynamics.core import advantages, dynamics, metrics, objective, token_stats
from entropy_dynamics.methods import load_method
heavy = {"pandas", "scipy", "pyarrow", "omegaconf", "transformers", "matplotlib"}
print(*heavy & set(sys.modules))
"""
    assert python(code).split() == []


def test_help_waits_for_no_import():
    code = """
import sys
from entropy_dynamics.cli import main
try:
    main(["--help"])
finally:
    print(*{"numpy", "omegaconf", "pydantic", "torch"} & set(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "\n")
    assert "entropy-watch" in done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The wheel and the sdist, through the hooks that `python -m build` calls, from a copy without build leftovers."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    code = "from setuptools import build_meta as b; print(b.build_{}({!r}))"
    for kind in ("sdist", "wheel"):
        command = [sys.executable, "-c", code.format(kind, str(folder))]
        subprocess.run(command, cwd=source, check=True, capture_output=True)
    return {"sdist": next(folder.glob("*.tar.gz")), "wheel": next(folder.glob("*.whl"))}


def test_wheel_and_sdist_have_the_package_its_types_and_its_templates(built):
    files = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/entropy_dynamics").rglob("*.py")}
    others = ("py.typed", "figures/figures.mplstyle", "report/templates/report.html")
    files |= {f"entropy_dynamics/{name}" for name in (*others, "publishing/templates/data_card.md")}
    with zipfile.ZipFile(built["wheel"]) as wheel, tarfile.open(built["sdist"]) as sdist:
        assert files <= set(wheel.namelist())
        assert files <= {name.partition("/src/")[2] for name in sdist.getnames()}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_clean_environment_gets_the_core_and_nothing_of_the_harness(built, kind, tmp_path):
    venv.create(tmp_path, with_pip=True)
    executable = str(tmp_path / "bin/python")
    subprocess.run([executable, "-m", "pip", "install", "-q", str(built[kind])], check=True)
    python(CLIP_B + ANALYSIS, executable, PYTHONPATH="")
    installed = python("import importlib.metadata as m; print({d.name.lower() for d in m.distributions()})", executable)
    assert not {"transformers", "snakemake", "datasets", "matplotlib", "vllm", "trl"} & eval(installed)
