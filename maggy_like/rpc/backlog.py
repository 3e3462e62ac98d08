"""Frames that have arrived and wait to be read, shared out fairly between their connections."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sized
from typing import Generic, TypeVar

_Frame = TypeVar("_Frame", bound=Sized)

FRAME_COST = 1024
"""What a frame counts for beside its bytes: many small ones take time and memory too."""

HEAD_START = 1 << 20
"""Bytes of others that a frame passes by whose connection has sent as much less of late."""


class Backlog(Generic[_Frame]):
    """A queue that serves connections by turns, by bytes: one that sends little never waits for one that sends much.

    Each frame is due when its connection has had as many bytes as all others (self-clocked fair queueing, Golestani
    1994, equations 3 and 4, with equal shares). The frames of one connection stay in order.

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
        self._due: list[tuple[int, int, bytes, _Frame | None]] = []
        self._ends: dict[bytes, int] = {}  # when the last frame of each connection was due
        self._many = 1000
        self._arrivals = itertools.count()
        self._clock = 0

    def __len__(self) -> int:
        return len(self._due)

    def put(self, connection: bytes, frame: _Frame | None) -> None:
        """Add a frame; None stands for one that was not kept."""
        cost = _cost(frame)
        end = max(self._clock - HEAD_START, self._ends.get(connection, -HEAD_START)) + cost
        self._ends[connection] = end
        heapq.heappush(self._due, (end, next(self._arrivals), connection, frame))
        self.size += cost
        if len(self._ends) > self._many:
            self._forget()

    def take(self) -> tuple[bytes, _Frame | None]:
        """The frame that is due next, and its connection; there must be one."""
        due, _, connection, frame = heapq.heappop(self._due)
        self._clock = max(self._clock, due)
        self.size -= _cost(frame)
        if not self._due:  # nobody waits: all are equal again
            self._ends.clear()
        return connection, frame

    def _forget(self) -> None:
        """Forget the connections that have their whole head start again."""
        late = self._clock - HEAD_START
        self._ends = {connection: end for connection, end in self._ends.items() if end > late}
        self._many = 1000 + 2 * len(self._ends)


def _cost(frame: Sized | None) -> int:
    return FRAME_COST + (len(frame) if frame is not None else 0)
