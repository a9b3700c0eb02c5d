"""environment.yml, requirements.lock and pyproject.toml install the same things."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())


EXTRAS = PROJECT["optional-dependencies"]


def test_conda_users_get_the_pins_of_pyproject():
    [pip] = [entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict)]
    assert pip == ["-e .[harness]"]


def test_conda_brings_a_python_that_the_package_allows():
    [python] = [e for e in ENVIRONMENT["dependencies"] if isinstance(e, str) and e.startswith("python")]
    given, least = (re.search(r"(\d+)\.(\d+)", one).groups() for one in (python, PROJECT["requires-python"]))
    assert tuple(map(int, given)) >= tuple(map(int, least))
    assert "pip" in ENVIRONMENT["dependencies"]
    assert set(ENVIRONMENT["channels"]) == {"conda-forge", "nodefaults"}


def test_everything_imported_is_a_dependency_with_a_bound():
    entries = PROJECT["dependencies"] + EXTRAS["harness"]
    assert all(re.search(r"[=<>]=?\d", entry) for entry in entries)
    names = {re.match(r"[\w-]+", entry)[0] for entry in entries}
    # These come with transformers, pydantic and Snakemake, and the last with verl.
    with_them = {"tokenizers", "huggingface-hub", "pydantic-core", "snakemake-interface-logger-plugins", "tensordict"}
    assert imported("**") <= names | with_them | {"entropy-dynamics"}
    assert set(EXTRAS) >= {"dev", "vllm", "notebooks", "trl", "verl"}


def imported(room: str) -> set[str]:
    """Distributions that the modules of a room import, but for those of an extra."""
    extra = {"vllm", "triton", "tensorboard", "wandb", "trackio", "sentencepiece", "trl", "verl", "trinity"}
    extra |= {"transfer_queue", "math_verify", "reasoning_gym"}
    modules = set()
    for path in (ROOT / "src").glob(f"entropy_dynamics/{room}/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules.add(node.module)
    packages = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) - extra
    of_package = packages_distributions()
    return {canonicalize_name(of_package.get(name, [name])[0]) for name in packages}


# ---------------------------------------------------------------- make
@pytest.mark.parametrize(("version", "fits"), [("3.10", False), ("3.13", True), ("3.14", False)])
def test_make_names_the_pythons_that_it_can_use(tmp_path, version, fits):
    """A Python that says it has that version, and refuses to make an environment."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    pretend = f"import sys; sys.version_info = ({version.replace('.', ', ')}, 0); exec(sys.argv[1])"
    (python := tmp_path / "python").write_text(
        '#!/bin/sh\n[ "$1" = -c ] || { echo "called for $*"; exit 1; }\n'
        f'exec "{sys.executable}" -c "{pretend}" "$2"\n'
    )
    python.chmod(0o755)
    run = subprocess.run(["make", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode
    assert ("called for -m venv .venv" in run.stdout) == fits
    message = f"error: {python} is Python {version}; 3.11, 3.12 or 3.13 is needed, such as: make PYTHON=python3.12"
    assert (message in run.stderr.splitlines()) == (not fits)


# ---------------------------------------------------------------- the lock file
LOCK = ROOT / "requirements.lock"
NOT_LOCKED = {"torch", "triton"}  # a build for every kind of machine, and the other's version follows from torch's


def locked() -> dict[str, list[str]]:
    """Name -> the lines of its entries; several where a version depends on Python or the system."""
    entries: dict[str, list[str]] = {}
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    for entry in re.split(r"\n(?! )", "\n".join(lines)):
        entries.setdefault(canonicalize_name(re.match(r"[\w.-]+", entry)[0]), []).append(entry)
    return entries


WANTED = [*PROJECT["dependencies"], *EXTRAS["harness"], *EXTRAS["dev"]]


@pytest.mark.parametrize("entry", [entry for entry in WANTED if not entry.startswith("entropy-dynamics")])
def test_the_lock_has_every_dependency_in_its_range(entry):
    """`make lock` fixes a failure."""
    wanted = Requirement(entry)
    name = canonicalize_name(wanted.name)
    if name in NOT_LOCKED:
        assert name not in locked()
        return
    pins = [Requirement(one.partition(" \\")[0]) for one in locked()[name]]
    assert pins
    for pin in pins:
        [version] = pin.specifier
        assert version.operator == "=="
        assert wanted.specifier.contains(version.version), f"{pin} is not {wanted}"


def test_everything_locked_is_a_pin_with_hashes_from_no_particular_place():
    entries = locked()
    assert len(entries) > 100  # dependencies of dependencies included
    assert not [name for name in entries if name in NOT_LOCKED or name.startswith("nvidia-")]
    for name, versions in entries.items():
        for entry in versions:
            first, *hashes = entry.split("\n")
            assert re.fullmatch(r"[\w.-]+==[\w.!]+( ; [^\\]+)? \\", first), name  # no local version, no extra, no URL
            assert hashes
            assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes), name
    assert not re.search(r"://|--(index|extra|find|trusted)", LOCK.read_text())


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    latest = re.search(
        r"^## (?:\[Unreleased\] – |\[)(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert PROJECT["version"] == citation == latest[1]


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make_works_in_a_path_with_any_character(tmp_path):
    folder = tmp_path / "my 'first' \"projects\" $HOME"
    (folder / ".venv/bin").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("pyproject.toml", "requirements.lock", ".venv/ready"):
        (folder / name).touch()
    for name in ("python", "jupyter", "snakemake", "entropy-dynamics"):
        (folder / ".venv/bin" / name).write_text('#!/bin/sh\nprintf "%s\\n" "$PYTHONPATH" "$@" >> called\n')
        (folder / ".venv/bin" / name).chmod(0o755)
    make = ["make", "gpu-check", "notebooks", "smoke", "PYTHON=.venv/bin/python", "TORCH_INDEX="]
    run = subprocess.run(make, cwd=folder, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert run.returncode == 0, run.stderr
    called = (folder / "called").read_text().splitlines()
    assert {f"{folder}/src", f"--ServerApp.root_dir={folder}", "scale=smoke"} <= set(called)
