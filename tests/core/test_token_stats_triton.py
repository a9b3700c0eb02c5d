"""The Triton kernels of token_stats in Triton's interpreter, by the tests of the CPU path and by that path itself.

Triton reads TRITON_INTERPRET when it is imported, so each test runs in a process of its own.
"""

import importlib.util
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
import torch

from entropy_dynamics.core import kernels as proof
from entropy_dynamics.core import tiles
from entropy_dynamics.core.token_stats import token_stats

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
FUNCTIONS = ("gradient", "sums_of_logits")


def interpreted(*command: str) -> str:
    """What Python says of a command in which the kernels are interpreted."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_tests_of_the_cpu_path_hold_for_the_kernels():
    """Worked values, every dtype and temperature, peaked distributions, shapes: small enough for the interpreter."""
    small = (
        "(every_dtype and peaked) or worked_values or keeps_its_digits or leading_shapes"
        " or in_another_order or only_logp or (minus_infinity and 200) or (states_and_a_weight and 7)"
        " or (logp_from_logits and not 2500) or (against_float64 and 200 and 0.7) or any_shape"
    )
    names = ("test_token_stats.py", "test_second_pass.py")
    tests = [str(Path(__file__).with_name(name)) for name in names]
    options = ("--noconftest", "-o", "addopts=", "-p", "no:cacheprovider")
    assert "passed" in interpreted("-m", "pytest", *options, *tests, "-k", small)


def results(given, weight, tokens, upstream, device="cpu"):
    """Statistics and gradients, fp32 on the CPU, whatever they were computed in."""
    leaves = [x.detach().to(device).requires_grad_() for x in (given, weight) if x is not None]
    own = {"weight": None if weight is None else leaves[1], "entropy_gradient": True}
    stats = token_stats(leaves[0], tokens.to(device), temperature=0.7, **own)
    (stats.logp * upstream.to(device) + 0.5 * stats.entropy).sum().backward()
    columns = [*stats.columns().values(), *(leaf.grad for leaf in leaves)]
    return [x.detach().cpu().float() for x in columns]


def draw(rows, vocabulary, depth, dtype, scale, seed):
    """Hidden states and a weight, tokens and upstream gradients."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, depth, generator=g).to(dtype)
    weight = (scale * torch.randn(vocabulary, depth, generator=g) / depth**0.5).to(dtype)
    tokens = torch.randint(vocabulary, (rows,), generator=g)
    return hidden, weight, tokens, torch.randn(rows, generator=g)


def assert_close(found, given, of_tokens, digits, atol, rounded):
    """To the CPU path in fp32. In bf16 the results from number `rounded` on hold 8 bits."""
    with patch("entropy_dynamics.core.token_stats.kernels_for", lambda tensor: None):
        exact = results(*(None if x is None else x.float() for x in given), *of_tokens)
    for number, (a, b) in enumerate(zip(found, exact, strict=True)):
        rtol = 0.02 if given[0].dtype == torch.bfloat16 and number >= rounded else digits
        least = max(atol, rtol * b.abs().max().item())
        torch.testing.assert_close(a, b, rtol=rtol, atol=least, msg=lambda m, n=number: f"{n} {m}")


def against_the_cpu_path():
    from entropy_dynamics.core import token_stats_triton as kernels

    kernels.BLOCK = 256
    tiles.projection_tile = lambda *given: (64, 256)  # several tiles, the last ones partly filled
    # A few programs run through several tiles each, many leave parts to be merged.
    sizes = ((1, 300, 5, 1024), (3, 600, 33, 1), (130, 200, 20, 2))
    for (*size, kernels.PROGRAMS), dtype in product(sizes, (torch.float32, torch.bfloat16)):
        hidden, weight, *of_tokens = draw(*size, dtype, scale=2, seed=size[0])
        of_tokens[0][-1] = len(weight) - 1
        logits = hidden.float() @ weight.float().T
        logits[0, 5], of_tokens[0][0] = -torch.inf, 6
        for given in ((hidden, weight), (logits.to(dtype), None)):
            spies = {name: Mock(wraps=getattr(kernels, name)) for name in FUNCTIONS}
            with patch.multiple(kernels, **spies):
                found = results(*given, *of_tokens)
            assert all(spy.called for spy in spies.values())
            # On a CPU, not on a GPU, the logits of a product in bf16 hold 8 bits, too.
            rounded = 4 if given[1] is None else 0
            assert_close(found, given, of_tokens, digits=3e-5, atol=2e-6, rounded=rounded)


def test_kernels_against_the_cpu_path_at_odd_sizes():
    """One row, vocabularies and depths that fill no block, a token in the last column, -inf."""
    interpreted(__file__, "against_the_cpu_path")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("form", ["logits", "hidden"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_on_a_gpu(dtype, form):
    """The compiled kernels against the CPU path in fp32 on the same numbers, statistics and gradients."""
    hidden, weight, *of_tokens = draw(300, 33_001, 200, dtype, scale=3, seed=0)
    logits = (hidden.float() @ weight.float().T).to(dtype)
    given = (hidden, weight) if form == "hidden" else (logits, None)
    assert proof.kernels_for(hidden.cuda()) is not None  # otherwise PyTorch would be compared with itself
    found = results(*given, *of_tokens, "cuda")
    assert_close(found, given, of_tokens, digits=5e-5, atol=5e-6, rounded=4)


def wrong_kernels_are_refused():
    from entropy_dynamics.core import token_stats_triton as kernels

    cpu, right = torch.device("cpu"), kernels.sums_of_logits
    assert proof.works_on(cpu, torch.float32)
    for wrong, said in (
        (lambda *a: right(*a) * 1.5, "are wrong"),
        (lambda *a: right(*a) * float("nan"), "are wrong"),
        (lambda *a: right(*a) * torch.tensor([1, 1, 1, 1.01, 1])[:, None], "are wrong"),  # E[S] alone
        (Mock(side_effect=RuntimeError("out of resources: shared memory")), "out of resources"),
    ):
        kernels.sums_of_logits = wrong
        proof.works_on.cache_clear()
        with pytest.warns(UserWarning, match=said):
            assert not proof.works_on(cpu, torch.float32)


@pytest.mark.long
def test_kernels_that_are_wrong_or_do_not_run_on_a_gpu_are_not_used():
    interpreted(__file__, "wrong_kernels_are_refused")


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

    monkeypatch.setattr(kernels, "sums_of_logits", Mock(side_effect=error))
    works = proof.works_on.__wrapped__  # past the cache
    if goes_on:
        with pytest.warns(UserWarning, match="no Triton kernels"):
            assert not works(torch.device("cpu"), torch.float32)
    else:
        with pytest.raises(RuntimeError, match="out of memory"):
            works(torch.device("cpu"), torch.float32)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
