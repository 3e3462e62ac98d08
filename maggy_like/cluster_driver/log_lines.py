"""The driver's log lines, passed to clients through a file beside the journal."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence

from maggy_like.display.base import LogLine, Snapshot
from maggy_like.storage.control_files import ControlFiles, LogLineRecord, LogLinesRecord

MOST = 300
"""Lines in the file; a client that comes later, or is slow, sees no older ones."""

LONGEST = 2000
"""Characters of a line; the trial's log file has all."""

PAUSE = 1.0
"""Seconds between two writes."""


class LogLineWriter:
    """A display that writes the newest lines to a file for clients elsewhere.

    Args:
        files: Where the file is.
        run: The call of ``lagom``.
        first: The number of the first line.
    """

    def __init__(self, files: ControlFiles, run: str, first: int) -> None:
        self._files = files
        self._run = run
        self._next = first
        self._lines: deque[LogLineRecord] = deque(maxlen=MOST)
        self._is_new = False
        self._wrote = float("-inf")

    def start(self, snapshot: Snapshot) -> None:
        pass

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        for line in lines:
            if not line.live:  # a progress bar is redrawn too often for this way
                self._lines.append(LogLineRecord(line.trial, line.text[:LONGEST], line.rank))
                self._next += 1
                self._is_new = True
        if self._is_new and time.monotonic() - self._wrote >= PAUSE:
            self._write()

    def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self.update(snapshot, lines)
        if self._is_new:
            self._write()

    def _write(self) -> None:
        self._wrote = time.monotonic()
        with contextlib.suppress(Exception):  # of whatever file system it is: nothing depends on it
            self._files.publish_lines(LogLinesRecord(self._run, self._next - len(self._lines), tuple(self._lines)))
            self._is_new = False


class LogLineReader:
    """Reads the driver's lines, each once.

    Args:
        files: Where the file is.
    """

    def __init__(self, files: ControlFiles) -> None:
        self._files = files
        self._run = ""
        self._next = 0

    def take(self) -> list[LogLine]:
        """Return the new lines."""
        record = None
        with contextlib.suppress(Exception):
            record = self._files.lines()
        if record is None:
            return []
        if record.run != self._run:
            self._run, self._next = record.run, record.first
        missed = record.first - self._next
        found = [LogLine(line.trial, line.text, line.rank) for line in record.lines[max(0, -missed) :]]
        self._next = max(self._next, record.first + len(record.lines))
        if missed > 0:
            notice = f"{missed} lines came too fast to be shown; the trials' log files have them"
            return [LogLine(None, notice), *found]
        return found
