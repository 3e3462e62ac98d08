"""Turnaround between trials and utilisation of the workers, locally and on Spark ``local[2]``.

Turnaround is the time from the last line of a trial's ``train_fn`` to the first line of the next one's on the same
worker; utilisation is the share of the workers' time spent inside ``train_fn`` from the first trial's start to the last
one's end. With ``"bayesian"`` it shows how long workers wait for a model. The clock is the machine's monotonic one,
which all processes share. A bare round trip of ZeroMQ stands beside them as the physical limit.

    python -m benchmarks.dispatch [--quick] [--json PATH]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from benchmarks.common import parser, publish, search
from maggy_like import LocalEngine, Result, SparkEngine, spark_session

WORKERS = 2
ECHO = """
import sys, zmq
socket = zmq.Context().socket(zmq.REP)
print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
while (frame := socket.recv()) != b"end":
    socket.send(frame)
"""


def short_trial(x: float) -> dict[str, float]:
    """20 ms of nothing."""
    start = time.monotonic()
    time.sleep(0.02)
    return {"value": x, "start": start, "end": time.monotonic()}


def fifth_of_a_second(x: float) -> dict[str, float]:
    """200 ms of nothing, with torch loaded."""
    start = time.monotonic()
    import torch  # noqa: F401

    time.sleep(0.2)
    return {"value": x, "start": start, "end": time.monotonic()}


def waits(engine: str, isolation: Literal["process", "worker"], n_trials: int, optimizer: str = "random") -> Result:
    """A search whose trials only wait."""
    made = SparkEngine(isolation=isolation) if engine == "spark" else LocalEngine(isolation=isolation)
    train = fifth_of_a_second if isolation == "process" else short_trial
    return search(train, metric="value", n_trials=n_trials, workers=WORKERS, engine=made, optimizer=optimizer)


def turnarounds(result: Result) -> Iterator[float]:
    """Milliseconds between the trials of each worker."""
    by_worker = defaultdict(list)
    for trial in result.trials:
        by_worker[trial.worker].append((trial.metrics["start"], trial.metrics["end"]))
    for spans in by_worker.values():
        for (_, end), (start, _) in pairwise(sorted(spans)):
            yield (start - end) * 1e3


def utilisation(result: Result) -> float:
    """Share of the workers' time that was spent in trials."""
    starts = [trial.metrics["start"] for trial in result.trials]
    ends = [trial.metrics["end"] for trial in result.trials]
    return (sum(ends) - sum(starts)) / (WORKERS * (max(ends) - min(starts)))


def round_trip(count: int) -> float:
    """Median milliseconds of a bare ZeroMQ round trip of 200 bytes to another process."""
    import zmq

    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True) as echo:
        assert echo.stdout is not None
        port = int(echo.stdout.readline())
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.connect(f"tcp://127.0.0.1:{port}")
            times = []
            for _ in range(count):
                start = time.perf_counter()
                socket.send(b"x" * 200)
                socket.recv()
                times.append((time.perf_counter() - start) * 1e3)
            socket.send(b"end")
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    figures = {"zmq.round_trip_ms.median": round_trip(2000)}
    quick_start = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}  # no dispatch goes through the JVM
    spark = spark_session(f"local[{WORKERS}]", app_name="benchmarks.dispatch", conf=quick_start)
    n_short = 100 if arguments.quick else 500
    for engine in ("local", "spark"):
        slow = waits(engine, "process", 100)
        figures[f"{engine}.utilisation"] = utilisation(slow)
        for isolation, result in {"process": slow, "worker": waits(engine, "worker", n_short)}.items():
            times = sorted(turnarounds(result))
            figures[f"{engine}.{isolation}.turnaround_ms.median"] = statistics.median(times)
            figures[f"{engine}.{isolation}.turnaround_ms.p99"] = times[int(len(times) * 0.99)]
    spark.stop()
    figures["local.bayesian.utilisation"] = utilisation(waits("local", "process", 100, "bayesian"))
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
