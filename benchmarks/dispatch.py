"""Turnaround between trials and utilisation of the workers, locally and on Spark ``local[2]``.

Turnaround is the time from the last line of a trial's ``train_fn`` to the first line of the next
one's on the same worker; utilisation is the share of the workers' time spent inside ``train_fn``
from the first trial's start to the last one's end. The clock is the machine's monotonic one, which
all processes share. A bare round trip of ZeroMQ stands beside them as the physical limit.

With ``--optimizer`` it measures instead whether a worker waits for that optimizer once it has many
observations: its turnaround stands beside that of random search, trials of 0.2 s in fresh processes
(locally alone with ``--quick``).

    python -m benchmarks.dispatch [--optimizer NAME [--observations N]] [--quick] [--json PATH]
"""

from __future__ import annotations

import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, Literal

from benchmarks.common import parser, publish, search
from maggy_like import Choice, Float, Integer, LocalEngine, Result, SearchSpace, SparkEngine, lagom, spark_session
from optimizers import Trial

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


def waits(engine: str, isolation: Literal["process", "worker"], n_trials: int) -> Result:
    """A random search whose trials only wait."""
    made = SparkEngine(isolation=isolation) if engine == "spark" else LocalEngine(isolation=isolation)
    train = fifth_of_a_second if isolation == "process" else short_trial
    return search(train, metric="value", n_trials=n_trials, workers=WORKERS, engine=made)


NETWORK = SearchSpace(
    lr=Float(1e-4, 1.0, log=True),
    decay=Float(1e-6, 1e-1, log=True),
    dropout=Float(0.0, 0.6),
    momentum=Float(0.0, 0.99),
    units=Integer(16, 512, log=True),
    layers=Integer(1, 6),
    act=Choice(["relu", "gelu", "tanh"]),
)


def accuracy(config: dict[str, Any]) -> float:
    """A made-up surface with one top and some noise that is the configuration's own."""
    off = math.log10(config["lr"]) + 2.0, config["dropout"] - 0.2, config["momentum"] - 0.9, config["layers"] / 6 - 0.5
    noise = random.Random(repr(config)).gauss(0.0, 0.02)
    return float(1.0 - 0.1 * sum(x * x for x in off) + 0.05 * (config["act"] == "gelu") + noise)


def at_once(config: dict[str, Any]) -> float:
    """A trial of no length."""
    return accuracy(config)


def fifth_of_a_second_of(config: dict[str, Any]) -> dict[str, float]:
    """200 ms of nothing, with torch loaded, and a value that an optimizer can learn from."""
    return {**fifth_of_a_second(0.0), "value": accuracy(config)}


def with_observations(optimizer: str, engine: str, n_observations: int, n_trials: int) -> Sequence[Trial]:
    """The trials of a search that began with ``n_observations`` results: a run of trials that take no time, resumed."""
    rng = random.Random(0)
    units = [[rng.random() for _ in NETWORK.dimensions] for _ in range(n_observations)]
    with tempfile.TemporaryDirectory() as folder:
        run: dict[str, Any] = {
            "optimizer": optimizer, "metric": "value", "workers": WORKERS, "name": "run", "directory": folder,
            "progress": False,
        }  # fmt: skip
        points = [NETWORK.from_unit(unit) for unit in units]
        lagom(at_once, NETWORK, **run, engine=LocalEngine(isolation="worker"),
              n_trials=n_observations, points_to_evaluate=points)  # fmt: skip
        result = lagom(fifth_of_a_second_of, NETWORK, **run, engine=engine, resume=True,
                       n_trials=n_observations + n_trials)  # fmt: skip
    trials: Sequence[Trial] = result.trials
    return trials[n_observations:]


def turnarounds(trials: Iterable[Trial]) -> Iterator[float]:
    """Milliseconds between the trials of each worker."""
    by_worker = defaultdict(list)
    for trial in trials:
        by_worker[trial.worker].append((trial.metrics["start"], trial.metrics["end"]))
    for spans in by_worker.values():
        for (_, end), (start, _) in pairwise(sorted(spans)):
            yield (start - end) * 1e3


def utilisation(result: Result) -> float:
    """Share of the workers' time that was spent in trials."""
    starts = [trial.metrics["start"] for trial in result.trials]
    ends = [trial.metrics["end"] for trial in result.trials]
    busy = sum(ends) - sum(starts)
    return busy / (WORKERS * (max(ends) - min(starts)))


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


@contextmanager
def spark_of_two() -> Iterator[None]:
    """A session for the block."""
    quick_start = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}  # no dispatch goes through the JVM
    spark = spark_session(f"local[{WORKERS}]", app_name="benchmarks.dispatch", conf=quick_start)
    try:
        yield
    finally:
        spark.stop()


def p99(times: Iterable[float]) -> float:
    """The 99th percentile."""
    ordered = sorted(times)
    return ordered[int(len(ordered) * 0.99)]


def of_the_workers(n_short: int) -> dict[str, float]:
    """Turnaround and utilisation where the optimizer costs nothing."""
    figures = {}
    for engine in ("local", "spark"):
        slow = waits(engine, "process", 100)
        for isolation, result in (("process", slow), ("worker", waits(engine, "worker", n_short))):
            times = list(turnarounds(result.trials))
            figures[f"{engine}.{isolation}.turnaround_ms.median"] = statistics.median(times)
            figures[f"{engine}.{isolation}.turnaround_ms.p99"] = p99(times)
        figures[f"{engine}.utilisation"] = utilisation(slow)
    return figures


def of_an_optimizer(optimizer: str, n_observations: int, engine: str, n_trials: int) -> dict[str, float]:
    """Turnaround with an optimizer that has much to think about, and with random search."""
    prefix = "" if engine == "local" else f"{engine}."
    figures = {}
    for name in (optimizer, "random"):
        times = list(turnarounds(with_observations(name, engine, n_observations, n_trials)))
        figures[f"{prefix}turnaround_ms.median.{name}"] = statistics.median(times)
        figures[f"{prefix}turnaround_ms.p99.{name}"] = p99(times)
    ratio = figures[f"{prefix}turnaround_ms.p99.{optimizer}"] / figures[f"{prefix}turnaround_ms.p99.random"]
    return {**figures, f"{prefix}p99_ratio_to_random": ratio}


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--optimizer", metavar="NAME", help="measure whether a worker waits for this optimizer")
    options.add_argument("--observations", type=int, default=1000, metavar="N", help="results that it begins with")
    arguments = options.parse_args()
    figures = {"zmq.round_trip_ms.median": round_trip(2000)}
    with ExitStack() as stack:
        if not (arguments.quick and arguments.optimizer):
            stack.enter_context(spark_of_two())
        if arguments.optimizer is None:
            figures |= of_the_workers(100 if arguments.quick else 500)
        else:
            for engine in ("local",) if arguments.quick else ("local", "spark"):
                n_trials = 100 if arguments.quick else 250
                figures |= of_an_optimizer(arguments.optimizer, arguments.observations, engine, n_trials)
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
