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

INTEGERS = ("rows", "vocabulary", "chunk", "stride", "first", "width", "out_stride")
TYPES = {"tokens": "*i64", "out": "*bf16", "scale": "fp32", "temperature": "fp32"}  # others: *fp32
TYPES |= dict.fromkeys(INTEGERS, "i32")
ODD = ("scale", "temperature", "first", "chunk")  # not known to be multiples of 16


@cache
def kernels() -> ModuleType:
    """The module, past the hook by which the tests check shapes: Triton compiles its source."""
    spec = importlib.util.spec_from_file_location("kernels", ROOT / "src/entropy_dynamics/core/token_stats_triton.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(tmp_path, name: str, dtype: str, arch: int, **constants: int) -> tuple[int, int]:
    """Bytes of shared memory, and bytes that a thread spills, from ptxas."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    warps = constants.pop("warps")
    function = getattr(kernels(), name)
    types = TYPES | {"z": f"*{dtype}"} | dict.fromkeys(constants, "constexpr")
    signature = {argument: types.get(argument, "*fp32") for argument in function.arg_names}
    aligned = [argument not in constants and argument not in ODD for argument in function.arg_names]
    hints = {(place,): [["tt.divisibility", 16]] for place, is_aligned in enumerate(aligned) if is_aligned}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = triton.compile(
            ASTSource(function, signature, constants, hints),
            target=GPUTarget("cuda", arch, 32),
            options={"num_warps": warps},
        )
    ptx = tmp_path / "kernel.ptx"
    ptx.write_text(kernel.asm["ptx"])
    target = re.search(r"\.target (sm_\w+)", kernel.asm["ptx"])[1]
    command = [get_ptxas(arch).path, "-v", f"--gpu-name={target}", str(ptx), "-o", str(tmp_path / "kernel.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = sum(int(count) for count in re.findall(r"(\d+) bytes spill", said))
    return kernel.metadata.shared, spilled


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])  # given logits, and those of a product
@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize(
    ("name", "constants"),
    [("_logits_kernel", {}), ("_gradient_kernel", {"ENTROPY": False}), ("_gradient_kernel", {"ENTROPY": True})],
)
def test_the_kernels_spill_nothing(tmp_path, name, constants, arch, dtype):
    shared, spilled = compiled(tmp_path, name, dtype, arch, warps=8, BLOCK=kernels().BLOCK, **constants)
    assert shared <= 1024
    assert spilled == 0
