"""The events of a run in order, and the cursors of its followers.

A :class:`Backlog` keeps the newest events in memory, and each follower reads them with a :class:`Cursor` at its own
pace. A cursor that has fallen behind reads the run's journal, as does a process that follows a run of another one.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from maggy_like.driver.state_machine import StateMachine
from maggy_like.errors import JournalError
from maggy_like.storage.journal import (
    BLOCK,
    Contents,
    JournalBackend,
    Mark,
    Part,
    RunHeader,
    RunStatus,
    backend_of,
    decode,
    open_line,
    read_header,
    reading,
)
from optimizers.core.base import Optimizer
from optimizers.core.events import AttemptEnded, Event, Measured
from optimizers.core.study import Study
from optimizers.core.study_state import ValueRule
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.space.search_space import SearchSpace

_log = logging.getLogger(__name__)

MOST = 200_000
"""Events and measured values that a backlog keeps (about 20 MB)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event of a run."""

    number: int  # of its record in the journal
    event: Event  # the end of an attempt has the trial's configuration
    value: float | None  # the trial's value at that time, if the event is the end of an attempt
    time: float  # Unix time
    is_point: bool = True  # whether measurements belong to the trial's curve, unlike a result that was returned early


def entry_of(number: int, event: Event, value: float | None, study: Study, now: float) -> Entry:
    """Return an entry whose event shares nothing with the study, which has applied it.

    ``now`` is the time of an event that has none.
    """
    trial = study.trials[event.trial]
    is_point = not (isinstance(event, Measured) and event.returned and trial.reported is not None)
    if isinstance(event, AttemptEnded):
        event = msgspec.structs.replace(event, config=trial.config)
    return Entry(number, copied(event), value, getattr(event, "time", now), is_point)


def copied(event: Event) -> Event:
    """Return a copy of an event that shares nothing with it, so that a callback cannot change what others get."""
    own = {name: _own(value) for name, value in msgspec.structs.asdict(event).items()}
    return msgspec.structs.replace(event, **own)


_ATOMS = frozenset({bool, float, int, str, type(None)})
"""Types of values that nobody can change. Most lists are the columns of measurements, and have only these."""


def _own(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _own(each) for key, each in value.items()}
    if isinstance(value, list):
        return [*value] if _ATOMS.issuperset(map(type, value)) else [_own(each) for each in value]
    return tuple(map(_own, value)) if type(value) is tuple else value


class Backlog:
    """Keeps the newest events of a run for any number of cursors. Adding one never waits."""

    def __init__(self, again: Callable[[int], Iterator[Sequence[Entry]]], after: int = 0, most: int = MOST) -> None:
        self.again = again  # yields all entries of the journal after a number, in parts
        self.after = after  # number of the last record before the first entry
        self.count = self.dropped = 0  # entries that were ever added, and the oldest ones of them, which were dropped
        self.is_closed = self.is_read = False  # whether no more entries come, and whether there is a cursor
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

    def kept(self, position: int) -> list[Entry] | None:
        """Return the entries from a position on. None if some of them were dropped."""
        with self.changed:
            if position < self.dropped:
                return None
            newest_first = list(itertools.islice(reversed(self._entries), self.count - position))
        return newest_first[::-1]  # found from the end, since most cursors lack only the last of many entries


def _size(event: Event) -> int:
    return sum(len(steps) for steps, _ in event.columns.values()) if isinstance(event, Measured) else 1


class Cursor:
    """The place of one follower in the events of a run."""

    def __init__(self, backlog: Backlog) -> None:
        self.lost = 0  # entries that the follower can no longer get
        self.in_hand = 0  # entries that were taken, and that the follower has not passed on; it counts them
        backlog.is_read = True
        self._backlog = backlog
        self._position = 0
        self._number = backlog.after  # of the last entry that was taken
        self._parts: Iterator[Sequence[Entry]] | None = None

    @property
    def left(self) -> int:
        """Number of entries that were not passed on."""
        return self.in_hand + self._backlog.count - self._position

    @property
    def is_over(self) -> bool:
        """Whether all entries were taken and no more come."""
        return self._backlog.is_closed and self._position == self._backlog.count

    def take(self, interval: float = 0.0) -> list[Entry]:
        """Wait for entries, collect more of them for an interval, and return them.

        There are none only if no more come, or if the journal cannot be read.
        """
        with self._backlog.changed:
            self._backlog.changed.wait_for(lambda: self._position < self._backlog.count or self._backlog.is_closed)
        self.pause(interval)
        entries = self._backlog.kept(self._position)
        if entries is None:
            entries = self._read_back()
        else:
            self._parts = None
        self.in_hand = len(entries)
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


def replay(contents: Contents, optimizer: Optimizer) -> StateMachine:
    """Replay a journal into a state machine. Damage is repaired in memory, and the optimizer is not asked."""
    header = contents.header
    study = Study(
        SearchSpace.from_json(header.space),
        optimizer,
        direction=header.directions,
        objectives=header.metrics,
        value=cast(ValueRule, header.value),
        max_budget=header.max_budget,
    )
    machine = StateMachine(study)
    events: Iterable[Event] = contents.events
    if contents.damage:
        from maggy_like.storage.journal.repair import Repairer

        events = Repairer(study, contents.events).events()
    for event in events:
        machine.replay([event])
    return machine


class JournalReader:
    """Reads what a driver appends to a journal, in this process or another one, and replays it."""

    def __init__(self, backend: JournalBackend) -> None:
        self._backend = backend
        self._mark = Mark()
        self._given = 0
        self._now = time.time()
        self.contents = Contents(read_header(backend))  # as of the last read, without the events
        self.machine = replay(self.contents, RandomSearch())

    @property
    def ended(self) -> RunStatus | None:
        """How the run ended. None while it has not."""
        return self.contents.ended

    def look(self) -> Iterator[Sequence[Entry]]:
        """Yield the events since the last call in parts of some MiB. The first call yields all events.

        It ends with the first small part, so that a driver that writes all the time does not keep the reader forever.
        """
        size = BLOCK
        while size >= BLOCK // 2:
            with reading(self._backend):
                added = self._backend.added(self._mark)
            size = len(added[0]) if added is not None else 0
            if added is not None and not size:
                return
            entries = None if added is None else self._take(added[0])
            if added is None or entries is None:
                entries = self._read_again()
            else:
                self._mark = added[1]
            self._given += len(entries)
            if entries:
                yield entries

    def _take(self, lines: bytes) -> list[Entry] | None:
        """Take added lines. Return None if they do not continue what is known."""
        entries = []
        for found in map(open_line, lines.splitlines()):
            before = self.contents.last
            if found is None or (before and found[0] != before + 1) or isinstance(found[1], RunHeader) == bool(before):
                return None
            self.contents.last, record = found
            if isinstance(record, RunHeader):
                continue
            self.contents.take(record)
            if not isinstance(record, RunStatus):
                entries.append(self._replay(self.contents.last, record))
        self.contents.events = []
        return entries

    def _replay(self, number: int, event: Event) -> Entry:
        self.machine.replay([event])
        value = self.machine.study.trials[event.trial].value if type(event) is AttemptEnded else None
        self._now = getattr(event, "time", self._now)
        return entry_of(number, event, value, self.machine.study, self._now)

    def _read_again(self) -> list[Entry]:
        """Read the whole journal, which is damaged, or has replaced a damaged one. Return the events that are new."""
        parts, self._mark = [], Mark()
        with reading(self._backend):
            while (added := self._backend.added(self._mark)) is not None and added[0]:
                parts.append(Part(self._backend.name, added[0]))
                self._mark = added[1]
        if not parts:
            raise JournalError(f"there is no journal in {self._backend.name}; use the directory of a run")
        self.contents = contents = decode(parts)
        events, known = contents.events, len(contents.events) if contents.damage else self._given
        contents.events = events[:known]
        self.machine = replay(contents, RandomSearch())
        # The values between the events of a damaged journal are unknown, and so are the numbers of its records.
        study, last = self.machine.study, contents.last - len(events)
        entries = [
            entry_of(last + place, event, None, study, self._now)
            for place, event in enumerate(events[self._given : known], self._given + 1)
        ]
        for place, event in enumerate(events[known:], known + 1):
            entries.append(self._replay(last + place, event))
        contents.events = []
        return entries


def read_after(journal: str, number: int) -> Iterator[Sequence[Entry]]:
    """Yield the events of a journal after a record, in parts of some MiB."""
    reader, last = JournalReader(backend_of(journal)), -1
    while reader.contents.last > last:  # a look that reads nothing has reached the end
        last = reader.contents.last
        for entries in reader.look():
            if later := [entry for entry in entries if entry.number > number]:
                yield later
