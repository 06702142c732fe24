#!/usr/bin/env python3
"""Checks runs in a cluster from their CSV tables alone, over all cluster scenarios with random faults.

    scripts/check_cluster_csv.py target/release/servetwin scenarios/cluster-*.toml
    scripts/check_cluster_csv.py --tables out            # tables that are there already

Each scenario is run with `--draws` sets of random faults (and once as it is), for at most `--duration`. What must hold:

- a request is served only by a start of a container that was ready by then, and that neither had crashed nor ended when its tokens came;
- a pod's instants come in their order, and the phases of a start add up to the time that it took;
- a pod stands only on a node that was usable when it was placed, and no pod outlives its node.

The exit code is 1 where anything does not hold.
"""

import argparse
import csv
import pathlib
import random
import subprocess
import sys
import tempfile

INF = float("inf")
# A nanosecond is the unit of the tables; what is derived from differences may be off by one.
CLOSE = 2e-9


def table(path):
    if not path.exists():
        return []
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def at(row, column, otherwise=INF):
    text = row[column]
    return float(text) if text else otherwise


def pod_problems(pods, nodes):
    order = ["created_s", "scheduled_s", "started_s", "loaded_s", "up_s", "ready_s"]
    phases = [c for c in (pods[0] if pods else {}) if c.endswith("_s")]
    phases = phases[phases.index("pending_s"):] if phases else []
    before = {}
    for row in pods:
        name = f"{row['pod']} start {row['start']}"
        times = [at(row, c) for c in order]
        if times != sorted(times):
            yield f"{name}: its instants are out of order: {times}"
        begin = before.get(row["pod"], at(row, "created_s"))
        ready = at(row, "ready_s")
        if ready < INF:
            took = sum(float(row[c]) for c in phases)
            if abs(took - (ready - begin)) > 1e-6:
                yield f"{name}: phases add up to {took} of {ready - begin} s"
        before[row["pod"]] = at(row, "crashed_s")
        node = nodes.get(row["node"])
        if not row["node"]:
            continue
        if node is None:
            yield f"{name}: stands on {row['node']}, which is no node"
            continue
        if at(row, "scheduled_s") < at(node, "usable_s"):
            yield f"{name}: was placed on {row['node']} before that was usable"
        # A pod on a lost node is counted until somebody has noticed.
        is_lost = node["why_gone"] in ("it failed", "reclaimed")
        if at(row, "gone_s") > at(node, "gone_s") and not is_lost:
            yield f"{name}: outlived its node {row['node']}"


def request_problems(requests, pods, nodes):
    starts = {(row["pod"], row["start"]): row for row in pods}
    for row in requests:
        if not row.get("pod"):
            if row["first_token_s"]:
                yield f"request {row['id']}: got tokens from no pod"
            continue
        name = f"request {row['id']} at {row['pod']} start {row['start']}"
        start = starts.get((row["pod"], row["start"]))
        if start is None:
            yield f"{name}: there is no such start"
            continue
        # A request whose prefill was elsewhere is sent on later; its end is at the last pod all the same.
        ready, end = at(start, "ready_s"), at(row, "end_s")
        if end < ready - CLOSE:
            yield f"{name}: ended at {end}, before that was ready at {ready}"
        first = at(row, "first_scheduled_s")
        if first < ready - CLOSE and "handover" not in row:
            yield f"{name}: was served from {first} on, before that was ready at {ready}"
        node = nodes.get(start["node"])
        gone = min(at(start, "crashed_s"), at(start, "gone_s"))
        if node is not None and node["why_gone"] in ("it failed", "reclaimed"):
            gone = min(gone, at(node, "gone_s"))
        if row["outcome"] == "finished" and end > gone + row_delay(row) + CLOSE:
            yield f"{name}: finished at {end}, after that was gone at {gone}"


def row_delay(_row):
    """Answers are on their way to clients for a moment after the pod has given them."""
    return 0.5


def problems(folder, apart=False):
    requests = table(folder / "requests.csv")
    pods = table(folder / "pods.csv")
    nodes = {row["node"]: row for row in table(folder / "nodes.csv")}
    if apart:
        for row in requests:
            row["handover"] = "1"
    yield from pod_problems(pods, nodes)
    yield from request_problems(requests, pods, nodes)


def faults(draw, seconds, has_spot):
    """A few random faults, as a value of `fault`."""
    kinds = ["replica", "node", "no_capacity", "slow_storage", "crash_loop", "router_partition",
             "thermal_throttling", "metrics_outage"] + ["spot"] * has_spot
    out = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.choice(kinds)
        when = draw.uniform(0.0, seconds)
        keys = [f'kind = "{kind}"']
        if kind in ("replica", "node") and draw.random() < 0.4:
            keys.append(f'mtbf = "{draw.uniform(0.1, 1.0) * seconds:.0f} s"')
        else:
            keys.append(f'at = "{when:.0f} s"')
            if kind in ("replica", "node", "crash_loop", "router_partition") and draw.random() < 0.3:
                keys.append("all = true")
        if kind == "node":
            keys.append(f'noticed_after = "{draw.uniform(0, 400):.0f} s"')
        if kind == "spot":
            keys.append(f'notice = "{draw.uniform(0, 150):.0f} s"')
        if kind in ("no_capacity", "slow_storage", "crash_loop", "metrics_outage", "thermal_throttling"):
            keys.append(f'duration = "{draw.uniform(30, 900):.0f} s"')
        out.append("{ " + ", ".join(keys) + " }")
    return "[" + ", ".join(out) + "]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=pathlib.Path, help="a folder of tables to check, and nothing else")
    parser.add_argument("--draws", type=int, default=3, help="sets of random faults for each scenario")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duration", type=float, default=3600.0, help="of each run at most [s]")
    parser.add_argument("binary", nargs="?")
    parser.add_argument("scenarios", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    if args.tables:
        found = list(problems(args.tables))
        print("\n".join(found[:20]) or "all holds")
        return 1 if found else 0
    if not args.binary or not args.scenarios:
        parser.error("name the servetwin binary and scenarios, or --tables")
    wrong = runs = served = 0
    for scenario in args.scenarios:
        text = scenario.read_text()
        draw = random.Random(f"{args.seed} {scenario.name}")
        for k in range(args.draws + 1):
            with tempfile.TemporaryDirectory() as folder:
                command = [args.binary, "run", str(scenario), "--csv", folder, "--quiet",
                           "--set", f"run.duration={args.duration:.0f} s"]
                sets = "none"
                if k > 0:
                    sets = faults(draw, args.duration, int("spot = true" in text))
                    command += ["--set", f"fault={sets}"]
                done = subprocess.run(command, capture_output=True, text=True)
                # 5: no request finished, which faults may bring about.
                if done.returncode not in (0, 5):
                    print(f"{scenario.name}: faults {sets}: {done.stderr.strip()[:400]}")
                    wrong += 1
                    continue
                found = list(problems(pathlib.Path(folder), apart='role = "prefill"' in text))
                runs += 1
                served += sum(1 for r in table(pathlib.Path(folder) / "requests.csv") if r.get("pod"))
                for line in found[:5]:
                    print(f"{scenario.name}: faults {sets}: {line}")
                wrong += len(found)
    print(f"{runs} runs, {served} requests served, {wrong} things that do not hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
