"""Whether the Triton kernels of the token statistics are used: where they run, and agree with PyTorch."""

import importlib.util
import os
import subprocess
import warnings
from functools import cache

import torch
from torch import Tensor

from entropy_dynamics.core.token_gradients import Statistics
from entropy_dynamics.core.token_sums import Kernels


def kernels_for(tensor: Tensor) -> Kernels:
    """The Triton kernels if they can run: on a GPU for which `works_on` is true, or in Triton's interpreter."""
    if not (tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") or importlib.util.find_spec("triton") is None:
        return None
    if tensor.is_cuda and not works_on(tensor.device, tensor.dtype):
        return None
    from entropy_dynamics.core import token_stats_triton

    return token_stats_triton


@cache
def works_on(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels agree with PyTorch in values and gradients. If not (e.g. on a small GPU), warn once."""
    from triton.errors import TritonError

    from entropy_dynamics.core import token_stats_triton

    try:
        fast, plain = (_small_case(device, dtype, kernels) for kernels in (token_stats_triton, None))
        # Relative to the norm of each result: E[S] is a thousand times smaller than the entropy. In bf16, PyTorch
        # rounds the logits and the kernels do not. NaN disagrees, too.
        bound = 1e-3 if dtype == torch.float32 else 0.05
        if all((one - other).norm() <= bound * other.norm() for one, other in zip(fast, plain, strict=True)):
            return True
        reason = "they are wrong"
    # Errors of Triton, of its C compiler, and of the driver.
    except (TritonError, ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        reason = str(error)
        if "out of memory" in reason:  # PyTorch would lack the same memory
            raise
    warnings.warn(f"no Triton kernels for token statistics in {dtype} on {device}: {reason}", stacklevel=2)
    return False


@torch.enable_grad()
def _small_case(device: torch.device, dtype: torch.dtype, kernels: Kernels) -> list[Tensor]:
    """Statistics and gradients of 70 tokens, from hidden states and from logits; no size is a multiple of a block."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((1.0, 70, 96), (0.2, 5001, 96), (1.0, 70, 5001))
    normal = (scale * torch.randn(*size, generator=generator) for scale, *size in sizes)
    hidden, weight, logits = (values.to(device, dtype).requires_grad_() for values in normal)
    tokens = torch.linspace(0, 5000, 70, device=device).long()  # in every block of the vocabulary
    none = torch.empty(70, 0, dtype=torch.long, device=device)
    results = []
    for given, projection in ((hidden, weight), (logits, None)):
        columns = Statistics.apply(given, projection, tokens, none, none.float(), 1.0, True, kernels)
        (columns[0] + columns[1]).sum().backward()
        results += [*columns[:4], given.grad]
    return [result.detach().float() for result in (*results, weight.grad)]
