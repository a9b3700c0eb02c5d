"""The Triton kernels compiled for GPUs that are not here: spills and shared memory."""

import importlib.util
import re
import subprocess
import warnings
from functools import cache
from types import ModuleType

import pytest

from project_copy import ROOT

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

SHARED = {80: 163, 90: 227, 100: 227}  # KiB of shared memory that a block may have (CUDA programming guide)
POINTERS = {"tokens": "*i64", "z": None, "hidden": None, "weight": None, "out": None}  # None: of the element type
ODD = ("scale", "temperature", "first", "tiles", "parts", "chunk")  # not known to be multiples of 16


@cache
def kernels() -> ModuleType:
    """The module, past the hook by which the tests check shapes: Triton compiles its source."""
    spec = importlib.util.spec_from_file_location("kernels", ROOT / "src/entropy_dynamics/core/token_stats_triton.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(tmp_path, name: str, dtype: str, arch: int, **constants: int) -> tuple[int, int, str]:
    """Bytes of shared memory and bytes that a thread spills, from ptxas, and the PTX."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    warps, stages = constants.pop("warps"), constants.pop("stages", 3)
    function = getattr(kernels(), name)
    kinds = {"scale": "fp32", "temperature": "fp32"}
    integers = ("rows", "vocabulary", "depth", "tiles", "parts", "chunk", "stride", "first", "width")
    integers += ("hidden_stride", "weight_stride", "out_stride")
    signature = {}
    for argument in function.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument in POINTERS:
            signature[argument] = POINTERS[argument] or f"*{dtype}"
        else:
            signature[argument] = kinds.get(argument, "i32" if argument in integers else "*fp32")
    aligned = [argument not in constants and argument not in ODD for argument in function.arg_names]
    hints = {(place,): [["tt.divisibility", 16]] for place, is_aligned in enumerate(aligned) if is_aligned}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = triton.compile(
            ASTSource(function, signature, constants, hints),
            target=GPUTarget("cuda", arch, 32),
            options={"num_warps": warps, "num_stages": stages},
        )
    ptx = tmp_path / "kernel.ptx"
    ptx.write_text(kernel.asm["ptx"])
    target = re.search(r"\.target (sm_\w+)", kernel.asm["ptx"])[1]
    command = [get_ptxas(arch).path, "-v", f"--gpu-name={target}", str(ptx), "-o", str(tmp_path / "kernel.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = sum(int(count) for count in re.findall(r"(\d+) bytes spill", said))
    return kernel.metadata.shared, spilled, kernel.asm["ptx"]


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_the_hidden_kernel_fits_into_registers_and_shared_memory(tmp_path, arch):
    rows, columns, depth, warps, stages = kernels().AMPERE if arch == 80 else kernels().PRODUCT
    tile = {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "GROUP": kernels().GROUP, "UPCAST": False}
    shared, spilled, ptx = compiled(tmp_path, "_hidden_kernel", "bf16", arch, warps=warps, stages=stages, **tile)
    assert shared <= SHARED[arch] * 1024
    assert spilled <= 32
    if arch == 90:
        assert "wgmma" in ptx  # Hopper's tensor cores at full rate


@pytest.mark.parametrize(
    ("name", "constants"),
    [("_logits_kernel", {}), ("_gradient_kernel", {"ENTROPY": False}), ("_gradient_kernel", {"ENTROPY": True})],
)
def test_the_kernels_of_logits_spill_nothing(tmp_path, name, constants):
    shared, spilled, _ = compiled(tmp_path, name, "bf16", 90, warps=8, BLOCK=kernels().BLOCK, **constants)
    assert shared <= 1024
    assert spilled == 0
