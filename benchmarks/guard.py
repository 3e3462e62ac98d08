"""Says what got slower: the quick benchmarks on the way of a trial, beside a baseline that is kept with the code.

Machines differ and are busy, so a figure is divided by a calibration in the same minute: plain Python work of the
kind that the runtime does, in CPU time; of what waits for messages, a bare ZeroMQ round trip. What is slower than the
baseline by more than a fifth is measured again; what still is, is printed, and the exit status is 1. ``--update`` makes
the present figures the baseline: do it in the change that accounts for them, on a machine with nothing else to do.

    python -m benchmarks.guard [--update] [--only NAME[,NAME]]      (make bench)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.dispatch import round_trip

BASELINE = Path(__file__).with_name("baseline.json")
TOLERANCE = 1.2

WATCHED = {
    "virtual": ("event_us.10000",),
    "report_cost": ("report_us.median", "report_us.mean"),
    "ledger": ("replay_s_per_10000", "bytes_per_trial", "journal_bytes_per_trial"),
    "real_trial": ("overhead_ms.local.torch.median", "overhead_ms.local.lightgbm.median"),
    "scale": ("driver_us_per_report.1000", "dispatch_median_ms.1000"),
    "dispatch": (
        "local.process.turnaround_ms.median",
        "local.worker.turnaround_ms.median",
        "spark.process.turnaround_ms.median",
        "spark.worker.turnaround_ms.median",
    ),
}
"""The figures that count, by benchmark; smaller is better in each."""

WAITING = ("scale", "dispatch")
"""Benchmarks whose figures are mostly threads being woken up, which is not quick where computing is."""

SIZES = ("bytes_per_trial", "journal_bytes_per_trial")
"""Figures that no machine makes larger: they are compared as they are."""


def calibration(name: str) -> float:
    """Milliseconds that what a benchmark mostly does takes here and now."""
    return round_trip(1000) if name in WAITING else work_ms()


def work_ms() -> float:
    """Milliseconds of CPU that a fixed piece of work takes: the least of a few times."""
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode

    def work() -> int:
        found: dict[int, object] = {}
        for number in range(20_000):
            found[number % 997] = decode(encode({"trial": number, "values": [0.5, number], "name": "calibration"}))
        return len(sorted(found))

    times = []
    for _ in range(5):
        begin = time.process_time()
        work()
        times.append((time.process_time() - begin) * 1e3)
    return min(times)


def measure(name: str) -> dict[str, float]:
    """The watched figures of a benchmark, in units of the calibration before and after it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        before = calibration(name)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        unit = (before + calibration(name)) / 2
        figures = json.loads(path.read_text())
    return {f"{name}.{key}": figures[key] / (1.0 if key in SIZES else unit) for key in WATCHED[name]}


def slower(known: dict[str, float], now: dict[str, float]) -> list[str]:
    """The figures that are worse than the baseline's by more than the tolerance."""
    return [key for key, value in now.items() if key in known and value > TOLERANCE * known[key]]


def main() -> int:
    """Measure, compare and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--update", action="store_true", help="make the present figures the baseline")
    options.add_argument("--only", default=",".join(WATCHED), metavar="NAME[,NAME]", help="run these alone")
    arguments = options.parse_args()
    known: dict[str, float] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    found: dict[str, float] = {}
    for name in arguments.only.split(","):
        print(f"benchmarks.{name} ...", flush=True)
        figures = measure(name)
        if slower(known, figures) and not arguments.update:
            again = measure(name)
            figures = {key: min(value, again[key]) for key, value in figures.items()}
        found |= figures
    if arguments.update:
        BASELINE.write_text(json.dumps(known | {key: round(value, 6) for key, value in found.items()}, indent=2) + "\n")
        print(f"{len(found)} figures are the baseline now: {BASELINE}")
        return 0
    width = max(map(len, found))
    worse = slower(known, found)
    for key, value in found.items():
        told = f"{value / known[key]:5.2f} of the baseline" if key in known else "not in the baseline"
        print(f"{key:<{width}}  {told}{'  SLOWER' if key in worse else ''}")
    if worse:
        print(f"{len(worse)} of {len(found)} got slower by more than {TOLERANCE - 1:.0%}: {', '.join(worse)}")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
