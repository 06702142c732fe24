"""CSV tables that survive a stop at any moment, and the facts about the machine beside them."""

import contextlib
import csv
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time


class Deadline:
    """Wall-clock budget of a part [s]; loops ask `over()` between points."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        """Time left [s], negative when it is over."""
        return self.end - time.monotonic()

    def over(self):
        return self.left() <= 0


def parse_duration(text):
    """Seconds of `90`, `90s` or `4m`."""
    units = {"s": 1.0, "m": 60.0}
    text = text.strip()
    factor = units.get(text[-1:], None)
    seconds = float(text[:-1]) * factor if factor else float(text)
    if not seconds > 0:
        raise ValueError(f"a duration must be positive, got {text!r}")
    return seconds


class Table:
    """A CSV file that is appended row by row, flushed after each.

    `keys` name the columns that identify a point; points that the file already holds are skipped, so a part that was cut
    off goes on where it stopped. A last line that was cut off in the middle is dropped first.
    """

    def __init__(self, path, columns, keys):
        self.columns, self.keys = list(columns), list(keys)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self.seen = set()
        fresh = not os.path.exists(path) or os.path.getsize(path) == 0
        if not fresh:
            with open(path, newline="", encoding="utf-8") as f:
                text = f.read()
            if not text.endswith("\n"):
                text = text[: text.rfind("\n") + 1]
                with open(path, "w", newline="", encoding="utf-8") as f:
                    f.write(text)
            reader = csv.DictReader(text.splitlines())
            if reader.fieldnames != self.columns:
                raise SystemExit(
                    f"{path}: its columns are {reader.fieldnames}, this version writes {self.columns}; use another --out"
                )
            self.seen = {tuple(row[k] for k in self.keys) for row in reader}
        self.file = open(path, "a", newline="", encoding="utf-8")
        self.writer = csv.DictWriter(self.file, self.columns, lineterminator="\n")
        if fresh:
            self.writer.writeheader()
            self.file.flush()

    def has(self, **point):
        """Whether this point was measured already."""
        return tuple(str(point[k]) for k in self.keys) in self.seen

    def add(self, **row):
        """Writes one row; floats with seven significant digits."""
        unknown = set(row) - set(self.columns)
        if unknown:
            raise ValueError(f"columns {sorted(unknown)} are not in the table")
        text = {k: f"{v:.7g}" if isinstance(v, float) else v for k, v in row.items()}
        self.writer.writerow(text)
        self.file.flush()
        self.seen.add(tuple(str(text.get(k, "")) for k in self.keys))

    def close(self):
        self.file.close()


def system_name(device_name):
    """`h100_sxm` for `NVIDIA H100 80GB HBM3`: the prefix of the operator tables."""
    name = device_name.upper()
    for chip in ("B200", "GH200", "H200", "H100", "A100", "L40S", "A10G", "L4"):
        if chip in name:
            pcie = "PCIE" in name or "NVL" in name
            sxm = chip in ("B200", "H200", "H100", "A100") and not pcie
            return chip.lower() + ("_sxm" if sxm else "")
    return "cpu" if "CPU" in name else "".join(c if c.isalnum() else "_" for c in device_name.lower())


SMI_FIELDS = "name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu,clocks_event_reasons.active,persistence_mode,pstate"


def smi():
    """What `nvidia-smi` says now, or nothing where there is none. Reads only: no setting of the card is touched."""
    if not shutil.which("nvidia-smi"):
        return {}
    try:
        out = subprocess.run(
            ["nvidia-smi", f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20,
        )
        values = [v.strip() for v in out.stdout.strip().splitlines()[0].split(",")]
        return dict(zip(SMI_FIELDS.split(","), values))
    except (OSError, subprocess.SubprocessError, IndexError):
        return {}


class ClockLog:
    """Samples clocks, power and temperature every two seconds into `clocks_<part>.csv` while a part runs."""

    def __init__(self, out, part):
        self.process = None
        if shutil.which("nvidia-smi"):
            self.file = open(os.path.join(out, f"clocks_{part}.csv"), "a", encoding="utf-8")
            self.process = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu",
                 "--format=csv,nounits", "-l", "2"],
                stdout=self.file, stderr=subprocess.DEVNULL,
            )

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait(10)
            self.file.close()


def versions():
    """Versions of what ran, without importing more than PyTorch: transformers takes seconds."""
    found = {"python": platform.python_version(), "os": f"{platform.system()} {platform.machine()}"}
    for name in ("torch", "triton", "transformers", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "torch" in found:
        import torch
        found["torch"] = torch.__version__
        found["cuda"] = torch.version.cuda or ""
        if torch.cuda.is_available():
            with contextlib.suppress(Exception):  # They say what ran; no part fails for them.
                found["cudnn"] = str(torch.backends.cudnn.version())
                found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def device_facts(device):
    """Name and size of the device."""
    if device != "cuda":
        return {"name": f"CPU {platform.processor() or platform.machine()}", "cores": os.cpu_count()}
    import torch
    p = torch.cuda.get_device_properties(0)
    return {
        "name": p.name, "memory_bytes": p.total_memory, "multiprocessors": p.multi_processor_count,
        "compute_capability": f"{p.major}.{p.minor}", "l2_bytes": getattr(p, "L2_cache_size", 0),
    }


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


class Record:
    """`measurement.json`: device, versions, and one entry per run of a part with its command, clocks and outcome."""

    def __init__(self, out, device, part):
        self.path = os.path.join(out, "measurement.json")
        os.makedirs(out, exist_ok=True)
        self.data = {"runs": []}
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as f:
                self.data = json.load(f)
        facts = device_facts(device)
        known = self.data.get("device", facts)
        if known.get("name") != facts["name"]:
            raise SystemExit(
                f"{self.path} was measured on {known.get('name')}, this is {facts['name']}: use another --out"
            )
        self.data.update(device=facts, versions=versions(), system=system_name(facts["name"]))
        args = [os.path.basename(a) if os.path.isabs(a) else a for a in sys.argv[1:]]
        self.run = {"part": part, "command": " ".join(["python -m servetwin_gpu", *args]), "started": now(),
                    "card_before": smi(), "ended": None, "finished": False, "notes": []}
        self.data["runs"].append(self.run)
        self.write()

    def note(self, text):
        """Says something on stderr and keeps it."""
        print(text, file=sys.stderr, flush=True)
        self.run["notes"].append(text)
        self.write()

    def end(self, finished):
        self.run.update(ended=now(), card_after=smi(), finished=finished)
        self.write()

    def write(self):
        text = json.dumps(self.data, indent=1)
        with open(self.path + ".part", "w", encoding="utf-8") as f:
            f.write(text + "\n")
        os.replace(self.path + ".part", self.path)
