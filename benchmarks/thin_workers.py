"""Some thousands of workers in one process, each with its own key, connection and link, and trials that only wait.

What a worker of the runtime says, these say, as often and in the same frames: a hello, a report a second, the end of
each trial, and beats between, as :mod:`maggy_like.rpc.client` has them due. What a worker does besides (processes,
logs, checkpoints) they leave out. A process is started by :mod:`benchmarks.scale`, gets what it needs on its standard
input, and answers each line with what it has counted.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

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
    decode_to_worker,
    encode,
)
from maggy_like.rpc.client import Heartbeat, is_readable
from maggy_like.rpc.link import Arrival, Link, body_of, new_session, read_header
from maggy_like.rpc.sockets import WINDOW, limit_client, secure_client

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
