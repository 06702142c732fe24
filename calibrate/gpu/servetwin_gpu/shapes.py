"""Models, and the points at which their operators and steps are measured. No PyTorch here: pure numbers."""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """One rank of a Llama-like model."""

    name: str
    layers: int
    hidden: int
    inner: int  # feed-forward size of this rank
    heads: int  # query heads of this rank
    kv_heads: int  # of this rank
    head_dim: int
    vocab: int  # rows of the LM head of this rank
    rope_theta: float = 500000.0

    @property
    def qkv(self):
        """Output features of the joined query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def gemms(self):
        """(name, n, k) of the weight matrices of a layer and the LM head: y[m, n] = x[m, k] w[n, k]^T."""
        return [
            ("qkv", self.qkv, self.hidden),
            ("out", self.hidden, self.heads * self.head_dim),
            ("gate_up", 2 * self.inner, self.hidden),
            ("down", self.hidden, self.inner),
            ("lm_head", self.vocab, self.hidden),
        ]

    def kv_bytes_per_token_layer(self, element=2):
        """Keys and values of one token in one layer [bytes]."""
        return 2 * self.kv_heads * self.head_dim * element

    def weight_elements(self):
        """Elements of all matrices, embedding included and untied."""
        layer = sum(n * k for name, n, k in self.gemms() if name != "lm_head")
        return self.layers * (layer + 2 * self.hidden) + 2 * self.vocab * self.hidden + self.hidden


# Published config.json of each model; the last is a quarter of Llama-3.1-70B (tensor parallel 4).
LLAMA_3_1_8B = Shape("Llama-3.1-8B", 32, 4096, 14336, 32, 8, 128, 128256)
LLAMA_2_7B = Shape("Llama-2-7B", 32, 4096, 11008, 32, 32, 128, 32000, 10000.0)
QWEN3_14B = Shape("Qwen3-14B", 40, 5120, 17408, 40, 8, 128, 151936, 1000000.0)
LLAMA_3_1_70B_TP4 = Shape("Llama-3.1-70B/TP4", 80, 8192, 7168, 16, 2, 128, 32064)
MODELS = [LLAMA_3_1_8B, LLAMA_2_7B, QWEN3_14B, LLAMA_3_1_70B_TP4]
SMALL = Shape("small", 2, 1024, 1024, 8, 2, 128, 1024, 10000.0)


def token_counts(limit=8192):
    """Token counts of a GEMM: powers of two first, then both sides of the edges of tiles of 16, 64, 128 and 256, then between."""
    coarse = [2**i for i in range(14)]
    edges = [t for e in (16, 32, 64, 128, 192, 256, 384, 512, 640, 768, 1024, 2048, 4096, 8192) for t in (e - 1, e, e + 1)]
    between = [3, 5, 6, 7, 9, 12, 20, 24, 40, 48, 56, 80, 96, 112, 144, 160, 176, 208, 224, 240, 288, 320, 352, 416, 448,
               480, 576, 704, 832, 896, 960, 1152, 1280, 1408, 1536, 1664, 1792, 1920, 2304, 2560, 3072, 3584, 5120,
               6144, 7168]
    points = []
    for t in coarse + edges + between:
        if 1 <= t <= limit and t not in points:
            points.append(t)
    return points


def prefill_points(max_tokens=16384):
    """(batch, new tokens, earlier context) of prefill attention, the most useful first."""
    whole = [(1, 2**i, 0) for i in range(9, 15)] + [(1, 2**i, 0) for i in (8, 7, 6, 5, 4)]
    chunks = [(1, n, c) for n in (512, 2048, 128, 8192) for c in (2048, 8192, 512, 32768)]
    between = [(1, n, 0) for n in (192, 384, 768, 1536, 3072, 6144, 12288, 1000, 4097)]
    batches = [(b, n, 0) for b in (4, 16, 2, 8, 32, 64) for n in (512, 128, 1024, 2048, 4096)]
    several = [(b, n, c) for b in (4, 16) for n in (64, 256) for c in (1024, 4096)]
    points = []
    for p in whole + chunks + between + batches + several:
        if p[0] * p[1] <= max_tokens and p not in points:
            points.append(p)
    return points


def decode_points(kv_bytes, limit_bytes):
    """(batch, context) of decode attention whose KV of `kv_bytes` per token fits `limit_bytes`, coarse grid first."""
    batches = [1, 8, 32, 128, 4, 16, 64, 256, 2, 48, 96, 192, 384, 512]
    contexts = [1024, 256, 4096, 16384, 512, 2048, 8192, 128, 65536, 32768, 131072]
    grid = [(b, c) for c in contexts for b in batches if b * c * kv_bytes <= limit_bytes]
    return sorted(grid, key=lambda p: (batches.index(p[0]) // 4 + contexts.index(p[1]) // 4, contexts.index(p[1])))


def ragged_contexts(kind, batch, mean, seed=1):
    """Uneven contexts [tokens] of a decode batch, whose mean is near `mean`; the same on every machine."""
    rng = random.Random(f"{kind}/{batch}/{mean}/{seed}")
    if kind == "uniform":
        raw = [rng.uniform(0, 2 * mean) for _ in range(batch)]
    elif kind == "lognormal":
        raw = [rng.lognormvariate(math.log(mean) - 0.5, 1.0) for _ in range(batch)]
    elif kind == "one_long":
        # One sequence holds half of all tokens.
        short = mean / 2 * batch / max(batch - 1, 1)
        raw = [mean * batch / 2] + [short] * (batch - 1)
    else:
        raise ValueError(f"unknown kind of contexts {kind!r}; known: uniform, lognormal, one_long")
    return [max(1, round(x)) for x in raw]


RAGGED_KINDS = ("lognormal", "one_long", "uniform")


def ragged_points(kv_bytes, limit_bytes):
    """(kind, batch, mean context) of uneven decode batches."""
    grid = [(k, b, m) for b in (32, 128, 8, 256) for m in (1024, 4096, 256, 8192) for k in RAGGED_KINDS]
    return [p for p in grid if 2.5 * p[1] * p[2] * kv_bytes <= limit_bytes]


def decode_steps(capacity_tokens, max_seqs=256):
    """(batch, mean context) of whole decode steps that fit the KV cache, coarse first."""
    grid = [(b, c) for c in (512, 2048, 128, 8192, 1024, 4096, 256, 16384) for b in (1, 8, 32, 128, 64, 256, 16, 4, 2, 96, 192)]
    return [p for p in grid if p[0] <= max_seqs and p[0] * p[1] <= capacity_tokens]


def prefill_steps():
    """Chunks of whole prefill steps: lists of (new tokens, earlier context)."""
    single = [[(n, 0)] for n in (512, 2048, 8192, 128, 1024, 4096, 32, 256)]
    on_context = [[(n, c)] for n in (512, 2048) for c in (2048, 8192)]
    several = [[(512, 0)] * 4, [(128, 0)] * 16, [(2048, 0)] * 4, [(256, 1024)] * 4]
    return single + on_context + several


def mixed_steps():
    """(decodes, their context, chunks) of steps that hold both."""
    return [(b, c, [(n, 0)]) for n in (512, 2048, 128) for b in (8, 32, 128) for c in (1024,)] + [
        (32, 4096, [(512, 2048)]), (128, 512, [(512, 0)] * 4), (64, 2048, [(1024, 0)]),
    ]


def batch_stats(decodes, chunks):
    """Statistics of a step as `hwmodels::BatchStats` counts them; `decodes` are contexts with the new token."""
    return {
        "decode_seqs": len(decodes),
        "decode_tokens": len(decodes),
        "decode_ctx_sum": sum(decodes),
        "decode_ctx_sq_sum": sum(c * c for c in decodes),
        "prefill_seqs": len(chunks),
        "prefill_tokens": sum(n for n, _ in chunks),
        "prefill_ctx_sum": sum(n + c for n, c in chunks),
        "prefill_pairs": sum(n * c + n * (n + 1) // 2 for n, c in chunks),
        "sampled_seqs": len(decodes) + len(chunks),
    }
