"""Part 1: what the device can do at best: copies, matrix products, launches, the link to the host."""

import os
import time

import torch

from .kernels import relative_error
from .output import Table
from .timing import Timer, capture, noting, sync

COLUMNS = ["what", "detail", "value", "unit", "p10", "p90", "bytes_or_flops", "mode"]


def run(args, deadline, record):
    table = Table(os.path.join(args.out, "ceilings.csv"), COLUMNS, ["what", "detail"])
    timer = Timer(args.device, 0.05 if not args.small else 0.005)
    complete = True
    for part in (copies, products, launches, host_link):
        if deadline.over():
            complete = False
            break
        finished = False
        with noting(record, args.device, part.__name__):
            finished = part(args, deadline, record, table, timer)
        complete &= finished
    table.close()
    return complete


def rate(table, what, detail, amount, unit, times):
    """Adds amount over time; the slow end of the spread is the low rate."""
    per = lambda ms: amount / (ms * 1e-3)
    table.add(what=what, detail=detail, value=per(times["latency"]), unit=unit, p10=per(times["p90"]),
              p90=per(times["p10"]), bytes_or_flops=amount, mode=times["mode"])


def copies(args, deadline, record, table, timer):
    """Device to device; bytes read and written both count."""
    sizes = [1 << 20, 8 << 20] if args.small else [4 << 30, 1 << 30, 256 << 20, 64 << 20, 16 << 20]
    for size in sizes:
        if deadline.over():
            return False
        a = torch.randint(256, (size,), dtype=torch.uint8, device=args.device)
        b, x = torch.empty_like(a), a.view(torch.int32)
        if not table.has(what="copy_bandwidth", detail=f"{size} bytes"):
            times = timer.measure(lambda i: b.copy_(a))
            assert torch.equal(a, b), "a copy differs from its source"
            rate(table, "copy_bandwidth", f"{size} bytes", 2 * size, "bytes/s", times)
        if not table.has(what="read_bandwidth", detail=f"{size} bytes"):
            rate(table, "read_bandwidth", f"{size} bytes", size, "bytes/s", timer.measure(lambda i: x.sum(dtype=torch.int32)))
        del a, b, x
    return True


def products(args, deadline, record, table, timer):
    """Dense products on random data, bf16 and, where the device has it, fp8."""
    sizes = [(64, 64, 64)] if args.small else [(8192, 8192, 8192), (4096, 4096, 4096), (16384, 8192, 8192), (8192, 28672, 4096)]
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    name = {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    for m, n, k in sizes:
        if deadline.over():
            return False
        detail, flops = f"{m}x{n}x{k}", 2 * m * n * k
        a = torch.randn(m, k, device=args.device, dtype=dtype)
        b = torch.randn(n, k, device=args.device, dtype=dtype)
        if not table.has(what=f"gemm_{name}", detail=detail):
            rate(table, f"gemm_{name}", detail, flops, "FLOP/s", timer.measure(lambda i: torch.nn.functional.linear(a, b)))
        if args.device == "cuda" and not table.has(what="gemm_fp8", detail=detail):
            with noting(record, args.device, f"gemm_fp8 {detail}"):
                one = torch.ones((), device="cuda")
                qa, qb = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
                multiply = lambda i: torch._scaled_mm(qa, qb.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
                error = relative_error(multiply(0)[:64], a[:64].float() @ b.float().t())
                if not error < 0.1:
                    raise RuntimeError(f"differs from bf16 by {error:.3g}")
                rate(table, "gemm_fp8", detail, flops, "FLOP/s", timer.measure(multiply))
        del a, b
    return True


def launches(args, deadline, record, table, timer):
    """Host cost of an eager launch, and of a kernel inside a CUDA graph."""
    if table.has(what="launch", detail="eager, host and device"):
        return True
    n = 200 if args.small else 2000
    x = torch.zeros(64, device=args.device)

    def wall(run, repeats=9):
        run()
        sync(args.device)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            issued = time.perf_counter()
            sync(args.device)
            times.append((issued - start, time.perf_counter() - start))
        issue, total = (sorted(t[i] for t in times) for i in (0, 1))
        return issue[len(issue) // 2], total[len(total) // 2]

    def eager():
        for _ in range(n):
            x.add_(1.0)

    issue, total = wall(eager)
    table.add(what="launch", detail="eager, issue on the host", value=issue / n, unit="s", mode="wall")
    table.add(what="launch", detail="eager, host and device", value=total / n, unit="s", mode="wall")
    if args.device == "cuda":
        for nodes in (1, 32, 512):
            graph = capture(lambda: [x.add_(1.0) for _ in range(nodes)])
            issue, total = wall(graph.replay)
            table.add(what="graph_replay", detail=f"{nodes} kernels, issue on the host", value=issue, unit="s", mode="wall")
            table.add(what="graph_replay", detail=f"{nodes} kernels, host and device", value=total, unit="s", mode="wall")
        empty = wall(lambda: None)[1]
        table.add(what="synchronise", detail="idle device", value=empty, unit="s", mode="wall")
    return True


def host_link(args, deadline, record, table, timer):
    """Copies between host and device, pinned and pageable, and within host memory."""
    sizes = [1 << 16, 1 << 20] if args.small else [256 << 20, 16 << 20, 1 << 20, 64 << 10, 4 << 10]
    for size in sizes:
        if deadline.over():
            return False
        host = torch.randint(256, (size,), dtype=torch.uint8)
        if not table.has(what="host_copy", detail=f"{size} bytes"):
            other = torch.empty_like(host)
            times = Timer("cpu", 0.05).measure(lambda i: other.copy_(host))
            rate(table, "host_copy", f"{size} bytes", 2 * size, "bytes/s", times)
        if args.device != "cuda":
            continue
        there = torch.empty(size, dtype=torch.uint8, device="cuda")
        pinned = host.pin_memory()
        eager = Timer("cuda", 0.05, graph=False)
        for what, call in (
            ("h2d_pinned", lambda i: there.copy_(pinned, non_blocking=True)),
            ("d2h_pinned", lambda i: pinned.copy_(there, non_blocking=True)),
            ("h2d_pageable", lambda i: there.copy_(host)),
            ("d2h_pageable", lambda i: host.copy_(there)),
        ):
            if not table.has(what=what, detail=f"{size} bytes"):
                rate(table, what, f"{size} bytes", size, "bytes/s", eager.measure(call))
    return True
