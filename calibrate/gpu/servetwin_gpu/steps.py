"""Part 3: whole steps of a random-weight model: decode by batch and context, prefill, mixed, and where memory goes.

`steps.csv` has the columns of an engine's step log, so `servetwin calibrate steps` reads it: a step from start to end took
its wall time until the tokens were on the host; steps lie a second apart, since each was measured by itself. `steps_eager.csv` holds decode
steps without CUDA graphs.
"""

import os
import statistics
import time

import torch

from . import shapes
from .kernels import Kernels
from .model import Model, Step
from .output import Table
from .timing import capture, noting, sync

STATS = ["decode_seqs", "decode_tokens", "decode_ctx_sum", "decode_ctx_sq_sum", "prefill_seqs", "prefill_tokens",
         "prefill_ctx_sum", "prefill_pairs", "sampled_seqs"]
COLUMNS = ["replica", "start_s", "end_s", "system", "version", "model", "kind", "mode", *STATS, "device_ms", "device_p10_ms", "device_p90_ms", "wall_ms",
           "issue_ms", "repeats", "attention"]
KEYS = ["model", "kind", "mode", *STATS]


def run(args, deadline, record):
    shape = shapes.SMALL if args.small else shapes.LLAMA_3_1_8B
    kernels = Kernels(args.device, record.note, args.dtype)
    memory = Table(os.path.join(args.out, "memory.csv"), ["model", "part", "bytes", "note"], ["model", "part"])
    say = lambda part, size, note="": memory.has(model=shape.name, part=part) or memory.add(
        model=shape.name, part=part, bytes=size, note=note)
    cuda = args.device == "cuda"
    if cuda:
        torch.cuda.empty_cache()  # what the checks of the kernels took
    before = used() if cuda else 0
    say("context", before, "driver and libraries before the first weight")
    model = Model(shape, kernels, kv_tokens=kernels.PAGE, max_position=65536 if not args.small else 512)
    sync(args.device)
    weights = sum(t.numel() * t.element_size() for w in model.layers for t in w.values())
    weights += sum(t.numel() * t.element_size() for t in (model.embedding, model.lm_head, model.norm))
    say("weights", weights)
    budget = 8192 if not args.small else 64
    if cuda:
        # As engines do: run the largest step once, see its peak, give what is left to the KV cache.
        model.allocate_kv(budget)
        torch.cuda.reset_peak_memory_stats()
        at = torch.cuda.memory_allocated()
        model.next_tokens(Step(model, [], [(budget, 0)]))
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - at
        say("activations", peak, f"peak of a prefill step of {budget} tokens")
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0] - peak - (3 << 30)
        # No more than the grid needs: filling it takes time.
        tokens = int(min(free // (shape.layers * shape.kv_bytes_per_token_layer()), 300_000))
    else:
        tokens = 4096
    model.allocate_kv(tokens)
    say("kv_cache", model.kv.numel() * model.kv.element_size(), f"{model.pages * model.page} tokens")
    table = Table(os.path.join(args.out, "steps.csv"), COLUMNS, KEYS)
    facts(os.path.join(args.out, "steps.engine.toml"), shape, model, budget)
    runner = Runner(args, deadline, record, model, table)
    capacity = model.pages * model.page
    decode = shapes.decode_steps(capacity, 8 if args.small else 256)
    prefill, mixed = shapes.prefill_steps(), shapes.mixed_steps()
    if args.small:
        decode = [p for p in decode if p[1] <= 256][:6]
        prefill = [[(8, 0)], [(16, 8)], [(8, 0)] * 2]
        mixed = [(2, 16, [(8, 0)])]
    uneven = [(k, b, m) for b, m in ((32, 1024), (128, 1024)) for k in shapes.RAGGED_KINDS] if not args.small else [("uniform", 4, 32)]
    half = len(decode) // 2
    jobs = [("decode", [c] * b, []) for b, c in decode[:half]]
    jobs += [("prefill", [], c) for c in prefill]
    jobs += [("mixed", [c] * b, ch) for b, c, ch in mixed]
    jobs += [("decode", shapes.ragged_contexts(k, b, m), []) for k, b, m in uneven]
    jobs += [("decode", [c] * b, []) for b, c in decode[half:]]
    complete = True
    modes = ["graph"] if cuda else ["eager"]
    for mode in modes:
        for kind, decodes, chunks in jobs:
            if deadline.over():
                complete = False
                break
            # Prefill shapes vary from step to step: engines run them without graphs.
            complete &= runner.measure(kind, "graph" if mode == "graph" and not chunks else "eager", decodes, chunks)
    if cuda:
        runner.table = Table(os.path.join(args.out, "steps_eager.csv"), COLUMNS, KEYS)
        for batch, context in decode[:12]:
            if deadline.over():
                complete = False
                break
            complete &= runner.measure("decode", "eager", [context] * batch, [])
        say("cuda_graphs", runner.graph_bytes, f"{runner.graphs} decode graphs, measured one after the other")
        say("reserved", torch.cuda.memory_reserved(), "by the allocator, at the end")
        say("used", used(), "of the device, at the end")
    table.close()
    memory.close()
    return complete


def facts(path, shape, model, budget):
    """What a step log's reader wants to know of the engine."""
    lines = [f'model = "{shape.name}"', f"layers = {shape.layers}", f"hidden = {shape.hidden}", "", "[engine]", 'kind = "vllm_v1"',
             f"kv_blocks = {model.pages}", f"block_size = {model.page}", f"max_num_batched_tokens = {budget}", "",
             "[layout]", "tp = 1", "pp = 1", "replicas = 1"]
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")


def used():
    """Memory in use on the device, by whomever [bytes]."""
    free, total = torch.cuda.mem_get_info()
    return total - free


class Runner:
    """Times steps of one model into a table."""

    def __init__(self, args, deadline, record, model, table):
        self.args, self.deadline, self.record, self.model, self.table = args, deadline, record, model, table
        self.graphs, self.graph_bytes = 0, 0
        self.seconds = 0.01 if args.small else 0.25

    def measure(self, kind, mode, decodes, chunks):
        """One row: device time by events, wall time until the tokens are on the host, time to issue."""
        stats = shapes.batch_stats(decodes, chunks)
        if self.table.has(model=self.model.shape.name, kind=kind, mode=mode, **stats):
            return True
        need = sum(-(-n // self.model.page) for n in [*decodes, *(n + c for n, c in chunks)])
        if need > self.model.pages:
            return True
        cuda = self.args.device == "cuda"
        device, wall, issue = [], [], []
        with noting(self.record, self.args.device, f"{kind} step {stats}"):
            with torch.inference_mode():
                step = Step(self.model, decodes, chunks)
                out = self.model.next_tokens(step)
                run = lambda: self.model.next_tokens(step)
                if mode == "graph":
                    torch.cuda.empty_cache()
                    at = torch.cuda.memory_reserved()
                    graph = capture(run)
                    self.graphs += 1
                    self.graph_bytes = max(self.graph_bytes, torch.cuda.memory_reserved() - at)
                    run = graph.replay
                run()
                sync(self.args.device)
                host = torch.empty_like(out, device="cpu")
                if cuda:
                    host = host.pin_memory()
                end = time.perf_counter() + self.seconds
                while len(wall) < 5 or (time.perf_counter() < end and len(wall) < 200):
                    start = time.perf_counter()
                    if cuda:
                        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                        a.record()
                        run()
                        b.record()
                        issued = time.perf_counter()
                        host.copy_(out, non_blocking=True)
                        torch.cuda.synchronize()
                        device.append(a.elapsed_time(b))
                    else:
                        host.copy_(run())
                        issued = time.perf_counter()
                    wall.append((time.perf_counter() - start) * 1e3)
                    issue.append((issued - start) * 1e3)
        if not wall:
            return False
        spread = sorted(device or wall)
        at = lambda q: spread[min(len(spread) - 1, int(q * len(spread)))]
        attention = self.model.decode_name if not chunks else (
            self.model.kernels.prefill_context if any(c for _, c in chunks) else self.model.kernels.prefill_whole)[0]
        begin = float(len(self.table.seen))
        self.table.add(
            replica=0, start_s=f"{begin:.9f}", end_s=f"{begin + statistics.median(wall) * 1e-3:.9f}", system=self.record.data["system"], version="torch" + torch.__version__.split("+")[0],
            model=self.model.shape.name, kind=kind, mode=mode, **stats, device_ms=statistics.median(spread),
            device_p10_ms=at(0.1), device_p90_ms=at(0.9), wall_ms=statistics.median(wall),
            issue_ms=statistics.median(issue), repeats=len(wall), attention=attention)
        return True
