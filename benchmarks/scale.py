"""The real driver with many workers: how soon they join, how long each waits for its next trial, what a message costs.

The server, the driver, its journal and the caller's loop are those of every run. The workers are thin
(:class:`ThinWorker`): each has its own CURVE key, connection and link, says what a worker says, and only
waits between. A trial makes ten reports, one a second; ``--stretch`` has all that take so many times as long (a beat
four times at most), where a machine cannot carry both ends. Waits are measured by the workers, from the last message of
a trial to the next assignment (``dispatch``); with ``--turns`` also in the driver, as far as it is the one that lets
them wait (``driver_turn``, see :mod:`benchmarks.driver_turns`), which takes up to a fifth of its time. The cost of a
message is the CPU time of the driver's thread over the messages that came in, their answers included; that of a report
has the beats and the trial's other messages too.

    python -m benchmarks.scale [--workers N [N ...]] [--stretch F] [--turns] [--quick] [--json PATH]
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import psutil
import zmq

from benchmarks.common import parser, publish, save
from benchmarks.driver_turns import watched_turns
from maggy_like import Float, lagom
from maggy_like.engines.base import Engine, EngineRun
from maggy_like.protocol.codec import decode_to_worker, encode
from maggy_like.protocol.messages import (
    PROTOCOL_VERSION,
    Assign,
    Beat,
    Finished,
    Goodbye,
    Hello,
    Ready,
    Refused,
    Reported,
    Shutdown,
    ToDriver,
    Welcome,
    awaits_answer,
)
from maggy_like.protocol.task import KeyPair, WorkerTask
from maggy_like.rpc.client import Heartbeat, is_readable
from maggy_like.rpc.endpoint import Endpoint
from maggy_like.rpc.limits import WINDOW, limit_client
from maggy_like.rpc.link import Arrival, Link, body_of, new_session, read_header
from maggy_like.rpc.security import secure_client

AT_ONCE = 50
"""Workers that come at once."""


class Order(msgspec.Struct):
    """What a process of thin workers is to do; times are in seconds.

    Attributes:
        address: Of the driver, whose public key is ``server_key``.
        workers: Index, incarnation and keys of each.
        reports: How many each trial makes.
        interval: Between two reports.
        beat: Between two beats of one that says nothing else.
    """

    address: str
    server_key: bytes
    workers: list[tuple[int, int, bytes, bytes]]
    reports: int
    interval: float
    beat: float


class Counts(msgspec.Struct):
    """What the workers of a process have seen.

    Attributes:
        joined: How many are ready.
        ready_at: When the last of them became so, by the monotonic clock.
        sent: Messages to the driver.
        measured: Measurements among them.
        refused: Workers that the driver sent away.
        waits: Seconds from the end of a trial to the assignment of the next, since they were last asked for.
    """

    joined: int = 0
    ready_at: float = 0.0
    sent: int = 0
    measured: int = 0
    refused: int = 0
    waits: list[float] = []


class ThinWorker:
    """One worker: a socket, a link, and the trial that it waits for the end of."""

    def __init__(self, swarm: Swarm, index: int, incarnation: int, keys: tuple[bytes, bytes]) -> None:
        self._swarm = swarm
        self._socket: zmq.Socket[bytes] = swarm.context.socket(zmq.DEALER)
        limit_client(self._socket)
        secure_client(self._socket, swarm.order.server_key, keys)
        self._link = Link(new_session(), max_bytes=WINDOW)
        self._hello = Hello(PROTOCOL_VERSION, index, incarnation, "thin", 1, [], None)
        self._connections = 0
        self._is_welcome = False
        self._heartbeat = Heartbeat(time.monotonic(), swarm.order.beat)
        self._unanswered = 0
        self._trial: Assign | None = None
        self._step = 0
        self._ended: float | None = None
        self.fileno = int(self._socket.get(zmq.FD))
        self._socket.connect(swarm.order.address)
        self._say_hello()
        self.is_over = False

    def read(self) -> None:
        """Take in what has arrived."""
        while not self.is_over and is_readable(self._socket):
            frame = self._socket.recv(zmq.NOBLOCK)
            header = read_header(frame)
            message = decode_to_worker(body_of(frame))
            self._heartbeat.heard, self._unanswered = time.monotonic(), 0
            arrival = self._link.take(header, len(frame))
            self._link.settle()
            if header.again:
                self._resend()
            if arrival in (Arrival.EARLY, Arrival.BARE) and self._link.should_ask(header):
                self._put(self._link.bare(_BEAT, again=True))
            if isinstance(message, Welcome) and not self._is_welcome:
                self._is_welcome = True
                self._resend()
                if self._connections == 1 or self._link.is_empty:
                    self._send(Ready())
                self._swarm.at(self._swarm.order.beat, self.beat)
            elif isinstance(message, Refused):
                self._swarm.counts.refused += 1
                self._close()
            elif arrival is Arrival.NEXT:
                self._told(message)

    def beat(self) -> None:
        """Give a sign of life, if it is due; say hello again where none came back."""
        if self.is_over:
            return
        now = time.monotonic()
        if now >= self._heartbeat.due:
            self._heartbeat.beat(now)
            self._unanswered += 1
            if self._unanswered > 5:
                self._say_hello()
            else:
                self._swarm.counts.sent += 1
                self._put(self._link.bare(_BEAT))
        self._swarm.at(self._heartbeat.due - now, self.beat)

    def report(self) -> None:
        """Make the next report of the trial, and end it after the last."""
        if self.is_over or (trial := self._trial) is None:
            return
        self._step += 1
        value = (trial.trial % 997) / 997 - 1 / self._step
        self._swarm.counts.measured += 1
        self._send(Reported(trial.trial, trial.attempt, "value", {"value": ([self._step], [value])}))
        if self._step < self._swarm.order.reports:
            self._swarm.at(self._swarm.order.interval, self.report)
            return
        self._trial, self._ended = None, time.monotonic()
        self._send(Finished(trial.trial, trial.attempt, "returned", value=value))

    def _told(self, message: Any) -> None:
        if isinstance(message, Assign):
            counts, now = self._swarm.counts, time.monotonic()
            if self._ended is None:
                counts.joined += 1
                counts.ready_at = now
                late = self._hello.worker * 0.618 % 1 * self._swarm.order.reports  # trials end evenly in time
            else:
                counts.waits.append(now - self._ended)
                late = 0.0
            self._trial, self._step = message, 0
            self._swarm.at(self._swarm.order.interval * (1 + late), self.report)
        elif isinstance(message, Shutdown):
            self._trial = None
            self._send(Goodbye())
            self._swarm.at(1.0, self._close)

    def _say_hello(self) -> None:
        self._connections += 1
        self._unanswered = 0
        self._put(self._link.bare(encode(msgspec.structs.replace(self._hello, connection=self._connections))))

    def _send(self, message: ToDriver) -> None:
        self._swarm.counts.sent += 1
        self._heartbeat.spoke(time.monotonic())
        self._put(self._link.number(encode(message), urgent=awaits_answer(message)))

    def _resend(self) -> None:
        for frame in self._link.unacknowledged():
            self._put(frame)

    def _put(self, frame: bytes) -> None:
        with contextlib.suppress(zmq.Again):
            self._socket.send(frame, zmq.NOBLOCK)
        self._swarm.touched.add(self)  # its descriptor tells nothing of what came before this

    def _close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._swarm.leave(self)
            self._socket.close(0)


class Swarm:
    """The workers of a process, in one loop."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.counts = Counts()
        self.touched: set[ThinWorker] = set()
        self.context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 2 * len(order.workers) + 100)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._epoll = select.epoll()
        self._workers: dict[int, ThinWorker] = {}
        self._coming = list(reversed(order.workers))

    def come(self, count: int) -> None:
        """Have the next workers come: a few at a time, so that those who are there are heard of meanwhile."""
        for _ in range(min(count, len(self._coming))):
            index, incarnation, public, secret = self._coming.pop()
            worker = ThinWorker(self, index, incarnation, (public, secret))
            self._workers[worker.fileno] = worker
            self._epoll.register(worker.fileno, select.EPOLLIN)

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something after so many seconds."""
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._number), call))

    def leave(self, worker: ThinWorker) -> None:
        """Watch a worker no more."""
        self._epoll.unregister(worker.fileno)
        del self._workers[worker.fileno]

    def answer(self) -> None:
        """Say what was counted whenever that is asked for; in a thread of its own."""
        for _ in sys.stdin.buffer:
            print(msgspec.json.encode(self.counts).decode(), flush=True)
            self.counts.waits = []
        os._exit(0)  # nobody listens any more

    def run(self) -> None:
        """Serve until every worker has left."""
        while self._workers or self._coming:
            self.come(AT_ONCE)
            wait = self._due[0][0] - time.monotonic() if self._due else 1.0
            for descriptor, _ in self._epoll.poll(0 if self.touched else max(0.0, min(wait, 1.0))):
                self._workers[descriptor].read()
            touched, self.touched = self.touched, set()
            for worker in touched:
                worker.read()
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()


_BEAT = encode(Beat())


def main() -> None:
    """Run what stands on the standard input."""
    swarm = Swarm(msgspec.json.decode(sys.stdin.buffer.readline(), type=Order))
    threading.Thread(target=swarm.answer, daemon=True).start()
    swarm.run()
    os._exit(0)  # the thread that answers waits in a read


if __name__ == "__main__":
    main()


PROCESSES = 2
REPORTS = 10
LONGEST_BEAT = 4.0
"""Seconds between two beats at most: after 15 s of silence the driver gives a worker up."""

PATIENCE = 300.0


class Swarms(EngineRun):
    """All workers of a run, in a few processes."""

    def __init__(self, orders: Sequence[Order], indexes: Sequence[int], incarnation: int) -> None:
        super().__init__(indexes, incarnation)
        self._processes = []
        for order in orders:
            command = [sys.executable, "-m", "benchmarks.scale"]
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


def _load() -> None:
    """Have this process load what any search loads, 14 MB, so that none of it is counted as a worker's memory."""
    with tempfile.TemporaryDirectory() as folder:
        lagom(
            nothing,
            {"x": Float(0, 1)},
            optimizer="random",
            n_trials=1,
            directory=folder,
            progress=False,
            engine="inline",
        )


def measure(workers: int, stretch: float, seconds: float, *, turns: bool = False) -> dict[str, float]:
    """A search with so many workers, looked at for so many seconds once all are busy."""
    engine = ThinEngine(stretch)
    process = psutil.Process()
    before = process.memory_info().rss
    with tempfile.TemporaryDirectory() as folder, watched_turns() if turns else nullcontext() as watched:
        search: dict[str, Any] = {
            "optimizer": "random", "metric": "value", "direction": "max", "timeout": 3600, "max_budget": REPORTS,
            "directory": folder, "progress": False,
        }  # fmt: skip
        handle = lagom(nothing, {"x": Float(0, 1)}, **search, workers=workers, engine=engine, block=False)
        try:
            figures = _watch(engine, workers, seconds, stretch, watched.take if watched is not None else dict)
            figures["rss_kb_per_worker"] = (process.memory_info().rss - before) / 1024 / workers
        finally:
            handle.stop()
            result = handle.result()
    done = [trial for trial in result.trials if trial.state.is_final and trial.value is not None and not trial.failure]
    figures["trials"] = len(done)
    figures["lost"] = sum(REPORTS - len(trial.curves["value"]) for trial in done if trial.step == REPORTS)
    figures["lost"] += sum(trial.losses + trial.gang_losses for trial in result.trials)
    return {f"{name}.{workers}": value for name, value in figures.items()}


def _watch(
    engine: ThinEngine, workers: int, seconds: float, stretch: float, take_turns: Callable[[], dict[str, float]]
) -> dict[str, float]:
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
    take_turns()
    first, cpu, all_cpu, wall = swarms.counts(), time.clock_gettime(clock), time.process_time(), time.monotonic()
    time.sleep(seconds)
    last = swarms.counts()
    cpu, all_cpu, wall = time.clock_gettime(clock) - cpu, time.process_time() - all_cpu, time.monotonic() - wall
    turned = take_turns()
    messages = sum(count.sent for count in last) - sum(count.sent for count in first)
    reports = sum(count.measured for count in last) - sum(count.measured for count in first)
    waits = sorted(wait * 1e3 for count in last for wait in count.waits)
    return {
        "join_s": joined,
        "stretch": stretch,
        "dispatches": len(waits),
        "dispatch_median_ms": waits[len(waits) // 2],
        "dispatch_p99_ms": waits[int(len(waits) * 0.99)],
        **turned,
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
    options.add_argument("--workers", type=int, nargs="+", default=None, metavar="N", help="sizes of the gang")
    options.add_argument("--stretch", type=float, default=None, help="how many times as long a trial and a beat take")
    options.add_argument("--turns", action="store_true", help="measure the driver's part of each wait, too")
    options.add_argument("--seconds", type=float, default=10.0, help="how long to look, in those times")
    arguments = options.parse_args()
    _load()
    sizes = arguments.workers or ([100, 1000] if arguments.quick else [1000, 2000, 10_000])
    figures: dict[str, float] = {}
    for workers in sizes:
        stretch = arguments.stretch or max(1.0, workers / 5000)
        found = measure(workers, stretch, arguments.seconds * stretch, turns=arguments.turns)
        figures |= found
        publish(found, None)
    save(figures, arguments.json)


if __name__ == "__main__":
    main()
