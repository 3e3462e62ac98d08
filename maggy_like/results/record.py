"""What the journal of a run has beyond its result: who ran what when, and why."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from maggy_like.display.text import number
from maggy_like.errors import UserError
from maggy_like.protocol.messages import UNBOUNDED
from maggy_like.results.data import ResultData, check_created
from maggy_like.storage.journal import Contents, backend_of, read_journal, reading
from maggy_like.train_function.code import rerun_hint
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured, TrialCreated
from optimizers.core.trial import Failure, FailureKind, Trial, TrialState


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a trial."""

    trial: int
    number: int  # from 1
    workers: tuple[int, ...]  # indices of the workers that ran it, by rank
    begin: float  # seconds since the run began; time without a driver does not count
    end: float  # the same; the last known moment if no end is recorded
    state: TrialState = TrialState.RUNNING  # of the trial after the attempt; RUNNING if no end is recorded
    steps: tuple[int, int] = (0, 0)  # the step before its first measurement, and the step of its last one
    failure: Failure | None = None  # why it failed or was lost


@dataclass(frozen=True)
class Clock:
    """Converts the Unix times of events to seconds of the run. Only time with a driver counts."""

    sessions: list[tuple[float, float]] = field(default_factory=list)  # begin and end of each driver, as in Contents

    def __call__(self, time: float) -> float:
        """Return the seconds since the run began."""
        index = bisect_right(self.sessions, (time, float("inf"))) - 1
        if index < 0:
            return 0.0 if self.sessions else time
        begin, end = self.sessions[index]
        return self._before(index) + min(time, end) - begin

    @property
    def seams(self) -> list[float]:
        """When later drivers resumed the run, in seconds since it began."""
        return [self._before(index) for index in range(1, len(self.sessions))]

    @property
    def total(self) -> float:
        """Seconds with a driver."""
        return self._before(len(self.sessions))

    def _before(self, index: int) -> float:
        return sum(end - begin for begin, end in self.sessions[:index])


def clock_of(contents: Contents, *, is_live: bool = False) -> Clock:
    """Return the clock of a run. If the record of its beginning is lost, its first event takes that place.

    The last session ends at its last record, or now if its driver still has the run (``is_live``).
    """
    if contents.sessions:
        *earlier, (begin, end) = contents.sessions
        return Clock([*earlier, (begin, max(end, time.time()) if is_live else end)])
    times = [event.time for event in contents.events if isinstance(event, AttemptStarted | AttemptEnded)]
    return Clock([(min(times), max(times))] if times else [])


@dataclass(slots=True)
class _Began:
    """An attempt as its events have described it so far. Times are Unix times."""

    trial: int
    number: int
    workers: tuple[int, ...]
    begin: float
    end: float | None  # None while no end is known
    steps: tuple[int, int]
    state: TrialState = TrialState.RUNNING
    failure: Failure | None = None


class AttemptLog:
    """The attempts of a run, which learns of them from one event after the other."""

    def __init__(self) -> None:
        self._found: list[_Began] = []
        self._current: dict[int, _Began] = {}  # by trial: its newest attempt, until that ends
        self._reached: dict[int, int] = {}  # by trial: the step of its newest measurement

    def take(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case Measured(columns=columns):
                steps = [column[0][-1] for column in columns.values() if column[0]]
                self._reached[event.trial] = max([self._reached.get(event.trial, 0), *steps])
            case AttemptStarted():
                if (lost := self._current.get(event.trial)) is not None:  # of a driver that was killed
                    self._close(lost, event.time)
                step = self._reached.get(event.trial, 0)
                workers = (event.worker, *event.others)
                began = _Began(event.trial, event.attempt, workers, event.time, None, (step, step))
                self._current[event.trial] = began
                self._found.append(began)
            case AttemptEnded() if event.trial in self._current:
                began = self._current.pop(event.trial)
                self._close(began, event.time)
                began.state, began.failure = event.state, event.failure

    def attempts(self, clock: Clock) -> list[Attempt]:
        """Return the attempts so far, in the order in which they began."""
        return [self._read(began, clock) for began in self._found]

    def of_trial(self, trial: int, clock: Clock) -> list[Attempt]:
        """Return the attempts of one trial."""
        return [self._read(began, clock) for began in self._found if began.trial == trial]

    def _close(self, began: _Began, time: float) -> None:
        began.end, began.steps = time, (began.steps[0], self._reached.get(began.trial, began.steps[0]))

    def _read(self, began: _Began, clock: Clock) -> Attempt:
        begin, steps = clock(began.begin), began.steps
        if began.end is None:
            end, steps = clock.total, (steps[0], self._reached.get(began.trial, steps[0]))
        else:
            end = max(begin, clock(began.end))
        return Attempt(began.trial, began.number, began.workers, begin, end, began.state, steps, began.failure)


def read_attempts(events: Iterable[Event], clock: Clock) -> list[Attempt]:
    """Return the attempts that the events describe, in the order in which they began."""
    log = AttemptLog()
    for event in events:
        log.take(event)
    return log.attempts(clock)


@dataclass(frozen=True)
class Record:
    """A result and what its journal holds."""

    result: ResultData
    contents: Contents  # their events may be missing
    attempts: list[Attempt]  # in the order in which they began

    @cached_property
    def clock(self) -> Clock:
        """The run's clock."""
        return clock_of(self.contents)

    def rerun_hint(self, trial: int) -> str:
        """Return how to run a trial again under a debugger. Empty if its function is not known."""
        begun = self.contents.begun
        return "" if begun is None else rerun_hint(begun.function, str(self.result.directory), trial)

    @property
    def is_longer(self) -> bool:
        """Whether the run took longer than the clock says, because a killed driver recorded no end."""
        return self.result.is_longer

    @cached_property
    def ends(self) -> dict[int, float]:
        """By trial, when its last attempt ended, in seconds since the run began."""
        return {attempt.trial: attempt.end for attempt in self.attempts if attempt.state is not TrialState.RUNNING}

    @property
    def busy_share(self) -> float | None:
        """Share of the workers' time in which trials ran, from the first trial's start to the last one's end."""
        workers = {worker for attempt in self.attempts for worker in attempt.workers}
        begin = min((attempt.begin for attempt in self.attempts), default=0.0)
        end = max((attempt.end for attempt in self.attempts), default=0.0)
        busy = sum((attempt.end - attempt.begin) * len(attempt.workers) for attempt in self.attempts)
        return busy / (len(workers) * (end - begin)) if end > begin else None

    def ended(self, objective: int = 0) -> list[tuple[float, Trial, float]]:
        """Return when each trial with a finite value ended, the trial, and its value, in the order of time."""
        found = []
        for trial in self.result.trials:
            value = value_of(self.result, trial, objective)
            if value is not None and math.isfinite(value) and trial.id in self.ends:
                found.append((self.ends[trial.id], trial, value))
        return sorted(found, key=lambda each: each[0])


def value_of(result: ResultData, trial: Trial, objective: int = 0) -> float | None:
    """Return the trial's value of one objective."""
    if not result.others:
        return trial.value
    return trial.values[objective] if trial.values else None


def read_record(result: ResultData) -> Record:
    """Read the journal of a result's run, which must exist."""
    backend = backend_of(str(result.directory))
    with reading(backend):
        exists = backend.exists()
    if not exists:
        raise UserError(f"the run's journal is missing in {result.directory}; only the journal has the times of trials")
    contents = read_journal(backend)
    check_created(result, contents.header.created)
    return Record(result, contents, read_attempts(contents.events, clock_of(contents)))


def improvements(ended: list[tuple[float, Trial, float]], direction: str) -> list[tuple[float, Trial, float]]:
    """Return those that were better than all before them."""
    best: list[tuple[float, Trial, float]] = []
    for each in ended:
        if not best or (each[2] > best[-1][2] if direction == "max" else each[2] < best[-1][2]):
            best.append(each)
    return best


def decision_log(events: Iterable[Event]) -> list[str]:
    """Return one line per decision: why each trial was created, started, promoted, paused, stopped or retried."""
    log = DecisionLog()
    for event in events:
        log.take(event)
    decisions = log.read()
    begun = min((decision.time for decision in decisions), default=0.0)
    return [f"{each.time - begun:10.2f} s  trial {each.trial} {each.text}" for each in decisions]


class Decision(NamedTuple):
    """A line of the decision log."""

    time: float  # Unix time
    trial: int
    text: str


class DecisionLog:
    """The decisions of a run, which learns of them from one event after the other."""

    def __init__(self) -> None:
        self._times: list[float] = []  # Unix times of the lines
        self._lines: list[tuple[int, str]] = []  # their trials and texts
        self._ends: dict[int, AttemptEnded] = {}  # by trial, of its newest attempt
        self._measured: dict[int, tuple[int, float]] = {}  # by trial, its newest step and value

    def take(self, event: Event) -> None:
        """Take the next event."""
        self._lines += [(event.trial, text) for text in self._texts(event)]
        if isinstance(event, AttemptStarted | AttemptEnded):  # an earlier line without a time has that of this one
            self._times += [event.time] * (len(self._lines) - len(self._times))

    def read(self, trial: int | None = None) -> list[Decision]:
        """Return the decisions so far, of one trial or of all."""
        newest = max(self._times, default=0.0)
        times = self._times + [newest] * (len(self._lines) - len(self._times))
        lines = zip(times, self._lines, strict=True)
        return [Decision(time, of, text) for time, (of, text) in lines if trial in (None, of)]

    def _texts(self, event: Event) -> Iterator[str]:
        """Return the lines of an event. Measurements and checkpoints have none."""
        match event:
            case TrialCreated():
                yield f"is created: {_origin(event)}"
            case AttemptStarted():
                workers = f"{event.world_size} workers, first of them {event.worker}"
                who = f"worker {event.worker}" if event.world_size == 1 else workers
                until = f", up to step {event.budget}" if event.budget < UNBOUNDED else ""
                yield f"attempt {event.attempt} starts on {who}{until}{self._why(event)}"
            case Measured(trial=trial, objective=objective, columns=columns):
                if objective in columns:
                    steps, values = columns[objective]
                    self._measured[trial] = steps[-1], values[-1]
            case AttemptEnded():
                self._ends[event.trial] = event
                yield f"attempt {event.attempt} ends, {_outcome(event)}{self._reached(event.trial)}"

    def _why(self, event: AttemptStarted) -> str:
        before = self._ends.get(event.trial)
        if before is None:
            return ""
        if before.state is TrialState.PAUSED:
            why = "promoted"
        elif _is_interrupted(before):
            why = "continued after the interruption"
        else:
            why = "retried" + ("" if before.failure is None else f" after {before.failure.kind}")
        return f": {why}" + (f", since {event.cause}" if event.cause else "")

    def _reached(self, trial: int) -> str:
        if trial not in self._measured:
            return ""
        step, value = self._measured[trial]
        return f" (step {step}, value {number(value)})"


def _origin(event: TrialCreated) -> str:
    if event.repeat is not None:
        return f"repeats trial {event.repeat.of} with seed {event.config.get('seed')}, to confirm its value"
    if event.training:
        return f"the training, of {event.training} steps" if event.training < UNBOUNDED else "the training"
    if event.ask is None:
        return "given in points_to_evaluate"
    return f"proposal {event.ask} of the optimizer" + (
        "" if event.parent is None else f", from the state of trial {event.parent}"
    )


def _is_interrupted(event: AttemptEnded) -> bool:
    """Return whether an attempt ended because the run ended or its driver was lost."""
    return event.failure is not None and event.failure.kind is FailureKind.DRIVER_LOST


def _outcome(event: AttemptEnded) -> str:
    """Return how an attempt ended, and why."""
    if event.failure is not None and _is_interrupted(event):
        return f"interrupted: {event.cause or event.failure.message}"
    state = {TrialState.PENDING: "to be retried"}.get(event.state, event.state.value)
    failure = "" if event.failure is None else f"{event.failure.kind}: {event.failure.message}"
    why = "; ".join(part for part in (event.cause, failure) if part)
    return state + (f": {why}" if why else "")
