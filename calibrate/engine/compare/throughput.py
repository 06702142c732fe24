#!/usr/bin/env python3
"""Compares the engine's decode and prefill throughput with llama.cpp's: same model, number format and threads.

Needs llama-cpp-python with a llama.cpp built for this machine (`LLAMA_CPP_LIB_PATH` may name its folder), and gguf and
numpy for the conversion (all PyPI). Ran with llama-cpp-python 0.3.36.

    servetwin model init --params 30M --seed 1 MODEL_DIR
    python calibrate/engine/compare/throughput.py MODEL_DIR --dtype f32 --threads 1

Both decode 32 tokens behind 128 cached ones, for 1 to 16 sequences in one batch, and prefill 128 and 512 tokens into an
empty cache; both give logits for the last token of each sequence alone. Both are measured in turns, --turns times, and of
each the fastest counts, since other programs on the machine only ever slow one down: the engine's best step
(`servetwin model time`) and the best of llama.cpp's steps. Prints a table; the bar is a ratio of at least 0.67.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
CONTEXT, STEPS, PROMPTS = 128, 16, 4


def ours(servetwin, model, dtype, threads):
    command = [servetwin, "model", "time", model, "--dtype", dtype, "--threads", str(threads), "--context", str(CONTEXT),
               "--rounds", str(STEPS), "--prompts", "128,512", "--batches", "1,2,4,8,16", "--json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {(row["kind"], row["size"]): row["best_tokens_per_s"] for row in rows}


def theirs(gguf, dtype, threads):
    """A function that measures llama.cpp's rates once."""
    import llama_cpp as lc

    lc.llama_backend_init()
    quiet = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(quiet, None)
    parameters = lc.llama_model_default_params()
    parameters.use_mmap = False
    model = lc.llama_model_load_from_file(str(gguf).encode(), parameters)
    context = lc.llama_context_default_params()
    context.n_ctx = 16 * 512
    context.n_batch = context.n_ubatch = 512
    context.n_seq_max = 16
    context.n_threads = context.n_threads_batch = threads
    context.no_perf = True
    if dtype == "f32":
        context.type_k = context.type_v = lc.GGML_TYPE_F32
    ctx = lc.llama_init_from_model(model, context)
    memory = lc.llama_get_memory(ctx)
    batch = lc.llama_batch_init(512, 0, 1)

    def step(tokens):
        """Runs [(token, position, sequence, wants logits)] as one batch; gives the time of that [s]."""
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, logits) in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = logits
        begin = time.perf_counter()
        if lc.llama_decode(ctx, batch) != 0:
            sys.exit("llama_decode failed")
        lc.llama_synchronize(ctx)
        return time.perf_counter() - begin

    def prompt(sequence, count):
        return step([((p * 31 + sequence * 7) % 256, p, sequence, p + 1 == count) for p in range(count)])

    def measure():
        rates = {}
        for count in (128, 512):
            times = []
            for _ in range(PROMPTS):
                lc.llama_memory_clear(memory, True)
                times.append(prompt(0, count))
            rates["prefill", count] = count / min(times)
        for size in (1, 2, 4, 8, 16):
            lc.llama_memory_clear(memory, True)
            for sequence in range(size):
                prompt(sequence, CONTEXT)
            times = [step([(((CONTEXT + i) * 31 + s * 7) % 256, CONTEXT + i, s, True) for s in range(size)])
                     for i in range(STEPS)]
            rates["decode", size] = size / min(times)
        return rates

    measure()  # warms up
    # The callback and the batch live as long as the function.
    measure.kept = quiet, batch
    return measure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16", "f16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--servetwin", default="target/release/servetwin")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gguf = pathlib.Path(folder) / "model.gguf"
        converter = HERE.parent.parent / "compare" / "to_gguf.py"
        subprocess.run([sys.executable, converter, arguments.model, gguf, "--dtype", arguments.dtype], check=True,
                       stdout=subprocess.DEVNULL)
        measure = theirs(gguf, arguments.dtype, arguments.threads)
        engine, other = {}, {}
        for _ in range(arguments.turns):
            for best, rates in ((engine, ours(arguments.servetwin, arguments.model, arguments.dtype, arguments.threads)),
                                (other, measure())):
                for size, rate in rates.items():
                    best[size] = max(best.get(size, 0.0), rate)
    print(f"{arguments.dtype}, {arguments.threads} thread(s): tokens/s")
    print(f"{'':>12} {'engine':>10} {'llama.cpp':>10} {'ratio':>6}")
    for (kind, size), rate in engine.items():
        print(f"{kind:>8} {size:>3} {rate:>10.0f} {other[kind, size]:>10.0f} {rate / other[kind, size]:>6.2f}")


if __name__ == "__main__":
    main()
