"""Stage `kernels`: token statistics forward and backward, against the matrix product, log_softmax and TRL's fused head.

Sides take turns within a shape. From hidden states, ratios are to the bare matrix products (one forward, three with
backward); from given logits, to a copy of them. `share_of_peak` is that of the GPU's TFLOP/s or bandwidth in
`plan.gpus`, null for a GPU without a row there.
"""

import time
import warnings
from collections.abc import Callable
from importlib import import_module
from statistics import median

import torch
from torch import Tensor

from entropy_dynamics.config import load_config
from entropy_dynamics.core.kernels import kernels_for
from entropy_dynamics.core.token_stats import token_stats
from gpu_check_common import Case, Check, gpu_row

TRL_CHUNK = 32_768  # columns of the vocabulary, as TRL's trainers set it
Sides = dict[str, Callable[[], object]]


CASES = [  # the heads of Qwen2.5-7B and SmolLM2-135M first
    {"vocabulary": 151_936, "depth": 3584, "dtype": "bfloat16", "rows": 8192},
    {"vocabulary": 49_152, "depth": 576, "dtype": "bfloat16", "rows": 8192},
    {"vocabulary": 151_936, "depth": 1536, "dtype": "float32", "rows": 4096},
    {"vocabulary": 128_256, "depth": 4096, "dtype": "bfloat16", "rows": 8192},
    {"vocabulary": 151_936, "depth": 3584, "dtype": "bfloat16", "rows": 16_384},  # more than L2 holds
    {"vocabulary": 151_936, "depth": 4096, "dtype": "bfloat16", "rows": 8192},
    {"vocabulary": 128_256, "depth": 3584, "dtype": "bfloat16", "rows": 8192},
]
CASE_SECONDS = 45  # to start a process, to compile, and a tenth of a second for each of 11 turns of 20 sides [estimate]


def kernels(check: Check) -> None:
    cases = [case | {"device": "cuda", "repeats": 10} for case in CASES]
    if check.tiny:
        cases = [{"vocabulary": 4999, "depth": 32, "dtype": "float32", "rows": 16, "device": "cpu", "repeats": 1}]
    check.measure(measure_shape, cases)


def kernels_seconds() -> float:
    return CASE_SECONDS * len(CASES)


def measure_shape(case: Case) -> Case:
    """Milliseconds, ratios and peak GiB of each side, for one vocabulary and one width."""
    device, rows, vocabulary, depth = (case[key] for key in ("device", "rows", "vocabulary", "depth"))
    kind = {"device": device, "dtype": getattr(torch, case["dtype"])}
    generator = torch.Generator(device).manual_seed(0)
    hidden = torch.empty(rows, depth, **kind).normal_(generator=generator).requires_grad_()
    weight = torch.empty(vocabulary, depth, **kind).normal_(0, 3 / depth**0.5, generator=generator).requires_grad_()
    tokens = torch.randint(vocabulary, (rows,), device=device, generator=generator)
    logits = (hidden @ weight.T).detach().requires_grad_()

    heads: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: token_stats(hidden, tokens, weight=weight).logp,
        "log_softmax": lambda: _log_softmax((hidden @ weight.T).float(), tokens),
    }
    note = {}
    try:
        import_module("trl.trainer.utils")  # the backward pass of TRL's head imports it
        from trl.kernels import ChunkedLogProbFunction
    except (ImportError, RuntimeError) as error:
        note = {"trl": f"not measured: {error}"}
    else:
        settings = (1.0, TRL_CHUNK, None, 1.0, ("log_probs", "entropy"))  # neither S* nor E[S]
        heads["trl"] = lambda: ChunkedLogProbFunction.apply(hidden, weight, None, tokens, *settings)[0]
    try:
        liger = import_module("liger_kernel.transformers.functional").liger_fused_linear_cross_entropy
    except (ImportError, RuntimeError) as error:
        note["liger"] = f"not measured: {error}"
    else:
        heads["liger"] = lambda: -liger(hidden, weight, tokens, reduction="none")  # log p only
    for other in heads.keys() - {"ours", "log_softmax"}:  # a failure of theirs must not cost the case
        try:
            _with_backward(heads[other], hidden, weight)()
        except Exception as error:
            note[other] = f"not measured: {error}"
            del heads[other]
    given = {
        "ours": lambda: token_stats(logits, tokens).logp,
        "log_softmax": lambda: _log_softmax(logits.float(), tokens),
    }
    forms: dict[str, Sides] = {
        "forward": {"product": lambda: torch.mm(hidden, weight.T), **heads},
        "forward_and_backward": {
            "product": lambda: (torch.mm(hidden, weight.T), torch.mm(logits, weight), torch.mm(logits.T, hidden)),
            **{name: _with_backward(head, hidden, weight) for name, head in heads.items()},
        },
        "from_logits": {
            "copy": lambda: torch.empty_like(logits).copy_(logits.detach()),
            **given,
            **{f"{name} with backward": _with_backward(side, logits) for name, side in given.items()},
        },
    }
    in_use = kernels_in_use(hidden)  # before the first call, which warns if they cannot be used
    row = gpu_row()
    peak = load_config("paper").plan.gpus[row] if row else None
    costs = {form: _measured(sides, case["repeats"]) for form, sides in forms.items()}
    for form, products in (("forward", 1), ("forward_and_backward", 3)):
        for side in costs[form].values():
            side["tflops"] = products * 2 * rows * vocabulary * depth / side["milliseconds"] / 1e9
            side["share_of_peak"] = side["tflops"] / peak.tflops if peak else None
    # Passes over the logits: a copy reads and writes them, so does the backward pass; the forward pass reads them.
    for name, passes in (("copy", 2), ("ours", 1), ("ours with backward", 3)):
        side = costs["from_logits"][name]
        side["gb_per_second"] = passes * logits.nbytes / side["milliseconds"] / 1e6
        side["share_of_peak"] = side["gb_per_second"] / peak.bandwidth_gb_s if peak else None
    with torch.no_grad():
        exact = _log_softmax(hidden[:64].double() @ weight.double().T, tokens[:64])
        errors = {f"{name}_logp_error_nats": (head()[:64] - exact).abs().max().item() for name, head in heads.items()}
    return costs | errors | note | in_use


def kernels_in_use(tensor: Tensor) -> Case:
    """`triton`: token statistics of `tensor` are computed by the Triton kernels; otherwise the warnings say why not."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        triton = kernels_for(tensor) is not None
    return {"triton": triton, "warnings": [str(warning.message) for warning in caught]}


def _log_softmax(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)


def _with_backward(head: Callable[[], Tensor], *inputs: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(head().sum(), inputs)


def _measured(sides: Sides, repeats: int) -> dict[str, dict[str, float | None]]:
    """Medians over turns, those of each turn's ratio to the first side, and peak memory beyond the inputs."""
    turns = [{name: _cost(side) for name, side in sides.items()} for _ in range(repeats + 1)][1:]  # without a warm-up
    first = next(iter(sides))
    return {
        name: {
            "milliseconds": median(turn[name][0] for turn in turns),
            f"over_{first}": median(turn[name][0] / turn[first][0] for turn in turns),
            "peak_gib": turns[0][name][1],
        }
        for name in sides
    }


def _cost(side: Callable[[], object]) -> tuple[float, float | None]:
    """Milliseconds, and the GiB of GPU memory that a side allocates, its result included; None without a GPU."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        side()
        return 1e3 * (time.perf_counter() - start), None
    torch.cuda.reset_peak_memory_stats()
    before, start, end = torch.cuda.memory_allocated(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    side()
    end.record()
    end.synchronize()
    return start.elapsed_time(end), (torch.cuda.max_memory_allocated() - before) / 2**30
