"""A driver stands still inside a put to an object store, while another one takes its run over and completes it.

    python -m benchmarks.chaos_takeover first|second DIRECTORY   (a driver, started by benchmarks.chaos)

The store is moto's server. A lease lapses after :data:`LAPSE` seconds in both drivers, so that the takeover is soon.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec

from benchmarks.chaos_search import STEPS, value
from benchmarks.object_store import URL, object_store
from maggy_like import Float, Reporter, lagom, load_run
from maggy_like.errors import JournalError
from maggy_like.storage.journal import backend_of, read_journal
from maggy_like.storage.journal import object_store as journal_store
from optimizers.core.events import AttemptEnded, Measured

LAPSE = 4.0
TRIALS = 20
PUTS = 12
"""The put in which the first driver stands still."""

PATIENCE = 120.0


def train(x: float, reporter: Reporter) -> None:
    """Report known values."""
    for step in range(1, STEPS + 1):
        reporter.report(value=value(x, step), step=step)


def await_file(path: Path) -> None:
    """Wait for a file of the other side."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{path.name} did not come within {PATIENCE:g} s")
        time.sleep(0.05)


def stand_still(directory: Path) -> None:
    """Delay one put to the journal until the file ``go`` is there."""
    file_system: Any = fsspec.get_filesystem_class("s3")
    real, puts = file_system.pipe_file, list[str]()

    def pipe_file(fs: Any, path: str, data: bytes, *args: Any, **kwargs: Any) -> Any:
        puts.extend([path] * ("journal-" in path))
        if "journal-" in path and len(puts) == PUTS:
            (directory / "stands").touch()
            await_file(directory / "go")
        return real(fs, path, data, *args, **kwargs)

    file_system.pipe_file = pipe_file


def drive(who: str, directory: Path) -> None:
    """Run or resume the search."""
    journal_store.LAPSE, journal_store.RENEWAL = LAPSE, LAPSE / 8
    if who == "first":
        stand_still(directory)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            lagom(
                train,
                {"x": Float(0, 1)},
                optimizer="random",
                n_trials=TRIALS,
                max_budget=STEPS,
                engine="inline",
                seed=0,
                name="takeover",
                directory=URL,
                resume=who == "second",
                progress=False,
            )
            return
        except JournalError as error:
            if who == "first" or "is in use" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(LAPSE / 8)


def takeover(directory: Path) -> dict[str, float]:
    """Start both drivers, and compare the journal with what the trials must have measured."""
    directory.mkdir()
    with object_store() as environment:

        def driver(who: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "benchmarks.chaos_takeover", who, str(directory)]
            return subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True)

        first = driver("first")
        await_file(directory / "stands")
        second = driver("second")
        _, problem = second.communicate(timeout=PATIENCE)
        if second.returncode:
            raise SystemExit(f"the second driver failed: {problem}")
        (directory / "go").touch()
        _, said = first.communicate(timeout=PATIENCE)
        os.environ |= environment
        result = load_run(f"{URL}/takeover")
        contents = read_journal(backend_of(f"{URL}/takeover"))
    finals = Counter(e.trial for e in contents.events if isinstance(e, AttemptEnded) and e.state == "completed")
    measured: Counter[tuple[int, int, float]] = Counter()
    for event in contents.events:
        if isinstance(event, Measured):
            steps, values = event.columns["value"]
            measured.update((event.trial, step, got) for step, got in zip(steps, values, strict=True))
    expected = {
        (trial.id, step, value(trial.config["x"], step)) for trial in result.trials for step in range(1, STEPS + 1)
    }
    return {
        "takeover.trials": len(result.trials),
        "takeover.ended_once": sum(count == 1 for count in finals.values()),
        "takeover.lost": len(expected - set(measured)) + len(contents.damage),
        "takeover.first_driver_refused": float(first.returncode != 0 and "taken over" in said),
    }


if __name__ == "__main__":
    drive(sys.argv[1], Path(sys.argv[2]))
