"""The displays, callbacks and trackers that follow a run, each with its own thread.

A follower reads the run at its own pace. If it is slow, hangs or fails, only it falls behind: the supervision of the
workers, Ctrl-C and the other followers never wait for it. With ``engine="inline"``, displays and callbacks have no
threads, since the training function runs in the caller's thread, perhaps under a debugger. They run between two trials
then.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from maggy_like.display import Display, make_display
from maggy_like.display.base import LogLine, Snapshot
from maggy_like.display.lines import LineBuffer, missed_note
from maggy_like.driver.settings import FileSettings
from maggy_like.driver.stream import Backlog, Cursor, Entry, copied
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.state_names import state_url
from maggy_like.trackers.base import Listener, Session, TrackedEnd, TrackedRun, Tracker, TrackerUnavailable
from maggy_like.train_function.code import name_of
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import Trial, TrialState

_log = logging.getLogger(__name__)

DISPLAY_PERIOD = 0.1
"""Seconds between two updates of a display."""

DISPLAY_PATIENCE = 5.0
"""Seconds that a display gets to show the end of a run."""

FUNCTION_PATIENCE = 30.0
"""Seconds that a callback gets after the end of a run for the events that it has not received."""

INTERRUPTED_PATIENCE = 3.0
"""Seconds that a callback gets after Ctrl-C."""

_POLL = 0.1
"""Seconds between two checks whether the user still waits for a follower."""


class Source(Protocol):
    """A run as its followers read it: from the memory of its driver, or from its files."""

    backlog: Backlog
    lines: LineBuffer
    snapshot: Snapshot

    @property
    def study(self) -> Study:
        """The study as it is now."""


class Say(Protocol):
    """Logs a line, with the traceback of an error, and shows it on the displays, which may be silent."""

    def __call__(self, text: str, error: Exception | None = None) -> None: ...


def _started(follow: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread in the caller's context, so that a notebook shows its output in the caller's cell."""
    within = contextvars.copy_context().run
    thread = threading.Thread(target=within, args=[follow], name=name, daemon=True)
    thread.start()
    return thread


def _has_ended(thread: threading.Thread, deadline: float, is_hurried: Callable[[], bool]) -> bool:
    """Wait for the end of a thread, and return whether it has ended."""
    while thread.is_alive():
        thread.join(_POLL)
        if thread.is_alive() and (is_hurried() or time.monotonic() > deadline):
            return False
    return True


class DisplayFollower:
    """Shows a run on a display. Without a thread, :meth:`look` updates it."""

    def __init__(self, display: Display, source: Source, *, in_thread: bool) -> None:
        self._display = display
        self._source = source
        self._next = 0  # number of the next log line
        self._has_failed = False
        self._is_closed = threading.Event()
        self._thread = _started(self._follow, "maggy-display") if in_thread else None
        if not in_thread:
            self._start()

    def look(self) -> None:
        """Update the display if it has no thread."""
        if self._thread is None:
            self._update()

    def finish(self, is_hurried: Callable[[], bool]) -> None:
        """Show the end of the run."""
        self._is_closed.set()
        if self._thread is None:
            self._update(is_last=True)
        elif not _has_ended(self._thread, time.monotonic() + DISPLAY_PATIENCE, is_hurried):
            _log.warning("%s has not shown the end of the run: its output blocks", type(self._display).__name__)

    def _follow(self) -> None:
        self._start()
        while not self._is_closed.wait(DISPLAY_PERIOD):
            self._update()
        self._update(is_last=True)

    def _start(self) -> None:
        self._show(lambda: self._display.start(self._source.snapshot))

    def _update(self, *, is_last: bool = False) -> None:
        lines, missed, self._next = self._source.lines.read(self._next)
        show = self._display.finish if is_last else self._display.update
        self._show(lambda: show(self._source.snapshot, missed_note(missed) + lines))

    def _show(self, show: Callable[[], None]) -> None:
        """Show something. If that fails, continue with plain lines. If those fail too, show nothing more."""
        try:
            show()
        except Exception as error:
            _log.warning("the display failed: %s: %s", type(error).__name__, error, exc_info=True)
            self._display = make_display("silent" if self._has_failed else "plain")
            if not self._has_failed:
                self._has_failed = True
                self._start()


class FunctionFollower:
    """Calls a function with each event. Without a thread, :meth:`look` calls it.

    ``stop`` ends the run because the function raised a KeyboardInterrupt or a SystemExit.
    """

    def __init__(
        self,
        function: Callable[[Event], None],
        cursor: Cursor,
        say: Say,
        stop: Callable[[BaseException], None],
        *,
        in_thread: bool,
    ) -> None:
        self._function = function
        self._cursor = cursor
        self._say = say
        self._stop = stop
        self._is_out = False
        self._thread = _started(self._follow, "maggy-callback") if in_thread else None

    def look(self) -> None:
        """Call the function if it has no thread."""
        while self._thread is None and self.is_behind:
            self._call_all()

    @property
    def is_behind(self) -> bool:
        """Whether the function has events to receive."""
        return not self._is_out and bool(self._cursor.left)

    def finish(self, directory: str, deadline: float, is_hurried: Callable[[], bool]) -> None:
        """Pass the remaining events to the function, and report what it missed. No more events come."""
        self.look()
        if self._thread is not None:
            _has_ended(self._thread, deadline, is_hurried)
        if not self._is_out and (missed := self._cursor.lost + self._cursor.left):
            again = f"load_run({directory!r}).watch(callbacks=[...]) passes all events again"
            self._say(f"callback {described(self._function)} is slow and has missed {missed} events; {again}")

    def _follow(self) -> None:
        while not (self._is_out or self._cursor.is_over):
            self._call_all()

    def _call_all(self) -> None:
        for entry in self._cursor.take():
            if self._is_out:
                return
            self._call(copied(entry.event))
            self._cursor.in_hand -= 1

    def _call(self, event: Event) -> None:
        try:
            self._function(event)
        except (KeyboardInterrupt, SystemExit) as error:
            self._stop(error)
        except Exception as error:
            self._is_out = True
            failed = f"callback {described(self._function)} raised {type(error).__name__}: {error}"
            self._say(f"{failed}; it gets no more events, and the search continues", error)


def described(function: Callable[[Event], None]) -> str:
    """Return the name of a function with its file and line."""
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    where = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code is not None else ""
    return f"{name_of(function)}{where}"


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

    end: TrackedEnd | None = None
    """The end of the run, to be set before the backlog is closed."""

    def __init__(self, tracker: Tracker, run: TrackedRun, cursor: Cursor, say: Say) -> None:
        self.patience = tracker.patience
        self._tracker = tracker
        self._run = run
        self._cursor = cursor
        self._say = say
        self._error = ""
        self._is_down = False
        self._is_through = False  # nothing is left to report: it has received everything, or has rejected the run
        self._asked_at = math.inf  # start of the present call of the tracker; inf without one
        self._again = f"use load_run({run.directory!r}).watch(callbacks=[...]) to send all events again"
        self._session: Session | None = None
        self._thread = _started(self._follow, f"maggy-{tracker.name}")

    def look(self) -> None:
        """Report a tracker that has not answered for long."""
        if self.end is None and not self._is_down and time.monotonic() - self._asked_at > SAID_AFTER:
            self._is_down = True
            self._say(f"{self._tracker.name} has not answered for {SAID_AFTER:.0f} s; the run continues meanwhile")

    def finish(self, deadline: float, is_hurried: Callable[[], bool]) -> None:
        """Wait until the tracker has received everything or has given up; report what it has not received.

        The wait ends early for a tracker that has taken nothing during a fraction of its patience, counted also before
        the end of the run: it hangs, or its client retries. Two cases have the full time: the end of the run itself,
        because it copies a state, and a tracker without a server, because MLflow takes seconds to create its database.
        """
        silence = SILENCE * self.patience if self._tracker.is_remote else math.inf
        is_late = not _has_ended(
            self._thread, deadline, lambda: is_hurried() or time.monotonic() - self._asked_at > silence
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
        assert self.end is not None
        session.close(self.end, time.time())

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
                is_last = self.end is not None
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


class Followers:
    """The displays, callbacks and trackers of a run. None of them can change the run or slow it down.

    Trackers and callbacks start at once, while the study must not change. ``stop`` ends the run because a function
    raised a KeyboardInterrupt or a SystemExit. Without threads, :meth:`look` updates the displays and callbacks.
    """

    def __init__(
        self,
        source: Source,
        callbacks: Sequence[Listener],
        stop: Callable[[BaseException], None],
        files: FileSettings,
        optimizer: str,
        *,
        in_threads: bool,
    ) -> None:
        self._source = source
        self._paths = paths = files.paths
        self._in_threads = in_threads
        self._displays: list[DisplayFollower] = []
        self._keeps_lines = False
        self._functions = [
            FunctionFollower(each, Cursor(source.backlog), self._say, stop, in_thread=in_threads)
            for each in callbacks
            if not isinstance(each, Tracker)
        ]
        self._trackers: list[TrackerFollower] = []
        if tracking := [each for each in callbacks if isinstance(each, Tracker)]:
            history = tuple(map(copied, history_of(source.study.trials)))
            settings = _settings(optimizer, source.study)
            run = TrackedRun(files.name, str(paths.directory), settings, files.resume, history)
            self._trackers = [TrackerFollower(each, run, Cursor(source.backlog), self._say) for each in tracking]

    def show_on(self, displays: Sequence[Display]) -> None:
        """Start the displays."""
        self._keeps_lines = any(each.keeps_lines for each in displays)
        self._displays = [DisplayFollower(each, self._source, in_thread=self._in_threads) for each in displays]

    def look(self) -> None:
        """Update the followers without a thread, and report trackers that do not answer."""
        followers: list[FunctionFollower | TrackerFollower | DisplayFollower]
        followers = [*self._functions, *self._trackers, *self._displays]
        for follower in followers:
            follower.look()

    @property
    def are_behind(self) -> bool:
        """Whether a function has events to receive."""
        return any(function.is_behind for function in self._functions)

    def finish(self, ending: Ending, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Pass the remaining events and the end of the run on, and wait for each follower up to its patience."""
        end = self._end(ending)
        for tracker in self._trackers:
            tracker.end = end
        self._source.backlog.close()
        began = time.monotonic()
        patience = INTERRUPTED_PATIENCE if ending is Ending.INTERRUPTED else FUNCTION_PATIENCE
        for function in self._functions:
            function.finish(str(self._paths.directory), began + patience, is_hurried)
        for tracker in self._trackers:
            tracker.finish(began + tracker.patience, is_hurried)
        for display in self._displays:
            display.finish(is_hurried)

    def _end(self, ending: Ending) -> TrackedEnd:
        study = self._source.study
        best = study.best
        saved = None if best is None else best.saved(newest=study.value_rule == "last")
        url = None if saved is None else state_url(self._paths.store, saved.name)
        objective = (best.objective if best is not None else None) or "value"
        confirmed = None
        if study.repeats:
            from optimizers.comparisons.confirmation import recommended  # for confirmations only

            confirmed = recommended(study)
        return TrackedEnd(ending, objective, best, url, confirmed)

    def _say(self, text: str, error: Exception | None = None) -> None:
        """Show a problem as a line, and log it, since the display may be silent; but print it only once."""
        if self._keeps_lines and _is_printed(_log):
            text = "\n".join([text, *traceback.format_exception(error)]) if error is not None else text
        else:
            _log.warning("%s", text, exc_info=error)
        self._source.lines.append(LogLine(None, text))


def _is_printed(logger: logging.Logger) -> bool:
    """Return whether warnings of a logger are printed on stdout or stderr, as they are without any handler."""
    if not logger.hasHandlers():
        return True
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)  # a live display replaces the first two
    printed = any(isinstance(each, logging.StreamHandler) and each.stream in streams for each in logger.handlers)
    return printed or (logger.propagate and logger.parent is not None and _is_printed(logger.parent))


def _settings(optimizer: str, study: Study) -> Mapping[str, str]:
    """Return a run's settings as trackers record them."""
    problem = study.problem
    settings = {"optimizer": optimizer, "seed": str(problem.seed), "max_budget": str(problem.max_budget)}
    if problem.n_trials is not None:
        settings["n_trials"] = str(problem.n_trials)
    return settings | {f"space.{key}": repr(domain) for key, domain in problem.space.domains.items()}
