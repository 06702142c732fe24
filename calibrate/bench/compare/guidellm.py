#!/usr/bin/env python3
"""GuideLLM and `servetwin bench` on the same engine under the same load: do they agree?

Written against guidellm 0.8.1 (PyPI; needs its command `guidellm` and transformers 5 for the tokenizer). From each client the instants
of each request are taken and one set of definitions is applied to both, since the clients define metrics differently:

    TTFT  first token - request sent            ITL  (last token - first token) / (output tokens - 1), mean over requests
    E2E   request ended - request sent          throughput  output tokens of the finished / (last end - first send)

GuideLLM's own ITL is the same quantity weighted by tokens; its TPOT counts from the request's start and is not compared.

    servetwin model init --params 30M --seed 1 model
    python calibrate/bench/compare/guidellm.py --model model --rate 1 --rounds 3 --pin --together

A client that takes the engine's processor time changes what both are to measure: on a machine of few cores give --pin, which keeps the
engine on the first core and the clients on the others (taskset, of util-linux). GuideLLM runs with one worker process: each of the ten that it
would start polls without rest. The engine runs without a prefix cache, so that each round is the same work.

Run in turns, the clients meet a machine that may have become faster or slower in between. With --together both drive the engine at once,
each at the rate, `servetwin bench` half a period after GuideLLM, so that both meet the same machine; a request during which the other client
had one in flight is left out. The rate must leave room: half a period for a request.

The bar: the medians over the rounds differ by less than 3 %. Beside each difference stands its noise: in turns, the larger of the two
clients' own run-to-run spread; together, the spread of the rounds' differences.

What each client adds by itself is measured with --echo: in place of the engine answers a server that knows when each request had arrived
whole and when each token left, so that what a client reports beyond that is its own.

    python calibrate/bench/compare/guidellm.py --model model --rate 2 --rounds 3 --pin --echo 50,4
"""

import argparse
import asyncio
import concurrent.futures
import csv
import json
import multiprocessing
import os
import re
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

METRICS = ("ttft_ms", "ttft_p50_ms", "itl_ms", "e2e_ms", "output_tokens_per_s")
BAR_PERCENT = 3.0
# From the start of `servetwin bench` to its first request [s].
BENCH_START_S = 0.05


def figures(requests):
    """Metrics of [(sent, first token, last token, end [s], output tokens)]."""
    if not requests:
        raise SystemExit("no request finished")
    ttft = [1e3 * (f - s) for s, f, _, _, _ in requests]
    itl = [1e3 * (l - f) / (n - 1) for _, f, l, _, n in requests if n > 1]
    span = max(e for *_, e, _ in requests) - min(r[0] for r in requests)
    return {"ttft_ms": statistics.mean(ttft), "ttft_p50_ms": statistics.median(ttft), "itl_ms": statistics.mean(itl),
            "e2e_ms": statistics.mean(1e3 * (e - s) for s, _, _, e, _ in requests),
            "output_tokens_per_s": sum(r[4] for r in requests) / span, "requests": len(requests)}


def after_warmup(requests, warmup):
    """Requests sent after the first `warmup` seconds."""
    start = min(r[0] for r in requests)
    return [r for r in requests if r[0] >= start + warmup]


def start(command):
    """Starts a client."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def finish(a, process):
    """Waits for a client."""
    try:
        out, err = process.communicate(timeout=a.timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise SystemExit(f"{process.args} took more than {a.timeout} s") from None
    if process.returncode:
        raise SystemExit(f"{process.args} ended with {process.returncode}:\n{out[-1500:]}{err[-1500:]}")


def run_guidellm(a, url, work):
    """One run; its requests."""
    path = os.path.join(work, "guidellm.json")
    profile = f"kind=constant,rate={a.rate}" if a.rate else f"kind=concurrent,streams={a.concurrency}"
    command = [*a.on_clients, a.guidellm, "run", "--backend",
               f'kind=openai_http,target={url},model={a.name},request_format=/v1/completions,extras={{"body":{{"ignore_eos":true}}}}',
               "--profile", profile, "--constraint", f"kind=max_requests,count={a.requests}",
               "--tokenizer", f"kind=huggingface_auto,model={a.tokenizer}",
               "--data", f"kind=synthetic_text,prompt_tokens={a.prompt_tokens},output_tokens={a.output_tokens}",
               "--output", f"kind=json,path={path}", "--disable-console"]
    finish(a, start(command))
    with open(path, encoding="utf-8") as f:
        benchmark = json.load(f)["benchmarks"][0]
    requests, prompts = [], []
    for r in benchmark["requests"]["successful"]:
        t = r["info"]["timings"]
        requests.append((t["request_start"], t["first_token_iteration"], t["last_token_iteration"], t["request_end"], r["output_tokens"]))
        prompts.append(r["prompt_tokens"])
    return requests, prompts


def run_servetwin(a, url, work):
    """One run; its requests."""
    folder = os.path.join(work, "servetwin")
    shutil.rmtree(folder, ignore_errors=True)
    load = ["--rate", str(a.rate), "--constant"] if a.rate else ["--concurrency", str(a.concurrency)]
    command = [*a.on_clients, a.servetwin, "bench", url, *load, "--requests", str(a.requests), "--prompt-tokens", str(a.prompt_tokens),
               "--output-tokens", str(a.output_tokens), "--model", a.name, "--csv", folder, "--json"]
    command += ["--tokenizer", a.tokenizer, "--text-prompts"]
    finish(a, start(command))
    with open(os.path.join(folder, "summary.json"), encoding="utf-8") as f:
        started = json.load(f)["client"]["started_unix_s"]
    requests = [(*(started + t for t in r[:4]), r[4]) for r in client_rows(os.path.join(folder, "client.csv"))]
    with open(os.path.join(folder, "requests.csv"), newline="", encoding="utf-8") as f:
        return requests, [int(r["prompt_tokens"]) for r in csv.DictReader(f)]


CLIENTS = {"guidellm": run_guidellm, "servetwin": run_servetwin}


def client_rows(path):
    """Finished requests of a `client.csv` of `servetwin bench`."""
    requests = []
    with open(path, newline="", encoding="utf-8") as f:
        for r in csv.DictReader(f):
            if not r["error"] and r["first_token_s"]:
                instants = [float(r[c]) for c in ("sent_s", "first_token_s", "last_token_s", "end_s")]
                requests.append((*instants, int(r["output_tokens"])))
    return requests


def engine(a, work):
    """Starts `servetwin serve` on a free port; returns the process and its address."""
    log = open(os.path.join(work, "serve.log"), "w+", encoding="utf-8")
    command = [*a.on_engine, a.servetwin, "serve", *([a.model] if a.model else []), "--port", "0", "--no-enable-prefix-caching"]
    process = subprocess.Popen([*command, *(["--threads", "1"] if a.pin else []), *a.serve_option],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if select.select([process.stdout], [], [], 1.0)[0]:
            line = process.stdout.readline()
            log.write(line)
            found = re.search(r"http://[\w.\-]+:\d+", line)
            if found:
                return process, found.group(0)
    process.terminate()
    log.seek(0)
    raise SystemExit(f"servetwin serve did not come up:\n{log.read()}")


async def answer_by_schedule(a, reader, writer, seen):
    """Serves a connection: completions whose tokens leave on schedule, and at /truth the instants at which they did."""
    first_s, gap_s = (float(ms) / 1e3 for ms in a.echo.split(","))
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        body = await reader.readexactly(int(length.group(1)) if length else 0)
        arrived = time.perf_counter()
        if head.startswith(b"GET "):
            asked = head.split()[1]
            text = b"{}"
            if asked == b"/v1/models":
                text = json.dumps({"object": "list", "data": [{"id": "echo", "object": "model"}]}).encode()
            elif asked == b"/truth":
                text = json.dumps(seen).encode()
                seen.clear()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
            continue
        tokens = json.loads(body).get("max_tokens", 1)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

        def event(data):
            text = f"data: {data}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(text), text))

        base = {"id": "echo", "object": "text_completion", "created": 0, "model": "echo"}
        left = []
        for i in range(tokens):
            await asyncio.sleep(max(0.0, arrived + first_s + i * gap_s - time.perf_counter()))
            end = "length" if i + 1 == tokens else None
            left.append(time.perf_counter())
            event(json.dumps({**base, "choices": [{"index": 0, "text": " a", "finish_reason": end}]}))
        usage = {"prompt_tokens": a.prompt_tokens, "completion_tokens": tokens, "total_tokens": a.prompt_tokens + tokens}
        event(json.dumps({**base, "choices": [], "usage": usage}))
        event("[DONE]")
        writer.write(b"0\r\n\r\n")
        seen.append((arrived, left[0], left[-1], tokens))


def echo(a, cores, port):
    """The process of the server that answers by schedule; tells its port."""
    if cores:
        os.sched_setaffinity(0, cores)
    seen = []

    async def connection(reader, writer):
        try:
            await answer_by_schedule(a, reader, writer, seen)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve():
        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def start_echo(a, cores):
    """Starts it; returns the process and its address."""
    port, child = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=echo, args=(a, cores, child), daemon=True)
    process.start()
    return process, f"http://127.0.0.1:{port.recv()}"


def truth(a, url):
    """Mean TTFT and ITL [ms] as the server by schedule knows them, of the load's requests since this was last asked."""
    with urllib.request.urlopen(url + "/truth", timeout=30) as answer:
        # A client may try the server first, with a request of another length.
        seen = [r for r in json.load(answer) if r[3] == a.output_tokens]
    ttft = statistics.mean(1e3 * (first - arrived) for arrived, first, _, _ in seen)
    return ttft, statistics.mean(1e3 * (last - first) / (n - 1) for _, first, last, n in seen)


def own_costs(a, url, work):
    """Prints what each client adds to what the server by schedule knows."""
    added = {name: [] for name in CLIENTS}
    for i in range(a.rounds):
        for name in sorted(CLIENTS, reverse=i % 2 == 1):
            seen = figures(CLIENTS[name](a, url, work)[0])
            ttft, itl = truth(a, url)
            added[name].append((seen["ttft_ms"] - ttft, seen["itl_ms"] - itl))
            print(f"round {i + 1} {name}: ttft_ms {seen['ttft_ms']:.3f}, in truth {ttft:.3f}; itl_ms {seen['itl_ms']:.4f}, in truth {itl:.4f}",
                  file=sys.stderr, flush=True)
    print(f"{'added by the client':<22}{'ttft_ms':>12}{'itl_ms':>12}")
    for name, values in added.items():
        ttft, itl = (statistics.median(v) for v in zip(*values))
        print(f"{name:<22}{ttft:>+12.3f}{itl:>+12.4f}")


def engine_ttft(url):
    """Sum [s] and number of the times to first token that the engine itself has measured so far; None where it shows none."""
    try:
        with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    found = [re.findall(rf"^vllm:time_to_first_token_seconds_{part}{{.*}} (\S+)$", text, re.M) for part in ("sum", "count")]
    return [sum(map(float, values)) for values in found] if all(found) else None


def overlaps(request, others):
    """Whether one of `others` was in flight during `request`."""
    return any(sent < request[3] and end > request[0] for sent, _, _, end, _ in others)


def run_together(a, url, work):
    """Both clients at once, `servetwin bench` half a period after GuideLLM; the requests of each, and their prompts' lengths."""
    period = 1 / a.rate
    before = engine_ttft(url)
    if not before:
        raise SystemExit("--together needs an engine that shows vllm:time_to_first_token_seconds at /metrics")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        guidellm = pool.submit(run_guidellm, a, url, work)
        now = before
        # GuideLLM tries the server before its load begins.
        while now[1] < before[1] + 4 and not guidellm.done():
            time.sleep(0.005)
            now = engine_ttft(url)
        sent = time.time() - (now[0] - before[0]) / max(1, now[1] - before[1])
        time.sleep((sent + period / 2 - BENCH_START_S - time.time()) % period)
        ours = run_servetwin(a, url, work)
        theirs = guidellm.result()
    return {"guidellm": theirs, "servetwin": ours}


def apart(a, both):
    """Of what both clients sent in their common time after warm-up: the figures of the requests that met no other, with the throughput
    of all."""
    requests = {name: r for name, (r, _) in both.items()}
    start = max(min(r[0] for r in of) for of in requests.values()) + a.warmup
    end = min(max(r[3] for r in of) for of in requests.values())
    requests = {name: [r for r in of if r[0] >= start and r[3] <= end] for name, of in requests.items()}
    out = {}
    for name, of in requests.items():
        others = [r for other, rs in requests.items() if other != name for r in rs]
        out[name] = figures([r for r in of if not overlaps(r, others)])
        out[name]["output_tokens_per_s"] = figures(of)["output_tokens_per_s"]
    return out


def round_together(a, url, work):
    """By client: its name, figures, lengths of its prompts, and what else there is to say."""
    both = run_together(a, url, work)
    for name, f in apart(a, both).items():
        yield name, f, both[name][1], ""


def round_in_turns(a, url, work, i):
    """As `round_together`, one client after the other; who goes first changes from round to round."""
    for name in sorted(CLIENTS, reverse=i % 2 == 1):
        before = engine_ttft(url)
        requests, prompts = CLIENTS[name](a, url, work)
        after = engine_ttft(url)
        more = ""
        if before and after and after[1] > before[1]:
            more = f"; the engine's own ttft_ms, warm-up included: {1e3 * (after[0] - before[0]) / (after[1] - before[1]):.2f}"
        yield name, figures(after_warmup(requests, a.warmup)), prompts, more


def spread(values):
    """Half of the range over the median [%]: how far a client differs from itself."""
    return 100 * (max(values) - min(values)) / 2 / statistics.median(values)


def differences(a, runs):
    """By metric: both medians, their difference [%] and its noise [%]."""
    out = {}
    for m in METRICS:
        values = {name: [r[m] for r in of] for name, of in runs.items()}
        mid = [statistics.median(values[name]) for name in ("guidellm", "servetwin")]
        if a.together:
            each = [100 * (s / g - 1) for g, s in zip(values["guidellm"], values["servetwin"])]
            out[m] = (*mid, statistics.median(each), (max(each) - min(each)) / 2)
        else:
            out[m] = (*mid, 100 * (mid[1] / mid[0] - 1), max(spread(v) for v in values.values()))
    return out


def figures_line(f):
    """A run's figures."""
    return ", ".join(f"{m} {f[m]:.2f}" for m in METRICS) + f" ({f['requests']} requests)"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--servetwin", default="servetwin", help="the servetwin program (default: from PATH)")
    p.add_argument("--guidellm", default="guidellm", help="the guidellm program (default: from PATH)")
    p.add_argument("--model", help="model folder of the engine, whose tokenizer both clients use")
    p.add_argument("--url", help="an engine that runs already; without it `servetwin serve` is started")
    p.add_argument("--name", help="model name at the endpoint (default: the first that it lists)")
    p.add_argument("--tokenizer", help="folder with tokenizer.json (default: the model's)")
    p.add_argument("--serve-option", action="append", default=[], help="further option of `servetwin serve`, e.g. --serve-option=--threads=1")
    p.add_argument("--rate", type=float, help="constant rate [req/s]")
    p.add_argument("--concurrency", type=int, help="closed loop, in place of --rate")
    p.add_argument("--requests", type=int, default=60, help="per run (default 60)")
    p.add_argument("--warmup", type=float, default=3.0, help="leave out requests sent in the first seconds (default 3)")
    p.add_argument("--prompt-tokens", type=int, default=128)
    p.add_argument("--output-tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=3, help="runs of each client, in turns (default 3)")
    p.add_argument("--timeout", type=float, default=600.0, help="of one run [s]")
    p.add_argument("--pin", action="store_true", help="engine (one thread) on the first core, clients on the others")
    p.add_argument("--together", action="store_true", help="both clients at once, half a period apart, instead of in turns; with --rate")
    p.add_argument("--echo", metavar="FIRST,GAP", help="measure what the clients add: no engine, but tokens after FIRST and every GAP ms")
    p.add_argument("--json", help="write all figures here")
    a = p.parse_args()
    cores = sorted(os.sched_getaffinity(0)) if a.pin else []
    if a.pin and len(cores) < 2:
        p.error("--pin needs two cores")
    a.on_engine = ["taskset", "-c", str(cores[0])] if a.pin else []
    a.on_clients = ["taskset", "-c", ",".join(map(str, cores[1:]))] if a.pin else []
    if bool(a.rate) == bool(a.concurrency):
        p.error("give --rate or --concurrency")
    if a.together and (not a.rate or a.echo):
        p.error("--together needs --rate, and an engine")
    a.tokenizer = a.tokenizer or a.model
    if a.echo and not re.fullmatch(r"[\d.]+,[\d.]+", a.echo):
        p.error("--echo: two times in ms, e.g. 50,4")
    if not a.tokenizer:
        p.error("give --model or --tokenizer: both clients write prompts as text")
    process = None
    with tempfile.TemporaryDirectory() as work:
        try:
            if a.echo:
                a.name = "echo"
                process, url = start_echo(a, cores[:1])
                own_costs(a, url, work)
                return
            url = a.url
            if not url:
                process, url = engine(a, work)
            if not a.name:
                with urllib.request.urlopen(url + "/v1/models", timeout=30) as answer:
                    a.name = json.load(answer)["data"][0]["id"]
            runs = {name: [] for name in CLIENTS}
            for i in range(a.rounds):
                for name, f, prompts, more in round_together(a, url, work) if a.together else round_in_turns(a, url, work, i):
                    if set(prompts) != {a.prompt_tokens}:
                        print(f"{name}: prompts had {min(prompts)} to {max(prompts)} tokens, {a.prompt_tokens} were asked for", file=sys.stderr)
                    runs[name].append(f)
                    print(f"round {i + 1} {name}: {figures_line(f)}{more}", file=sys.stderr, flush=True)
        finally:
            if process:
                process.terminate()
                if isinstance(process, subprocess.Popen):
                    process.wait(30)
    print(f"{'':<22}{'guidellm':>12}{'servetwin':>12}{'difference':>12}{'noise':>10}")
    within = True
    for m, (guidellm, servetwin, difference, noise) in differences(a, runs).items():
        within &= abs(difference) <= BAR_PERCENT
        print(f"{m:<22}{guidellm:>12.3f}{servetwin:>12.3f}{difference:>+11.2f} %{noise:>8.2f} %")
    print(f"bar: {BAR_PERCENT:g} %; {'all within' if within else 'NOT all within'}")
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump({"runs": runs, "arguments": {k: v for k, v in vars(a).items() if v is not None}}, f, indent=1)


if __name__ == "__main__":
    main()
