"""Triton kernels of the token statistics: the running sums of `token_stats` and the gradient of logits.

`sums_of_logits` reads each logit once, `gradient` once more. Both compute in fp32 from fp32, bf16 or fp16 inputs. The
sums are (max, s, t, q, u) per part of the vocabulary, which `token_stats` merges; x = z - (maximum of the part), and
only e^x includes the temperature.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

# Vocabulary entries that one program holds at a time: with 8 warps, 16 logits and 64 sums per thread.
BLOCK = 4096
PROGRAMS = 1024  # enough to occupy every SM of a large GPU; more would only add parts to merge
LOWEST = tl.constexpr(-1e4)  # as in token_stats: exp underflows, and -inf would give 0 * inf
NONE = tl.constexpr(-3e38)  # initial value of a running maximum
LOG2_E = 1.4426950408889634


@triton.jit
def _logits_kernel(z, sums, vocabulary, chunk, rows, stride, scale, BLOCK: tl.constexpr):
    """Sums of one chunk of one row. Each lane keeps its own sums; a new maximum, which is rare, rescales them."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    top = tl.full((), NONE, tl.float32)
    s, t = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    q, u = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(part * chunk, tl.minimum((part + 1) * chunk, vocabulary), BLOCK):
        inside = start + lane < vocabulary
        logits = tl.load(z + row * stride + start + lane, mask=inside, other=float("-inf")).to(tl.float32)
        highest = tl.max(logits, 0)
        if highest > top:
            down = tl.maximum(top - highest, LOWEST)
            w = tl.exp2(down * scale)
            t = w * (t + down * s)
            s = w * s
            u = w * w * (u + down * q)
            q = w * w * q
            top = highest
        x = tl.maximum(logits - top, LOWEST)
        e = tl.where(inside, tl.exp2(x * scale), 0.0)
        y = e * x
        s += e
        t += y
        q += e * e
        u += e * y
    out = sums + part * 5 * rows + row
    tl.store(out, top)
    tl.store(out + rows, tl.sum(s, 0))
    tl.store(out + 2 * rows, tl.sum(t, 0))
    tl.store(out + 3 * rows, tl.sum(q, 0))
    tl.store(out + 4 * rows, tl.sum(u, 0))


@triton.jit
def _gradient_kernel(
    z,
    out,
    tokens,
    log_normalizer,
    grad_logp,
    entropy,
    grad_entropy,
    first,
    width,
    stride,
    out_stride,
    temperature,
    scale,
    ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gradient of one block of one row: d log p_k = e_k - p, dH = -p (log p + H), divided by the temperature."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    logits = tl.load(z + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    logp = tl.maximum(logits / temperature - tl.load(log_normalizer + row), LOWEST)
    upstream = tl.load(grad_logp + row)
    factor = upstream
    if ENTROPY:
        factor += tl.load(grad_entropy + row) * (logp + tl.load(entropy + row))
    gradient = -factor * tl.exp2(logp * scale)
    gradient += tl.where(column + first == tl.load(tokens + row), upstream, 0.0)
    tl.store(out + row * out_stride + column, (gradient / temperature).to(out.dtype.element_ty), mask=inside)


def sums_of_logits(logits: Float[Tensor, "rows vocab"], temperature: float) -> Float[Tensor, "parts 5 rows"]:
    """Sums (max, s, t, q, u) over parts of the vocabulary, from logits."""
    rows, vocabulary = logits.shape
    logits = _dense_rows(logits)
    block = min(BLOCK, triton.next_power_of_2(vocabulary))
    blocks = triton.cdiv(vocabulary, block)
    chunk = triton.cdiv(blocks, min(blocks, triton.cdiv(PROGRAMS, rows)))
    parts = triton.cdiv(blocks, chunk)
    sums = torch.empty(parts, 5, rows, device=logits.device)
    _logits_kernel[(rows, parts)](
        logits, sums, vocabulary, chunk * block, rows, logits.stride(0), LOG2_E / temperature, BLOCK=block, num_warps=8
    )
    return sums


def gradient(
    logits: Float[Tensor, "rows tile"],
    tokens: Int[Tensor, " rows"],
    log_normalizer: Float[Tensor, " rows"],
    grad_logp: Float[Tensor, " rows"],
    entropy: Float[Tensor, " rows"],
    grad_entropy: Float[Tensor, " rows"] | None,
    first: int,
    temperature: float,
    *,
    out: Float[Tensor, "rows tile"],
) -> None:
    """Write the gradient of `logits`, whose column 0 is token `first` of the vocabulary, into `out`."""
    rows, width = logits.shape
    if rows == 0:
        return
    logits = _dense_rows(logits)
    block = min(BLOCK, triton.next_power_of_2(width))
    per_row = tokens, log_normalizer, grad_logp, entropy, grad_logp if grad_entropy is None else grad_entropy
    _gradient_kernel[(rows, triton.cdiv(width, block))](
        logits,
        out,
        *(x.contiguous() for x in per_row),
        *(first, width, logits.stride(0), out.stride(0), temperature, LOG2_E),
        ENTROPY=grad_entropy is not None,
        BLOCK=block,
        num_warps=8,
    )


def _dense_rows(matrix: Tensor) -> Tensor:
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()
