"""Triton kernels of the token statistics: the running sums of `token_stats` and the gradient of logits.

`sums_of_logits` reads each logit once. `sums_of_hidden` is a matrix product whose tiles of logits are reduced in
registers and never written to memory. `gradient` reads each logit once more. All compute in fp32 from fp32, bf16 or
fp16 inputs. The sums are (max, s, t, q, u) per part of the vocabulary, which `token_stats` merges; x = z - (maximum of
the part), and only e^x includes the temperature.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

# Vocabulary entries that one program holds at a time: with 8 warps, 16 logits and 64 sums per thread.
BLOCK = 4096
# Rows, columns and depth of a tile of the fused product, warps, pipeline stages.
PRODUCT = (128, 256, 64, 8, 4)
AMPERE = (128, 128, 64, 8, 3)  # before Hopper, where the wider tile spills 556 bytes per thread
GROUP = 16  # row blocks whose programs run together: their hidden states (15 MB at width 3,584) stay in L2
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
def _hidden_kernel(
    hidden,
    weight,
    tokens,
    sums,
    z_token,
    rows,
    vocabulary,
    depth,
    tiles,
    parts,
    hidden_stride,
    weight_stride,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Sums of `tiles` adjacent tiles of ROWS x COLUMNS logits, and the logits of the sampled tokens among them.

    Programs are ordered by groups of GROUP row blocks, within a group by part, and within a part by row block:
    programs that run together share the group's hidden states and a tile of the weight.
    """
    first = tl.program_id(0) // (GROUP * parts) * GROUP
    height = tl.minimum(tl.cdiv(rows, ROWS) - first, GROUP)
    within = tl.program_id(0) % (GROUP * parts)
    row = (first + within % height) * ROWS + tl.arange(0, ROWS)
    part = within // height
    k = tl.arange(0, DEPTH)
    row_inside = row < rows
    token = tl.load(tokens + row, mask=row_inside, other=-1)
    a = hidden + row.to(tl.int64)[:, None] * hidden_stride + k[None, :]
    top = tl.full((ROWS,), NONE, tl.float32)
    s, t = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    q, u = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for start in range(part * tiles * COLUMNS, tl.minimum((part + 1) * tiles * COLUMNS, vocabulary), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < vocabulary
        b = weight + column.to(tl.int64)[None, :] * weight_stride + k[:, None]
        logits = tl.zeros((ROWS, COLUMNS), tl.float32)
        for done in range(0, depth, DEPTH):
            left = depth - done
            a_tile = tl.load(a + done, mask=row_inside[:, None] & (k < left)[None, :], other=0.0)
            b_tile = tl.load(b + done, mask=inside[None, :] & (k < left)[:, None], other=0.0)
            if UPCAST:
                a_tile, b_tile = a_tile.to(tl.float32), b_tile.to(tl.float32)
            logits = tl.dot(a_tile, b_tile, logits, input_precision="ieee")
        here = (token >= start) & (token < start + COLUMNS)
        chosen = tl.sum(tl.where(column[None, :] == token[:, None], logits, 0.0), 1)
        tl.store(z_token + row, chosen, mask=here)
        logits = tl.where(inside[None, :], logits, float("-inf"))
        highest = tl.maximum(top, tl.max(logits, 1))
        down = tl.maximum(top - highest, LOWEST)
        w = tl.exp2(down * scale)
        x = tl.maximum(logits - highest[:, None], LOWEST)
        e = tl.where(inside[None, :], tl.exp2(x * scale), 0.0)
        y = e * x
        t = w * (t + down * s) + tl.sum(y, 1)
        s = w * s + tl.sum(e, 1)
        u = w * w * (u + down * q) + tl.sum(e * y, 1)
        q = w * w * q + tl.sum(e * e, 1)
        top = highest
    out = sums + part * 5 * rows + row
    tl.store(out, top, mask=row_inside)
    tl.store(out + rows, s, mask=row_inside)
    tl.store(out + 2 * rows, t, mask=row_inside)
    tl.store(out + 3 * rows, q, mask=row_inside)
    tl.store(out + 4 * rows, u, mask=row_inside)


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


def sums_of_hidden(
    hidden: Float[Tensor, "rows hidden"],
    weight: Float[Tensor, "vocab hidden"],
    tokens: Int[Tensor, " rows"],
    temperature: float,
) -> tuple[Float[Tensor, "parts 5 rows"], Float[Tensor, " rows"]]:
    """Sums (max, s, t, q, u) over parts of the vocabulary from hidden @ weight.T, and the sampled tokens' logits.

    For inputs of two bytes an element: the tiles are chosen for tensor cores.
    """
    (rows, depth), vocabulary = hidden.shape, len(weight)
    hidden, weight = _dense_rows(hidden), _dense_rows(weight)
    before_hopper = hidden.is_cuda and torch.cuda.get_device_capability(hidden.device) < (9, 0)
    height, width, step, warps, stages = AMPERE if before_hopper else PRODUCT
    row_blocks, columns = triton.cdiv(rows, height), triton.cdiv(vocabulary, width)
    tiles = triton.cdiv(columns, min(columns, triton.cdiv(PROGRAMS, row_blocks)))
    parts = triton.cdiv(columns, tiles)
    sums = torch.empty(parts, 5, rows, device=hidden.device)
    z_token = torch.empty(rows, device=hidden.device)
    tensors = hidden, weight, tokens.contiguous(), sums, z_token
    sizes = rows, vocabulary, depth, tiles, parts, hidden.stride(0), weight.stride(0)
    _hidden_kernel[(row_blocks * parts,)](
        *tensors,
        *sizes,
        LOG2_E / temperature,
        ROWS=height,
        COLUMNS=width,
        DEPTH=step,
        GROUP=GROUP,
        UPCAST=not hidden.is_cuda,  # Triton's interpreter has no bf16 product; upcasting gives the same result
        num_warps=warps,
        num_stages=stages,
    )
    return sums, z_token


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
        *(first, width, logits.stride(0), out.stride(0)),
        temperature,
        LOG2_E,
        ENTROPY=grad_entropy is not None,
        BLOCK=block,
        num_warps=8,
    )


def _dense_rows(matrix: Tensor) -> Tensor:
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()
