"""The newest events of a run in bounded memory, and the cursors of its followers.

All followers of a run read one backlog, each at its own pace. A follower that has fallen behind reads what the backlog
no longer has from the run's journal.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from optimizers.core.events import AttemptEnded, Columns, Event, Measured

_log = logging.getLogger(__name__)

MOST = 200_000
"""Events and measured values that a backlog keeps (about 20 MB)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event of a run.

    Attributes:
        number: Number of its record in the journal.
        event: The event. The end of an attempt has the trial's configuration.
        value: The trial's value at that time, if the event is the end of an attempt.
        time: Unix time.
        is_point: Whether measurements belong to the trial's curve, unlike a result that was returned early.
    """

    number: int
    event: Event
    value: float | None
    time: float
    is_point: bool = True

    @property
    def tracked(self) -> Event:
        """The event as trackers get it: the end of an attempt has the trial's value."""
        event = copied(self.event)
        return msgspec.structs.replace(event, value=self.value) if isinstance(event, AttemptEnded) else event


def copied(event: Event) -> Event:
    """Return a copy of an event that shares nothing with it, so that a callback cannot change what others get."""
    own = {name: _own(value) for name, value in msgspec.structs.asdict(event).items()}
    return msgspec.structs.replace(event, **own)


def _own(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _own(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_own(each) for each in value]
    return tuple(map(_own, value)) if type(value) is tuple else value


class Backlog:
    """Keeps the newest events of a run for any number of cursors. Adding one never waits.

    Args:
        again: Yields all entries of the journal after a number, in parts.
        after: Number of the last record before the first entry.
        most: Events and measured values to keep. The oldest ones are dropped first.

    Attributes:
        count: Number of entries that were ever added.
        dropped: Number of entries that were dropped.
        is_closed: Whether no more entries come.
        is_read: Whether there is a cursor.
    """

    def __init__(self, again: Callable[[int], Iterator[Sequence[Entry]]], after: int = 0, most: int = MOST) -> None:
        self.again = again
        self.after = after
        self.count = self.dropped = 0
        self.is_closed = self.is_read = False
        self.changed = threading.Condition()
        self._most = most
        self._size = 0
        self._entries: deque[Entry] = deque()

    def put(self, entries: Iterable[Entry]) -> None:
        """Add entries."""
        with self.changed:
            for entry in entries:
                self.count += 1
                self._entries.append(entry)
                self._size += _size(entry.event)
                while self._size > self._most:
                    self._size -= _size(self._entries.popleft().event)
                    self.dropped += 1
            self.changed.notify_all()

    def close(self) -> None:
        """Declare that no more entries come."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def kept(self, position: int) -> list[Entry]:
        """Return the entries from a position on, which must not be dropped. Hold :attr:`changed` meanwhile."""
        return list(itertools.islice(self._entries, position - self.dropped, None))


def _size(event: Event) -> int:
    return sum(len(steps) for steps, _ in event.columns.values()) if isinstance(event, Measured) else 1


class Cursor:
    """The place of one follower in the events of a run.

    Attributes:
        lost: Number of entries that the backlog no longer had when the journal could not be read.
    """

    def __init__(self, backlog: Backlog) -> None:
        self.lost = 0
        backlog.is_read = True
        self._backlog = backlog
        self._position = 0
        self._number = backlog.after  # of the last entry that was taken
        self._parts: Iterator[Sequence[Entry]] | None = None

    @property
    def waiting(self) -> int:
        """Number of entries that were not taken."""
        return self._backlog.count - self._position

    @property
    def is_over(self) -> bool:
        """Whether all entries were taken and no more come."""
        return self._backlog.is_closed and not self.waiting

    def take(self, interval: float = 0.0) -> list[Entry]:
        """Wait for entries, and return the next ones. Empty only if no more come, or the journal cannot be read.

        Args:
            interval: Seconds to continue collecting after the first entry, unless no more come.
        """
        backlog = self._backlog
        with backlog.changed:
            backlog.changed.wait_for(lambda: self.waiting or backlog.is_closed)
            backlog.changed.wait_for(lambda: backlog.is_closed, interval)
            entries = backlog.kept(self._position) if self._position >= backlog.dropped else None
        if entries is None:
            entries = self._read_back()
        else:
            self._parts = None
        if entries:
            self._position += len(entries)
            self._number = entries[-1].number
        return entries

    def pause(self, seconds: float) -> None:
        """Wait, but not after the last entry was added."""
        with self._backlog.changed:
            self._backlog.changed.wait_for(lambda: self._backlog.is_closed, seconds)

    def _read_back(self) -> list[Entry]:
        """Read the next part of the journal. If that is impossible, continue with the oldest entry of the backlog."""
        is_new, failed = self._parts is None, "it does not have them"
        try:
            self._parts = self._parts or self._backlog.again(self._number)
            if entries := next(self._parts, None):
                return list(entries)
        except Exception as error:  # of any file system
            is_new, failed = True, str(error)
        self._parts = None
        if is_new:
            with self._backlog.changed:
                missing, self._position = self._backlog.dropped - self._position, self._backlog.dropped
            self.lost += missing
            _log.warning(
                "%d events that a callback has not received cannot be read from the journal: %s", missing, failed
            )
        return []


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """Put the measurements of each attempt together, until something else happens to its trial."""
    found: list[Entry] = []
    places: dict[int, int] = {}  # by trial: its measurements, to which more may be added
    for entry in entries:
        event = entry.event
        if not isinstance(event, Measured):
            places.pop(event.trial, None)
            found.append(entry)
            continue
        place = places.get(event.trial)
        known = None if place is None else found[place].event
        if place is None or not isinstance(known, Measured) or known.attempt != event.attempt:
            places[event.trial] = len(found)
            copy: dict[str, Columns] = {
                name: (list(steps), list(values)) for name, (steps, values) in event.columns.items()
            }
            found.append(replace(entry, event=Measured(event.trial, event.attempt, event.objective, copy)))
            continue
        for name, (steps, values) in event.columns.items():
            known_steps, known_values = known.columns.setdefault(name, ([], []))
            known_steps += steps
            known_values += values
    return found
