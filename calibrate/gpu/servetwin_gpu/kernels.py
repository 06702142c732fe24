"""The kernels that are measured: fast ones where the machine has them, each checked against a plain reference first."""

import inspect
import os
import time

import torch
import torch.nn.functional as F


def reference_attention(q, k, v):
    """Causal attention of one sequence, the last query at the last key: q `[n, heads, d]`, k and v `[m, kv heads, d]`."""
    n, heads, dim = q.shape
    m, kv = k.shape[0], k.shape[1]
    qf = q.float().view(n, kv, heads // kv, dim)
    scores = torch.einsum("nkgd,mkd->kgnm", qf, k.float()) * dim**-0.5
    hidden = torch.arange(m, device=q.device)[None, :] > torch.arange(n, device=q.device)[:, None] + (m - n)
    scores = scores.masked_fill(hidden, float("-inf"))
    out = torch.einsum("kgnm,mkd->nkgd", scores.softmax(-1), v.float())
    return out.reshape(n, heads, dim).to(q.dtype)


def reference_add_norm(x, residual, weight, eps=1e-5):
    total = x if residual is None else x + residual
    f = total.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype), total


def reference_rope_cache(qkv, positions, slots, cos, sin, k_pool, v_pool, heads, kv_heads, dim):
    tokens = qkv.shape[0]
    x = qkv.view(tokens, heads + 2 * kv_heads, dim)
    turned, v = x[:, : heads + kv_heads].float(), x[:, heads + kv_heads :]
    a, b = turned.chunk(2, -1)
    c, s = cos[positions.long()][:, None], sin[positions.long()][:, None]
    turned = torch.cat((a * c - b * s, b * c + a * s), -1).to(qkv.dtype)
    q, k = turned[:, :heads].contiguous(), turned[:, heads:].contiguous()
    k_pool.view(-1, kv_heads, dim)[slots] = k
    v_pool.view(-1, kv_heads, dim)[slots] = v
    return q, k


def reference_silu_mul(x):
    gate, up = x.chunk(2, -1)
    return (F.silu(gate.float()) * up.float()).to(x.dtype)


def relative_error(a, b):
    """||a - b|| / ||b||; infinite when there is a NaN."""
    e = ((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-30)).item()
    return e if e == e else float("inf")


DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

# bf16 operands differ by rounding only: measured 2e-3 to 6e-3.
TOLERANCE = 2e-2


class Chunks:
    """Lengths of the prefill chunks of one call, on host and device."""

    def __init__(self, chunks, device):
        self.new = [n for n, _ in chunks]
        self.keys = [n + c for n, c in chunks]
        self.max_new, self.max_keys = max(self.new), max(self.keys)
        self.on_context = any(c > 0 for _, c in chunks)
        self.equal = len(set(chunks)) == 1
        total = lambda xs: torch.tensor([0, *torch.tensor(xs).cumsum(0).tolist()], dtype=torch.int32, device=device)
        self.cu_new, self.cu_keys = total(self.new), total(self.keys)


def prefill_flash(q, k, v, c):
    """PyTorch's FlashAttention for uneven lengths."""
    return torch.ops.aten._flash_attention_forward(
        q, k, v, c.cu_new, c.cu_keys, c.max_new, c.max_keys, 0.0, True, False)[0]


def prefill_varlen(q, k, v, c):
    """`torch.nn.attention.varlen`, whatever backend this version prefers."""
    from torch.nn.attention.varlen import varlen_attn
    known = inspect.signature(varlen_attn).parameters
    options = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" not in known:
            raise NotImplementedError("this version's varlen_attn takes no grouped heads")
        options["enable_gqa"] = True
    return varlen_attn(q, k, v, c.cu_new, c.cu_keys, c.max_new, c.max_keys, **options)


def prefill_cudnn(q, k, v, c):
    """cuDNN's attention through `scaled_dot_product_attention`; whole prompts only."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    if c.on_context:
        raise NotImplementedError("only without earlier context")
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        if c.equal:
            split = lambda x: x.view(len(c.new), c.new[0], x.shape[1], x.shape[2]).transpose(1, 2)
            out = F.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=True, enable_gqa=True)
            return out.transpose(1, 2).reshape(q.shape)
        parts, at = [], 0
        for n in c.new:
            one = lambda x: x[at : at + n].transpose(0, 1)[None]
            out = F.scaled_dot_product_attention(one(q), one(k), one(v), is_causal=True, enable_gqa=True)
            parts.append(out[0].transpose(0, 1))
            at += n
        return torch.cat(parts)


def prefill_reference(q, k, v, c):
    parts, a, b = [], 0, 0
    for n, m in zip(c.new, c.keys):
        parts.append(reference_attention(q[a : a + n], k[b : b + m], v[b : b + m]))
        a, b = a + n, b + m
    return torch.cat(parts)


def decode_sdpa(q, k, v):
    """One query per sequence over contiguous KV of equal length: q `[b, heads, 1, d]`, k and v `[b, kv, n, d]`."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


class PagedReference:
    """Paged decode attention, plainly."""

    def __init__(self, page):
        self.page = page

    def __call__(self, q, k_pool, v_pool, tables, contexts, max_context, out=None):
        kv, dim = k_pool.shape[-2:]
        result = torch.empty_like(q) if out is None else out
        for i, n in enumerate(contexts.tolist()):
            at = torch.arange(n, device=q.device)
            slots = tables[i].long()[at // self.page] * self.page + at % self.page
            keys, values = k_pool.view(-1, kv, dim)[slots], v_pool.view(-1, kv, dim)[slots]
            result[i] = reference_attention(q[i : i + 1], keys, values)[0]
        return result


class Kernels:
    """What this machine's steps are made of. `note` gets one line per kernel that is missing or wrong here."""

    PAGE = 16

    def __init__(self, device, note=lambda text: None, dtype=None):
        self.device, self.note = device, note
        self.dtype = DTYPES[dtype or ("bf16" if device == "cuda" else "fp32")]
        self.units = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 8
        self.l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 50 << 20) if device == "cuda" else 0
        self.triton = None
        if device == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
            try:
                from . import paged_triton
                self.triton = paged_triton
            except ImportError as e:
                note(f"no Triton kernels: {e}")
        self.source = "triton" if self.triton else "torch"
        if self.triton:
            try:
                self._check_small()
            except Exception as e:  # A kernel that does not compile here must not stop the measurement.
                note(f"Triton kernels not used: {type(e).__name__}: {e}")
                self.triton, self.source = None, "torch"
        self.prefill_whole = self.prefill_context = ("reference", prefill_reference)
        self.prefill_valid = [("reference", prefill_reference)]
        # (prompts, their length) that whole prompts' kernel is ready for, where a new shape costs it a plan; None: any.
        self.planned = None
        if device == "cuda":
            self._choose_prefill()

    def add_norm(self, x, residual, weight):
        return (self.triton.add_norm if self.triton else reference_add_norm)(x, residual, weight)

    def rope_cache(self, *args):
        return (self.triton.rope_cache if self.triton else reference_rope_cache)(*args)

    def silu_mul(self, x):
        return (self.triton.silu_mul if self.triton else reference_silu_mul)(x)

    def decode(self, heads, kv_heads, dim):
        """(name, callable) of paged decode attention."""
        if self.triton:
            return "triton_paged_splitkv", self.triton.DecodeAttention(heads, kv_heads, dim, self.PAGE, self.units)
        return "reference", PagedReference(self.PAGE)

    def prefill(self, q, k, v, chunks):
        ready = self.planned is None or (chunks.equal and (len(chunks.new), chunks.new[0]) in self.planned)
        return (self.prefill_whole if ready and not chunks.on_context else self.prefill_context)[1](q, k, v, chunks)

    def _random(self, *shape):
        return torch.randn(*shape, device=self.device, dtype=self.dtype)

    def _check_small(self):
        """Every Triton kernel against its reference on fresh random inputs."""
        t, page = self.triton, self.PAGE
        x, r, w = self._random(5, 200), self._random(5, 200), self._random(200)
        want = reference_add_norm(x, r, w)
        got = t.add_norm(x.clone(), r.clone(), w)
        errors = {"add_norm": max(relative_error(a, b) for a, b in zip(got, want))}
        g = self._random(5, 2 * 1100)
        errors["silu_mul"] = relative_error(t.silu_mul(g), reference_silu_mul(g))
        for heads, kv, dim in ((4, 2, 64), (8, 1, 128), (2, 2, 128)):
            qkv = self._random(5, (heads + 2 * kv) * dim)
            angle = torch.rand(64, dim // 2, device=self.device)
            positions = torch.tensor([3, 4, 0, 63, 9], dtype=torch.int32, device=self.device)
            slots = torch.tensor([7, 21, 2, 40, 33], device=self.device)
            pools = [[torch.full((4, page, kv, dim), float("nan"), device=self.device, dtype=self.dtype) for _ in "kv"]
                     for _ in "ab"]
            want = reference_rope_cache(qkv, positions, slots, angle.cos(), angle.sin(), *pools[0], heads, kv, dim)
            got = t.rope_cache(qkv, positions, slots, angle.cos(), angle.sin(), *pools[1], heads, kv, dim)
            of_slots = lambda p: p.view(-1, kv, dim)[slots]
            pairs = list(zip(got, want)) + [(of_slots(b), of_slots(a)) for a, b in zip(*pools)]
            errors[f"rope_cache {heads}/{kv}"] = max(relative_error(a, b) for a, b in pairs)
            contexts = [1, 17, 700, 300]
            pages = [-(-c // page) for c in contexts]
            k_pool, v_pool = self._random(sum(pages), page, kv, dim), self._random(sum(pages), page, kv, dim)
            order = torch.randperm(sum(pages), device=self.device).int()
            tables = torch.zeros(4, max(pages), dtype=torch.int32, device=self.device)
            at = 0
            for i, n in enumerate(pages):
                tables[i, :n] = order[at : at + n]
                at += n
            q = self._random(4, heads, dim)
            ctx = torch.tensor(contexts, dtype=torch.int32, device=self.device)
            want = PagedReference(page)(q, k_pool, v_pool, tables, ctx, 700)
            for units in (1, self.units, 200):
                run = t.DecodeAttention(heads, kv, dim, page, units)
                errors[f"decode {heads}/{kv} units {units}"] = relative_error(
                    run(q, k_pool, v_pool, tables, ctx, 700), want)
        wrong = {n: e for n, e in errors.items() if not e < TOLERANCE}
        if wrong:
            raise RuntimeError(f"results differ from the reference: {wrong}")

    def _choose_prefill(self):
        """Keeps the attention kernels that are right here and takes the fastest, for whole prompts and on context."""
        times, firsts = {"whole": {}, "context": {}}, {"whole": {}, "context": {}}
        heads, kv, dim = 32, 8, 128
        self.prefill_valid = []
        for name, run in (("torch_flash", prefill_flash), ("torch_varlen", prefill_varlen), ("cudnn_sdpa", prefill_cudnn)):
            for kind, small, large in (("whole", [(70, 0), (33, 0)], [(4096, 0)]),
                                       ("context", [(70, 130), (33, 0)], [(2048, 8192)])):
                try:
                    c = Chunks(small, "cuda")
                    q, k, v = (self._random(sum(n), h, dim) for n, h in ((c.new, heads), (c.keys, kv), (c.keys, kv)))
                    error = relative_error(run(q, k, v, c), prefill_reference(q, k, v, c))
                    if not error < TOLERANCE:
                        raise RuntimeError(f"differs from the reference by {error:.3g}")
                    c = Chunks(large, "cuda")
                    q, k, v = (self._random(sum(n), h, dim) for n, h in ((c.new, heads), (c.keys, kv), (c.keys, kv)))
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    run(q, k, v, c)
                    torch.cuda.synchronize()
                    firsts[kind][name] = time.perf_counter() - start
                    start = time.perf_counter()
                    for _ in range(5):
                        run(q, k, v, c)
                    torch.cuda.synchronize()
                    times[kind][name] = ((time.perf_counter() - start) / 5, run)
                    if (name, run) not in self.prefill_valid:
                        self.prefill_valid.append((name, run))
                except Exception as e:
                    self.note(f"prefill attention `{name}` ({kind}) not used: {type(e).__name__}: {str(e)[:200]}")
        for kind in times:
            if times[kind]:
                name = min(times[kind], key=lambda n: times[kind][n][0])
                said = ", ".join(f"{n} {1e6 * t:.0f} us (first call of a shape {1e3 * firsts[kind][n]:.0f} ms)"
                                 for n, (t, _) in times[kind].items())
                self.note(f"prefill attention ({kind}): {name} of {said}")
                setattr(self, f"prefill_{kind}", (name, times[kind][name][1]))
