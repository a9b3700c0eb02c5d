"""A copy of the project, so that a test can run the workflow as a user does and have its `results/` to itself."""

import re
import shutil
import subprocess
from pathlib import Path

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


def snakemake(project: Path, *arguments: str) -> subprocess.CompletedProcess:
    """`snakemake <arguments>`, at the smoke scale where they name none."""
    selection = [] if "--config" in arguments else ["--config", "scale=smoke"]
    command = [program("snakemake"), *arguments, *selection]  # targets stand before --config
    return subprocess.run(command, cwd=project, capture_output=True, text=True)
