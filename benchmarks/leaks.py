"""What ten thousand trials leave behind: memory, open files, threads, shared memory and temporary files.

Trials of no length on the local engine, two workers, a fresh process each. The driver and the agents are looked at
after the first tenth of the trials and at the end; what grew in between is divided by the trials in between. The
driver's ledger grows, as it must (:mod:`benchmarks.ledger`).

    python -m benchmarks.leaks [--trials N] [--quick] [--json PATH]
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.common import parser, publish, search
from optimizers import AttemptEnded

SHARED = Path("/dev/shm")


def nothing(x: float) -> float:
    """A trial of no length."""
    return x


def agents() -> Iterator[psutil.Process]:
    """The processes that this one started and that live as long as the run."""
    for process in psutil.Process().children():
        if "maggy_like.worker" in process.cmdline():
            yield process


def look(temporary: Path) -> dict[str, float]:
    """What the processes of a run hold now."""
    driver, workers = psutil.Process(), list(agents())
    kinds = {"driver": [driver], "agents": workers}
    figures: dict[str, float] = {}
    for name, processes in kinds.items():
        figures[f"{name}.rss_kb"] = sum(process.memory_info().rss for process in processes) / 1024
        figures[f"{name}.files"] = sum(process.num_fds() for process in processes)
        figures[f"{name}.threads"] = sum(process.num_threads() for process in processes)
    figures["shared_memory"] = len(list(SHARED.iterdir())) if SHARED.exists() else 0
    figures["temporary_files"] = sum(len(files) for _, _, files in os.walk(temporary))
    return figures


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--trials", type=int, default=None, metavar="N", help="how many, in place of 10,000")
    arguments = options.parse_args()
    n_trials = arguments.trials or (1000 if arguments.quick else 10_000)
    marks = n_trials // 10, n_trials - 2
    seen: list[dict[str, float]] = []
    ended = 0
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = temporary

        def count(event: object) -> None:
            nonlocal ended
            if isinstance(event, AttemptEnded):
                ended += 1
                if ended in marks:
                    seen.append(look(Path(temporary)))

        search(nothing, metric="value", direction="max", n_trials=n_trials, workers=2, engine="local", directory=folder,
               callbacks=[count])  # fmt: skip
        tempfile.tempdir = None
        left = sum(len(files) for _, _, files in os.walk(temporary))
    first, last = seen
    figures: dict[str, float] = {"trials": marks[1] - marks[0]}
    for name, value in last.items():
        grown = value - first[name]
        figures[f"{name}.grown"] = grown
        if name.endswith("rss_kb"):
            figures[f"{name.removesuffix('_kb')}_bytes_per_trial"] = grown * 1024 / figures["trials"]
    figures["temporary_files.left"] = left
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
