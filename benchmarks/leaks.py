"""What ten thousand trials leave behind: memory, open files, threads, shared memory and temporary files.

Trials of no length on the local engine, two workers, a fresh process each. The driver and the agents are looked at
after the first tenth of the trials and at the end. The driver's memory grows, as it must (:mod:`benchmarks.ledger`).

    python -m benchmarks.leaks [--quick] [--json PATH]
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil

from benchmarks.common import parser, publish, search
from optimizers import AttemptEnded

SHARED = Path("/dev/shm")


def nothing(x: float) -> float:
    """A trial of no length."""
    return x


def look(temporary: Path) -> dict[str, float]:
    """What the processes of a run hold now."""
    driver = psutil.Process()
    agents = [process for process in driver.children() if "maggy_like.worker" in process.cmdline()]
    figures: dict[str, float] = {}
    for name, processes in {"driver": [driver], "agents": agents}.items():
        figures[f"{name}.rss_kb"] = sum(process.memory_info().rss for process in processes) / 1024
        figures[f"{name}.files"] = sum(process.num_fds() for process in processes)
        figures[f"{name}.threads"] = sum(process.num_threads() for process in processes)
    figures["shared_memory"] = len(list(SHARED.iterdir())) if SHARED.exists() else 0
    figures["temporary_files"] = files_in(temporary)
    return figures


def files_in(directory: Path) -> int:
    """How many files there are."""
    return sum(len(files) for _, _, files in os.walk(directory))


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    n_trials = 1000 if arguments.quick else 10_000
    marks = n_trials // 10, n_trials - 2
    seen: list[dict[str, float]] = []
    ended = 0
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory() as directory:
        os.environ["TMPDIR"] = tempfile.tempdir = temporary

        def count(event: object) -> None:
            nonlocal ended
            if isinstance(event, AttemptEnded):
                ended += 1
                if ended in marks:
                    seen.append(look(Path(temporary)))

        search(nothing, metric="value", direction="max", n_trials=n_trials, workers=2, engine="local",
               directory=directory, callbacks=[count])  # fmt: skip
        tempfile.tempdir = None
        left = files_in(Path(temporary))
    first, last = seen
    figures = {f"{name}.grown": value - first[name] for name, value in last.items()}
    publish({"trials": marks[1] - marks[0], **figures, "temporary_files.left": left}, arguments.json)


if __name__ == "__main__":
    main()
