#!/usr/bin/env python3
"""Calibrates llama.cpp's server from requests alone, then predicts and measures loads that were not fitted.

Written against llama.cpp as in the source package of llama-cpp-python 0.3.36 (PyPI; README.md here says how to build its server).

    python calibrate/compare/llama_server.py --llama-server build/bin/llama-server --servetwin target/release/servetwin

Steps: a random model (`servetwin model init`), converted by to_gguf.py (needs gguf and numpy; or bring --gguf); the server with prompt caching
off; `servetwin calibrate --endpoint`, which plans and measures its own loads, or with --two-loads a fit on just two, of mixed lengths: one user,
and Poisson arrivals at 80 % of the capacity (`servetwin bench`, then `servetwin calibrate --endpoint URL --records`); then each held-out load,
measured by `servetwin bench` on a server that has just started, and simulated by `servetwin run` with the profile and the same arrivals, on
several courses of the machine's speed. The bar: 10 %. Each held-out load is measured twice, the second time in the opposite order, so that the
noise stands beside the error; the two fitted loads before and after them.

With --used the server runs as people run it: prompt caching as llama.cpp has it by default, and one server for all loads, whose slots earlier
loads have used. Prompts of the held-out loads begin with one of a few shared prefixes, so that what is cached counts.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

METRICS = [("ttft_ms", "mean"), ("ttft_ms", "p50"), ("itl_ms", "mean"), ("e2e_ms", "mean"), ("e2e_ms", "p99"),
           ("throughput", "output_tokens_per_s")]
BAR_PERCENT = 10.0
# Courses of the machine's speed that a prediction is the mean of.
COURSES = 8
# Requests that bench sends before the load, to learn what the endpoint is.
BENCH_QUESTIONS = 2


def held_out(capacity):
    """Loads that the calibration does not run: (name, arguments of bench, arrival, prompt, output). Rates are shares of the capacity."""
    loads = [(f"closed-{n}", ["--concurrency", str(n)], f'{{ kind = "closed", concurrency = {n} }}', 96, 48) for n in (1, 3, 6)]
    for share in (0.4, 0.7):
        rate = float(f"{share * capacity:.3g}")
        loads.append((f"poisson-{share:g}", ["--rate", str(rate)], f'{{ kind = "poisson", rate = "{rate} req/s" }}', 96, 48))
    rate = float(f"{0.25 * capacity:.3g}")
    loads.append(("poisson-long", ["--rate", str(rate)], f'{{ kind = "poisson", rate = "{rate} req/s" }}', 256, 32))
    return loads


# Tokens that the prompts of a load share, in how many groups, and lengths of what follows and of the output.
PREFIX, GROUPS, OWN, OUTPUT = 256, 4, 64, 48


def used(capacity):
    """Loads of a server in use. Rates are shares of the capacity without caching."""
    loads = [(f"prefix-closed-{n}", [], f'{{ kind = "closed", concurrency = {n} }}', OWN, OUTPUT) for n in (1, 3, 6)]
    for share in (0.4, 0.8):
        loads.append((f"prefix-poisson-{share:g}", [], f'{{ kind = "poisson", rate = "{share * capacity:.3g} req/s" }}', OWN, OUTPUT))
    return loads


def workload(load, seconds, seed):
    """A load of --used as a scenario has it."""
    _, _, arrival, prompt, output = load
    return (f"[[workload]]\nname = \"bench\"\narrival = {arrival}\nprompt = {prompt}\noutput = {output}\n"
            f"prefix = {{ tokens = {PREFIX}, groups = {GROUPS} }}\n"
            f"[run]\nduration = \"{seconds:g} s\"\nwarmup = \"{seconds / 6:g} s\"\n")


def run(command, **options):
    """Output of a program; its error ends this one."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


@contextlib.contextmanager
def server(a, gguf, work):
    """A server that has just started; its address, once it says that it is well."""
    command = [a.llama_server, "-m", gguf, "--host", "127.0.0.1", "--port", str(a.port), "-t", str(a.threads), "-np", str(a.slots),
               "-c", str(a.slots * a.context), "--metrics", "--alias", "held-out-engine", *a.server_option]
    if not a.used:
        command.append("--no-cache-prompt")
    url = f"http://127.0.0.1:{a.port}"
    with open(os.path.join(work, "llama-server.log"), "a", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + 120
        while not well(url):
            if time.monotonic() > end or process.poll() is not None:
                with open(log.name, encoding="utf-8") as f:
                    raise SystemExit(f"llama-server did not come up:\n{f.read()[-2000:]}")
            time.sleep(0.3)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def well(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def on_fresh_slots(a, gguf, work, measure):
    """What `measure(url)`, one run of bench, gives on a server whose slots are in the order in which a new server takes them.

    Which slots are neighbours decides how fast a step is, requests do not show it, and loads of equal lengths hold on to the order that they
    find. bench's own questions take the first slots, so that the others are taken once before it, and the load begins at the first again.
    """
    with server(a, gguf, work) as url:
        for i in range(-BENCH_QUESTIONS % a.slots):
            # A prompt like one before would get the slot of that one.
            body = json.dumps({"prompt": [32 + i] * 16, "n_predict": 1}).encode()
            with urllib.request.urlopen(urllib.request.Request(f"{url}/completion", body, {"Content-Type": "application/json"}), timeout=60) as answer:
                answer.read()
        return measure(url)


def bench(a, url, load, seconds, folder, seed):
    _, arguments, _, prompt, output = load
    text = run([a.servetwin, "bench", url, *arguments, "--duration", f"{seconds:g}", "--warmup", f"{seconds / 6:g}", "--seed", str(seed),
                "--prompt-tokens", str(prompt), "--output-tokens", str(output), "--csv", folder, "--json"])
    report = json.loads(text)
    return report if "ttft_ms" in report else report["run"]


def bench_used(a, url, load, seconds, folder, seed):
    """Measures a load of --used, with prompts that the server has not seen."""
    path = f"{folder}.toml"
    with open(path, "w", encoding="utf-8") as f:
        # Model, hardware and engine stand there because a scenario has them; the load is all that is used.
        f.write(f"seed = {seed}\n[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = \"p5.48xlarge\"\n[engine]\nkind = \"vllm_v1\"\n"
                + workload(load, seconds, seed))
    report = json.loads(run([a.servetwin, "bench", url, "--scenario", path, "--csv", folder, "--json"]))
    return report if "ttft_ms" in report else report["run"]


def simulate(a, profile, load, seconds, seed):
    """The load on the endpoint as it was calibrated, hardware and engine of the scenario beside the profile: figures by their path in a report."""
    name, _, arrival, prompt, output = load
    with open(os.path.splitext(profile)[0] + ".scenario.toml", encoding="utf-8") as f:
        deployment = f.read().split("[[workload]]")[0]
    if a.used:
        deployment = deployment.replace("cache_prompt = false", "cache_prompt = true").replace("slots_used = false", "slots_used = true")
    else:
        # The profile was fitted on slots in any order; here the server has just started.
        deployment = deployment.replace("slots_used = true", "slots_used = false")
    # The profile's path in it is relative, so the scenario lies beside it.
    path = os.path.join(os.path.dirname(profile), f"held-out-{name}.toml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"seed = {seed}\n{deployment}\n")
        f.write(workload(load, seconds, seed) if a.used else
                f"[[workload]]\nname = \"bench\"\narrival = {arrival}\nprompt = {prompt}\noutput = {output}\n"
                f"[run]\nduration = \"{seconds:g} s\"\nwarmup = \"{seconds / 6:g} s\"\n")
    table = json.loads(run([a.servetwin, "run", path, "--seeds", str(COURSES), "--same-load", "--json"]))
    return {figure["path"]: figure["mean"] for figure in table["figures"]}


def two_loads(a, gguf, capacity, work, turn):
    """Measures the two loads that are fitted; their folders. One user, and Poisson arrivals, both with mixed lengths."""
    rate = float(f"{0.8 * capacity:.3g}")
    folders = []
    for name, arrival in (("one-user", '{ kind = "closed", concurrency = 1 }'), ("poisson-0.8", f'{{ kind = "poisson", rate = "{rate} req/s" }}')):
        path = os.path.join(work, f"fitted-{name}.toml")
        with open(path, "w", encoding="utf-8") as f:
            # Model, hardware and engine stand there because a scenario has them; the load is all that is used.
            f.write(f"[model]\nname = \"llama-3.1-8b\"\n[hardware]\ninstance = \"p5.48xlarge\"\n[engine]\nkind = \"vllm_v1\"\n"
                    f"[[workload]]\narrival = {arrival}\nprompt = {{ kind = \"lognormal\", median = 96, sigma = 0.9, min = 16, max = {a.context // 2} }}\n"
                    f"output = {{ kind = \"uniform\", min = 8, max = 64 }}\n[run]\nduration = \"{a.seconds:g} s\"\n")
        folder = os.path.join(work, f"fitted-{name}-{turn}")
        on_fresh_slots(a, gguf, work, lambda url: run(
            [a.servetwin, "bench", url, "--scenario", path, "--seed", str(turn), "--csv", folder, "--json"]))
        folders.append(folder)
    return folders


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama-server", required=True, help="the llama-server program")
    p.add_argument("--servetwin", default="servetwin", help="the servetwin program (default: from PATH)")
    p.add_argument("--gguf", help="a model; default: a random one of --params")
    p.add_argument("--params", default="25M", help="size of the random model (default 25M)")
    p.add_argument("--dtype", default="f32", choices=("f32", "f16", "bf16"))
    p.add_argument("--threads", type=int, default=1, help="compute threads of the server; leave a core to the client (default 1)")
    p.add_argument("--slots", type=int, default=8, help="sequences at once (default 8)")
    p.add_argument("--context", type=int, default=1024, help="tokens per slot (default 1024)")
    p.add_argument("--port", type=int, default=8093)
    p.add_argument("--server-option", action="append", default=[], help="further option of llama-server, e.g. --server-option=--no-warmup")
    p.add_argument("--calibrate-option", action="append", default=[], help="further option of `servetwin calibrate --endpoint`")
    p.add_argument("--two-loads", action="store_true", help="fit on two loads instead of those that `servetwin calibrate --endpoint` plans")
    p.add_argument("--used", action="store_true", help="default prompt caching, shared prefixes, and one server for all loads")
    p.add_argument("--profile", help="skip the calibration and use this profile, with the scenario beside it")
    p.add_argument("--seconds", type=float, default=30.0, help="length of each held-out load (default 30)")
    p.add_argument("--keep", help="keep profile, logs and results in this folder")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = os.path.abspath(a.keep) if a.keep else scratch
        os.makedirs(work, exist_ok=True)
        gguf = a.gguf
        if not gguf:
            sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
            import to_gguf
            folder, gguf = os.path.join(work, "model"), os.path.join(work, "model.gguf")
            if not os.path.exists(os.path.join(folder, "config.json")):
                run([a.servetwin, "model", "init", "--params", a.params, "--seed", "1", folder])
            to_gguf.convert(folder, gguf, a.dtype)
        profile = os.path.abspath(a.profile) if a.profile else os.path.join(work, "profile.toml")
        if not a.profile and not a.two_loads:
            with server(a, gguf, work) as url:
                print(run([a.servetwin, "calibrate", "--endpoint", url, "--out", profile, "--longest-prompt", str(a.context // 2),
                           "--max-concurrency", str(2 * a.slots), *a.calibrate_option]), flush=True)
        full = ("", ["--concurrency", str(a.slots)], "", 96, 48)
        report = on_fresh_slots(a, gguf, work, lambda url: bench(a, url, full, a.seconds / 2, os.path.join(work, "capacity"), 1))
        capacity = report["throughput"]["requests_per_s"]
        print(f"capacity at {a.slots} in flight: {capacity:.2f} req/s\n")
        fit = a.two_loads and not a.profile
        fitted = two_loads(a, gguf, capacity, work, 1) if fit else []
        loads = used(capacity) if a.used else held_out(capacity)
        seen = measured_on_one(a, gguf, loads, work) if a.used else measured(a, gguf, loads, work)
        if fit:
            fitted += two_loads(a, gguf, capacity, work, 2)
            with server(a, gguf, work) as url:
                print(run([a.servetwin, "calibrate", "--endpoint", url, "--records", *fitted, "--hold-out", "none", "--out", profile]), flush=True)
        errors = compare(a, profile, loads, seen)
    print()
    for (group, key), values in errors.items():
        print(f"{group}.{key:<22} median error {statistics.median(map(abs, values)):5.1f} %, worst {max(map(abs, values)):5.1f} %")
    good = all(statistics.median(map(abs, v)) <= BAR_PERCENT for v in errors.values())
    print(f"bar: median within {BAR_PERCENT:g} %: {'met' if good else 'NOT met'}")


def measured(a, gguf, loads, work):
    """Two reports of each load, by its name."""
    seen = {load[0]: [] for load in loads}
    for turn, order in ((1, loads), (2, loads[::-1])):
        for load in order:
            folder = os.path.join(work, f"{load[0]}-{turn}")
            seen[load[0]].append(on_fresh_slots(a, gguf, work, lambda url: bench(a, url, load, a.seconds, folder, 11)))
            print(f"{load[0]}, run {turn}", file=sys.stderr, flush=True)
    return seen


def measured_on_one(a, gguf, loads, work):
    """Two reports of each load, by its name, all from one server."""
    seen = {load[0]: [] for load in loads}
    with server(a, gguf, work) as url:
        # Slots that nobody has used yet are taken in the order of their numbers; a load of its own mixes them up.
        bench_used(a, url, loads[2], a.seconds / 3, os.path.join(work, "before"), 5)
        for turn, order in ((1, loads), (2, loads[::-1])):
            for load in order:
                seen[load[0]].append(bench_used(a, url, load, a.seconds, os.path.join(work, f"{load[0]}-{turn}"), 11))
                print(f"{load[0]}, run {turn}", file=sys.stderr, flush=True)
    return seen


def compare(a, profile, loads, seen):
    """Prints measured, predicted, error and noise of each load; errors [%] by metric."""
    errors = {m: [] for m in METRICS}
    print(f"{'load':<14} {'metric':<32} {'measured':>10} {'again':>10} {'predicted':>10} {'error':>8} {'noise':>8}")
    for load in loads:
        predicted = simulate(a, profile, load, a.seconds, 11)
        for group, key in METRICS:
            one, two = (r[group].get(key) for r in seen[load[0]])
            p = predicted.get(f"{group}.{key}")
            if not one or not two or p is None:
                continue
            mean = (one + two) / 2
            error, noise = 100 * (p / mean - 1), 100 * abs(one - two) / mean / 2
            errors[group, key].append(error)
            print(f"{load[0]:<14} {group + '.' + key:<32} {one:>10.2f} {two:>10.2f} {p:>10.2f} {error:>+7.1f}% {noise:>7.1f}%", flush=True)
    return {m: v for m, v in errors.items() if v}


if __name__ == "__main__":
    main()
