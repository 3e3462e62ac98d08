"""Seconds from a call of ``lagom`` to the end of its first trial, which needs torch, and the CPU seconds of the import.

Each figure is the median over so many processes of their own; ``first`` is the first call in a process, ``second`` the
next one there. Two workers, of which the fastest counts.

    python -m benchmarks.startup [--quick] [--json PATH]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from benchmarks.common import parser, publish, search

IMPORT = "import time; from maggy_like import lagom; print(time.process_time())"


def train(x: float) -> float:
    """A trial that needs torch."""
    import torch

    return float(torch.tensor(x))


def first_seconds(engine: str) -> float:
    """Seconds to the end of the first trial of a search."""
    import maggy_like  # noqa: F401  # not counted
    from optimizers.core.events import AttemptEnded, Event

    seen: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, AttemptEnded) and not seen:
            seen.append(time.perf_counter())

    start = time.perf_counter()
    search(train, direction="max", n_trials=4, workers=2, engine=engine, callbacks=[on_event])
    return seen[0] - start


def child(engine: str) -> None:
    """Two calls in this process."""
    if engine == "spark":
        from maggy_like import spark_session

        spark_session("local[2]").range(1).count()
    print(json.dumps([first_seconds(engine) for _ in range(2)]), flush=True)


def calls(engine: str, times: int) -> tuple[float, float]:
    """The medians of the first and the second call."""
    command = [sys.executable, "-m", "benchmarks.startup", "--child", engine]
    found = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        for _ in range(times)
    ]
    first, second = (statistics.median(values) for values in zip(*found, strict=True))
    return first, second


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
        return
    arguments = parser(__doc__).parse_args()
    times, on_spark = (3, 1) if arguments.quick else (7, 3)
    imports = [subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, check=True) for _ in range(times)]
    figures = {"import_cpu_s": statistics.median(float(done.stdout) for done in imports)}
    figures["first_s.torch.first"], figures["first_s.torch.second"] = calls("local", times)
    figures["spark.first_s.torch.first"], figures["spark.first_s.torch.second"] = calls("spark", on_spark)
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
