"""The events of a run from its journal, whoever writes it, each with the trial's value as of the event."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

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
from maggy_like.trackers.backlog import Entry, copied
from optimizers.core.base import Optimizer
from optimizers.core.events import AttemptEnded, Event, Measured
from optimizers.core.study import Study
from optimizers.core.study_state import ValueRule
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.space.search_space import SearchSpace


def replay(contents: Contents, optimizer: Optimizer) -> StateMachine:
    """Replay a journal into a state machine. Damage is repaired in memory.

    Args:
        contents: Contents of the journal.
        optimizer: Optimizer whose scheduler receives the trials. It is not asked for proposals.

    Raises:
        JournalError: The journal is damaged beyond repair.
    """
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


def entry_of(number: int, event: Event, value: float | None, study: Study, now: float) -> Entry:
    """Return an entry whose event shares nothing with the study.

    Args:
        number: Number of the event in the journal.
        event: The event, which the study has applied.
        value: The trial's value at the end of an attempt.
        study: The study.
        now: Unix time of an event that has none.
    """
    trial = study.trials[event.trial]
    is_point = not (isinstance(event, Measured) and event.returned and trial.reported is not None)
    if isinstance(event, AttemptEnded):
        event = msgspec.structs.replace(event, config=trial.config)
    return Entry(number, copied(event), value, getattr(event, "time", now), is_point)


class JournalReader:
    """Reads what a driver appends to a journal, in this process or another one, and replays it.

    Args:
        backend: Backend of the journal, which must exist.

    Attributes:
        contents: Contents of the journal as of the last read, without its events.
        machine: The state machine as of the last read.

    Raises:
        JournalError: The journal cannot be read.
    """

    def __init__(self, backend: JournalBackend) -> None:
        self._backend = backend
        self._mark = Mark()
        self._given = 0
        self._now = time.time()
        self.contents = Contents(read_header(backend))
        self.machine = replay(self.contents, RandomSearch())

    @property
    def ended(self) -> RunStatus | None:
        """How the run ended. None while it has not."""
        return self.contents.ended

    def look(self) -> Iterator[Sequence[Entry]]:
        """Yield the events since the last call in parts of some MiB. The first call yields all events.

        It ends with the first small part, so that a driver that writes all the time does not keep the reader forever.

        Raises:
            JournalError: The journal cannot be read.
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
            raise JournalError(f"there is no journal in {self._backend.name}; use the folder of a run")
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
    """Yield the events of a journal after a record, in parts of some MiB.

    Args:
        journal: Folder of the journal.
        number: Number of the record.

    Raises:
        JournalError: The journal cannot be read.
    """
    reader, last = JournalReader(backend_of(journal)), -1
    while reader.contents.last > last:  # a look that reads nothing has reached the end
        last = reader.contents.last
        for entries in reader.look():
            if later := [entry for entry in entries if entry.number > number]:
                yield later
