"""A Llama-shaped model with random weights and a paged KV cache: the forward pass of one step of a serving engine."""

import torch
import torch.nn.functional as F

from .kernels import Chunks


class Step:
    """Inputs of one step on the device: decodes first, one token each, then prefill chunks.

    `decodes` are contexts with the new token, `chunks` (new, earlier). Every sequence has pages of its own from a shuffled pool.
    """

    def __init__(self, model, decodes, chunks, table_pages=None, tokens=None, pages=None):
        device, page = model.device, model.page
        lengths = list(decodes) + [n + c for n, c in chunks]
        need = [-(-n // page) for n in lengths]
        if pages is None:
            pages = model.take_pages(sum(need))
        width = max([table_pages or 1, *need])
        tables = torch.zeros(len(lengths), width, dtype=torch.int32)
        at = 0
        for i, n in enumerate(need):
            tables[i, :n] = pages[at : at + n]
            at += n
        positions, rows, owner, row = [], [], [], 0
        for i, c in enumerate(decodes):
            positions.append(c - 1)
            owner.append(i)
            rows.append(row)
            row += 1
        for j, (n, c) in enumerate(chunks):
            positions.extend(range(c, c + n))
            owner.extend([len(decodes) + j] * n)
            row += n
            rows.append(row - 1)
        positions = torch.tensor(positions)
        slots = tables[torch.tensor(owner), positions // page].long() * page + positions % page
        self.decodes, self.max_context = len(decodes), max(decodes, default=0)
        self.tables = tables.to(device)
        self.contexts = torch.tensor(list(decodes) or [0], dtype=torch.int32, device=device)
        self.positions, self.slots = positions.int().to(device), slots.to(device)
        if tokens is None:
            tokens = torch.randint(model.shape.vocab, (len(positions),))
        self.tokens = tokens.to(device)
        self.rows = torch.tensor(rows, device=device)
        self.all_rows = not chunks
        self.chunks = Chunks(chunks, device) if chunks else None
        self.key_slots = None
        if self.chunks and self.chunks.on_context:
            parts = []
            for j, (n, c) in enumerate(chunks):
                at = torch.arange(n + c)
                parts.append(tables[len(decodes) + j].long()[at // page] * page + at % page)
            self.key_slots = torch.cat(parts).to(device)


class Model:
    """Random weights of `shape`, and a KV cache of `kv_tokens` tokens."""

    def __init__(self, shape, kernels, kv_tokens, max_position=32768, seed=1):
        self.shape, self.kernels, self.device, self.page = shape, kernels, kernels.device, kernels.PAGE
        generator = torch.Generator(device=self.device).manual_seed(seed)

        def weight(*size):
            return torch.empty(*size, dtype=kernels.dtype, device=self.device).normal_(0, 0.02, generator=generator)

        ones = lambda: torch.ones(shape.hidden, dtype=kernels.dtype, device=self.device)
        sizes = {name: (n, k) for name, n, k in shape.gemms()}
        self.embedding, self.lm_head = weight(shape.vocab, shape.hidden), weight(*sizes["lm_head"])
        self.layers = [
            {**{name: weight(*size) for name, size in sizes.items() if name != "lm_head"}, "norm1": ones(), "norm2": ones()}
            for _ in range(shape.layers)
        ]
        self.norm = ones()
        half = shape.head_dim // 2
        rate = shape.rope_theta ** -(torch.arange(half, device=self.device).float() / half)
        angle = torch.arange(max_position, device=self.device).float()[:, None] * rate[None]
        self.cos, self.sin = angle.cos(), angle.sin()
        self.decode_name, self.decode = kernels.decode(shape.heads, shape.kv_heads, shape.head_dim)
        self.allocate_kv(kv_tokens)

    def allocate_kv(self, kv_tokens):
        """A KV cache of `kv_tokens` tokens, filled with random values: never measure on zeros."""
        s = self.shape
        self.pages = max(1, kv_tokens // self.page)
        size = (s.layers, 2, self.pages, self.page, s.kv_heads, s.head_dim)
        self.kv = torch.empty(size, dtype=self.kernels.dtype, device=self.device)
        for layer in self.kv:
            layer.normal_()
        self.order = torch.randperm(self.pages, generator=torch.Generator().manual_seed(1)).int()
        self.next_page = 0

    def take_pages(self, n):
        """`n` pages, from where the last call ended, so that consecutive steps read different memory."""
        if n > self.pages:
            raise ValueError(f"a step needs {n} pages of {self.page} tokens, the cache has {self.pages}")
        at = (self.next_page + torch.arange(n)) % self.pages
        self.next_page = (self.next_page + n) % self.pages
        return self.order[at]

    def forward(self, step):
        """Logits of every sequence's last token."""
        s, kernels, d = self.shape, self.kernels, step.decodes
        x, residual = F.embedding(step.tokens, self.embedding), None
        for i, w in enumerate(self.layers):
            k_pool, v_pool = self.kv[i, 0], self.kv[i, 1]
            h, residual = kernels.add_norm(x, residual, w["norm1"])
            qkv = F.linear(h, w["qkv"])
            q, k = kernels.rope_cache(qkv, step.positions, step.slots, self.cos, self.sin, k_pool, v_pool,
                                      s.heads, s.kv_heads, s.head_dim)
            a = torch.empty_like(q)
            if d:
                self.decode(q[:d], k_pool, v_pool, step.tables[:d], step.contexts, step.max_context, out=a[:d])
            if step.chunks:
                if step.key_slots is None:
                    keys = k[d:]
                    values = qkv.view(-1, s.heads + 2 * s.kv_heads, s.head_dim)[d:, s.heads + s.kv_heads :]
                else:
                    flat = lambda pool: pool.view(-1, s.kv_heads, s.head_dim).index_select(0, step.key_slots)
                    keys, values = flat(k_pool), flat(v_pool)
                a[d:] = kernels.prefill(q[d:], keys, values, step.chunks)
            x = F.linear(a.view(a.shape[0], -1), w["out"])
            h, residual = kernels.add_norm(x, residual, w["norm2"])
            x = F.linear(kernels.silu_mul(F.linear(h, w["gate_up"])), w["down"])
        h, _ = kernels.add_norm(x, residual, self.norm)
        if not step.all_rows:
            h = h.index_select(0, step.rows)
        return F.linear(h, self.lm_head)

    def next_tokens(self, step):
        """Greedy next token of every sequence."""
        return self.forward(step).argmax(-1)
