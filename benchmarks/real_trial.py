"""What an attempt costs beside its training, for real training: torch, scikit-learn, LightGBM and Lightning.

``overhead_ms.ENGINE.LIBRARY.median`` is the time of one trial on its worker (from the end of the trial before to its
own end) minus the time of the same training in a warm process. Each worker's first trial is left out.
``first_ratio.ENGINE.LIBRARY`` compares the first trial: from the start of the script to the end of the first trial,
divided by the time that a plain script needs for the same training. Two workers run at a time, and so do two plain
scripts. Each search runs in a process of its own, with ``optimizer="random"`` and the engine's defaults. The time that
a Spark session takes to start is not counted. ``--quick`` measures torch and LightGBM, on local processes.

    python -m benchmarks.real_trial [--quick] [--json PATH]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from benchmarks import common, real_work
from benchmarks.common import parser, publish

WORKERS, TRIALS = 2, 60
BEGAN = "MAGGY_BENCHMARK_BEGAN"
"""Environment variable with the monotonic time at which a script was started."""

Span = tuple[float, float]
"""When a training began and ended."""


def search(engine: str, library: str, n_trials: int) -> None:
    """Search, and print the spans of each worker's trials, relative to the script's start."""
    from maggy_like import Float

    began = float(os.environ[BEGAN])
    if engine == "spark":
        from maggy_like import spark_session

        starting = time.monotonic()
        spark_session(f"local[{WORKERS}]", app_name="benchmarks.real_trial")
        began += time.monotonic() - starting

    def train(rate: float) -> dict[str, float]:
        return real_work.timed(library, rate)

    result = common.search(train, {"rate": Float(0.01, 1.0)}, metric="value", direction="max", n_trials=n_trials,
                           workers=WORKERS, engine=engine)  # fmt: skip
    spans = defaultdict(list)
    for trial in result.trials:
        spans[str(trial.worker)].append((trial.metrics["began"] - began, trial.metrics["ended"] - began))
    print(json.dumps({worker: sorted(found) for worker, found in spans.items()}))


def plain(library: str, repeats: int) -> None:
    """Train ``repeats`` times in this process, and print the spans, relative to the script's start."""
    began = float(os.environ[BEGAN])
    found = [real_work.timed(library, rate=0.01 + 0.99 * index / repeats) for index in range(repeats)]
    print(json.dumps({"0": [(one["began"] - began, one["ended"] - began) for one in found]}))


def run_scripts(arguments: Sequence[str], count: int) -> list[dict[str, list[Span]]]:
    """Run ``count`` processes of this module at once; what each prints."""
    command = [sys.executable, "-m", "benchmarks.real_trial", "--script", *arguments]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, BEGAN: repr(time.monotonic())}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(count)]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"a script failed: {' '.join(command)}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def attempts(spans: Iterable[Sequence[Span]]) -> list[float]:
    """Seconds from the end of one trial to the end of the next, for each worker."""
    return [after[1] - before[1] for worker in spans for before, after in pairwise(worker)]


def figures_of(library: str, engines: Sequence[str], rounds: int) -> dict[str, float]:
    """The figures of one library: medians over ``rounds``."""
    firsts: dict[str, list[float]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for script in run_scripts(["plain", library, str(TRIALS // WORKERS)], WORKERS):
            (spans,) = script.values()
            firsts["plain"].append(spans[0][1])
            seconds["plain"] += [end - start for start, end in spans[1:]]
        for engine in engines:
            (by_worker,) = run_scripts([engine, library, str(TRIALS)], 1)
            firsts[engine].append(min(spans[0][1] for spans in by_worker.values()))
            seconds[engine] += attempts(by_worker.values())
    warm = statistics.median(seconds["plain"])
    figures = {f"warm_ms.{library}": 1e3 * warm, f"first_s.plain.{library}": statistics.median(firsts["plain"])}
    for engine in engines:
        first = statistics.median(firsts[engine])
        figures[f"overhead_ms.{engine}.{library}.median"] = 1e3 * (statistics.median(seconds[engine]) - warm)
        figures[f"first_s.{engine}.{library}"] = first
        figures[f"first_ratio.{engine}.{library}"] = first / statistics.median(firsts["plain"])
    return figures


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--script"]:
        kind, library, count = sys.argv[2:]
        plain(library, int(count)) if kind == "plain" else search(kind, library, int(count))
        return
    arguments = parser(__doc__).parse_args()
    figures: dict[str, float] = {}
    if arguments.quick:
        for library in ("torch", "lightgbm"):
            figures |= figures_of(library, ["local"], rounds=1)
    else:
        for library in real_work.WORK:
            figures |= figures_of(library, ["local", "spark"], rounds=3)
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
