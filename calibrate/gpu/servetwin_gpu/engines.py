"""Engines behind the HTTP server, each in a process of its own: this program's paged model, and transformers' continuous batching.

An engine gets `(kind, id, payload)` messages from a pipe (`add` with (prompt tokens, most new tokens), `cancel`, `stop`) and sends
`[(id, token, finished)]` lists, one list per step. No end-of-text token: every request runs to its limit.
"""

import csv
import os
import sys
import threading
import time
import traceback
from collections import deque

import torch

from . import shapes
from .kernels import Kernels
from .model import Model, Step
from .serving import MIXES
from .timing import capture


def main(connection, options):
    """Entry of the engine's process, which ends with the server whatever threads are left: it holds the device's memory."""
    try:
        engine = {"paged": PagedEngine, "transformers": TransformersEngine}[options["engine"]](options)
        connection.send(("ready", engine.facts()))
        engine.serve(connection)
    except (EOFError, BrokenPipeError):
        pass  # The server has ended.
    except BaseException as e:
        traceback.print_exc()
        print(f"engine: {type(e).__name__}: {str(e)[:300]}", flush=True)
    finally:
        sys.stderr.flush()
        os._exit(0)


STEP_LOG = ["replica", "start_s", "end_s", "running", "waiting", "kv_used_blocks", "blocked_by", "decode_seqs", "decode_tokens",
            "decode_ctx_sum", "decode_ctx_sq_sum", "prefill_seqs", "prefill_tokens", "prefill_ctx_sum", "prefill_pairs",
            "sampled_seqs", "device_s"]


class StepLog:
    """One row per step in the form of an engine's step log; written by a thread, so that steps don't wait for the disk."""

    def __init__(self, path):
        self.file = open(path, "w", newline="", encoding="utf-8") if path else None
        self.begin = time.perf_counter()
        if self.file:
            self.rows, self.more = deque(), threading.Event()
            self.writer = csv.DictWriter(self.file, STEP_LOG, lineterminator="\n")
            self.writer.writeheader()
            threading.Thread(target=self._write, daemon=True).start()

    def add(self, start, end, **row):
        if self.file:
            self.rows.append({"replica": 0, "start_s": f"{start - self.begin:.9f}", "end_s": f"{end - self.begin:.9f}", **row})
            self.more.set()

    def _write(self):
        while True:
            self.more.wait()
            self.more.clear()
            while self.rows:
                self.writer.writerow(self.rows.popleft())
            self.file.flush()


class Request:
    """A sequence: `context` tokens have their KV, `last` is the token that the next step feeds."""

    def __init__(self, id, prompt, limit):
        self.id, self.prompt, self.limit = id, prompt, limit
        self.context, self.made, self.last, self.pages = 0, 0, 0, []


class Scheduler:
    """vLLM V1's order: running sequences first, one token each; then waiting prompts in chunks within the token budget.

    Pages for a request's whole length are taken when it starts, so nothing is ever preempted; with a cache larger than the
    load needs, that is what vLLM does too.
    """

    def __init__(self, pages, page, max_seqs, max_tokens):
        self.free, self.page = deque(range(1, pages)), page  # page 0 takes the writes of padding rows
        self.max_seqs, self.max_tokens = max_seqs, max_tokens
        self.waiting, self.running = deque(), []
        self.total = pages - 1

    def add(self, request):
        """Queues a request; False when it can never fit."""
        if self.need(request) > self.total:
            return False
        self.waiting.append(request)
        return True

    def need(self, r):
        return -(-(len(r.prompt) + r.limit) // self.page)

    def cancel(self, id):
        self.waiting = deque(r for r in self.waiting if r.id != id)
        for r in [r for r in self.running if r.id == id]:
            self.release(r)

    def release(self, r):
        self.running.remove(r)
        self.free.extend(r.pages)
        r.pages = []

    def next(self):
        """(decodes, [(request, new tokens)]) of the next step."""
        decodes = [r for r in self.running if r.context >= len(r.prompt)]
        budget = self.max_tokens - len(decodes)
        chunks = []
        for r in self.running:
            if r.context < len(r.prompt) and budget > 0:
                n = min(budget, len(r.prompt) - r.context)
                chunks.append((r, n))
                budget -= n
        while self.waiting and budget > 0 and len(self.running) < self.max_seqs and self.need(self.waiting[0]) <= len(self.free):
            r = self.waiting.popleft()
            r.pages = [self.free.popleft() for _ in range(self.need(r))]
            self.running.append(r)
            n = min(budget, len(r.prompt))
            chunks.append((r, n))
            budget -= n
        return decodes, chunks


class GraphStep:
    """Inputs of a decode step at fixed addresses, as a CUDA graph wants them; fewer sequences are padded."""

    def __init__(self, model, batch, max_context):
        self.batch, self.model = batch, model
        device, width = model.device, -(-max_context // model.page)
        pin = device == "cuda"
        sizes = {"tokens": (batch,), "positions": (batch,), "slots": (batch,), "contexts": (batch,), "tables": (batch, width)}
        kinds = {"tokens": torch.int64, "slots": torch.int64}
        self.host = {n: torch.zeros(s, dtype=kinds.get(n, torch.int32), pin_memory=pin) for n, s in sizes.items()}
        self.host["contexts"].fill_(1)
        self.step = Step.__new__(Step)
        for n, t in self.host.items():
            setattr(self.step, n, t.to(device))
        self.step.decodes, self.step.max_context = batch, max_context
        self.step.all_rows, self.step.chunks, self.step.key_slots, self.step.rows = True, None, None, None
        self.owner = [None] * batch
        self.out = None

    def capture(self, pool):
        self.graph = None
        if self.model.device == "cuda":
            with torch.inference_mode():
                def body():
                    self.out = self.model.next_tokens(self.step)
                self.graph = capture(body, pool)
        return self

    def run(self, requests):
        """Next tokens of `requests`, on the device."""
        h, page = self.host, self.model.page
        n = len(requests)
        tables = h["tables"].numpy()
        for i, r in enumerate(requests):
            if self.owner[i] is not r:
                tables[i, : len(r.pages)] = r.pages
                self.owner[i] = r
        context = [r.context for r in requests]
        h["tokens"][:n] = torch.tensor([r.last for r in requests])
        h["positions"][:n] = torch.tensor(context, dtype=torch.int32)
        h["contexts"][:n] = torch.tensor([c + 1 for c in context], dtype=torch.int32)
        h["slots"][:n] = torch.tensor([r.pages[c // page] * page + c % page for r, c in zip(requests, context)])
        if n < self.batch:
            h["contexts"][n:] = 1
            h["positions"][n:] = 0
            h["slots"][n:] = 0
            tables[n:, 0] = 0
            self.owner[n:] = [None] * (self.batch - n)
        for name, t in h.items():
            getattr(self.step, name).copy_(t, non_blocking=True)
        if self.graph:
            self.graph.replay()
            return self.out[:n]
        return self.model.next_tokens(self.step)[:n]


class PagedEngine:
    """The paged model of part 3 under a scheduler: what its steps predict, this serves."""

    def __init__(self, o):
        small, device = o["small"], o["device"]
        self.device = device
        shape = shapes.SMALL if small else shapes.LLAMA_3_1_8B
        kernels = Kernels(device, lambda text: print(text, flush=True), o["dtype"])
        self.max_seqs, self.max_tokens = (8, 256) if small else (o["max_seqs"], 8192)
        self.max_context = 1024 if small else 16384
        self.model = Model(shape, kernels, kernels.PAGE, max_position=self.max_context)
        tokens = 8192
        if device == "cuda":
            self.model.allocate_kv(8192)
            torch.cuda.reset_peak_memory_stats()
            with torch.inference_mode():
                self.model.next_tokens(Step(self.model, [], [(self.max_tokens, 0)]))
            if kernels.prefill_whole[0] == "cudnn_sdpa":
                self.plan(sorted({prompt for prompt, _ in MIXES.values()}))
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info()[0] - peak - (5 << 30)
            tokens = int(min(free // (shape.layers * shape.kv_bytes_per_token_layer()), 400_000))
        self.model.allocate_kv(tokens)
        self.scheduler = Scheduler(self.model.pages, self.model.page, self.max_seqs, self.max_tokens)
        sizes = [1, 2, 4] + list(range(8, self.max_seqs + 1, 8))
        # Largest first: the pool that graphs share is then large enough for the rest.
        pool = torch.cuda.graph_pool_handle() if device == "cuda" else None
        self.graphs = {b: GraphStep(self.model, b, self.max_context).capture(pool) for b in sorted(set(sizes), reverse=True)}
        self.log = StepLog(o["step_log"])

    def plan(self, lengths):
        """Runs whole prompts of these lengths once, as many as a step holds: cuDNN plans each shape anew, for longer than a step.

        What else comes, prompts cut by the token budget above all, then takes the kernel for chunks on context.
        """
        batches = [(n, length) for length in lengths for n in range(1, self.max_tokens // length + 1)]
        with torch.inference_mode():
            for n, length in batches:
                self.model.next_tokens(Step(self.model, [], [(length, 0)] * n))
        self.model.kernels.planned = set(batches)

    def facts(self):
        s = self.model.shape
        return {"model": s.name, "engine": "paged", "kv_blocks": self.scheduler.total, "block_size": self.model.page,
                "max_num_seqs": self.max_seqs, "max_num_batched_tokens": self.max_tokens, "max_model_len": self.max_context,
                "layers": s.layers, "hidden": s.hidden, "vocab": s.vocab}

    def serve(self, connection):
        s = self.scheduler
        while True:
            while connection.poll(None if not (s.running or s.waiting) else 0):
                kind, id, payload = connection.recv()
                if kind == "stop":
                    return
                if kind == "cancel":
                    s.cancel(id)
                elif not s.add(Request(id, *payload)):
                    connection.send([(id, None, True)])
            start = time.perf_counter()
            decodes, chunks = s.next()
            if not decodes and not chunks:
                continue
            device = self.step(decodes, chunks)
            end = time.perf_counter()
            if self.log.file:
                stats = shapes.batch_stats([r.context for r in decodes], [(n, r.context - n) for r, n in chunks])
                stats["sampled_seqs"] = len(decodes) + sum(r.context >= len(r.prompt) for r, _ in chunks)
                self.log.add(start, end, running=len(s.running), waiting=len(s.waiting),
                             kv_used_blocks=s.total - len(s.free), blocked_by="none", device_s=f"{device:.9f}", **stats)
            out = []
            for r in decodes + [r for r, _ in chunks if r.context >= len(r.prompt)]:
                r.made += 1
                finished = r.made >= r.limit
                out.append((r.id, r.last, finished))
                if finished:
                    s.release(r)
            if out:
                connection.send(out)

    def step(self, decodes, chunks):
        """Runs a step, leaves each request's next token in `last`; returns the device's time [s]."""
        with torch.inference_mode():
            begin = self.mark()
            if not chunks:
                size = min(b for b in self.graphs if b >= len(decodes))
                out = self.graphs[size].run(decodes)
            else:
                out = self.model.next_tokens(self.mixed(decodes, chunks))
            end = self.mark()
            tokens = out.tolist()
        for r in decodes:
            r.context += 1
        for r, n in chunks:
            r.context += n
        for r, token in zip(decodes + [r for r, _ in chunks], tokens):
            if r.context >= len(r.prompt):
                r.last = token
        return begin.elapsed_time(end) * 1e-3 if begin else 0.0

    def mark(self):
        if self.device != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def mixed(self, decodes, chunks):
        pages, tokens = [], []
        page = self.model.page
        for r, new in [(r, 1) for r in decodes] + chunks:
            pages.extend(r.pages[: -(-(r.context + new) // page)])
            tokens.extend([r.last] if r.context >= len(r.prompt) else r.prompt[r.context : r.context + new])
        return Step(self.model, [r.context + 1 for r in decodes], [(n, r.context) for r, n in chunks],
                    tokens=torch.tensor(tokens), pages=torch.tensor(pages, dtype=torch.int32))


class TransformersEngine:
    """transformers' continuous batching on a Llama of the same shape."""

    def __init__(self, o):
        import transformers
        from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM
        s = shapes.SMALL if o["small"] else shapes.LLAMA_3_1_8B
        self.shape, self.version = s, transformers.__version__
        config = LlamaConfig(
            hidden_size=s.hidden, intermediate_size=s.inner, num_hidden_layers=s.layers, num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads, head_dim=s.head_dim, vocab_size=s.vocab, max_position_embeddings=32768,
            tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, attn_implementation=o["attention"])
        # PyTorch prefers cuDNN's attention on an H100; it plans each shape anew, and here every step has another one.
        torch.backends.cuda.enable_cudnn_sdp(False)
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[o["dtype"]]
        torch.manual_seed(1)
        previous = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device(o["device"]):
                model = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(previous)
        wanted = {"max_batch_tokens": 256 if o["small"] else 2048, "max_requests_per_batch": 8 if o["small"] else o["max_seqs"],
                  "num_blocks": 64 if o["small"] else None, "allow_block_sharing": False,
                  # Attention copies a step's keys and values once per query head, which its own count leaves out.
                  "max_memory_percent": 0.75}
        known = ContinuousBatchingConfig.__dataclass_fields__
        self.config = {k: v for k, v in wanted.items() if k in known and v is not None}
        generation = GenerationConfig(do_sample=False, max_new_tokens=4096, eos_token_id=-1, pad_token_id=0)
        self.manager = model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=ContinuousBatchingConfig(**self.config))
        self.manager.start()
        # The first requests pay for what is set up on first use.
        for i in range(4):
            self.manager.add_request([5 + i] * 64, request_id=f"warm{i}", max_new_tokens=8, streaming=False)
        left = 4
        while left:
            r = self.manager.get_result(timeout=120)
            if r is None or r.error:
                raise RuntimeError(f"transformers' engine: {r.error if r else 'no result within two minutes'}")
            left -= r.is_finished()
        cache = getattr(self.manager.batch_processor, "cache", None)
        self.config.update(kv_blocks=getattr(cache, "num_blocks", None), block_size=getattr(cache, "block_size", None))

    def facts(self):
        s = self.shape
        return {"model": s.name, "engine": f"transformers {self.version}", "layers": s.layers, "hidden": s.hidden,
                "vocab": s.vocab, "cudnn_attention": False, **self.config}

    def serve(self, connection):
        done = threading.Event()

        def receive():
            while not done.is_set():
                try:
                    kind, id, payload = connection.recv()
                except (EOFError, OSError):
                    kind = "stop"  # The server has ended.
                if kind == "stop":
                    done.set()
                elif kind == "cancel":
                    self.manager.cancel_request(str(id))
                else:
                    self.manager.add_request(list(payload[0]), request_id=str(id), max_new_tokens=payload[1], streaming=True)

        threading.Thread(target=receive, daemon=True).start()
        sent = {}
        while not done.is_set():
            result = self.manager.get_result(timeout=0.2)
            if result is None:
                if not self.manager.is_running():
                    raise RuntimeError("transformers' engine stopped")
                continue
            out = []
            while result is not None:
                id = int(result.request_id)
                have = sent.get(id, 0)
                new = result.generated_tokens[have:]
                finished = result.is_finished()
                out.extend((id, t, finished and i == len(new) - 1) for i, t in enumerate(new))
                if finished and not new:
                    out.append((id, None, True))
                sent[id] = have + len(new)
                if finished:
                    sent.pop(id)
                empty = self.manager.output_router.output_queue.empty() if hasattr(self.manager, "output_router") else True
                result = None if empty else self.manager.get_result(timeout=0.001)
            connection.send(out)
        self.manager.stop(block=True, timeout=10)
