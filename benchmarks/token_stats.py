"""Token statistics against what they replace: time, taking turns in one process, and peak memory, one process each.

From given logits: log_softmax alone (allocating, and into an existing buffer), TRL's selective_log_softmax and
entropy_from_logits, which give neither S* nor E[S], and the authors' code, which builds log p, p, p^2 and p^2 log p of
the whole vocabulary. From hidden states: the bare matrix product. TRL's row needs the extra `bench`; on a GPU
`gpu_check.py kernels` measures the same.

With --second-pass it measures what `top` and `min_p` add instead, into second_pass.json.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from common import in_own_process, make_parser, write_record
from entropy_dynamics.core.token_stats import TokenStats, token_stats

VOCABULARY, DEPTH = 151_936, 3_584
OURS = "token_stats"
FIELDS = ("logp", "entropy", "s_star", "s_expected")


def authors(logits: Tensor, tokens: Tensor) -> TokenStats:
    """log p, H, S* and E[S] by their definitions, from four more tensors of the size of the logits."""
    logp_all = logits.log_softmax(-1)
    p = logp_all.exp()
    entropy = -(p * logp_all).sum(-1)
    p2 = p.square()
    p2_logp = p2 * logp_all
    logp = logp_all.gather(-1, tokens[:, None]).squeeze(-1)
    return TokenStats(logp, entropy, logp.exp() * (entropy + logp), entropy * p2.sum(-1) + p2_logp.sum(-1))


def sides_of_logits(rows: int, buffer: bool = True) -> dict[str, Callable]:
    logits, tokens = make_logits(rows)
    sides = {
        OURS: lambda: token_stats(logits, tokens),
        "log_softmax": lambda: logits.log_softmax(-1),
        "authors": lambda: authors(logits, tokens),
    }
    if buffer:
        out = torch.zeros_like(logits)
        sides["log_softmax into a buffer"] = lambda: torch.log_softmax(logits, -1, out=out)
    try:
        from trl.trainer.utils import entropy_from_logits, selective_log_softmax
    except ImportError:
        return sides
    # TRL's functions take [batch, length, V]
    batch, index = logits[None], tokens[None]
    return sides | {"trl": lambda: (selective_log_softmax(batch, index), entropy_from_logits(batch))}


def sides_of_hidden(rows: int, buffer: bool = True) -> dict[str, Callable]:
    hidden, weight, tokens = make_hidden(rows)
    sides = {
        OURS: lambda: token_stats(hidden, tokens, weight=weight),
        "product": lambda: hidden @ weight.T,
        "authors": lambda: authors(hidden @ weight.T, tokens),
    }
    if buffer:
        out = torch.zeros(rows, VOCABULARY)
        sides["product into a buffer"] = lambda: torch.mm(hidden, weight.T, out=out)
    return sides


def sides_of_backward(rows: int, buffer: bool = False) -> dict[str, Callable]:
    """Forward and backward of the sum of log p, into hidden states and weight."""
    hidden, weight, tokens = make_hidden(rows)
    hidden.requires_grad_(), weight.requires_grad_()

    def ours() -> tuple[Tensor, ...]:
        return torch.autograd.grad(token_stats(hidden, tokens, weight=weight).logp.sum(), (hidden, weight))

    def plain() -> tuple[Tensor, ...]:
        logp = (hidden @ weight.T).log_softmax(-1).gather(-1, tokens[:, None])
        return torch.autograd.grad(logp.sum(), (hidden, weight))

    return {OURS: ours, "log_softmax": plain}


def sides_of_second_pass(form: str, rows: int) -> dict[str, Callable]:
    """token_stats with one pass over the vocabulary and with two, forward; and `top` with its backward pass."""
    if form == "logits":
        (given, tokens), weight = make_logits(rows), None
    else:
        given, weight, tokens = make_hidden(rows)

    def backward(**options: float) -> Callable:
        def run() -> tuple[Tensor, ...]:
            leaves = [x.detach().requires_grad_() for x in (given, weight) if x is not None]
            with torch.enable_grad():
                stats = token_stats(leaves[0], tokens, weight=None if weight is None else leaves[1], **options)
                total = stats.logp.sum() if stats.top_logp is None else stats.top_logp.sum() + stats.logp.sum()
            return torch.autograd.grad(total, leaves)

        return run

    return {
        OURS: lambda: token_stats(given, tokens, weight=weight),
        "min_p=0.02": lambda: token_stats(given, tokens, weight=weight, min_p=0.02),
        "top=3": lambda: token_stats(given, tokens, weight=weight, top=3),
        "with backward": backward(),
        "top=3 with backward": backward(top=3),
    }


def second_pass(rows: int, repeats: int) -> dict[str, dict]:
    """Times of one and two passes, and the median over the turns of their ratio."""
    result = {}
    for form in ("logits", "hidden"):
        timed = seconds(sides_of_second_pass(form, rows), repeats)
        pairs = {"min_p=0.02": OURS, "top=3": OURS, "top=3 with backward": "with backward"}
        result[form] = {
            "microseconds_per_token": {name: round(1e6 * statistics.median(x) / rows, 1) for name, x in timed.items()},
            "two_passes_over_one": {
                name: round(statistics.median(a / b for a, b in zip(timed[name], timed[one], strict=True)), 2)
                for name, one in pairs.items()
            },
        }
    return result


PEAKS = {
    "logits": (OURS, "log_softmax", "authors"),
    "hidden": (OURS, "product", "authors"),
    "backward": (OURS, "log_softmax"),
}
SIDES = {"logits": sides_of_logits, "hidden": sides_of_hidden, "backward": sides_of_backward}


def make_logits(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.empty(rows, VOCABULARY).normal_(0, 3, generator=generator)
    return logits, torch.randint(VOCABULARY, (rows,), generator=generator)


def make_hidden(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.empty(rows, DEPTH).normal_(generator=generator)
    weight = torch.empty(VOCABULARY, DEPTH).normal_(0, 3 / DEPTH**0.5, generator=generator)
    return hidden, weight, torch.randint(VOCABULARY, (rows,), generator=generator)


def seconds(sides: dict[str, Callable], repeats: int) -> dict[str, list[float]]:
    """CPU time of one thread. The sides take turns, so that a drift of the machine's speed affects all alike."""
    timed = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, side in sides.items():
            start = time.process_time()
            side()
            if repeat:  # the first is a warm-up
                timed[name].append(time.process_time() - start)
    return timed


def table(timed: dict[str, list[float]], rows: int) -> dict:
    """Medians, and the median of the ratios of each turn."""
    return {
        "microseconds_per_token": {name: round(1e6 * statistics.median(x) / rows, 1) for name, x in timed.items()},
        f"{OURS}_over": {
            name: round(statistics.median(a / b for a, b in zip(timed[OURS], x, strict=True)), 3)
            for name, x in timed.items()
            if name != OURS
        },
    }


def peak_mib(form: str, side: str, rows: int) -> float:
    """Memory that a side adds to its process's peak, its result included."""
    return in_own_process(__file__, "--peak", form, side, rows)


def print_peak(form: str, side: str, rows: int) -> None:
    run = SIDES[form](rows, buffer=False)[side]
    torch.set_grad_enabled(form == "backward")
    torch.randn(64, 64) @ torch.randn(64, 64)  # the libraries' own buffers
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kept = run()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    del kept


def relative_error(rows: int) -> dict[str, float]:
    """Largest error of a field against float64, relative to its value and to its size over the rows."""
    logits, tokens = make_logits(rows)
    ours, exact = token_stats(logits, tokens), authors(logits.double(), tokens)
    errors = {name: (getattr(ours, name).double() - getattr(exact, name)).abs() for name in FIELDS}
    return {name: float(f"{(errors[name] / getattr(exact, name).abs()).max():.1e}") for name in FIELDS}


def main() -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--second-pass", action="store_true")
    parser.add_argument("--peak", nargs=3, metavar=("FORM", "SIDE", "TOKENS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print_peak(options.peak[0], options.peak[1], int(options.peak[2]))
        return

    if options.second_pass:
        what = f"{options.tokens} tokens, V = {VOCABULARY}, d = {DEPTH}, fp32, one thread, CPU time, medians"
        with torch.no_grad():
            result = second_pass(options.tokens, options.repeats)
        write_record(options.out.with_name("second_pass.json"), what, **result)
        return

    rows, result = options.tokens, {}
    # Memory first: a process starts with the peak of its parent, which is still small.
    for form, names in PEAKS.items():
        peaks = {name: round(peak_mib(form, name, rows)) for name in names}
        result[form] = {"peak_mib": peaks, "peak_mib_twice_the_tokens": round(peak_mib(form, OURS, 2 * rows))}
    for form, repeats in (("logits", options.repeats), ("hidden", options.repeats), ("backward", 3)):
        with torch.set_grad_enabled(form == "backward"):
            result[form] |= table(seconds(SIDES[form](rows), repeats), rows)
    result["relative_error_against_float64"] = relative_error(32)
    if "trl" not in result["logits"]["microseconds_per_token"]:
        result["trl"] = "not installed"
    what = (
        f"statistics of {rows} tokens, V = {VOCABULARY}, d = {DEPTH}, fp32, one thread, medians of {options.repeats} "
        "turns; peak memory in MiB, one process per side, its result included"
    )
    write_record(options.out, what, **result)


if __name__ == "__main__":
    main()
