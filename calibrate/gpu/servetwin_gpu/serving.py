"""Part 4: a continuous-batching server on the 8B model, driven by `servetwin bench`.

The loads come in an order that is useful wherever it is cut off: closed loops give the engine's capacity, open loops then run at shares of
it, to beyond the knee. `serving.csv` has a row per load; `serving/<engine>-<load>/` what the harness wrote.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

from .output import Table

FIGURES = ["mean", "p50", "p90", "p99"]
COLUMNS = ["system", "version", "engine", "model", "load", "kind", "concurrency", "rate_per_s", "prompt_tokens", "output_tokens",
           "duration_s", "warmup_s", "seed", "offered", "finished", "failed",
           *[f"{m}_ms_{q}" for m in ("ttft", "itl", "tpot", "e2e") for q in FIGURES],
           "requests_per_s", "output_tokens_per_s"]

# Lengths of prompt and output: questions, and documents.
MIXES = {"short": (512, 128), "long": (2048, 64)}
SMALL_MIXES = {"short": (32, 8), "long": (96, 4)}


def loads():
    """(name, mix, concurrency or None, share of the capacity or None) in the order of their worth."""
    closed = lambda mix, *ns: [(f"{mix}-closed-{n}", mix, n, None) for n in ns]
    opened = lambda mix, *shares: [(f"{mix}-open-{round(100 * x)}", mix, None, x) for x in shares]
    return (closed("short", 1, 64, 8) + opened("short", 0.7, 0.9, 1.1) + closed("long", 64, 1) + opened("long", 0.7)
            + closed("short", 32, 128, 16, 4, 2) + opened("short", 0.4, 0.8, 1.0) + closed("long", 8) + opened("long", 0.9, 1.1))


def run(args, deadline, record):
    table = Table(os.path.join(args.out, "serving.csv"), COLUMNS, ["engine", "load"])
    os.makedirs(os.path.join(args.out, "serving"), exist_ok=True)
    todo = [l for l in loads() if not table.has(engine=args.engine, load=l[0])]
    if not todo:
        return True
    # A part that goes on keeps the log of the steps before.
    n = 1
    while os.path.exists(log := os.path.join(args.out, "serving", f"{args.engine}-steps-{n}.csv")):
        n += 1
    command = [sys.executable, "-m", "servetwin_gpu.server", "--engine", args.engine, "--device", args.device, "--dtype", args.dtype]
    command += ["--small"] if args.small else []
    command += ["--step-log", log] if args.engine == "paged" else []
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = address(server, deadline, record)
        record.run["engine"] = models(url)
        with open(os.path.join(args.out, "serving", f"{args.engine}.json"), "w", encoding="utf-8") as f:
            json.dump(record.run["engine"], f, indent=1)
        return all([drive(args, deadline, record, table, url, load) for load in todo])
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
        table.close()


def address(server, deadline, record):
    """Waits for the line with the server's address; what it prints before goes to the record."""
    lines = queue.Queue()
    threading.Thread(target=lambda: [lines.put(line.strip()) for line in server.stdout], daemon=True).start()
    while not deadline.over():
        try:
            line = lines.get(timeout=1.0)
        except queue.Empty:
            if server.poll() is not None:
                raise SystemExit(f"the server ended with code {server.returncode} before it listened")
            continue
        if line.startswith("http://"):
            return line
        if line:
            record.note(line)
    raise SystemExit("the server was not up within the budget")


def models(url):
    import urllib.request
    with urllib.request.urlopen(url + "/v1/models", timeout=30) as answer:
        return json.load(answer)["data"][0]["engine"]


def capacity(table, engine, mix):
    """Requests per second of the closed loop of 64 of this mix, from the table on disk."""
    import csv
    with open(table.file.name, newline="", encoding="utf-8") as f:
        for row in csv.DictReader(f):
            if row["engine"] == engine and row["load"] == f"{mix}-closed-64":
                return float(row["requests_per_s"])
    return None


def drive(args, deadline, record, table, url, load):
    """One load; False when there was no time for it."""
    name, mix, concurrency, share = load
    seconds = 3.0 if args.small else args.load_seconds
    warmup = seconds / 5
    # The last requests end after the load; beyond the knee that takes as long again.
    if deadline.left() < 2 * seconds + 5:
        return False
    prompt, output = (SMALL_MIXES if args.small else MIXES)[mix]
    folder = os.path.join(args.out, "serving", f"{args.engine}-{name}")
    rate = None
    if share is not None:
        most = capacity(table, args.engine, mix)
        if not most:
            record.note(f"{name}: no capacity was measured for its rate")
            return False
        rate = float(f"{share * most:.3g}")
    command = [args.harness, "bench", url, "--duration", f"{seconds:g}", "--warmup", f"{warmup:g}", "--prompt-tokens", str(prompt),
               "--output-tokens", str(output), "--seed", "1", "--csv", folder, "--json", "--timeout", "120"]
    command += ["--concurrency", str(concurrency)] if concurrency else ["--rate", str(rate)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(10.0, deadline.left()))
    except subprocess.TimeoutExpired:
        record.note(f"{name}: the harness did not end within the budget")
        return False
    if done.returncode:
        record.note(f"{name}: the harness ended with {done.returncode}: {done.stderr[-300:]}")
        return False
    report = json.loads(done.stdout)
    table.add(**row(report), system=record.data["system"], version=record.run["engine"]["engine"], engine=args.engine,
              model=record.run["engine"]["model"], load=name, kind="closed" if concurrency else "poisson",
              concurrency=concurrency or "", rate_per_s=rate or "", prompt_tokens=prompt, output_tokens=output,
              duration_s=seconds, warmup_s=warmup, seed=1)
    time.sleep(0.2)
    return True


def row(report):
    """The figures of the harness's report that the table keeps."""
    run = report if "ttft_ms" in report else report["run"]
    figures = {f"{m}_ms_{q}": (run.get(f"{m}_ms") or {}).get(q, "") for m in ("ttft", "itl", "tpot", "e2e") for q in FIGURES}
    figures = {k: float(v) if isinstance(v, (int, float)) else "" for k, v in figures.items()}
    counts, rates = run["requests"], run["throughput"]
    return {**figures, "offered": counts["offered"], "finished": counts["finished"], "failed": counts["failed"],
            "requests_per_s": float(rates["requests_per_s"]), "output_tokens_per_s": float(rates["output_tokens_per_s"])}
