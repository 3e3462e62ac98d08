"""Two trials that report 5,000 metrics a step as fast as they can, beside one that reports ten times a second.

``heavy.light_delay_s.max`` is the time from a report of the light one to its entry in the journal, at most;
``heavy.ctrl_c_s`` that from a Ctrl-C to the result; ``heavy.driver_rss_mb.max`` the driver's memory, at most. The
search runs in a process of its own, which is sent the signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from maggy_like import Choice, Reporter, lagom
from optimizers import Event, Measured

METRICS = 5000


def train(load: str, reporter: Reporter) -> None:
    """Report for ever: the heavy one all it can, the light one when it does."""
    others = {f"metric_{number}": 0.5 for number in range(METRICS - 1)}
    for step in range(1, reporter.budget + 1):
        if load == "heavy":
            reporter.report(at=0.0, step=step, **{name: value + step for name, value in others.items()})
        else:
            reporter.report(at=time.time(), step=step)
            time.sleep(0.1)


def search(figures: Path) -> None:
    """Run until Ctrl-C; the light trial's worst delay and the time of the end stand in a file then."""
    delay = 0.0

    def on_event(event: Event) -> None:
        nonlocal delay
        if isinstance(event, Measured) and len(event.columns) == 1:
            if not delay:
                print("begun", flush=True)
            delay = max(delay, time.time() - event.columns["at"][1][0])

    with tempfile.TemporaryDirectory() as folder:
        lagom(
            train,
            {"load": Choice(["heavy", "light"])},
            optimizer="random",
            metric="at",
            max_budget=10**9,
            points_to_evaluate=[{"load": "heavy"}, {"load": "heavy"}, {"load": "light"}],
            n_trials=3,
            workers=3,
            engine="local",
            directory=folder,
            progress=False,
            callbacks=[on_event],
        )
        figures.write_text(json.dumps({"delay": delay, "ended": time.monotonic()}))


def memory_mb(process: int) -> float:
    """The memory of a process, in megabytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(quick: bool) -> dict[str, float]:
    """The figures of the module's docstring, of one search of 5 s, or 20 s unless ``quick``."""
    with tempfile.TemporaryDirectory() as folder:
        figures, memory = Path(folder, "figures.json"), 0.0
        command = [sys.executable, "-m", "benchmarks.adversary.heavy", str(figures)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout is not None
            driver.stdout.readline()
            until = time.monotonic() + (5 if quick else 20)
            while time.monotonic() < until:
                memory = max(memory, memory_mb(driver.pid))
                time.sleep(0.05)
            interrupted = time.monotonic()
            driver.send_signal(signal.SIGINT)
            while driver.poll() is None:
                with contextlib.suppress(OSError, IndexError):  # it has just ended
                    memory = max(memory, memory_mb(driver.pid))
                time.sleep(0.05)
        found = json.loads(figures.read_text())
    return {
        "heavy.light_delay_s.max": found["delay"],
        "heavy.ctrl_c_s": found["ended"] - interrupted,
        "heavy.driver_rss_mb.max": memory,
    }


if __name__ == "__main__":
    search(Path(sys.argv[1]))
