"""Part 2: single kernels at the shapes of real models, in the columns that `servetwin calibrate operators` reads."""

import os

import torch
import torch.nn.functional as F

from . import shapes
from .kernels import Chunks, Kernels, decode_sdpa
from .output import Table
from .timing import Timer, noting, rotation

SPREAD = ["p10", "p90", "calls", "mode", "model", "op"]
GEMM = ["system", "version", "kernel_source", "gemm_dtype", "m", "n", "k", "latency", *SPREAD]
ATTENTION = ["system", "version", "kernel_source", "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim",
             "beam_width", "attn_dtype", "kv_cache_dtype", "step", "window_size", "latency", "cache", "ctx_sq_sum",
             *SPREAD]
ELEMENTWISE = ["system", "version", "kernel_source", "kernel", "tokens", "width", "bytes", "kernels", "latency", *SPREAD]


class Bench:
    """Tables, kernels and clocks of one run of the part."""

    def __init__(self, args, deadline, record):
        self.args, self.deadline, self.record = args, deadline, record
        self.device = args.device
        self.kernels = Kernels(args.device, record.note, args.dtype)
        self.timer = Timer(args.device, 0.012 if not args.small else 0.002)
        self.head = {"system": record.data["system"], "version": "torch" + torch.__version__.split("+")[0]}
        self.models = [shapes.SMALL] if args.small else shapes.MODELS
        self.kv_limit = (8 << 20) if args.small else (12 << 30)
        self.tables = {}

    def table(self, name, columns, keys, folder="operators"):
        """`operators/<system>_<version>_<name>_perf.csv`; other kernels than the steps use go to `other_kernels/`."""
        if (folder, name) not in self.tables:
            path = os.path.join(self.args.out, folder, f"{self.head['system']}_{self.head['version']}_{name}_perf.csv")
            self.tables[folder, name] = Table(path, columns, keys)
        return self.tables[folder, name]

    def gemm(self):
        return self.table("gemm", GEMM, ["gemm_dtype", "m", "n", "k"])

    def attention(self, name, folder="operators"):
        keys = ["kernel_source", "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step", "ctx_sq_sum"]
        return self.table(name, ATTENTION, keys, folder)

    def elementwise(self):
        return self.table("elementwise", ELEMENTWISE, ["kernel", "tokens", "width"])

    def random(self, *shape):
        return torch.randn(*shape, device=self.device, dtype=self.kernels.dtype)

    def cache(self, size):
        """Whether inputs of `size` bytes, all copies together, go past the last-level cache."""
        return "" if self.device != "cuda" else "cold" if size > self.kernels.l2 else "warm"

    def noting(self, *what):
        return noting(self.record, self.device, " ".join(map(str, what)))

    def dtype_name(self):
        return {torch.bfloat16: "bfloat16", torch.float32: "float32"}[self.kernels.dtype]


def run(args, deadline, record):
    bench = Bench(args, deadline, record)
    complete = True
    # One pass over what matters most, for every model, then the denser grids.
    passes = [
        (gemms, {"counts": slice(0, 14)}), (decodes, {"part": 0}), (prefills, {"part": 0}), (small_kernels, {}),
        (ragged_decodes, {}), (gemms, {"counts": slice(0, None)}), (decodes, {"part": 1}), (prefills, {"part": 1}),
        (fp8_gemms, {}), (other_kernels, {}),
    ]
    for measure, options in passes:
        for model in bench.models:
            if deadline.over():
                complete = False
                break
            with bench.noting(measure.__name__, "of", model.name):
                complete &= measure(bench, model, **options)
    for table in bench.tables.values():
        table.close()
    return complete


# Rows of the LM head: as many as sequences sample, not as tokens run.
LM_HEAD_ROWS = 1024


def gemms(bench, model, counts):
    table, dtype = bench.gemm(), bench.dtype_name()
    for name, n, k in model.gemms():
        todo = [m for m in shapes.token_counts(64 if bench.args.small else 8192)[counts]
                if not table.has(gemm_dtype=dtype, m=m, n=n, k=k) and not (name == "lm_head" and m > LM_HEAD_ROWS)]
        if not todo:
            continue
        copies = rotation(n * k * 2, bench.device, bench.kernels.l2)
        weights = [bench.random(n, k) * 0.02 for _ in range(copies)]
        for m in todo:
            if bench.deadline.over():
                return False
            with bench.noting("product", m, n, k):
                xs = [bench.random(m, k) for _ in range(copies if m * k * 2 * copies < (4 << 30) else 1)]
                times = bench.timer.measure(lambda i: F.linear(xs[i % len(xs)], weights[i]), copies)
                table.add(**bench.head, kernel_source="torch.nn.functional.linear", gemm_dtype=dtype, m=m, n=n, k=k,
                          model=model.name, op=name, **times)
        del weights
    return True


def fp8_gemms(bench, model):
    """8-bit products with the quantisation of the activations (a scale per tensor) in the time."""
    if bench.device != "cuda":
        return True
    table, largest = bench.gemm(), torch.finfo(torch.float8_e4m3fn).max
    for name, n, k in model.gemms():
        if name == "lm_head":
            continue
        copies = rotation(n * k, bench.device, bench.kernels.l2)
        weights = [(bench.random(n, k) * 0.5).to(torch.float8_e4m3fn) for _ in range(copies)]
        scale = torch.ones((), device="cuda")
        for m in [2**i for i in range(4, 14)] + [1, 8]:
            if table.has(gemm_dtype="fp8", m=m, n=n, k=k):
                continue
            if bench.deadline.over():
                return False
            x = bench.random(m, k)

            def call(i):
                s = x.abs().amax().float() / largest
                q = (x / s).clamp(-largest, largest).to(torch.float8_e4m3fn)
                return torch._scaled_mm(q, weights[i].t(), s, scale, out_dtype=torch.bfloat16, use_fast_accum=True)

            with bench.noting("fp8 product", m, n, k):
                times = bench.timer.measure(call, copies)
                table.add(**bench.head, kernel_source="torch._scaled_mm, unfused quantisation", gemm_dtype="fp8", m=m, n=n, k=k,
                          model=model.name, op=name, **times)
    return True


class Pool:
    """A paged KV pool of one layer, with sequences laid out in it turn by turn."""

    def __init__(self, bench, model, tokens):
        page = bench.kernels.PAGE
        self.page, self.device = page, bench.device
        self.pages = -(-tokens // page)
        self.k = bench.random(self.pages, page, model.kv_heads, model.head_dim)
        self.v = bench.random(self.pages, page, model.kv_heads, model.head_dim)
        self.order = torch.randperm(self.pages).int()

    def tables(self, contexts, turns):
        """`turns` block tables of these contexts, each over other pages as far as the pool reaches."""
        need = [-(-c // self.page) for c in contexts]
        made, at = [], 0
        for _ in range(turns):
            table = torch.zeros(len(contexts), max(need), dtype=torch.int32)
            for i, n in enumerate(need):
                table[i, :n] = self.order[(at + torch.arange(n)) % self.pages]
                at += n
            made.append(table.to(self.device))
        return made


def decode_row(bench, model, table, name, call, pool, contexts, op):
    batch = len(contexts)
    squares, mean = sum(c * c for c in contexts), sum(contexts) / batch
    ragged = len(set(contexts)) > 1
    step = round(mean) - 1
    point = {"kernel_source": name, "batch_size": batch, "isl": 1, "num_heads": model.heads,
             "num_key_value_heads": model.kv_heads, "head_dim": model.head_dim, "step": step,
             "ctx_sq_sum": squares if ragged else 0}
    if table.has(**point):
        return
    size = sum(contexts) * model.kv_bytes_per_token_layer(bench.kernels.dtype.itemsize)
    turns = rotation(size, bench.device, bench.kernels.l2)
    tables = pool.tables(contexts, turns)
    ctx = torch.tensor(contexts, dtype=torch.int32, device=bench.device)
    q, most = bench.random(batch, model.heads, model.head_dim), max(contexts)
    times = bench.timer.measure(lambda i: call(q, pool.k, pool.v, tables[i], ctx, most), turns)
    dtype = bench.dtype_name()
    table.add(**bench.head, **point, beam_width=1, attn_dtype=dtype, kv_cache_dtype=dtype, window_size=0,
              cache=bench.cache(turns * size), model=model.name, op=op, **times)


def pool_of(bench, model, contexts):
    """A pool that holds these contexts, and at least three times the cache."""
    per = model.kv_bytes_per_token_layer()
    return Pool(bench, model, max(contexts, 3 * bench.kernels.l2 // per) + 4096)


def decodes(bench, model, part):
    per = model.kv_bytes_per_token_layer(bench.kernels.dtype.itemsize)
    points = shapes.decode_points(per, bench.kv_limit)
    half = len(points) // 2
    points = points[:half] if part == 0 else points[half:]
    name, call = bench.kernels.decode(model.heads, model.kv_heads, model.head_dim)
    table = bench.attention("generation_attention")
    # The pool is filled once, with the largest point of this part.
    pool = pool_of(bench, model, max(b * c for b, c in points))
    for batch, context in points:
        if bench.deadline.over():
            return False
        with bench.noting("decode", batch, context):
            decode_row(bench, model, table, name, call, pool, [context] * batch, "decode")
    return True


def ragged_decodes(bench, model):
    per = model.kv_bytes_per_token_layer(bench.kernels.dtype.itemsize)
    points = shapes.ragged_points(per, bench.kv_limit)
    name, call = bench.kernels.decode(model.heads, model.kv_heads, model.head_dim)
    table = bench.attention("generation_attention")
    lists = [shapes.ragged_contexts(k, b, m) for k, b, m in points]
    pool = pool_of(bench, model, max((sum(c) for c in lists), default=16))
    for (kind, batch, mean), contexts in zip(points, lists):
        if bench.deadline.over():
            return False
        with bench.noting("decode", kind, batch, mean):
            decode_row(bench, model, table, name, call, pool, contexts, f"decode {kind}")
    return True


def prefill_row(bench, model, table, name, call, point):
    batch, new, earlier = point
    row = {"kernel_source": name, "batch_size": batch, "isl": new, "num_heads": model.heads,
           "num_key_value_heads": model.kv_heads, "head_dim": model.head_dim, "step": earlier, "ctx_sq_sum": 0}
    if table.has(**row):
        return
    chunks = Chunks([(new, earlier)] * batch, bench.device)
    element = bench.kernels.dtype.itemsize
    size = (batch * new * model.heads + 2 * batch * (new + earlier) * model.kv_heads) * model.head_dim * element
    copies = rotation(size, bench.device, bench.kernels.l2)
    inputs = [(bench.random(batch * new, model.heads, model.head_dim),
               bench.random(batch * (new + earlier), model.kv_heads, model.head_dim),
               bench.random(batch * (new + earlier), model.kv_heads, model.head_dim)) for _ in range(copies)]
    times = bench.timer.measure(lambda i: call(*inputs[i], chunks), copies)
    dtype = bench.dtype_name()
    table.add(**bench.head, **row, beam_width=1, attn_dtype=dtype, kv_cache_dtype=dtype, window_size=0,
              cache=bench.cache(copies * size), model=model.name, op="chunk on context" if earlier else "prefill", **times)


def prefills(bench, model, part):
    points = shapes.prefill_points(256 if bench.args.small else 16384)
    if bench.args.small:
        points = [p for p in points if p[2] <= 512]
    first = 20
    table = bench.attention("context_attention")
    for point in points[:first] if part == 0 else points[first:]:
        if bench.deadline.over():
            return False
        name, call = bench.kernels.prefill_context if point[2] else bench.kernels.prefill_whole
        with bench.noting("prefill", *point):
            prefill_row(bench, model, table, name, call, point)
    return True


def small_kernels(bench, model):
    """Norm with residual, rotary embedding with the cache write, activation, and sampling."""
    table, kernels, element = bench.elementwise(), bench.kernels, bench.kernels.dtype.itemsize
    s = model
    heads = s.heads + 2 * s.kv_heads
    limit = 16 if bench.args.small else 8192
    for tokens in [t for t in (1, 16, 64, 256, 1024, 4096, 8192, 4, 128, 512, 2048) if t <= limit]:
        if bench.deadline.over():
            return False
        position = torch.arange(tokens, device=bench.device).int()
        angle = torch.rand(max(tokens, 1), s.head_dim // 2, device=bench.device)
        pool_pages = -(-tokens // kernels.PAGE)
        copies = min(16, rotation(tokens * 2 * s.inner * element, bench.device, kernels.l2))
        jobs = {
            # Two read, two written; queries, keys and values in and out; two halves in, one out.
            "add_norm": (s.hidden, 4 * tokens * s.hidden * element),
            "rope_cache": (heads * s.head_dim, (2 * heads + s.kv_heads) * tokens * s.head_dim * element),
            "silu_mul": (s.inner, 3 * tokens * s.inner * element),
        }
        for name, (width, size) in jobs.items():
            if table.has(kernel=name, tokens=tokens, width=width):
                continue
            if name == "add_norm":
                w = bench.random(s.hidden)
                data = [(bench.random(tokens, s.hidden), bench.random(tokens, s.hidden) * 1e-3) for _ in range(copies)]
                call = lambda i: kernels.add_norm(*data[i], w)
            elif name == "rope_cache":
                data = [bench.random(tokens, heads * s.head_dim) for _ in range(copies)]
                pools = [bench.random(pool_pages, kernels.PAGE, s.kv_heads, s.head_dim) for _ in "kv"]
                slots = torch.randperm(pool_pages * kernels.PAGE, device=bench.device)[:tokens]
                call = lambda i: kernels.rope_cache(data[i], position, slots, angle, angle, *pools,
                                                    s.heads, s.kv_heads, s.head_dim)
            else:
                data = [bench.random(tokens, 2 * s.inner) for _ in range(copies)]
                call = lambda i: kernels.silu_mul(data[i])
            with bench.noting(name, tokens, width):
                times = bench.timer.measure(call, copies)
                table.add(**bench.head, kernel_source=kernels.source, kernel=name, tokens=tokens, width=width, bytes=size,
                          kernels=1, model=s.name, op=name, **times)
        if tokens <= 512:
            sampling(bench, model, table, tokens)
    return True


def sampling(bench, model, table, rows):
    """Greedy, and temperature with top-k and top-p, over `rows` rows of logits; bytes are one pass over 32-bit logits."""
    logits = [bench.random(rows, model.vocab).float() for _ in range(min(4, rotation(rows * model.vocab * 4, bench.device, bench.kernels.l2)))]

    def filtered(x):
        top, index = x.topk(min(50, x.shape[1]), -1)
        p = (top / 0.8).softmax(-1)
        p = p.masked_fill(p.cumsum(-1) - p > 0.95, 0.0)
        draw = torch.empty_like(p).exponential_()
        return index.gather(1, (p / draw).argmax(-1, keepdim=True))

    def whole(x):
        p = x.softmax(-1)
        return (p / torch.empty_like(p).exponential_()).argmax(-1)

    for name, call, kernels in (("sample_greedy", lambda x: x.argmax(-1), 1), ("sample_top_k_top_p", filtered, 9),
                                ("sample_softmax", whole, 4)):
        if not table.has(kernel=name, tokens=rows, width=model.vocab):
            with bench.noting(name, rows, model.vocab):
                times = bench.timer.measure(lambda i: call(logits[i]), len(logits))
                table.add(**bench.head, kernel_source="torch", kernel=name, tokens=rows, width=model.vocab,
                          bytes=4 * rows * model.vocab, kernels=kernels, model=model.name, op=name, **times)


def other_kernels(bench, model):
    """The attention kernels that the steps do not use, at fewer points: what another library would have done."""
    if bench.device != "cuda":
        return True
    table = bench.attention("context_attention", "other_kernels")
    for name, call in bench.kernels.prefill_valid:
        for point in [(1, 512, 0), (1, 2048, 0), (1, 8192, 0), (16, 512, 0), (1, 512, 2048), (1, 2048, 8192)]:
            chosen = bench.kernels.prefill_context if point[2] else bench.kernels.prefill_whole
            if bench.deadline.over():
                return False
            if name != chosen[0]:
                with bench.noting(name, *point):
                    prefill_row(bench, model, table, name, call, point)
    table, dtype = bench.attention("generation_attention", "other_kernels"), bench.dtype_name()
    for batch, context in [(1, 1024), (8, 1024), (32, 1024), (128, 1024), (1, 16384), (8, 8192), (32, 4096)]:
        if bench.deadline.over():
            return False
        point = {"kernel_source": "torch_sdpa_contiguous", "batch_size": batch, "isl": 1, "num_heads": model.heads,
                 "num_key_value_heads": model.kv_heads, "head_dim": model.head_dim, "step": context - 1, "ctx_sq_sum": 0}
        if table.has(**point):
            continue
        size = batch * context * model.kv_bytes_per_token_layer(bench.kernels.dtype.itemsize)
        copies = rotation(size, bench.device, bench.kernels.l2)
        with bench.noting("torch_sdpa_contiguous", batch, context):
            q = bench.random(batch, model.heads, 1, model.head_dim)
            kv = [[bench.random(batch, model.kv_heads, context, model.head_dim) for _ in "kv"] for _ in range(copies)]
            times = bench.timer.measure(lambda i: decode_sdpa(q, *kv[i]), copies)
            table.add(**bench.head, **point, beam_width=1, attn_dtype=dtype, kv_cache_dtype=dtype, window_size=0,
                      cache=bench.cache(copies * size), model=model.name, op="decode", **times)
    return True
