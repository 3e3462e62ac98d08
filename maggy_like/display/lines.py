"""Log lines that wait to be shown, in bounded memory."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator

from maggy_like.display.base import LogLine

_OVERHEAD = 100
"""Bytes of a line beside its text."""


class LineBuffer:
    """Keeps the newest lines, so many and of so many bytes at most; the oldest make room. For any number of threads.

    Args:
        max_lines: How many lines to keep.
        max_bytes: How many bytes they may take together.

    Attributes:
        left_out: How many lines made room since the last :meth:`take`, if there was one.

    Example:
        >>> buffer = LineBuffer(max_lines=2, max_bytes=10_000)
        >>> buffer.extend(LogLine(0, text) for text in ("a", "b", "c"))
        >>> buffer.left_out, [line.text for line in buffer.take()]
        (1, ['b', 'c'])
    """

    def __init__(self, max_lines: int, max_bytes: int) -> None:
        self.left_out = 0
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._lines: deque[LogLine] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[LogLine]:
        with self._lock:
            return iter(list(self._lines))

    def append(self, line: LogLine) -> None:
        """Add a line; one that is larger than all the room is left out itself."""
        with self._lock:
            self._lines.append(line)
            self._bytes += _size(line)
            while len(self._lines) > self._max_lines or self._bytes > self._max_bytes:
                self._bytes -= _size(self._lines.popleft())
                self.left_out += 1

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Add lines."""
        for line in lines:
            self.append(line)

    def take(self) -> list[LogLine]:
        """All lines; none is kept."""
        with self._lock:
            taken = list(self._lines)
            self._lines.clear()
            self._bytes = self.left_out = 0
            return taken


def _size(line: LogLine) -> int:
    return sys.getsizeof(line.text) + _OVERHEAD
