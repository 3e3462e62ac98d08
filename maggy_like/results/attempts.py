"""Who ran what when: the attempts of a run, from its journal."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from maggy_like.storage.journal import Contents
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured
from optimizers.core.trial import Failure, TrialState


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a trial.

    Attributes:
        trial: The trial's number.
        number: Which of its attempts, from 1.
        workers: The indices of those that ran it, by rank.
        begin: Seconds since the run began; the time in which no driver had the run does not count.
        end: The same; of an attempt that goes on, or was never ended, the last moment known.
        state: What the trial was after it; ``running`` where it was not ended.
        steps: The step before its first measurement, and that of its last.
        failure: Why it failed, or was lost.
    """

    trial: int
    number: int
    workers: tuple[int, ...]
    begin: float
    end: float
    state: TrialState = TrialState.RUNNING
    steps: tuple[int, int] = (0, 0)
    failure: Failure | None = None


@dataclass(frozen=True)
class Clock:
    """Seconds of a run, from the Unix times of its events: only the time counts in which a driver had it.

    Args:
        sessions: When each driver had it (see :attr:`~maggy_like.storage.journal.Contents.sessions`).
    """

    sessions: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, time: float) -> float:
        """Seconds since the run began."""
        index = bisect_right(self.sessions, (time, float("inf"))) - 1
        if index < 0:
            return 0.0 if self.sessions else time
        begin, end = self.sessions[index]
        return self._before(index) + min(time, end) - begin

    @property
    def seams(self) -> list[float]:
        """When later drivers took the run up, in seconds since it began."""
        return [self._before(index) for index in range(1, len(self.sessions))]

    @property
    def total(self) -> float:
        """Seconds in which a driver had the run."""
        return self._before(len(self.sessions))

    def _before(self, index: int) -> float:
        return sum(end - begin for begin, end in self.sessions[:index])


def clock_of(contents: Contents) -> Clock:
    """The clock of a run. Where the record of its beginning is lost, its first event stands for it."""
    if contents.sessions:
        return Clock(contents.sessions)
    times = [event.time for event in contents.events if isinstance(event, AttemptStarted | AttemptEnded)]
    return Clock([(min(times), max(times))] if times else [])


def attempts_of(contents: Contents) -> list[Attempt]:
    """The attempts of a run, in the order in which they began."""
    return read_attempts(contents.events, clock_of(contents))


def read_attempts(events: Iterable[Event], clock: Clock) -> list[Attempt]:
    """The attempts that events tell of."""
    found: list[Attempt] = []
    current: dict[int, int] = {}  # by trial: where its newest attempt is in the list
    reached: dict[int, int] = {}
    for event in events:
        match event:
            case AttemptStarted():
                begin, step = clock(event.time), reached.get(event.trial, 0)
                if (lost := current.get(event.trial)) is not None:  # of a driver that was killed
                    found[lost] = replace(found[lost], end=begin, steps=(found[lost].steps[0], step))
                current[event.trial] = len(found)
                workers = (event.worker, *event.others)
                found.append(Attempt(event.trial, event.attempt, workers, begin, clock.total, steps=(step, step)))
            case Measured(columns=columns):
                steps = [column[0][-1] for column in columns.values() if column[0]]
                reached[event.trial] = max([reached.get(event.trial, 0), *steps])
            case AttemptEnded() if event.trial in current:
                place = current.pop(event.trial)
                begun = found[place]
                found[place] = replace(
                    begun,
                    end=max(begun.begin, clock(event.time)),
                    state=event.state,
                    failure=event.failure,
                    steps=(begun.steps[0], reached.get(event.trial, begun.steps[0])),
                )
    for place in current.values():
        begun = found[place]
        found[place] = replace(begun, steps=(begun.steps[0], reached.get(begun.trial, begun.steps[0])))
    return found
