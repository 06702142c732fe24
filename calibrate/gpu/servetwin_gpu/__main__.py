"""Command line: `python -m servetwin_gpu --part ceilings --out DIR --budget 240s`."""

import argparse
import os
import signal
import sys

from . import output

PARTS = ("ceilings", "operators", "steps", "serving")


def arguments(argv=None):
    p = argparse.ArgumentParser(
        prog="python -m servetwin_gpu", formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__,
        epilog="Parts can be stopped and run again with the same --out: rows that are there are not measured twice.\n"
               "Example without a GPU: python -m servetwin_gpu --part ceilings --out /tmp/small --device cpu --small --budget 20s")
    p.add_argument("--part", required=True, choices=PARTS, help="what to measure")
    p.add_argument("--out", required=True, help="folder of the tables")
    p.add_argument("--budget", default="240s", type=output.parse_duration, help="stop after this time: 90, 90s or 4m (default 240s)")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="where to run (default cuda)")
    p.add_argument("--dtype", choices=("bf16", "fp32"), help="of weights and KV (default bf16 on cuda, fp32 on cpu)")
    p.add_argument("--small", action="store_true", help="tiny shapes: a test of the program, not a measurement")
    s = p.add_argument_group("serving")
    s.add_argument("--engine", default="transformers", choices=("transformers", "paged"),
                   help="transformers' continuous batching, or this program's own paged model (default transformers)")
    s.add_argument("--harness", default="servetwin", help="the servetwin program that sends the load (default: from PATH)")
    s.add_argument("--load-seconds", default=20.0, type=float, help="length of each load [s] (default 20)")
    args = p.parse_args(argv)
    args.dtype = args.dtype or ("bf16" if args.device == "cuda" else "fp32")
    return args


def main(argv=None):
    args = arguments(argv)
    os.makedirs(args.out, exist_ok=True)
    deadline = output.Deadline(args.budget)
    # Stopped from outside, a part still ends the processes that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by a signal"))
    if args.device == "cuda":
        import torch
        if not torch.cuda.is_available():
            raise SystemExit("no CUDA device: use --device cpu --small to try the program")
        # The measured engines leave these at their defaults; say so by setting them.
        torch.backends.cuda.matmul.allow_tf32 = False
    part = __import__(f"servetwin_gpu.{args.part}", fromlist=["run"])
    record = output.Record(args.out, args.device, args.part)
    clocks = output.ClockLog(args.out, args.part)
    finished = False
    try:
        finished = part.run(args, deadline, record)
    finally:
        clocks.close()
        record.end(finished)
    print(f"{args.part}: {'complete' if finished else 'stopped by its budget; run again to go on'}", file=sys.stderr)


if __name__ == "__main__":
    main()
