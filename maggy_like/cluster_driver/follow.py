"""Following a run whose driver is elsewhere: its journal, and a file with its newest log lines."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence

from maggy_like.display.base import LogLine, Snapshot
from maggy_like.errors import JournalError
from maggy_like.results.runs import replay
from maggy_like.storage.control_files import ControlFiles, LogLineRecord, LogLinesRecord
from maggy_like.storage.journal import (
    Contents,
    JournalBackend,
    Mark,
    Part,
    RunHeader,
    RunStatus,
    decode,
    open_line,
    reading,
)
from optimizers.core.events import AttemptEnded, Event
from optimizers.samplers.non_adaptive import RandomSearch


class Follower:
    """Reads what another process appends to a journal.

    Args:
        backend: Backend of the journal, which must exist.

    Attributes:
        contents: Contents of the journal, without its events.
        machine: The state machine as of the last read.

    Raises:
        JournalError: The journal cannot be read.
    """

    def __init__(self, backend: JournalBackend) -> None:
        self._backend = backend
        self._mark = Mark()
        self._given = 0
        self._new: list[tuple[Event, float | None]] = []
        self.contents: Contents
        self._read_all()

    @property
    def ended(self) -> RunStatus | None:
        """How the run ended. None while it has not."""
        return self.contents.ended

    def look(self) -> list[tuple[Event, float | None]]:
        """Return the events since the last call, each with its trial's value at that time.

        The first call returns all events. The value is None unless the event is an :class:`AttemptEnded`.

        Raises:
            JournalError: The journal cannot be read.
        """
        with reading(self._backend):
            added = self._backend.added(self._mark)
        if added is None or not self._take(added[0]):
            self._read_all()
        else:
            self._mark = added[1]
        new, self._new = self._new, []
        self._given += len(new)
        return new

    def _take(self, lines: bytes) -> bool:
        """Take added lines. Return False if they do not continue what is known."""
        records = [open_line(line) for line in lines.splitlines()]
        for number, found in enumerate(records, self.contents.last + 1):
            if found is None or found[0] != number or isinstance(found[1], RunHeader):
                return False
            self.contents.last = number
            self.contents.take(found[1])
            if not isinstance(found[1], RunStatus):
                self._replay(found[1])
        self.contents.events = []
        return True

    def _replay(self, event: Event) -> None:
        self.machine.replay([event])
        self._new.append((event, self.machine.study.trials[event.trial].value if type(event) is AttemptEnded else None))

    def _read_all(self) -> None:
        """Read the whole journal: the first time, or after a repaired journal has replaced a damaged one."""
        with reading(self._backend):
            added = self._backend.added(Mark())
        if added is None or not added[0]:
            raise JournalError(f"there is no journal in {self._backend.name}; use the folder of a run")
        self.contents = contents = decode([Part(self._backend.name, added[0])])
        events, known = contents.events, len(contents.events) if contents.damage else self._given
        contents.events = events[:known]
        self.machine = replay(contents, RandomSearch())
        # The values between the events of a damaged journal are unknown.
        self._new = [(event, None) for event in contents.events[self._given :]]
        for event in events[known:]:
            self._replay(event)
        contents.events = []
        self._mark = added[1]


MOST = 300
"""Lines in the file. A client that starts later, or is slow, does not see older ones."""

LONGEST = 2000
"""Characters of a line. The trial's log file has all of them."""

PAUSE = 1.0
"""Seconds between two writes."""


class LogLineWriter:
    """A display that writes the newest lines to a file for clients elsewhere.

    Args:
        files: Control files of the run.
        run: Identifier of this call of ``lagom``.
        first: Number of the first line.
    """

    keeps_lines = has_shown_summary = False

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
            if not line.live:  # a progress bar is redrawn too often for a file
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
        with contextlib.suppress(Exception):  # of any file system: nothing depends on it
            self._files.publish_lines(LogLinesRecord(self._run, self._next - len(self._lines), tuple(self._lines)))
            self._is_new = False


class LogLineReader:
    """Reads each line of the driver once.

    Args:
        files: Control files of the run.
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
