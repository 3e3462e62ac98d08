"""The log lines of a run: the newest ones in bounded memory, and those that are still being redrawn."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from maggy_like.display import text
from maggy_like.display.base import LogLine, Snapshot

_OVERHEAD = 100
"""Bytes of a line in addition to its text."""


class LineBuffer:
    """Keeps the newest lines for any number of readers, each of which keeps the number of its next line.

    Example:
        >>> buffer = LineBuffer(max_lines=2, max_bytes=10_000)
        >>> buffer.extend(LogLine(0, text) for text in ("a", "b", "c"))
        >>> lines, missed, following = buffer.read(0)
        >>> [line.text for line in lines], missed, following
        (['b', 'c'], 1, 3)
    """

    def __init__(self, max_lines: int, max_bytes: int) -> None:
        self.dropped = 0  # number of dropped lines. It is also the number of the oldest line that is kept
        self._max_lines = max_lines  # number of lines to keep. The oldest ones are dropped first
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
        """Add a line. If it is larger than ``max_bytes``, it is dropped."""
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
        """Return the lines from ``number`` on, counted from 0.

        Returns:
            The lines, the number of dropped lines among them, and the number of the next line.
        """
        with self._lock:
            skipped = max(0, number - self.dropped)
            lines = list(itertools.islice(self._lines, skipped, None))
            return lines, max(0, self.dropped - number), self.dropped + len(self._lines)


def _size(line: LogLine) -> int:
    return sys.getsizeof(line.text) + _OVERHEAD


def missed_note(missed: int) -> list[LogLine]:
    """Return a line about lines that a reader has missed, if there are any."""
    note = LogLine(None, f"{missed} lines came too fast to be shown; the trials' log files have them")
    return [note] * bool(missed)


Key = tuple[int | None, int | None]


class LiveLines:
    """Separates finished lines from those that are still being redrawn, one per trial and rank."""

    def __init__(self) -> None:
        self._lines: dict[Key, LogLine] = {}
        self._seen: set[Key] = set()

    @property
    def lines(self) -> dict[Key, LogLine]:
        """The newest state of each unfinished line, by trial and rank."""
        return self._lines

    def take(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> list[LogLine]:
        """Take new lines, and return the finished ones, ready to be shown.

        The last unfinished line of a trial that disappeared with its worker is finished, too.
        """
        finished: list[LogLine] = []
        for line in lines:
            key = line.trial, line.rank
            if line.trial is not None and self._lines.pop(key, None) is not None:
                self._seen.discard(key)
            if not line.live:
                finished += text.readable([line])
            elif shown := text.clean(line.text, keeps_tabs=True):
                self._lines[key] = LogLine(line.trial, shown, line.rank, live=True)
        running = {worker.trial for worker in snapshot.workers}
        for key, line in list(self._lines.items()):
            if line.trial in running:
                self._seen.add(key)
            elif key in self._seen:
                self._seen.discard(key)
                finished.append(self._lines.pop(key))
        return finished
