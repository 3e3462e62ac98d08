"""The search that ``benchmarks.chaos`` disturbs, a program of its own so that its driver can be killed too.

    python -m benchmarks.chaos_search OPTIONS   (as JSON)

Its trials write down when they start and end, and do to themselves what the directory ``orders`` holds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from maggy_like import FailurePolicy, Float, Reporter, SparkEngine, lagom, spark_session
from optimizers.core.events import AttemptEnded, Event

STEPS = 10
WORKERS = 4
RUN = "chaos"


def value(x: float, step: int) -> float:
    """What a trial measures; known beforehand, so that a wrong or missing measurement is seen."""
    return x * step / STEPS


def note(path: Path, **entry: Any) -> None:
    """Append a line, whole, whoever else writes."""
    line = json.dumps({**entry, "time": time.time()}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def make_train(directory: Path, seconds: float) -> Callable[..., float]:
    """A training of ``seconds``, a checkpoint and a report at each of its steps."""

    def train(x: float, reporter: Reporter) -> float:
        begun = reporter.restore() or 0
        trial, attempt = reporter.trial, reporter.attempt
        note(directory / "starts.jsonl", trial=trial, attempt=attempt, pid=os.getpid())
        for step in range(begun + 1, STEPS + 1):
            time.sleep(seconds / STEPS)
            reporter.checkpoint(step)
            reporter.report(value=value(x, step), step=step)
            if step < STEPS and (order := claim(directory / "orders")) is not None:
                _, kind = order.split("-")
                note(directory / "faults.jsonl", fault=order, kind=kind, trial=trial, attempt=attempt)
                FAULTS[kind]()
        note(directory / "ends.jsonl", trial=trial, attempt=attempt)
        return value(x, STEPS)

    return train


def claim(orders: Path) -> str | None:
    """Take an order, as ``7-hang``, if there is one; no other trial gets it."""
    for order in orders.glob("*.order"):
        with contextlib.suppress(FileNotFoundError):
            order.rename(order.with_suffix(".taken"))
            return order.stem
    return None


def raise_error() -> None:
    """An exception."""
    raise RuntimeError("chaos")


def leave() -> None:
    """``sys.exit``."""
    sys.exit(3)


def crash() -> None:
    """A segmentation fault."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def kill_itself() -> None:
    """A kill, as by the kernel's out-of-memory killer."""
    os.kill(os.getpid(), signal.SIGKILL)


def fill_memory() -> None:
    """More memory than there is: the limit is real, and so is the failure."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
    bytearray(1 << 30)


def hang() -> None:
    """Nothing, for ever."""
    threading.Event().wait()


def close_descriptors() -> None:
    """No descriptor left, and no end."""
    os.closerange(0, 4096)
    threading.Event().wait()


def flood() -> None:
    """50 MB of output; the trial goes on."""
    for _ in range(50):
        print("flood " * 175_000)


def leave_behind() -> None:
    """A process and a thread that do not end, and a signal that is ignored; then an exception."""
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    threading.Thread(target=threading.Event().wait).start()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise RuntimeError("chaos, with something left behind")


FAULTS: dict[str, Callable[[], None]] = {
    "exception": raise_error,
    "exit": leave,
    "segfault": crash,
    "kill": kill_itself,
    "memory": fill_memory,
    "hang": hang,
    "descriptors": close_descriptors,
    "flood": flood,
    "leftovers": leave_behind,
}


SLOW_SECONDS = 0.05
"""Seconds that the slow callback takes for an event: longer than there is between two events."""


def slow_callback(directory: Path) -> Callable[[Event], None]:
    """A callback that falls behind, and writes down the ends of attempts."""

    def slow(event: Event) -> None:
        time.sleep(SLOW_SECONDS)
        if isinstance(event, AttemptEnded):
            note(directory / "callback.jsonl", trial=event.trial, attempt=event.attempt)

    return slow


def raising_callback(directory: Path) -> Callable[[Event], None]:
    """A callback that fails at its first event."""

    def mistaken(event: Event) -> None:
        note(directory / "raised.jsonl", trial=event.trial)
        raise ValueError("chaos in a callback")

    return mistaken


def main() -> None:
    """Run, and write what came of it."""
    options = json.loads(sys.argv[1])
    directory = Path(options["directory"])
    engine: Any = "local"
    if options["engine"] != "local":
        session = spark_session(options["conf"].pop("spark.master"), app_name=RUN, conf=options["conf"])
        engine = SparkEngine(session, barrier=options["engine"] == "spark")
    result = lagom(
        make_train(directory, options["seconds"]),
        {"x": Float(0, 1)},
        optimizer="random",
        n_trials=options["trials"],
        max_budget=STEPS,
        workers=WORKERS,
        engine=engine,
        name=RUN,
        directory=directory,
        resume=options["resume"],
        failures=FailurePolicy(max_attempts=20, report_timeout=1.5),
        progress="plain",
        callbacks=[slow_callback(directory), raising_callback(directory)] if options["callbacks"] else (),
    )
    trials = [{"x": trial.config["x"], "state": trial.state} for trial in result.trials]
    (directory / "result.json").write_text(json.dumps({"best": result.best_value, "trials": trials}))


if __name__ == "__main__":
    main()
