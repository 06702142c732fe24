#!/usr/bin/env python3
"""Fits the surfaces of measured kernels over the formulas of hwmodels (docs/operators.md, "Surfaces").

    python calibrate/kernels/fit.py --data DIR --base target/release/examples/kernel_base --out hwmodels/data/profiles

DIR/kernels/SYSTEM/FAMILY/ENGINE-VERSION/*.parquet are the public tables of ai-dynamo/aiconfigurator (Apache-2.0).
Needs numpy, scipy, pandas and pyarrow. Deterministic.

For each system and engine: the time that the formulas give (the example kernel_base of hwmodels), and a surface through
ln(measured / formula) over the logarithms of two to four quantities of the shape: linear between the knots of a grid,
pulled towards straightness, each row counted by how close it lies (towards least absolute deviations). Every third
shape is held out with all its rows; the errors printed and stored are those of the held-out shapes, of a fit that has
not seen them. The surfaces written are fitted on the same rows: the held-out ones stay out.

Experts are tuned for each shape, and neighbours say little of it (a configuration chosen for one width is not that of the
next). So every shape of experts in the tables has a curve of its own besides, over the tokens of a step, fitted on all rows.
"""

import argparse
import glob
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.sparse.linalg import spsolve
from scipy.spatial import cKDTree

# System, catalog name of its accelerator, engines with the folder of each family's tables.
SYSTEMS = {
    "h100_sxm": "H100-SXM5-80GB",
    "h200_sxm": "H200-SXM5-141GB",
    "a100_sxm": "A100-SXM4-80GB",
    "l40s": "L40S-48GB",
    "b200_sxm": "B200-SXM-180GB",
}
ENGINES = {"vllm": "vllm_v1", "trtllm": "trt_llm", "sglang": "sglang"}

# Held-out median beyond which a surface is no basis [%].
UNUSABLE = 15.0

# ln of the largest factor that a surface may hold.
MOST = np.log(20.0)

# Tokens of a step at which the curve of a known shape of experts has its knots, as logarithms to base 2.
TOKEN_KNOTS = np.array([0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14], float)

# How much longer than a larger shape of the same experts (or than its share of the work of a smaller one) a kernel may take that was tuned.
UNTUNED = 1.4

# Knots by quantity.
POWERS = lambda lo, hi, step=1: np.arange(lo, hi + 0.5, step).astype(float)
M_KNOTS = np.log2([1, 8, 16, 32, 64, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 32768])
N_KNOTS = np.log2([128, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536])
K_KNOTS = np.log2([128, 512, 1024, 2048, 4096, 8192, 16384, 65536])


def design(axes, points):
    """Weights of the knots at each row: linear between neighbours, the outermost beyond them."""
    shape = [len(a) for a in axes]
    rows, n = len(points), int(np.prod(shape))
    strides = [int(np.prod(shape[i + 1:])) for i in range(len(shape))]
    index, weight = np.zeros((rows, 1), int), np.ones((rows, 1))
    for axis, x, stride in zip(axes, points.T, strides):
        if len(axis) == 1:
            continue
        x = np.clip(x, axis[0], axis[-1])
        lower = np.clip(np.searchsorted(axis, x, side="right") - 1, 0, len(axis) - 2)
        share = (x - axis[lower]) / (axis[lower + 1] - axis[lower])
        index = np.concatenate([index + (lower * stride)[:, None], index + ((lower + 1) * stride)[:, None]], axis=1)
        weight = np.concatenate([weight * (1 - share)[:, None], weight * share[:, None]], axis=1)
    return sp.csr_matrix((weight.ravel(), (np.repeat(np.arange(rows), index.shape[1]), index.ravel())), shape=(rows, n))


def solve(axes, points, y, smooth, rounds=6, scale=0.03):
    """Values at the knots: weighted least squares with second differences kept small, reweighted towards least absolute deviations."""
    a = design(axes, points)
    shape = [len(x) for x in axes]
    rows, n = a.shape
    penalties = []
    grid = np.arange(n).reshape(shape)
    for i, axis in enumerate(axes):
        moved = np.moveaxis(grid, i, 0)
        if len(axis) > 2:
            h0, h1 = np.diff(axis)[:-1], np.diff(axis)[1:]
            for j in range(len(axis) - 2):
                c = np.array([1 / h0[j], -1 / h0[j] - 1 / h1[j], 1 / h1[j]])
                cells = [moved[j].ravel(), moved[j + 1].ravel(), moved[j + 2].ravel()]
                m = len(cells[0])
                penalties.append(sp.csr_matrix((np.repeat(c, m), (np.tile(np.arange(m), 3), np.concatenate(cells))), shape=(m, n)))
        if len(axis) > 1:
            for j in range(len(axis) - 1):
                m = moved[j].size
                penalties.append(0.03 * sp.csr_matrix((np.repeat([1.0, -1.0], m), (np.tile(np.arange(m), 2), np.concatenate([moved[j].ravel(), moved[j + 1].ravel()]))), shape=(m, n)))
    penalty = sp.vstack(penalties) if penalties else sp.csr_matrix((1, n))
    per_knot = rows / n
    ridge = smooth * per_knot * (penalty.T @ penalty) + 1e-6 * per_knot * sp.identity(n)
    w = np.ones(rows)
    z = np.zeros(n)
    for _ in range(rounds):
        aw = a.multiply(w[:, None]).tocsr()
        z = spsolve((a.T @ aw + ridge).tocsc(), aw.T @ y)
        w = 1 / np.sqrt(1 + ((y - a @ z) / scale) ** 2)
    return np.clip(fill(axes, z, a), -MOST, MOST)


def fill(axes, values, a):
    """Knots that no row lies near take the value of the nearest knot that some do: a surface says nothing of its own where nothing was measured."""
    near = np.asarray(a.sum(axis=0)).ravel() >= 0.5
    if near.all() or not near.any():
        return values
    index = np.stack(np.unravel_index(np.arange(len(values)), [len(x) for x in axes]), axis=1).astype(float)
    _, nearest = cKDTree(index[near]).query(index[~near])
    out = values.copy()
    out[~near] = values[near][nearest]
    return out


class Family:
    """Rows of one surface: lines for kernel_base, quantities, measured seconds and the shape that splits them."""

    def __init__(self, name, lines, quantities, seconds, shapes, axes, smooth=1e-3, known=None, tokens=None):
        self.name, self.lines, self.smooth = name, list(lines), smooth
        # For curves of their own: what tells a shape from all others, and the tokens of each row.
        self.known, self.tokens = (list(known), np.asarray(tokens, float)) if known is not None else (None, None)
        self.points = np.log2(np.column_stack(quantities).astype(float))
        self.seconds = np.asarray(seconds, float)
        self.shapes = list(shapes)
        self.axes = [np.asarray(a, float) for a in axes]


def base_times(binary, accelerator, engine, lines, *more):
    run = subprocess.run([binary, accelerator, engine, *more], input="\n".join(lines) + "\n", text=True, capture_output=True, check=False)
    if run.returncode:
        sys.exit(run.stderr)
    return np.array(run.stdout.split(), float)


def read(folder, system, family, engine, table):
    found = sorted(glob.glob(os.path.join(folder, "kernels", system, family, engine + "-*", table + ".parquet")))
    return (pd.read_parquet(found[-1]), os.path.basename(os.path.dirname(found[-1]))) if found else (None, None)


def gemm(data, system, engine):
    table, version = read(data, system, "gemm", engine, "gemm_perf")
    if table is None:
        return
    table = table[(table.n >= 64) & (table.k >= 64)]
    if engine == "trtllm":
        # Activations come quantised from the kernels that make them: both kernels of the benchmark's own quantisation are taken off.
        for part in ("computescale_perf", "scale_matrix_perf"):
            q, _ = read(data, system, "quantize", engine, part)
            if q is None:
                continue
            q = q.groupby(["m", "k"]).latency.median().rename(part)
            table = table.join(q, on=["m", "k"])
            off = table[part].fillna(0.0).where(table.gemm_dtype == "fp8", 0.0)
            table = table.assign(latency=np.maximum(table.latency - off, 0.3 * table.latency))
    for dtype, name in (("bfloat16", "bf16"), ("fp8", "fp8"), ("fp8_block", "fp8_block")):
        # vLLM's block-scaled products were timed with their launches from the host: none takes less than 55 us, which graphs do away with.
        if (engine, name) == ("vllm", "fp8_block"):
            continue
        t = table[table.gemm_dtype == dtype].groupby(["m", "n", "k"], as_index=False).latency.min()
        if len(t) < 500:
            continue
        yield version, Family(
            "gemm." + name,
            (f"gemm {name} {m} {n} {k}" for m, n, k in zip(t.m, t.n, t.k)),
            (t.m, t.n, t.k), t.latency / 1e3, zip(t.n, t.k), (M_KNOTS, N_KNOTS, K_KNOTS), 2e-4)


KV = {"bfloat16": ("bf16", "kv16"), "fp8": ("fp8", "kv8")}


def attention(data, system, engine):
    for phase, op in (("generation", "decode"), ("context", "prefill")):
        table, version = read(data, system, "attention", engine, phase + "_attention_perf")
        if table is None:
            continue
        if "window_size" in table:
            table = table[table.window_size.fillna(0) == 0]
        for (kv, dim), t in table.groupby(["kv_cache_dtype", "head_dim"]):
            if kv not in KV or dim not in (64, 128, 256):
                continue
            if op == "prefill" and "attn_dtype" in t and engine == "trtllm" and kv == "fp8":
                # 8-bit KV and 16-bit arithmetic, or both in 8 bits: TensorRT-LLM runs the latter where the checkpoint gives scales.
                t = t[t.attn_dtype == "fp8"] if (t.attn_dtype == "fp8").any() else t
            key = ["num_heads", "num_key_value_heads", "batch_size", "isl", "step"]
            t = t.groupby(key, as_index=False).latency.min()
            short, name = KV[kv]
            h, g, b = t.num_heads, t.num_key_value_heads, t.batch_size
            n = t.isl + t.step if op == "decode" else t.isl
            group = h / g
            if op == "decode":
                quantities = (n, b * g, group)
                axes = (POWERS(0, 17), POWERS(0, 14), np.array([0, 1, 2, 2.585, 3, 4, 5, 6]))
            else:
                quantities = (n, b * n * h, group)
                axes = (POWERS(4, 14), POWERS(5, 22), np.array([0, 1, 2, 3, 4.585, 6]))
            axes = tuple(trim(a, np.log2(q)) for a, q in zip(axes, quantities))
            yield version, Family(
                f"{op}.{name}.d{dim}",
                (f"{op} {x} {y} {dim} {short} 0 {z} {c}" for x, y, z, c in zip(h, g, b, n)),
                quantities, t.latency / 1e3, zip(h, g), axes)


def trim(axis, x):
    """The knots around the data."""
    lo, hi = x.min(), x.max()
    keep = axis[(axis >= lo - 1e-9) & (axis <= hi + 1e-9)]
    return keep if len(keep) else np.array([np.median(x)])


def mla(data, system, engine):
    # vLLM's were timed with their launches from the host: none takes less than 100 us.
    if engine == "vllm":
        return
    for phase, op in (("generation", "mla_decode"), ("context", "mla_prefill")):
        table, version = read(data, system, "mla", engine, phase + "_mla_perf")
        if table is None:
            continue
        for kv, t in table.groupby("kv_cache_dtype"):
            if kv not in KV:
                continue
            short, name = KV[kv]
            # Heads of one rank.
            t = t.groupby(["num_heads", "batch_size", "isl", "step"], as_index=False).latency.min()
            h, b = t.num_heads, t.batch_size
            if op == "mla_prefill":
                if kv != "bfloat16":
                    continue
                t = t[(t.isl >= 16)]
                h, b, n = t.num_heads, t.batch_size, t.isl
                quantities, full = (n, b * n * h), op
                axes = (POWERS(4, 15), POWERS(4, 22))
            else:
                n = t.isl + t.step
                quantities, full = (n, b, h), f"{op}.{name}"
                axes = (POWERS(0, 17), POWERS(0, 10), POWERS(0, 7))
            axes = tuple(trim(a, np.log2(q)) for a, q in zip(axes, quantities))
            yield version, Family(
                full, (f"{op} {x} {short} {y} {z}" for x, y, z in zip(h, b, n)), quantities, t.latency / 1e3,
                zip(h, b), axes)


MOE = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "w4a16_mxfp4": "mxfp4", "int4_wo": "int4"}


def tuned(table):
    """Rows of TensorRT-LLM's experts without those of kernels that its tuner cannot have chosen.

    Splitting experts over more ranks leaves each less to do. A shape that takes far longer than one of the same experts with more work, or than its
    multiple of one with less, ran a kernel that was not tuned (up to seven times as long, other shapes on other chips); the engine tunes when it starts.
    """
    kept = []
    for _, t in table.groupby(["hidden_size", "inter_size", "topk", "num_experts"]):
        times = t.pivot_table(index="num_tokens", columns=["moe_tp_size", "moe_ep_size"], values="latency", aggfunc="min")
        layouts, values = list(times.columns), times.to_numpy()
        bad = np.zeros(values.shape, bool)
        for i, (tp, ep) in enumerate(layouts):
            for j, (other_tp, other_ep) in enumerate(layouts):
                if i == j:
                    continue
                if other_tp <= tp and other_ep <= ep:
                    bound = values[:, j]
                elif other_tp >= tp and other_ep >= ep:
                    bound = values[:, j] * (other_tp * other_ep) / (tp * ep)
                else:
                    continue
                bad[:, i] |= values[:, i] > UNTUNED * bound
        bad |= bad.mean(axis=0) > 0.34
        left = pd.DataFrame(~bad, index=times.index, columns=times.columns).stack([0, 1], future_stack=True).rename("kept").reset_index()
        t = t.merge(left, on=["num_tokens", "moe_tp_size", "moe_ep_size"])
        kept.append(t[t.kept].drop(columns="kept"))
    return pd.concat(kept) if kept else table


def moe(data, system, engine):
    table, version = read(data, system, "moe", engine, "moe_perf")
    if table is None:
        return
    table = table[(table.distribution == "balanced") & ~table.kernel_source.str.contains("nongated|situ")]
    if engine == "sglang" and system in ("h100_sxm", "h200_sxm"):
        # What it takes for 16-bit experts on Hopper unless told otherwise.
        table = table[(table.moe_dtype != "bfloat16") | (table.kernel_source == "sglang_fused_moe_triton")]
    for dtype, name in MOE.items():
        key = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
        t = table[table.moe_dtype == dtype].groupby(key, as_index=False).latency.min()
        t = t[t.inter_size // t.moe_tp_size >= 64]
        if engine == "trtllm" and len(t):
            t = tuned(t)
        # vLLM's table of experts with one scale a tensor was taken without FlashInfer's tuning: 16 tokens take longer in it than 2048.
        if len(t) < 100 or (engine, name) == ("vllm", "fp8"):
            continue
        quantities = (t.num_tokens * t.topk / t.num_experts, t.num_experts / t.moe_ep_size, t.inter_size / t.moe_tp_size, t.hidden_size)
        axes = (POWERS(-7, 14), POWERS(0, 9, 1.5), POWERS(6, 14, 1.0), np.log2([2048, 4096, 7168]))
        axes = tuple(trim(a, np.log2(q)) for a, q in zip(axes, quantities))
        yield version, Family(
            "moe." + name,
            (f"moe {name} {h} {i} {k} {e} {tp} {ep} {n} 0" for n, h, i, k, e, tp, ep in zip(*(t[c] for c in key))),
            quantities, t.latency / 1e3, zip(t.hidden_size, t.inter_size, t.num_experts, t.moe_tp_size, t.moe_ep_size), axes, 1e-3,
            zip(t.hidden_size, t.inter_size // t.moe_tp_size, t.num_experts, t.moe_ep_size, t.topk), t.num_tokens)


# Formats of the states of linear attention as each engine was timed: no faster than device memory is with these.
STATES = {"vllm": "fp32", "trtllm": "bf16"}


def linear(data, system, engine):
    # SGLang's are in states.py.
    if engine not in STATES:
        return
    table, version = read(data, system, "linear_attention", engine, "gdn_perf")
    if table is None:
        return
    table = table[(table.head_k_dim == 128) & (table.head_v_dim == 128) & (table.d_conv == 4)]
    key = ["num_k_heads", "num_v_heads", "batch_size", "seq_len"]
    # The convolution and the rule: a layer runs both.
    kernels = table.assign(conv=table.kernel_source.str.contains("conv1d"))
    for phase, op in (("generation", "linear_decode"), ("context", "linear_prefill")):
        t = kernels[kernels.phase == phase].groupby(key + ["conv"]).latency.min().unstack().dropna().sum(axis=1).rename("latency").reset_index()
        if len(t) < 20:
            continue
        k, v, b, n = (t[c] for c in key)
        if op == "linear_decode":
            quantities, axes = (b, v), (POWERS(0, 10), POWERS(1, 6))
            lines = (f"{op} {x} {y} {STATES[engine]} {z}" for x, y, z in zip(k, v, b))
        else:
            t = t[n >= 16]
            k, v, b, n = (t[c] for c in key)
            quantities, axes = (n, b * n, v), (POWERS(4, 15), POWERS(4, 21), POWERS(1, 6))
            lines = (f"{op} {x} {y} {STATES[engine]} {z} {w}" for x, y, z, w in zip(k, v, b, n))
        axes = tuple(trim(a, np.log2(q)) for a, q in zip(axes, quantities))
        yield version, Family(op, lines, quantities, t.latency / 1e3, zip(k, v, b), axes)


def curves(f, y):
    """ln(measured / formula) of each known shape at TOKEN_KNOTS, and how far the rows are from their curve [%]."""
    x, by_shape, fitted = np.log2(f.tokens), {}, np.zeros(len(y))
    rows = {}
    for i, key in enumerate(f.known):
        rows.setdefault(tuple(int(k) for k in key), []).append(i)
    for key, i in sorted(rows.items()):
        if len(i) < 6:
            continue
        a = design([TOKEN_KNOTS], x[i][:, None])
        w = np.ones(len(i))
        for _ in range(6):
            aw = a.multiply(w[:, None]).tocsr()
            z = spsolve((a.T @ aw + 1e-4 * sp.identity(len(TOKEN_KNOTS))).tocsc(), aw.T @ y[i])
            w = 1 / np.sqrt(1 + ((y[i] - a @ z) / 0.03) ** 2)
        by_shape[key] = np.clip(fill([TOKEN_KNOTS], z, a), -MOST, MOST)
        fitted[i] = a @ by_shape[key]
    seen = np.isin(np.arange(len(y)), [i for key in by_shape for i in rows[key]])
    off = np.abs(np.exp(fitted[seen] - y[seen]) - 1) * 100
    return by_shape, (np.median(off), np.percentile(off, 90)) if len(off) else (0.0, 0.0)


FAMILIES = {"gemm": gemm, "attention": attention, "mla": mla, "moe": moe, "linear": linear}


def errors(predicted, measured):
    e = np.abs(predicted / measured - 1) * 100
    return np.median(e), np.percentile(e, 90), len(e)


def toml(system, engine, versions, fitted, known, kind="kernels"):
    accelerator = SYSTEMS[system]
    lines = [
        f'name = "{system}.{engine}.{kind}"',
        f'accelerator = "{accelerator}"',
        f'engines = ["{ENGINES[engine]}"]',
        f'description = "Kernels of {", ".join(sorted(versions))} on {accelerator}, over the formulas"',
        "",
        "[provenance]",
        f'command = "python calibrate/kernels/{"fit" if kind == "kernels" else kind}.py --data DIR --base KERNEL_BASE --out FOLDER"',
        'fitted_on = ["ai-dynamo/aiconfigurator kernel tables (Apache-2.0), two of three shapes"]',
        "software = [" + ", ".join(f'"{v}"' for v in sorted(versions)) + "]",
        f"rows = {sum(f['rows'] for f in fitted)}",
        "",
    ]
    for f in fitted:
        lines += [
            "[[validations]]",
            f'set = "{system} {engine} {f["name"]} kernels, shapes not fitted"',
            'metric = "kernel time"',
            f"n = {f['n']}",
            f"median_ape = {f['median']:.2f}",
            f"tolerance = {25.0 if f['name'].startswith('moe') else 12.0}",
            "",
        ]
    for f in fitted:
        axes = ", ".join("[" + ", ".join(f"{x:.6g}" if x != int(x) else f"{x:.1f}" for x in a) + "]" for a in f["axes"])
        lines += [
            f'[surfaces."{f["name"]}"]',
            f"axes = [{axes}]",
            'values = "' + " ".join(str(int(v)) for v in np.clip(np.round(f["values"] * 1000), -2995, 2995)) + '"',
            f"held_out_median = {f['median']:.2f}",
            f"held_out_p90 = {f['p90']:.2f}",
            f"held_out_rows = {f['n']}",
            *([f'kernels_of = "{f["kernels_of"]}"'] if f.get("kernels_of") else []),
            "",
        ]
    for k in known:
        lines += [
            f'[shapes."{k["name"]}"]',
            "tokens = [" + ", ".join(f"{x:.1f}" for x in TOKEN_KNOTS) + "]",
            'curves = """',
            *(" ".join(map(str, key)) + ": " + " ".join(str(int(v)) for v in np.round(curve * 100)) for key, curve in k["curves"].items()),
            '"""',
            f"fitted_median = {k['off'][0]:.2f}",
            f"fitted_p90 = {k['off'][1]:.2f}",
            "",
        ]
    return "\n".join(lines)


def held_out(f, base):
    """The surface of a family over the times `base` of the formulas, fitted without every third shape: ln(measured / formula), which rows were held out, the
    surface's values, and the errors (median, p90, rows) of surface and formula on those rows."""
    y = np.log(f.seconds / base)
    kinds = {s: i for i, s in enumerate(sorted(set(f.shapes)))}
    out = np.array([kinds[s] % 3 == 1 for s in f.shapes])
    values = solve(f.axes, f.points[~out], y[~out], f.smooth)
    predicted = base * np.exp(design(f.axes, f.points) @ values)
    return y, out, values, errors(predicted[out], f.seconds[out]), errors(base[out], f.seconds[out])


def arguments(doc):
    """What every fit takes; the first line of `doc` says what it is for."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder that holds kernels/")
    parser.add_argument("--base", required=True, help="the built example kernel_base of hwmodels")
    parser.add_argument("--out", help="folder to write profiles to; without it errors are printed only")
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="default: all")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="default: all")
    return parser


def main():
    parser = arguments(__doc__)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="default: all (needed with --out)")
    args = parser.parse_args()
    print(f"{'system':9} {'engine':7} {'surface':18} {'rows':>6} {'formula':>8} {'median':>7} {'p90':>6} {'held out':>8} {'knots':>6}")
    for system in args.system or SYSTEMS:
        for engine in args.engine or ENGINES:
            fitted, known, versions = [], [], set()
            for family in args.family or FAMILIES:
                for version, f in FAMILIES[family](args.data, system, engine):
                    base = base_times(args.base, SYSTEMS[system], ENGINES[engine], f.lines)
                    y, out, values, (median, p90, n), (plain, plain_p90, _) = held_out(f, base)
                    own = ""
                    if f.known:
                        by_shape, off = curves(f, y)
                        known.append({"name": f.name, "curves": by_shape, "off": off})
                        versions.add(version)
                        own = f"  {len(by_shape)} shapes with curves of their own: {off[0]:.2f} {off[1]:.2f}"
                    print(f"{system:9} {engine:7} {f.name:18} {len(y):6} {plain:8.1f} {median:7.2f} {p90:6.2f} {n:8} {len(values):6}{own}", flush=True)
                    # Where whole shapes lie far from their neighbours, the formula may be nearer to a shape that was not measured.
                    if median > UNUSABLE or median > plain or p90 > plain_p90:
                        print(f"{'':17} {f.name}: the formula stands ({plain:.2f} {plain_p90:.2f})")
                        continue
                    versions.add(version)
                    fitted.append({"name": f.name, "axes": f.axes, "values": values, "median": median, "p90": p90, "n": n, "rows": int((~out).sum())})
            if args.out and (fitted or known):
                path = os.path.join(args.out, f"{system.replace('_', '-')}.{engine}.kernels.toml")
                os.makedirs(args.out, exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(toml(system, engine, versions, fitted, known))


if __name__ == "__main__":
    main()
