"""Triton kernels of a serving engine's hot path: paged decode attention with split KV, and the fused small kernels.

The KV pool is `[pages, page size, KV heads, head dim]`; a sequence's position `p` lies in page `table[p // PAGE]`.
`TRITON_INTERPRET=1` runs them on a CPU, which is how their results are checked without a GPU.
"""

import torch
import triton
import triton.language as tl


# Compiled once per shape: what changes from batch to batch is no constant of the kernel.
@triton.jit(do_not_specialize=["table_stride", "splits"])
def _decode_part(q, k_pool, v_pool, tables, contexts, part, lse, out, scale, table_stride, splits,
                 KV: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
                 N: tl.constexpr, WHOLE: tl.constexpr):
    seq, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts + seq)
    per = tl.cdiv(tl.cdiv(context, splits), N) * N
    start = split * per
    end = tl.minimum(context, start + per)
    g, d = tl.arange(0, GP), tl.arange(0, D)
    row = (seq * KV + head) * G + g
    query = tl.load(q + row[:, None] * D + d[None, :], mask=g[:, None] < G, other=0.0)
    m = tl.full([GP], float("-inf"), tl.float32)
    total = tl.zeros([GP], tl.float32)
    acc = tl.zeros([GP, D], tl.float32)
    for first in range(start, end, N):
        n = first + tl.arange(0, N)
        inside = n < end
        page = tl.load(tables + seq * table_stride + n // PAGE, mask=inside, other=0)
        slot = (page.to(tl.int64) * PAGE + n % PAGE) * KV + head
        k = tl.load(k_pool + slot[None, :] * D + d[:, None], mask=inside[None, :], other=0.0)
        s = tl.dot(query, k) * scale
        s = tl.where(inside[None, :], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_pool + slot[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        m = m_new
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    if WHOLE:
        tl.store(out + row[:, None] * D + d[None, :], acc.to(out.dtype.element_ty), mask=g[:, None] < G)
    else:
        at = row * splits + split
        tl.store(part + at[:, None] * D + d[None, :], acc, mask=g[:, None] < G)
        tl.store(lse + at, tl.where(total > 0, m + tl.log2(tl.maximum(total, 1e-30)), float("-inf")), mask=g < G)


@triton.jit
def _decode_join(part, lse, out, D: tl.constexpr, SPLITS: tl.constexpr):
    row = tl.program_id(0)
    s, d = tl.arange(0, SPLITS), tl.arange(0, D)
    share = tl.load(lse + row * SPLITS + s)
    share = tl.exp2(share - tl.max(share, 0))
    parts = tl.load(part + (row * SPLITS + s)[:, None] * D + d[None, :])
    joined = tl.sum(parts * share[:, None], 0) / tl.sum(share, 0)
    tl.store(out + row * D + d, joined.to(out.dtype.element_ty))


def decode_splits(batch, kv_heads, max_context, units):
    """Parts that a sequence's KV is split into: about three waves of CTAs, at least 256 tokens each, a power of two."""
    wanted = max(1, 3 * units // max(1, batch * kv_heads))
    most = max(1, max_context // 256)
    return 1 << (min(wanted, most, 64).bit_length() - 1)


class DecodeAttention:
    """Paged decode attention of one shape; its scratch memory is kept between calls, as CUDA graphs need."""

    def __init__(self, heads, kv_heads, head_dim, page, units):
        self.heads, self.kv, self.dim, self.page, self.units = heads, kv_heads, head_dim, page, units
        self.scratch = {}

    def __call__(self, q, k_pool, v_pool, tables, contexts, max_context, out=None):
        """q `[batch, heads, dim]`, tables `[batch, pages]` int32, contexts `[batch]` int32 with the new token."""
        batch = q.shape[0]
        splits = decode_splits(batch, self.kv, max_context, self.units)
        out = torch.empty_like(q) if out is None else out
        part = lse = out
        if splits > 1:
            key = (batch, splits)
            if key not in self.scratch:
                rows = batch * self.heads * splits
                self.scratch[key] = (torch.empty(rows * self.dim, dtype=torch.float32, device=q.device),
                                     torch.empty(rows, dtype=torch.float32, device=q.device))
            part, lse = self.scratch[key]
        group = self.heads // self.kv
        scale = self.dim**-0.5 * 1.4426950408889634  # log2(e): the kernel works in powers of two
        _decode_part[(batch, self.kv, splits)](
            q, k_pool, v_pool, tables, contexts, part, lse, out, scale, tables.stride(0), splits,
            KV=self.kv, G=group, GP=max(16, triton.next_power_of_2(group)), D=self.dim, PAGE=self.page, N=64,
            WHOLE=splits == 1, num_warps=4, num_stages=3)
        if splits > 1:
            _decode_join[(batch * self.heads,)](part, lse, out, D=self.dim, SPLITS=splits, num_warps=2)
        return out


@triton.jit
def _add_norm(x, residual, weight, out, hidden, eps, HAS_RESIDUAL: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, B)
    inside = i < hidden
    v = tl.load(x + row * hidden + i, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        v += tl.load(residual + row * hidden + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + row * hidden + i, v.to(residual.dtype.element_ty), mask=inside)
    r = tl.rsqrt(tl.sum(v * v, 0) / hidden + eps)
    w = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + i, (v * r * w).to(out.dtype.element_ty), mask=inside)


def add_norm(x, residual, weight, eps=1e-5):
    """Returns (norm(x + residual) * weight, x + residual)."""
    rows, hidden = x.shape
    out = torch.empty_like(x)
    total = torch.empty_like(x) if residual is None else residual
    _add_norm[(rows,)](x, total, weight, out, hidden, eps, HAS_RESIDUAL=residual is not None,
                       B=triton.next_power_of_2(hidden), num_warps=8)
    return out, total


@triton.jit
def _rope_cache(qkv, positions, slots, cos, sin, q_out, k_out, k_pool, v_pool,
                H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr):
    t, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half: tl.constexpr = D // 2
    i = tl.arange(0, half)
    row = qkv + (t * (H + 2 * KV) + h) * D
    a, b = tl.load(row + i), tl.load(row + half + i)
    slot = tl.load(slots + t)
    if h >= H + KV:
        to = v_pool + (slot * KV + (h - H - KV)) * D
        tl.store(to + i, a)
        tl.store(to + half + i, b)
    else:
        position = tl.load(positions + t).to(tl.int64)
        c, s = tl.load(cos + position * half + i), tl.load(sin + position * half + i)
        x, y = a.to(tl.float32), b.to(tl.float32)
        left, right = (x * c - y * s).to(a.dtype), (y * c + x * s).to(a.dtype)
        if h < H:
            to = q_out + (t * H + h) * D
            tl.store(to + i, left)
            tl.store(to + half + i, right)
        else:
            to = k_out + (t * KV + (h - H)) * D
            tl.store(to + i, left)
            tl.store(to + half + i, right)
            to = k_pool + (slot * KV + (h - H)) * D
            tl.store(to + i, left)
            tl.store(to + half + i, right)


def rope_cache(qkv, positions, slots, cos, sin, k_pool, v_pool, heads, kv_heads, dim):
    """Rotates queries and keys, writes keys and values into the pool at `slots`; returns queries and keys."""
    tokens = qkv.shape[0]
    q = torch.empty(tokens, heads, dim, dtype=qkv.dtype, device=qkv.device)
    k = torch.empty(tokens, kv_heads, dim, dtype=qkv.dtype, device=qkv.device)
    _rope_cache[(tokens, heads + 2 * kv_heads)](qkv, positions, slots, cos, sin, q, k, k_pool, v_pool,
                                                H=heads, KV=kv_heads, D=dim, num_warps=1)
    return q, k


@triton.jit
def _silu_mul(x, out, inner, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * B + tl.arange(0, B)
    inside = i < inner
    gate = tl.load(x + row * 2 * inner + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * inner + inner + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * inner + i, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


def silu_mul(x):
    """silu(first half) * second half."""
    rows, inner = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, inner, dtype=x.dtype, device=x.device)
    _silu_mul[(rows, triton.cdiv(inner, 1024))](x, out, inner, B=1024, num_warps=4)
    return out
