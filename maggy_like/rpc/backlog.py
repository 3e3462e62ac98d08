"""Frames that have arrived and wait to be read, shared out fairly between their connections."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sized
from typing import Generic, TypeVar

import msgspec

_Frame = TypeVar("_Frame", bound=Sized)

FRAME_COST = 1024
"""What a frame counts for beside its bytes: many small ones take time and memory too."""

HEAD_START = 1 << 20
"""Bytes of others that a frame passes by whose connection has sent as much less of late."""

URGENT_START = 1 << 20
"""Bytes of others that a connection with an urgent frame passes by besides."""


class _Queue(msgspec.Struct, Generic[_Frame]):
    """What waits of one connection.

    Attributes:
        frames: In order, each with when it is due and what it counts for; None stands for a frame that was not kept.
        end: When the last frame that came is due.
        urgent: How many frames there are up to the last urgent one.
        entry: Which entry among those that are due stands for this connection.
    """

    frames: deque[tuple[int, int, _Frame | None]]
    end: int
    urgent: int = 0
    entry: int = -1


class Backlog(Generic[_Frame]):
    """A queue that serves connections by turns, by bytes: one that sends little never waits for one that sends much.

    Each frame is due when its connection has had as many bytes as all others (self-clocked fair queueing, Golestani
    1994, equations 3 and 4, with equal shares). The frames of one connection stay in order. An urgent one is due
    sooner, and with it those of its connection before it; it counts for as much as any other, so that a connection
    that calls all it says urgent soon waits for its share like the others.

    Attributes:
        size: Bytes that wait.

    Example:
        >>> backlog = Backlog()
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
        """The frame that is due next, and its connection; there must be one."""
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
        """Have a connection's first frame taken when it is due."""
        due = queue.frames[0][0]
        if queue.urgent:  # the frames before it go first, and must not keep it
            due = min(due, queue.frames[queue.urgent - 1][0] - URGENT_START)
        queue.entry = next(self._entries)
        heapq.heappush(self._due, (due, queue.entry, connection))

    def _forget(self) -> None:
        """Forget the connections that have their whole head start again."""
        late = self._clock - HEAD_START
        self._queues = {name: queue for name, queue in self._queues.items() if queue.frames or queue.end > late}
        self._many = 1000 + 2 * len(self._queues)
