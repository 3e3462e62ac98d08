"""Seconds from a call of ``lagom`` to the first measurement of its first trial, and the CPU seconds of the import.

Each figure is the median over so many processes of their own; ``first`` is the first call in a process, ``second`` the
next one there. Two workers, of which the fastest counts.

    python -m benchmarks.startup [--quick] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from benchmarks.common import parser, publish, search

KINDS = {"plain": ("plain", "random"), "torch": ("torch", "random"), "bayesian": ("plain", "bayesian")}
"""Which function is trained, and by which optimizer."""

IMPORT = "import time; from maggy_like import lagom; print(time.process_time())"


def plain(x: float) -> float:
    """A trial that needs nothing."""
    return x


def with_torch(x: float) -> float:
    """A trial that needs torch."""
    import torch

    return float(torch.tensor(x))


def first_seconds(kind: str, engine: str) -> float:
    """Seconds to the first measurement of a search."""
    import maggy_like  # noqa: F401  # not counted
    from optimizers.core.events import AttemptEnded, Event

    seen: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, AttemptEnded) and not seen:
            seen.append(time.perf_counter())

    function, optimizer = KINDS[kind]
    train = with_torch if function == "torch" else plain
    start = time.perf_counter()
    search(train, optimizer=optimizer, direction="max", n_trials=4, workers=2, engine=engine, callbacks=[on_event])
    return seen[0] - start


def child(arguments: argparse.Namespace) -> None:
    """Two calls in this process."""
    kind, engine = arguments.child
    if engine == "spark":
        from maggy_like import spark_session

        spark_session("local[2]").range(1).count()
    print(json.dumps([first_seconds(kind, engine) for _ in range(2)]), flush=True)


def calls(kind: str, engine: str, times: int) -> dict[str, float]:
    """The medians of the first and the second call."""
    command = [sys.executable, "-m", "benchmarks.startup", "--child", kind, engine]
    found = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        for _ in range(times)
    ]
    name = f"{'spark.' if engine == 'spark' else ''}first_s.{kind}"
    first, second = (statistics.median(values) for values in zip(*found, strict=True))
    return {f"{name}.first": first, f"{name}.second": second}


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.child:
        child(arguments)
        return
    times = 3 if arguments.quick else 7
    imports = [subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, check=True) for _ in range(times)]
    figures = {"import_cpu_s": statistics.median(float(done.stdout) for done in imports)}
    for kind in KINDS:
        figures |= calls(kind, "local", times)
    for kind in ("plain", "torch"):
        figures |= calls(kind, "spark", 1 if arguments.quick else 3)
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
