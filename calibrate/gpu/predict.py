#!/usr/bin/env python3
"""Predicts the loads of part 4 with a fitted profile, without having seen them, and prints the errors.

    python calibrate/gpu/predict.py calibrate/data/h100 --engine paged --step-profile h100-ours.steps.toml
    python calibrate/gpu/predict.py calibrate/data/h100 --engine paged --instance p5.4xlarge --profile h100-ours.operators.toml

Each load becomes a scenario with the same arrivals (same seed and stream) and the limits that the engine reported; `servetwin run` simulates
it. Python 3.9+, standard library only.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import tempfile

METRICS = [("ttft_ms_mean", "ttft_ms", "mean"), ("ttft_ms_p50", "ttft_ms", "p50"), ("ttft_ms_p99", "ttft_ms", "p99"),
           ("itl_ms_mean", "itl_ms", "mean"), ("e2e_ms_mean", "e2e_ms", "mean"), ("e2e_ms_p99", "e2e_ms", "p99"),
           ("requests_per_s", "throughput", "requests_per_s"), ("output_tokens_per_s", "throughput", "output_tokens_per_s")]


def scenario(row, facts, a):
    """The scenario of a row of serving.csv."""
    quote = json.dumps
    lines = []
    if a.step_profile:
        lines += ["[hardware]", f"step_profile = {quote(os.path.abspath(a.step_profile))}"]
    else:
        profile = os.path.abspath(a.profile) if os.path.exists(a.profile) else a.profile
        lines += ["[model]", f"name = {quote(row['model'].lower())}", "[hardware]", f"instance = {quote(a.instance)}",
                  f"profile = {quote(profile)}"]
    limits = {"max_num_seqs": facts.get("max_num_seqs") or facts.get("max_requests_per_batch"),
              "max_num_batched_tokens": facts.get("max_num_batched_tokens") or facts.get("max_batch_tokens"),
              "kv_blocks": facts.get("kv_blocks"), "block_size": facts.get("block_size"), "max_model_len": facts.get("max_model_len")}
    lines += ["[engine]", 'kind = "vllm_v1"', "enable_prefix_caching = false"]
    lines += [f"{k} = {v}" for k, v in limits.items() if v]
    if row["kind"] == "closed":
        arrival = f"{{ kind = \"closed\", concurrency = {row['concurrency']} }}"
    else:
        arrival = f"{{ kind = \"poisson\", rate = \"{row['rate_per_s']} req/s\" }}"
    lines += ["[[workload]]", 'name = "bench"', f"arrival = {arrival}", f"prompt = {row['prompt_tokens']}",
              f"output = {row['output_tokens']}", "[run]", f"duration = \"{row['duration_s']} s\"", f"warmup = \"{row['warmup_s']} s\""]
    return f"seed = {row['seed']}\n" + "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", help="folder of the measurement")
    p.add_argument("--engine", default="paged", help="rows of this engine (default paged)")
    p.add_argument("--servetwin", default="servetwin", help="the servetwin program (default: from PATH)")
    p.add_argument("--step-profile", help="fitted step model of `servetwin calibrate steps`")
    p.add_argument("--profile", default="auto", help="operator profile: a file or a built-in name (default auto)")
    p.add_argument("--instance", help="catalog instance, with --profile; p5.4xlarge has one H100")
    p.add_argument("--csv", help="write the errors here")
    a = p.parse_args()
    if bool(a.step_profile) == bool(a.instance):
        p.error("give either --step-profile, or --instance and --profile")
    with open(os.path.join(a.folder, "serving.csv"), newline="", encoding="utf-8") as f:
        rows = [r for r in csv.DictReader(f) if r["engine"] == a.engine]
    if not rows:
        p.error(f"{a.folder}/serving.csv has no row of engine {a.engine}")
    with open(os.path.join(a.folder, "serving", f"{a.engine}.json"), encoding="utf-8") as f:
        facts = json.load(f)
    out = []
    for row in rows:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as f:
            f.write(scenario(row, facts, a))
            f.flush()
            done = subprocess.run([a.servetwin, "run", f.name, "--json"], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{row['load']}: {done.stderr}")
        report = json.loads(done.stdout)
        for metric, group, key in METRICS:
            predicted = (report.get(group) or {}).get(key)
            if predicted is not None and row[metric] not in ("", "0"):
                measured = float(row[metric])
                out.append({"load": row["load"], "metric": metric, "measured": measured, "predicted": predicted,
                            "error_percent": 100 * (predicted / measured - 1)})
    width = max(len(r["load"]) for r in out)
    for r in out:
        print(f"{r['load']:<{width}}  {r['metric']:<20} measured {r['measured']:>10.2f}  predicted {r['predicted']:>10.2f}  {r['error_percent']:>+7.1f} %")
    print()
    for metric, _, _ in METRICS:
        errors = [abs(r["error_percent"]) for r in out if r["metric"] == metric]
        if errors:
            print(f"{metric:<20} median {statistics.median(errors):5.1f} %  worst {max(errors):6.1f} %  ({len(errors)} loads)")
    if a.csv:
        with open(a.csv, "w", newline="", encoding="utf-8") as f:
            w = csv.DictWriter(f, list(out[0]), lineterminator="\n")
            w.writeheader()
            w.writerows(out)


if __name__ == "__main__":
    main()
