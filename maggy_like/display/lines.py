"""The newest log lines of a run, in bounded memory."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator

from maggy_like.display.base import LogLine

_OVERHEAD = 100
"""Bytes of a line beside its text."""


class LineBuffer:
    """Keeps the newest lines for any number of readers, each of which remembers the number of its next line.

    Args:
        max_lines: How many lines to keep. The oldest ones are dropped first.
        max_bytes: How many bytes they may take together.

    Attributes:
        dropped: How many lines were dropped. It is also the number of the oldest line that is kept.

    Example:
        >>> buffer = LineBuffer(max_lines=2, max_bytes=10_000)
        >>> buffer.extend(LogLine(0, text) for text in ("a", "b", "c"))
        >>> lines, missed, following = buffer.read(0)
        >>> [line.text for line in lines], missed, following
        (['b', 'c'], 1, 3)
    """

    def __init__(self, max_lines: int, max_bytes: int) -> None:
        self.dropped = 0
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
        """Add a line. One that is larger than ``max_bytes`` is dropped itself."""
        with self._lock:
            self._lines.append(line)
            self._bytes += _size(line)
            while len(self._lines) > self._max_lines or self._bytes > self._max_bytes:
                self._bytes -= _size(self._lines.popleft())
                self.dropped += 1

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Add lines."""
        for line in lines:
            self.append(line)

    def read(self, number: int) -> tuple[list[LogLine], int, int]:
        """Return the lines from one on.

        Args:
            number: The number of the first line to read. The first line of all has the number 0.

        Returns:
            The lines, how many lines from ``number`` on were dropped, and the number of the line that will come next.
        """
        with self._lock:
            skipped = max(0, number - self.dropped)
            lines = list(itertools.islice(self._lines, skipped, None))
            return lines, max(0, self.dropped - number), self.dropped + len(self._lines)


def _size(line: LogLine) -> int:
    return sys.getsizeof(line.text) + _OVERHEAD
