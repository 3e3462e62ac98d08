"""Frames that have arrived and wait to be read, shared fairly between their connections."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sized
from typing import Generic, TypeVar

import msgspec

_Frame = TypeVar("_Frame", bound=Sized)

FRAME_COST = 1024
"""Cost of a frame in addition to its bytes, because many small ones take time and memory too."""

HEAD_START = 1 << 20
"""Maximum bytes of others that a frame overtakes if its connection has recently sent as much less."""

URGENT_START = 1 << 20
"""Further bytes of others that an urgent frame overtakes."""


class _Queue(msgspec.Struct, Generic[_Frame]):
    """The waiting frames of one connection.

    Attributes:
        frames: Frames in order, each with its due time and its cost; None stands for a frame that was not kept.
        end: Due time of the last frame that arrived.
        urgent: Number of frames up to the last urgent one.
        entry: Valid entry of this connection among those that are due.
    """

    frames: deque[tuple[int, int, _Frame | None]]
    end: int
    urgent: int = 0
    entry: int = -1


class FairBacklog(Generic[_Frame]):
    """A queue that serves connections in turns, by bytes: one that sends little never waits for one that sends much.

    Each frame is due when its connection has had as many bytes as all others (self-clocked fair queueing, Golestani
    1994, equations 3 and 4, with equal shares). The frames of one connection stay in order. An urgent one is due
    sooner, and so are earlier ones of its connection. It costs as much as any other, so a connection that declares
    everything urgent soon waits for its share like the others.

    Attributes:
        size: Number of waiting bytes.

    Example:
        >>> backlog = FairBacklog()
        >>> for frame in (bytes(9000), bytes(9001)):
        ...     backlog.put(b"heavy", frame)
        >>> backlog.put(b"light", b"now")
        >>> [backlog.take()[0] for _ in range(3)]
        [b'light', b'heavy', b'heavy']
    """

    def __init__(self) -> None:
        self.size = 0
        self._count = 0
        self._queues: dict[bytes, _Queue[_Frame]] = {}
        self._due: list[tuple[int, int, bytes]] = []  # of each connection the entry that it names; others are old
        self._many = 1000
        self._entries = itertools.count()
        self._clock = 0

    def __len__(self) -> int:
        return self._count

    def put(self, connection: bytes, frame: _Frame | None, *, urgent: bool = False) -> None:
        """Add a frame; None stands for one that was not kept."""
        cost = FRAME_COST + (0 if frame is None else len(frame))
        first = self._clock - HEAD_START
        queue = self._queues.get(connection)
        if queue is None:
            queue = self._queues[connection] = _Queue(deque(), first)
        elif queue.end < first:
            queue.end = first
        queue.end += cost
        queue.frames.append((queue.end, cost, frame))
        self.size += cost
        self._count += 1
        if urgent:
            queue.urgent = len(queue.frames)
        if urgent or len(queue.frames) == 1:
            self._enter(connection, queue)
        if len(self._queues) > self._many:
            self._forget()

    def take(self) -> tuple[bytes, _Frame | None]:
        """Return the next frame that is due, and its connection; the queue must not be empty."""
        while True:
            _, entry, connection = heapq.heappop(self._due)
            queue = self._queues.get(connection)
            if queue is not None and queue.entry == entry:
                break
        due, cost, frame = queue.frames.popleft()
        queue.urgent -= queue.urgent > 0
        self._clock = max(self._clock, due)
        self.size -= cost
        self._count -= 1
        if queue.frames:
            self._enter(connection, queue)
        else:
            queue.entry = -1
        if not self._count:  # nobody waits: all are equal again
            self._queues.clear()
            self._due.clear()
        return connection, frame

    def _enter(self, connection: bytes, queue: _Queue[_Frame]) -> None:
        """Enter a connection's first frame by its due time."""
        due = queue.frames[0][0]
        if queue.urgent:  # the frames before it go first, and must not keep it
            due = min(due, queue.frames[queue.urgent - 1][0] - URGENT_START)
        queue.entry = next(self._entries)
        heapq.heappush(self._due, (due, queue.entry, connection))

    def _forget(self) -> None:
        """Forget the connections whose advantage is complete again."""
        late = self._clock - HEAD_START
        self._queues = {name: queue for name, queue in self._queues.items() if queue.frames or queue.end > late}
        self._many = 1000 + 2 * len(self._queues)
