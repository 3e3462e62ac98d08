"""The real driver with many workers: how soon they join, how long each waits for its next trial, what a message costs.

The server, the driver, its journal and the caller's loop are those of every run. The workers are thin
(:mod:`benchmarks.thin_workers`): each has its own CURVE key, connection and link, says what a worker says, and only
waits between. A trial makes ten reports, one a second; ``--stretch`` has all that take so many times as long (a beat
four times at most), where a machine cannot carry both ends. Waits are measured by the workers, from the last message of
a trial to the next assignment (``dispatch``). The cost of a message is the CPU time of the driver's thread over the
messages that came in, their answers included; that of a report has the beats and the trial's other messages too.

    python -m benchmarks.scale [--workers N [N ...]] [--stretch F] [--quick] [--json PATH]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

import msgspec
import psutil

from benchmarks.common import parser, publish, search
from benchmarks.thin_workers import Counts, Order
from maggy_like import Float, lagom
from maggy_like.engines.base import Engine, EngineRun
from maggy_like.protocol.task import KeyPair, WorkerTask
from maggy_like.rpc.endpoint import Endpoint

PROCESSES = 2
REPORTS = 10
LONGEST_BEAT = 4.0
"""Seconds between two beats at most: after 15 s of silence the driver gives a worker up."""

LOOK = 10.0
"""Seconds, stretched, for which a run is looked at once all workers are busy."""

PATIENCE = 300.0


class Swarms(EngineRun):
    """All workers of a run, in a few processes."""

    def __init__(self, orders: Sequence[Order], indexes: Sequence[int], incarnation: int) -> None:
        super().__init__(indexes, incarnation)
        self._processes = []
        for order in orders:
            command = [sys.executable, "-m", "benchmarks.thin_workers"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
            self._processes.append(process)

    def counts(self) -> list[Counts]:
        """What each process has counted."""
        found = []
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            if not (line := process.stdout.readline()):
                raise RuntimeError("the driver gave up the workers of a process: too much else runs here, --stretch")
            found.append(msgspec.json.decode(line, type=Counts))
        return found

    def poll(self) -> str | None:
        return None if any(process.poll() is None for process in self._processes) else ""

    def cancel(self) -> None:
        for process in self._processes:
            process.kill()

    def wait(self, timeout: float) -> bool:
        try:
            for process in self._processes:
                process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()
        return True


class ThinEngine(Engine):
    """Runs thin workers.

    Args:
        interval: Seconds between two reports.
    """

    name = "thin"
    is_on_this_machine = True

    def __init__(self, interval: float) -> None:
        self.begun = 0.0
        self.launched: list[Swarms] = []
        self._interval = interval

    def slots(self) -> int | None:
        return None

    def default_workers(self) -> int:
        return 1

    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1")

    def launch(
        self, task: WorkerTask, indexes: Sequence[int], incarnation: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        workers = [(index, incarnation, *pair) for index, pair in zip(indexes, keys, strict=True)]
        count = min(PROCESSES, len(workers))
        shares = [workers[part::count] for part in range(count)]
        beat = min(self._interval, LONGEST_BEAT)
        orders = [Order(task.address, task.server_key, share, REPORTS, self._interval, beat) for share in shares]
        self.begun = time.monotonic()
        self.launched.append(Swarms(orders, indexes, incarnation))
        return [self.launched[-1]]


def nothing(x: float) -> float:
    """What is searched; thin workers do not call it."""
    return x


def measure(workers: int, stretch: float, seconds: float) -> dict[str, float]:
    """A search with so many workers, looked at for so many seconds once all are busy."""
    engine = ThinEngine(stretch)
    process = psutil.Process()
    before = process.memory_info().rss
    with tempfile.TemporaryDirectory() as directory:
        handle = lagom(
            nothing,
            {"x": Float(0, 1)},
            optimizer="random",
            metric="value",
            direction="max",
            timeout=3600,
            max_budget=REPORTS,
            workers=workers,
            engine=engine,
            directory=directory,
            progress=False,
            block=False,
        )
        try:
            figures = _watch(engine, workers, seconds, stretch)
            figures["rss_kb_per_worker"] = (process.memory_info().rss - before) / 1024 / workers
        finally:
            handle.stop()
            result = handle.result()
    done = [trial for trial in result.trials if trial.state.is_final and trial.value is not None and not trial.failure]
    figures["lost"] = sum(REPORTS - len(trial.curves["value"]) for trial in done if trial.step == REPORTS)
    figures["lost"] += sum(trial.losses + trial.stage_losses for trial in result.trials)
    return {f"{name}.{workers}": value for name, value in figures.items()}


def _watch(engine: ThinEngine, workers: int, seconds: float, stretch: float) -> dict[str, float]:
    """The figures of a run that goes on."""
    deadline = time.monotonic() + PATIENCE
    while not engine.launched:
        time.sleep(0.05)
    swarms = engine.launched[0]
    counts = swarms.counts()
    while (came := sum(count.joined for count in counts)) < workers:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{came} of {workers} workers joined in {PATIENCE:g} s")
        time.sleep(0.2)
        counts = swarms.counts()
    joined = max(count.ready_at for count in counts) - engine.begun
    time.sleep((REPORTS + 1) * stretch)  # until trials end as evenly as they will
    thread = next(thread for thread in threading.enumerate() if thread.name == "maggy-driver")
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    first, cpu, all_cpu, wall = swarms.counts(), time.clock_gettime(clock), time.process_time(), time.monotonic()
    time.sleep(seconds)
    last = swarms.counts()
    cpu, all_cpu, wall = time.clock_gettime(clock) - cpu, time.process_time() - all_cpu, time.monotonic() - wall
    messages = sum(count.sent for count in last) - sum(count.sent for count in first)
    reports = sum(count.measured for count in last) - sum(count.measured for count in first)
    waits = sorted(wait * 1e3 for count in last for wait in count.waits)
    return {
        "join_s": joined,
        "stretch": stretch,
        "dispatch_median_ms": waits[len(waits) // 2],
        "dispatch_p99_ms": waits[int(len(waits) * 0.99)],
        "messages_per_s": messages / wall,
        "driver_us_per_message": cpu / messages * 1e6,
        "driver_us_per_report": cpu / reports * 1e6,
        "process_us_per_message": all_cpu / messages * 1e6,
        "driver_load": cpu / wall,
        "refused": sum(count.refused for count in last),
    }


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--workers", type=int, nargs="+", default=None, metavar="N", help="numbers of workers")
    options.add_argument("--stretch", type=float, default=None, help="how many times as long a trial and a beat take")
    arguments = options.parse_args()
    search(nothing, n_trials=1, engine="inline")  # loads what any search loads, 14 MB that no worker takes
    sizes = arguments.workers or ([100, 1000] if arguments.quick else [1000, 2000, 10_000])
    figures: dict[str, float] = {}
    for workers in sizes:
        stretch = arguments.stretch or max(1.0, workers / 5000)
        figures |= measure(workers, stretch, LOOK * stretch)
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
