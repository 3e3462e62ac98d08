"""The base class of trackers, what they receive, and the thread that passes the events of a run to one."""

from __future__ import annotations

import abc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from maggy_like.argument_checks import real
from maggy_like.driver.followers import FollowedRun, has_ended, started
from maggy_like.driver.stream import Entry, copied
from maggy_like.errors import ConfigError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.state_names import state_url
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import Trial, TrialState


@dataclass(frozen=True)
class TrackedRun:
    """A run that starts or resumes.

    Attributes:
        name: Name of the run.
        directory: Directory of the run, a path or a URL as text.
        settings: Settings of the run, for people: optimizer, seed, limits, and each domain of the space.
        is_resumed: Whether the run was started earlier. If so, the tracker continues its record.
        history: Events that describe what happened earlier.
    """

    name: str
    directory: str
    settings: Mapping[str, str]
    is_resumed: bool = False
    history: tuple[Event, ...] = ()


@dataclass(frozen=True)
class TrackedEnd:
    """A run that ends.

    Attributes:
        ending: How it ended.
        objective: Name of the optimized metric.
        best: Best trial, if there is one.
        best_state: URL of the state saved at the best value, if there is one.
        confirmed: Trial that its repeats with other seeds recommend, and their mean value, if there were any.
        files: URL of the directory with the files of trials.
    """

    ending: Ending
    objective: str
    best: Trial | None = None
    best_state: str | None = None
    confirmed: tuple[Trial, float] | None = None
    files: str = ""


class TrackerUnavailable(Exception):
    """The tracker's service does not answer now, but may later. The same call is repeated."""


class Session(abc.ABC):
    """The record of one run at a tracker. All methods are called in one thread, which is the tracker's own.

    If a method raises an error other than :class:`TrackerUnavailable`, the event is counted as refused and left out.
    """

    @abc.abstractmethod
    def record(self, event: Event, now: float) -> None:
        """Record an event. It may be repeated after a :class:`TrackerUnavailable`.

        Args:
            event: Event of the study. The measurements of a trial come together, from many reports. The value of an
                ``AttemptEnded`` is the trial's value.
            now: Unix time of the event.
        """

    @abc.abstractmethod
    def close(self, end: TrackedEnd, now: float) -> None:
        """Record the end of the run."""


class Tracker(abc.ABC):
    """Record runs elsewhere. Subclass it to support another service.

    One tracker may record several runs, also at the same time.

    Attributes:
        name: Name of the tracker in messages.
        patience: Seconds that the end of a run waits for the tracker.

    Example:
        >>> class Lines(Tracker):
        ...     name = "lines"
        ...     patience = 5.0
        ...
        ...     def open(self, run):
        ...         return LineSession(run.name)  # a subclass of maggy_like.trackers.base.Session
    """

    name: str
    patience: float

    @property
    def is_remote(self) -> bool:
        """Whether it contacts a server. If so, the end of a run waits less for a silent one."""
        return True

    @abc.abstractmethod
    def check(self, directory: str) -> None:
        """Check that the tracker can be used, without contacting a server.

        Args:
            directory: Directory of the run, a path or a URL.

        Raises:
            UserError: A package or a setting is missing.
        """

    def prepare(self, directory: str) -> None:
        """Check the tracker and its patience. Called before the run starts."""
        self.check(directory)
        if (given := real(self.patience)) is None or not 0 <= given < math.inf:
            name = type(self).__name__
            raise ConfigError(f"patience must be seconds from 0 on, got {name}(patience={self.patience!r}); use 30.0")

    def follow(self, run: FollowedRun) -> TrackerFollower:
        """Start to record a run, in a thread of its own."""
        return TrackerFollower(self, run)

    @abc.abstractmethod
    def open(self, run: TrackedRun) -> Session:
        """Begin to record a run. Called in the tracker's thread, and again after a :class:`TrackerUnavailable`.

        Args:
            run: Description of the run.

        Returns:
            The session that receives the run's events.
        """


def plain(value: Any) -> str:
    """Return the value of a parameter as text."""
    return value if isinstance(value, str) else repr(value)


INTERVAL = 1.0
"""Seconds for which measurements are collected before a tracker receives them."""

PAUSES = (1.0, 10.0)
"""Seconds between two tries of a failed call: the first pause and the longest."""

EVENT_PATIENCE = 300.0
"""Seconds after which an event that fails repeatedly is left out, in case only this one fails."""

SILENCE = 1 / 3
"""Fraction of a tracker's patience after which the end of a run no longer waits for a silent tracker."""

SAID_AFTER = 15.0
"""Seconds after which a note reports that a tracker does not answer, while its client still tries."""

_LONGEST = 300
"""Characters of an error that a note quotes."""


class TrackerFollower:
    """Passes the events of a run to a tracker, always in a thread of its own."""

    def __init__(self, tracker: Tracker, run: FollowedRun) -> None:
        files, study = run.files, run.source.study
        directory, history = str(files.paths.directory), tuple(map(copied, history_of(study.trials)))
        self._run = TrackedRun(files.name, directory, _settings(run.optimizer, study), files.resume, history)
        self._source = run.source
        self._store, self._files = files.paths.store, files.paths.files
        self._tracker = tracker
        self._cursor = run.cursor
        self._say = run.say
        self._end: TrackedEnd | None = None
        self._error = ""
        self._is_down = False
        self._is_through = False  # nothing is left to report: it has received everything, or has rejected the run
        self._asked_at = math.inf  # start of the present call of the tracker; inf without one
        self._again = f"use load_run({directory!r}).watch(callbacks=[...]) to send all events again"
        self._session: Session | None = None
        self._thread = started(self._follow, f"maggy-{tracker.name}")

    def look(self) -> None:
        """Report a tracker that has not answered for long."""
        if self._end is None and not self._is_down and time.monotonic() - self._asked_at > SAID_AFTER:
            self._is_down = True
            self._say(f"{self._tracker.name} has not answered for {SAID_AFTER:.0f} s; the run continues meanwhile")

    def run_ended(self, ending: Ending) -> None:
        """Take in how the run ended."""
        study = self._source.study
        best = study.best
        saved = None if best is None else best.saved(newest=study.value_rule == "last")
        url = None if saved is None else state_url(self._store, saved.name)
        objective = (best.objective if best is not None else None) or "value"
        confirmed = None
        if study.repeats:
            from optimizers.comparisons.confirmation import recommended  # for confirmations only

            confirmed = recommended(study)
        self._end = TrackedEnd(ending, objective, best, url, confirmed, self._files)

    def finish(self, began: float, is_hurried: Callable[[], bool]) -> None:
        """Wait until the tracker has received everything or has given up; report what it has not received.

        The wait ends early for a tracker that has taken nothing during a fraction of its patience, counted also before
        the end of the run: it hangs, or its client retries. Two cases have the full time: the end of the run itself,
        because it copies a state, and a tracker without a server, because MLflow takes seconds to create its database.
        """
        silence = SILENCE * self._tracker.patience if self._tracker.is_remote else math.inf
        is_late = not has_ended(
            self._thread,
            began + self._tracker.patience,
            lambda: is_hurried() or time.monotonic() - self._asked_at > silence,
        )
        if self._is_through:
            return
        missed = self._cursor.lost + self._cursor.left
        silent = time.monotonic() - self._asked_at
        slow = f"it has not answered for {silent:.0f} s" if silent >= 1 else "it is slow"
        why = self._error or (slow if is_late else "")
        what = f"{missed} of the run's events" if missed else "the end of the run"
        self._say(f"{self._tracker.name} did not receive {what}{f' ({why})' if why else ''}; {self._again}")

    def _follow(self) -> None:
        if not self._told(self._open, math.inf):
            return  # the run has ended meanwhile
        if (session := self._session) is None:
            self._is_through = True
            self._say(f"{self._tracker.name} cannot record the run: {self._error}; {self._again}")
        elif self._told_all(session) and self._told(lambda: self._close(session), is_end=True):
            self._is_through = not self._cursor.lost

    def _open(self) -> None:
        self._session = self._tracker.open(self._run)

    def _close(self, session: Session) -> None:
        assert self._end is not None
        session.close(self._end, time.time())

    def _told_all(self, session: Session) -> bool:
        """Pass on all events, earlier ones first, and return whether the tracker answered."""
        waiting = [(event, getattr(event, "time", 0.0) or time.time()) for event in self._run.history]
        while waiting or not self._cursor.is_over:
            self._cursor.in_hand = len(waiting)
            for event, when in waiting:
                if not self._told(partial(session.record, event, when)):
                    return False
                self._cursor.in_hand -= 1
            waiting = [(entry.event, entry.time) for entry in tracked(self._cursor.take(INTERVAL))]
        return True

    def _told(self, tell: Callable[[], None], patience: float = EVENT_PATIENCE, *, is_end: bool = False) -> bool:
        """Call the tracker until it accepts or rejects the call, and return whether it answered.

        A tracker that does not answer is tried again, but only once after the run has ended.
        """
        began, pause = time.monotonic(), PAUSES[0]
        self._asked_at = math.inf if is_end else began
        try:
            while True:
                is_last = self._end is not None
                if self._has_answered(tell):
                    return True
                if is_last:
                    return False
                if not self._is_down:
                    self._is_down = True
                    self._say(f"{self._tracker.name} does not answer ({self._error}); the run continues meanwhile")
                if time.monotonic() - began > patience:
                    self._cursor.lost += 1
                    return True
                self._cursor.pause(pause)
                pause = min(2 * pause, PAUSES[1])
        finally:
            self._asked_at = math.inf

    def _has_answered(self, tell: Callable[[], None]) -> bool:
        try:
            tell()
        except TrackerUnavailable as error:
            self._error = _short(error)
            return False
        except Exception as error:  # of whatever library it is
            self._error = f"{type(error).__name__}: {_short(error)}"
            self._cursor.lost += 1
            return True
        if self._is_down:
            self._is_down, self._error = False, ""
        return True


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:_LONGEST]


def tracked(entries: Iterable[Entry]) -> list[Entry]:
    """Return copies of entries as trackers get them.

    The end of an attempt has the trial's value. The measurements of an attempt come together, until something else
    happens to its trial, and without those that do not belong to the trial's curve.
    """
    found: list[Entry] = []
    measured: dict[int, Measured] = {}  # by trial: measurements to which more may be added
    for entry in filter(lambda entry: entry.is_point, entries):
        event = copied(entry.event)
        if not isinstance(event, Measured):
            measured.pop(event.trial, None)
            if isinstance(event, AttemptEnded):
                event = msgspec.structs.replace(event, value=entry.value)
        elif (known := measured.get(event.trial)) is not None and known.attempt == event.attempt:
            for name, (steps, values) in event.columns.items():
                known_steps, known_values = known.columns.setdefault(name, ([], []))
                known_steps += steps
                known_values += values
            continue
        else:
            event = measured[event.trial] = Measured(event.trial, event.attempt, event.objective, event.columns)
        found.append(replace(entry, event=event))
    return found


def history_of(trials: Iterable[Trial]) -> Iterator[Event]:
    """Yield what is known of trials, as if each had had one attempt; unknown times are 0."""
    for trial in trials:
        yield TrialCreated(trial.id, trial.config, trial.ask, trial.parent, trial.training, trial.repeat)
        if not trial.attempt:
            continue
        worker, started = trial.worker or 0, trial.started or 0.0
        yield AttemptStarted(trial.id, trial.attempt, worker, trial.budget, started, trial.config)
        if columns := trial.columns():
            yield Measured(trial.id, trial.attempt, trial.objective or next(iter(columns)), columns)
        if trial.state is not TrialState.RUNNING:
            yield AttemptEnded(
                trial.id,
                trial.attempt,
                trial.state,
                started,
                trial.value,
                dict(trial.metrics),
                trial.failure,
                dict(trial.attributes),
                config=trial.config,
            )


def _settings(optimizer: str, study: Study) -> Mapping[str, str]:
    """Return a run's settings as trackers record them."""
    problem = study.problem
    settings = {"optimizer": optimizer, "seed": str(problem.seed), "max_budget": str(problem.max_budget)}
    if problem.n_trials is not None:
        settings["n_trials"] = str(problem.n_trials)
    return settings | {f"space.{key}": repr(domain) for key, domain in problem.space.domains.items()}
