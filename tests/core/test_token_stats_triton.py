"""The Triton kernels of token_stats in Triton's interpreter, by the tests of the CPU path and by that path itself.

Triton reads TRITON_INTERPRET when it is imported, so each test runs in a process of its own.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from entropy_dynamics.core import kernels as proof
from entropy_dynamics.core.token_stats import token_stats

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def run(*command: str) -> str:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_tests_of_the_cpu_path_hold_for_the_kernels():
    """Worked values, every dtype and temperature, peaked distributions, shapes: small enough for the interpreter."""
    small = (
        "(every_dtype and peaked) or worked_values or keeps_its_digits or leading_shapes or slice_of_the_logits"
        " or in_another_order or only_logp or (minus_infinity and 200) or (states_and_a_weight and 7)"
        " or (logp_from_logits and not 2500) or (against_float64 and 200 and 0.7) or any_shape"
    )
    tests = [str(Path(__file__).parent / name) for name in ("test_token_stats.py", "test_second_pass.py")]
    assert "passed" in run(
        "-m", "pytest", "--noconftest", "-o", "addopts=", "-p", "no:cacheprovider", *tests, "-k", small
    )


AGAINST_THE_CPU = """
import torch
from entropy_dynamics.core import token_stats as module
from entropy_dynamics.core import token_stats_triton as kernels

called = []
for name in ("sums_of_logits", "gradient"):
    def spy(*args, _function=getattr(kernels, name), _name=name, **kwargs):
        called.append(_name)
        return _function(*args, **kwargs)
    setattr(kernels, name, spy)

def run(hidden, weight, tokens, temperature):
    hidden = hidden.clone().requires_grad_()
    weight = None if weight is None else weight.clone().requires_grad_()
    stats = module.token_stats(hidden, tokens, weight=weight, temperature=temperature, entropy_gradient=True)
    (stats.logp * torch.arange(1, len(tokens) + 1) + 0.5 * stats.entropy).sum().backward()
    columns = [stats.logp, stats.entropy, stats.s_star, stats.s_expected]
    return [x.detach().double() for x in (*columns, hidden.grad, *([] if weight is None else [weight.grad]))]

kernels.BLOCK = 256
module.tiles.projection_tile = lambda *given: (64, 256)  # several tiles of hidden states, the last ones partly filled
SIZES = ((1, 300, 5, 1024), (3, 600, 33, 1), (130, 200, 20, 2))
for rows, vocabulary, depth, programs in SIZES:
    kernels.PROGRAMS = programs  # a few run through several tiles each, many leave parts to be merged
    for dtype in (torch.float32, torch.bfloat16):
        g = torch.Generator().manual_seed(rows)
        hidden = torch.randn(rows, depth, generator=g).to(dtype)
        weight = (2 * torch.randn(vocabulary, depth, generator=g) / depth**0.5).to(dtype)
        tokens = torch.randint(vocabulary, (rows,), generator=g)
        tokens[-1] = vocabulary - 1
        logits = hidden.float() @ weight.float().T
        logits[0, 5] = -torch.inf
        tokens[0] = 6
        for given in ((hidden, weight), (logits.to(dtype), None)):
            kernel = run(*given, tokens, 0.7)
            used, called[:] = set(called), []
            assert used == {"gradient", "sums_of_logits"}, used
            module.kernels_for, keep = (lambda tensor: None), module.kernels_for
            plain = run(*(None if x is None else x.float() for x in given), tokens, 0.7)
            module.kernels_for = keep
            assert not called
            for number, (a, b) in enumerate(zip(kernel, plain)):
                # gradients in bf16 hold 8 bits, as do the logits of a product in bf16 on a CPU, not on a GPU
                rounded = dtype == torch.bfloat16 and (number >= 4 or given[1] is not None)
                digits = 0.02 if rounded else 3e-5
                atol = max(2e-6, digits * b.abs().max().item())
                torch.testing.assert_close(a, b, rtol=digits, atol=atol, msg=lambda m: f"{number} {rows} {dtype} {m}")
print("equal")
"""


def test_kernels_against_the_cpu_path_at_odd_sizes():
    """One row, vocabularies and depths that fill no block, a token in the last column, -inf, an entropy gradient."""
    assert "equal" in run("-c", AGAINST_THE_CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("form", ["logits", "hidden"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_on_a_gpu(dtype, form):
    """The compiled kernels against the CPU path in fp32 on the same numbers, statistics and gradients."""
    g = torch.Generator().manual_seed(0)
    rows, vocabulary, depth = 300, 33_001, 200
    hidden = torch.randn(rows, depth, generator=g).to(dtype)
    weight = (3 * torch.randn(vocabulary, depth, generator=g) / depth**0.5).to(dtype)
    tokens, upstream = torch.randint(vocabulary, (rows,), generator=g), torch.randn(rows, generator=g)
    given = (hidden, weight) if form == "hidden" else ((hidden.float() @ weight.float().T).to(dtype), None)

    def run(first, weight, device):
        first = first.detach().to(device).requires_grad_()
        weight = None if weight is None else weight.detach().to(device).requires_grad_()
        stats = token_stats(first, tokens.to(device), weight=weight, temperature=0.7, entropy_gradient=True)
        ((stats.logp + stats.entropy) * upstream.to(device)).sum().backward()
        grads = [x.grad for x in (first, weight) if x is not None]
        return [x.detach().cpu().float() for x in (stats.logp, stats.entropy, stats.s_star, stats.s_expected, *grads)]

    exact = run(*(None if x is None else x.float() for x in given), "cpu")
    assert proof.kernels_for(hidden.cuda()) is not None  # otherwise PyTorch would be compared with itself
    for number, (a, b) in enumerate(zip(run(*given, "cuda"), exact, strict=True)):
        digits = 0.02 if number >= 4 and dtype == torch.bfloat16 else 5e-5
        torch.testing.assert_close(a, b, rtol=digits, atol=max(5e-6, digits * b.abs().max().item()))


PROVED_FIRST = """
import warnings, torch
from entropy_dynamics.core import kernels as proof
from entropy_dynamics.core import token_stats_triton as kernels

cpu = torch.device("cpu")
assert proof.works_on(cpu, torch.float32)
right = kernels.sums_of_logits
for wrong, said in (
    (lambda *a: right(*a) * 1.5, "are wrong"),
    (lambda *a: right(*a) * float("nan"), "are wrong"),
    (lambda *a: right(*a) * torch.tensor([1, 1, 1, 1.01, 1])[:, None], "are wrong"),  # E[S] alone
    (lambda *a: (_ for _ in ()).throw(RuntimeError("out of resources: shared memory")), "out of resources"),
):
    kernels.sums_of_logits = wrong
    proof.works_on.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not proof.works_on(cpu, torch.float32)
    assert said in str(caught[0].message), caught
print("proved")
"""


@pytest.mark.long
def test_kernels_that_are_wrong_or_do_not_run_on_a_gpu_are_not_used():
    assert "proved" in run("-c", PROVED_FIRST)


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), False),
        (RuntimeError("Triton Error [CUDA]: out of memory"), False),
        (RuntimeError("out of resources: shared memory"), True),
        (ImportError("libcuda.so.1: cannot open shared object file"), True),
    ],
)
def test_a_gpu_without_memory_is_not_one_without_triton(monkeypatch, error, goes_on):
    """PyTorch would need the memory, too, and another batch size helps."""
    from entropy_dynamics.core import token_stats_triton as kernels

    def fail(*given):
        raise error

    monkeypatch.setattr(kernels, "sums_of_logits", fail)
    works = proof.works_on.__wrapped__  # past the cache
    if goes_on:
        with pytest.warns(UserWarning, match="no Triton kernels"):
            assert not works(torch.device("cpu"), torch.float32)
    else:
        with pytest.raises(RuntimeError, match="out of memory"):
            works(torch.device("cpu"), torch.float32)
