#!/usr/bin/env python3
"""Fits the surfaces of measured kernels of layers that keep a state, over the formulas of hwmodels (docs/operators.md, "Layers with a state").

    python calibrate/kernels/states.py --data DIR --base target/release/examples/kernel_base --out hwmodels/data/profiles

DIR/kernels/SYSTEM/{kda,linear_attention}/ENGINE-VERSION/*_perf.parquet are the public tables of ai-dynamo/aiconfigurator (Apache-2.0). The fit is that of
fit.py: two of three shapes, the errors printed and stored are those of the third. Three operators:

- kda: convolution and rule of Kimi delta attention, as kernels of their own. vLLM's prefill rows of the convolution wait 0.4 to 0.8 ms for what the host
  computes at each call, which in serving it computes once a step, so SGLang's rows of the same shapes stand in for them. TensorRT-LLM has no table: vLLM's
  kernels stand for its own, and its surfaces say so (`kernels_of`).
- linear: the same of the gated delta rule under SGLang; fit.py makes vLLM's and TensorRT-LLM's.
- convolution: the short convolution alone, for Mamba2, whose scan and update of states are in no table. vLLM's and SGLang's rows are those of the gated delta
  rule's layers, TensorRT-LLM's those of Mamba2's (its rows of the gated delta rule's move up to 14 TB/s on an H100, which no memory does).
"""

import os

import numpy as np

from fit import ENGINES, POWERS, SYSTEMS, UNUSABLE, Family, arguments, base_times, held_out, read, toml

KEY = ["num_k_heads", "num_v_heads", "batch_size", "seq_len"]
# Shortest prompt of the fit: below, kernels take what they take for one chunk.
SHORTEST = 16
# Heads of all sequences: 12, 24, 48 or 96 heads times a power of two were measured.
HEADS = np.log2(3) + POWERS(2, 15)


def trim(axis, x):
    """Knots that rows lie around."""
    return axis[(axis >= np.floor(x.min()) - 1e-9) & (axis <= np.ceil(x.max()) + 1e-9)]


def kda_times(data, system, engine, phase):
    """Convolution and rule by shape [ms], and the tables they are from."""
    table, version = read(data, system, "kda", engine, "kda_perf")
    if table is None:
        return None, None
    # Fused decode kernels are left out: SGLang's is for 12 heads alone, and vLLM's for Kimi-K3.
    t = table[(table.phase == phase) & ~table.kernel_source.isin(["fused_kda_decode", "kda_fused_decode"])]
    t = t.assign(kind=np.where(t.kernel_source.str.contains("conv1d"), "convolution", "rule"))
    t = t.groupby(KEY + ["kind"]).latency.min().unstack()
    if phase == "context" and engine == "vllm":
        other, stands_in = read(data, system, "kda", "sglang", "kda_perf")
        if other is None:
            return None, None
        other = other[(other.phase == phase) & other.kernel_source.str.contains("conv1d")]
        t["convolution"] = other.groupby(KEY).latency.min()
        version += " (convolution of " + stands_in + ")"
    return t.dropna().sum(axis=1).rename("latency").reset_index(), version


def delta_times(data, system, engine, phase):
    table, version = read(data, system, "linear_attention", engine, "gdn_perf")
    if table is None:
        return None, None
    t = table[(table.phase == phase) & (table.head_k_dim == 128) & (table.head_v_dim == 128)]
    t = t.assign(convolution=t.kernel_source.str.contains("conv1d"))
    return t.groupby(KEY + ["convolution"]).latency.min().unstack().dropna().sum(axis=1).rename("latency").reset_index(), version


def rule(name, times, data, system, engine, state):
    """Surfaces of a rule's kernels. Of Kimi delta attention, of which few head counts were measured, over the heads of all sequences; of the gated delta rule
    over sequences and heads, as fit.py has them."""
    for phase, op in (("generation", name + "_decode"), ("context", name + "_prefill")):
        t, version = times(data, system, engine, phase)
        if t is None:
            continue
        t = t[t.seq_len >= SHORTEST] if phase == "context" else t
        k, v, b, n = (t[c] for c in KEY)
        if phase == "generation":
            lines = (f"{op} {x} {y} {state} {z}" for x, y, z in zip(k, v, b))
            quantities, axes = ((b * v,), (HEADS,)) if name == "kda" else ((b, v), (POWERS(0, 10), POWERS(1, 7)))
        else:
            lines = (f"{op} {x} {y} {state} {z} {w}" for x, y, z, w in zip(k, v, b, n))
            quantities, axes = ((n, b * v), (POWERS(4, 15), POWERS(3, 13))) if name == "kda" else ((n, b * n, v), (POWERS(4, 15), POWERS(4, 21), POWERS(1, 7)))
        axes = tuple(trim(a, np.log2(q)) for a, q in zip(axes, quantities))
        yield version, Family(op, lines, quantities, t.latency / 1e3, zip(k, v, b), axes)


def convolution(data, system, engine):
    if engine == "trtllm":
        table, version = read(data, system, "linear_attention", engine, "mamba2_perf")
        if table is None:
            return
        table = table.assign(channels=table.nheads * table.head_dim + 2 * table.n_groups * table.d_state)
    else:
        table, version = read(data, system, "linear_attention", engine, "gdn_perf")
        if table is None:
            return
        table = table.assign(channels=2 * table.num_k_heads * table.head_k_dim + table.num_v_heads * table.head_v_dim)
    table = table[(table.d_conv == 4) & table.kernel_source.str.contains("conv1d")]
    for phase, op in (("generation", "convolution_decode"), ("context", "convolution_prefill")):
        t = table[table.phase == phase].groupby(["channels", "batch_size", "seq_len"], as_index=False).latency.min()
        t = t[t.seq_len >= SHORTEST] if phase == "context" else t
        c, b, n = t.channels, t.batch_size, t.seq_len
        each = n if phase == "context" else np.ones(len(t), int)
        lines = (f"convolution {x} {y} {z}" for x, y, z in zip(c, b, each))
        if phase == "generation":
            quantities, axes = (b, c), (POWERS(0, 10), POWERS(8, 15))
        else:
            quantities, axes = (n, b * n, c), (POWERS(4, 15), POWERS(4, 21), POWERS(8, 15))
        axes = tuple(trim(a, np.log2(q)) for a, q in zip(axes, quantities))
        yield version, Family(op, lines, quantities, t.latency / 1e3, zip(c, b), axes)


def families(data, system, engine):
    """Families with the engine whose kernels they are, where it is another."""
    # No faster than device memory is with these states: Kimi delta attention's are in 32 bits everywhere, SGLang's all.
    measured = engine if engine != "trtllm" else "vllm"
    for version, f in rule("kda", kda_times, data, system, measured, "fp32"):
        yield version, f, None if measured == engine else ENGINES[measured]
    if engine == "sglang":
        for version, f in rule("linear", delta_times, data, system, engine, "fp32"):
            yield version, f, None
    for version, f in convolution(data, system, engine):
        yield version, f, None


def fitted(data, binary, system, engine):
    for version, f, kernels_of in families(data, system, engine):
        base = base_times(binary, SYSTEMS[system], ENGINES[engine], f.lines)
        y, out, values, (median, p90, n), (plain, plain_p90, _) = held_out(f, base)
        of = f"  kernels of {kernels_of}" if kernels_of else ""
        print(f"{system:9} {engine:7} {f.name:20} {len(y):6} {plain:8.1f} {median:7.2f} {p90:6.2f} {n:8} {len(values):6}{of}", flush=True)
        if median > UNUSABLE or median > plain or p90 > plain_p90:
            print(f"{'':17} {f.name}: the formula stands ({plain:.2f} {plain_p90:.2f})")
            continue
        yield version, {"name": f.name, "axes": f.axes, "values": values, "median": median, "p90": p90, "n": n, "rows": int((~out).sum()), "kernels_of": kernels_of}


def main():
    args = arguments(__doc__).parse_args()
    print(f"{'system':9} {'engine':7} {'surface':20} {'rows':>6} {'formula':>8} {'median':>7} {'p90':>6} {'held out':>8} {'knots':>6}")
    for system in args.system or SYSTEMS:
        for engine in args.engine or ENGINES:
            rows = list(fitted(args.data, args.base, system, engine))
            if args.out and rows:
                path = os.path.join(args.out, f"{system.replace('_', '-')}.{engine}.states.toml")
                os.makedirs(args.out, exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(toml(system, engine, {version for version, _ in rows}, [f for _, f in rows], [], "states"))


if __name__ == "__main__":
    main()
