"""How long the driver itself keeps a worker waiting, beside what the worker sees: which side is short of a core.

A turn goes from the first moment at which the driver could have taken up the end of a trial to the assignment that it
hands to ZeroMQ. It is measured twice: by the clock, and in CPU time of the driver's thread, which is what a turn would
take on a core of its own. Both are marks around functions that a message passes, put there from outside.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from maggy_like.protocol.messages import Assign, Finished
from maggy_like.protocol.task import WorkerId
from maggy_like.rpc.backlog import Backlog
from maggy_like.rpc.server import FETCH, Handshakes, Received, Server

WAITED = 0.0005
"""Seconds of a poll from which on it has waited: what it finds has only just come."""

Moment = tuple[float, float]
"""The monotonic clock and the thread's CPU time, in seconds."""


class Turns:
    """The turns of a run since they were last taken."""

    def __init__(self) -> None:
        self._turns: list[Moment] = []
        self._ended: dict[WorkerId, Moment] = {}
        self._collections: list[float] = []

    def ended(self, worker: WorkerId, since: Moment) -> None:
        """A worker's trial has ended; it could have been taken up since then."""
        self._ended[worker] = since

    def assigned(self, worker: WorkerId) -> None:
        """A worker was assigned its next trial."""
        if (since := self._ended.pop(worker, None)) is not None:
            clock, cpu = moment()
            self._turns.append((clock - since[0], cpu - since[1]))

    def collected(self, seconds: float) -> None:
        """Python's garbage collector has stopped all threads for so long."""
        self._collections.append(seconds)

    def take(self) -> dict[str, float]:
        """Figures of the turns since the last call, in milliseconds."""
        turns, self._turns = self._turns, []
        collections, self._collections = self._collections, []
        return {
            "driver_turn_median_ms": _quantile([clock for clock, _ in turns], 0.5) * 1e3,
            "driver_turn_p99_ms": _quantile([clock for clock, _ in turns], 0.99) * 1e3,
            "driver_turn_cpu_p99_ms": _quantile([cpu for _, cpu in turns], 0.99) * 1e3,
            "longest_collection_ms": max(collections, default=0.0) * 1e3,
        }


def moment() -> Moment:
    """Now, of the calling thread."""
    return time.monotonic(), time.thread_time()


@contextmanager
def watched_turns() -> Iterator[Turns]:
    """Measure the turns of the run that goes on within the block."""
    turns = Turns()
    looked: list[Moment] = [(0.0, 0.0)]  # when the driver last looked for messages: what it finds came after
    since: dict[int, Moment] = {}  # when a message that waits in the driver could have been taken up, by its frame
    began, polled = [0.0], [0.0]

    def poll(original: Callable[..., Any], server: Server, timeout: float) -> Iterator[Received]:
        polled[0] = time.monotonic()
        yield from original(server, timeout)

    def attend(original: Callable[..., None], handshakes: Handshakes, ready: Any) -> None:
        if time.monotonic() - polled[0] > WAITED:
            looked[0] = moment()
        original(handshakes, ready)

    def put(original: Callable[..., None], backlog: Backlog[Any], connection: bytes, frame: Any, **how: Any) -> None:
        since[id(frame)] = looked[0]
        original(backlog, connection, frame, **how)

    def fetch(original: Callable[..., None], server: Server) -> None:
        before = len(server._backlog)
        original(server)
        if len(server._backlog) - before < FETCH:  # else more may wait, since as long ago
            looked[0] = moment()

    def read(original: Callable[..., Received | None], server: Server, identity: bytes, part: Any) -> Received | None:
        came, received = since.pop(id(part)), original(server, identity, part)
        if received is not None and isinstance(received.message, Finished):
            turns.ended(received.worker, came)
        return received

    def send(original: Callable[..., None], server: Server, worker: WorkerId, message: Any) -> None:
        original(server, worker, message)
        if isinstance(message, Assign):
            turns.assigned(worker)

    def collecting(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            began[0] = time.monotonic()
        else:
            turns.collected(time.monotonic() - began[0])

    wrapped: Sequence[tuple[type, str, Callable[..., Any]]] = (
        (Server, "poll", poll), (Server, "_fetch", fetch), (Server, "_read", read), (Server, "send", send),
        (Handshakes, "attend", attend), (Backlog, "put", put),
    )  # fmt: skip
    with ExitStack() as undo:
        for owner, name, wrapper in wrapped:
            undo.enter_context(mock.patch.object(owner, name, _around(getattr(owner, name), wrapper)))
        gc.callbacks.append(collecting)
        undo.callback(gc.callbacks.remove, collecting)
        yield turns


def _around(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **named: wrapper(original, *arguments, **named)


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)] if values else 0.0
