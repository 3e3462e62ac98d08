"""Following a journal that another process writes."""

from __future__ import annotations

from maggy_like.errors import JournalError
from maggy_like.results.runs import replay
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
    """Reads what was added since it looked last.

    Args:
        backend: Where the journal is; there is one already.

    Attributes:
        contents: What it holds, except its events.
        machine: The state machine as of the last look.

    Raises:
        JournalError: It cannot be read.
    """

    def __init__(self, backend: JournalBackend) -> None:
        self._backend = backend
        self._mark = Mark()
        self._given = 0
        self._new: list[tuple[Event, float | None]] = []
        self.contents: Contents
        self._look_anew()

    @property
    def ended(self) -> RunStatus | None:
        """How the run ended; None while it has not."""
        return self.contents.ended

    def look(self) -> list[tuple[Event, float | None]]:
        """Return the events that were recorded since the last look, and the value of each one's trial as of then.

        The first time, all events are returned. The value is None unless the event is an :class:`AttemptEnded`.

        Raises:
            JournalError: The journal cannot be read.
        """
        with reading(self._backend):
            added = self._backend.added(self._mark)
        if added is None or not self._take(added[0]):
            self._look_anew()
        else:
            self._mark = added[1]
        new, self._new = self._new, []
        self._given += len(new)
        return new

    def _take(self, lines: bytes) -> bool:
        """Take in what was added; False if it does not follow on what is known."""
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

    def _look_anew(self) -> None:
        """Read all of it: for the first time, or since a repaired journal has replaced a damaged one."""
        with reading(self._backend):
            added = self._backend.added(Mark())
        if added is None or not added[0]:
            raise JournalError(f"there is no journal in {self._backend.name}; use the folder of a run")
        self.contents = contents = decode([Part(self._backend.name, added[0])])
        events, known = contents.events, len(contents.events) if contents.damage else self._given
        contents.events = events[:known]
        self.machine = replay(contents, RandomSearch())
        # Of a damaged journal, nobody knows the values in between.
        self._new = [(event, None) for event in contents.events[self._given :]]
        for event in events[known:]:
            self._replay(event)
        contents.events = []
        self._mark = added[1]
