"""Medians of device times, with inputs that are not in the cache."""

import contextlib
import statistics
import time

import torch


def sync(device):
    if device == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def noting(record, device, what):
    """A row that fails is noted and left out; only a device that fails with it ends the part."""
    try:
        yield
    except Exception as e:
        record.note(f"{what} not measured: {type(e).__name__}: {str(e)[:200]}")
        sync(device)
        if device == "cuda":
            torch.cuda.empty_cache()


def rotation(bytes_per_call, device, l2_bytes):
    """How many copies of the inputs make a turn read three times the last-level cache; bounded by 64."""
    if device != "cuda":
        return 1
    return int(max(1, min(64, -(-3 * l2_bytes // max(1, bytes_per_call)))))


class Timer:
    """Times `call(i)`, i counting the copies of the inputs.

    On a GPU: several calls are captured in a CUDA graph, replays timed with events, so host launches are not in the
    figure; what cannot be captured is timed by events around eager calls (`mode` says which). On a CPU: wall clock.
    """

    def __init__(self, device, target_s=0.012, graph=True):
        self.device, self.target, self.graph = device, target_s, graph

    def measure(self, call, copies=1):
        """Returns {latency: median [ms], p10, p90 [ms], calls, mode}."""
        if self.device != "cuda":
            return self._cpu(call, copies)
        for i in range(2):
            call(i % copies)
        sync("cuda")
        once = self._events(lambda: call(0), 3)
        estimate = max(1e-6, statistics.median(once) * 1e-3)
        calls = int(max(1, min(64, self.target / 4 / estimate)))
        calls = -(-calls // copies) * copies if copies <= 64 else calls
        calls = max(1, min(calls, 256))

        def run():
            for i in range(calls):
                call(i % copies)

        mode = "eager"
        if self.graph:
            try:
                graph = capture(run)
                mode, run = "graph", graph.replay
            except RuntimeError:
                sync("cuda")
        run()
        repeats = int(max(5, min(100, self.target / (estimate * calls))))
        times = sorted(t / calls for t in self._events(run, repeats))
        return summary(times, calls * repeats, mode)

    def _events(self, run, repeats):
        marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
        for start, end in marks:
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in marks]

    def _cpu(self, call, copies):
        call(0)
        times, end = [], time.perf_counter() + self.target
        while len(times) < 3 or (time.perf_counter() < end and len(times) < 100):
            start = time.perf_counter()
            call(len(times) % copies)
            times.append((time.perf_counter() - start) * 1e3)
        return summary(sorted(times), len(times), "wall")


def summary(times, calls, mode):
    """Median and spread of sorted times [ms]."""
    at = lambda q: times[min(len(times) - 1, int(q * len(times)))]
    return {"latency": statistics.median(times), "p10": at(0.1), "p90": at(0.9), "calls": calls, "mode": mode}


_side = None


def capture(run, pool=None):
    """A CUDA graph of `run()`, warmed up on the stream that captures; `pool` is memory that several graphs share."""
    global _side
    if _side is None:
        _side = torch.cuda.Stream()  # one for all graphs: cuBLAS keeps a workspace per stream
    current = torch.cuda.current_stream()
    _side.wait_stream(current)
    with torch.cuda.stream(_side):
        run()
    current.wait_stream(_side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=_side):
            run()
    except BaseException:
        torch.cuda.set_stream(current)  # a capture that fails may leave its own stream the current one
        raise
    return graph
