#!/usr/bin/env python3
"""How far the formulas of sparse latent attention are from whole measured modules (docs/operators.md).

    python calibrate/kernels/sparse.py --data DIR --base target/release/examples/kernel_base

DIR/kernels/SYSTEM/sparse_attention/ENGINE-VERSION/dsa_*_module_perf.parquet are the public tables of ai-dynamo/aiconfigurator (Apache-2.0): the
attention block of DeepSeek-V3.2 and GLM-5, projections and indexer included. Nothing is fitted on them. Prompts from 4096 tokens on: shorter ones
wait for their launches from the host.
"""

import argparse
import sys

import numpy as np

from fit import ENGINES, SYSTEMS, base_times, read

# Width, query rank, non-rotary and value size of a head, indexer heads.
SHAPES = {"DeepSeek-V3.2": (7168, 1536, 128, 128, 64), "GLM-5": (6144, 2048, 192, 256, 32), "GLM-5-FP8": (6144, 2048, 192, 256, 32)}
GEMM = {"bfloat16": "bf16", "fp8_block": "fp8_block"}
KV = {"bfloat16": "bf16", "fp8": "fp8"}


def block(model, heads, gemm, kv, tokens):
    """Lines of everything but the attention kernels, as hwmodels walks a layer (`attention_block`, `index_block`)."""
    hidden, rank, nope, v, index = SHAPES[model]
    q, out, width = heads * (nope + 64), heads * v, index * 128
    kv_bytes = 1 if kv == "fp8" else 2
    products = [(rank + 576, hidden), (q, rank), (heads * (nope + v), 512), (hidden, out), (width, rank), (128, hidden)]
    lines = [f"gemm {gemm} {tokens} {n} {k}" for n, k in products] + [f"gemm bf16 {tokens} {index} {hidden}"]
    rotary = 4 * (q + 288) * tokens + 576 * tokens * (2 + kv_bytes)
    return lines + [f"elementwise {rotary} 2", f"elementwise {11 * (width + 128) * tokens} 4"]


def rows(table, phase):
    table = table[table.op_name == f"dsa_{phase}_module"].assign(name=lambda t: t.model.str.split("/").str[-1])
    table = table[table.name.isin(SHAPES) & table.gemm_type.isin(GEMM) & table.kv_cache_dtype.isin(KV) & (table.num_heads >= 8)]
    table = table[table.isl * table.batch_size >= 4096] if phase == "context" else table
    key = ["name", "num_heads", "kv_cache_dtype", "gemm_type", "batch_size", "isl", "step"]
    table = table.groupby(key, as_index=False).latency.min()
    return table.iloc[:: max(1, len(table) // 1500)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder that holds kernels/")
    parser.add_argument("--base", required=True, help="the built example kernel_base of hwmodels")
    args = parser.parse_args()
    print(f"{'system':9} {'engine':7} {'phase':10} {'KV':5} {'rows':>5} {'median':>7} {'p90':>6} {'bias':>6}")
    for system in ("h100_sxm", "h200_sxm", "b200_sxm"):
        for engine in ENGINES:
            for phase in ("context", "generation"):
                table, _ = read(args.data, system, "sparse_attention", engine, f"dsa_{phase}_module_perf")
                if table is None:
                    sys.exit(f"no table of {system}, {engine}, {phase}")
                t = rows(table, phase)
                lines, owner = [], []
                for i, (name, heads, kv, gemm, batch, isl, step) in enumerate(t.drop(columns="latency").itertuples(index=False)):
                    tokens = batch * isl if phase == "context" else batch
                    own = block(name, heads, GEMM[gemm], KV[kv], tokens)
                    index = SHAPES[name][4]
                    own.append(
                        f"dsa_prefill {heads} {index} {KV[kv]} {batch} {isl} {step}" if phase == "context"
                        else f"dsa_decode {heads} {index} {KV[kv]} {batch} {isl + step}")
                    lines += own
                    owner += [i] * len(own)
                times = base_times(args.base, SYSTEMS[system], ENGINES[engine], lines, "surfaces")
                predicted = np.bincount(owner, times, len(t))
                for kv in KV:
                    of = (t.kv_cache_dtype == kv).to_numpy()
                    if of.any():
                        e = (predicted[of] / (t.latency[of].to_numpy() / 1e3) - 1) * 100
                        print(f"{system:9} {engine:7} {phase:10} {kv[:5]:5} {of.sum():5} {np.median(abs(e)):7.1f} {np.percentile(abs(e), 90):6.1f} {e.mean():+6.1f}", flush=True)


if __name__ == "__main__":
    main()
