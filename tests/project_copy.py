"""A copy of the project, so that a test can run the workflow as a user does and have its `results/` to itself."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from entropy_dynamics.client import SERVER
from preloaded import program

ROOT = Path(__file__).parents[1]
NEEDED = ["Snakefile", "workflow", "profiles", "configs", "experiments", "environment.yml"]


def copy_project(folder: Path) -> Path:
    """Without the claims about time: all other results of two runs are the same to the byte."""
    folder.mkdir(exist_ok=True)
    for name in NEEDED:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    claims = folder / "experiments" / "claims.yaml"
    text, removed = re.subn(r"  - for: .*\n    id: cost_.*\n(    .*\n)+\n", "", claims.read_text())
    assert removed == 1  # an entry for both methods
    claims.write_text(text)
    return folder


def with_package(project: Path) -> dict[str, str]:
    """Copy the package into a project, for code of a test's own, and return an environment whose commands use it."""
    shutil.copytree(ROOT / "src", project / "src", ignore=shutil.ignore_patterns("__pycache__"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return without_server(PYTHONPATH=str(project / "src"), PATH=path)


def without_server(**more: str) -> dict[str, str]:
    """An environment whose commands run by themselves, without the server of the tests."""
    return {name: value for name, value in os.environ.items() if name != SERVER} | more


def snakemake(project: Path, *arguments: str) -> subprocess.CompletedProcess:
    """`snakemake <arguments>`, at the smoke scale where they name none."""
    selection = [] if "--config" in arguments else ["--config", "scale=smoke"]
    command = [program("snakemake"), *arguments, *selection]  # targets stand before --config
    return subprocess.run(command, cwd=project, capture_output=True, text=True)
