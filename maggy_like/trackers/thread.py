"""The thread of a tracker, so that a slow, failing or hanging tracker does not delay the run."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from maggy_like.trackers.backlog import MOST, Backlog, WaitingEvent
from maggy_like.trackers.base import Session, TrackedEnd, TrackedRun, Tracker, TrackerUnavailable
from optimizers.core.events import Event

INTERVAL = 1.0
"""Seconds for which measurements are collected before a tracker receives them."""

PAUSES = (1.0, 10.0)
"""Seconds between two tries of a failed call: the first pause and the longest."""

EVENT_PATIENCE = 300.0
"""Seconds after which an event that fails repeatedly is left out, in case only this one fails."""

POLL = 0.1
"""Seconds between two looks at whether the user still waits for a tracker."""

SILENCE = 1 / 3
"""Fraction of a tracker's patience after which the end of a run no longer waits for a silent tracker."""

SAID_AFTER = 15.0
"""Seconds after which a note reports that a tracker does not answer, while its client still tries."""

_LONGEST = 300
"""Characters of an error that a note quotes."""


class TrackerThread:
    """Passes the events of a run to a tracker.

    Args:
        tracker: Receives the events.
        run: Description of the run at its start.
        most: Maximum number of waiting events and measured values.
        interval: Seconds for which measurements are collected.
    """

    def __init__(self, tracker: Tracker, run: TrackedRun, *, most: int = MOST, interval: float = INTERVAL) -> None:
        self._tracker = tracker
        self._run = run
        self._backlog = Backlog(most)
        self._interval = interval
        self._notes: deque[str] = deque()
        self._error = ""
        self._left = 0  # events that were taken from the backlog, and not told
        self._lost = 0
        self._is_down = False
        self._asked_at = math.inf  # start of the present call of the tracker; inf without one
        self._session: Session | None = None
        self._end: TrackedEnd | None = None
        self._is_through = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"maggy-{tracker.name}", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Queue an event; never waits."""
        self._backlog.put(event)

    def take_notes(self) -> list[str]:
        """Return lines for the user since the last call."""
        if self._end is None and not self._is_down and time.monotonic() - self._asked_at > SAID_AFTER:
            self._is_down = True
            said = f"{self._tracker.name} has not answered for {SAID_AFTER:.0f} s; the run continues meanwhile"
            self._notes.append(said)
        return [self._notes.popleft() for _ in range(len(self._notes))]

    def finish(self, end: TrackedEnd) -> None:
        """Queue the end of the run; :meth:`wait` waits for the tracker."""
        self._end = end
        self._backlog.close()

    def wait(self, deadline: float, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Wait until the tracker has received everything or has given up; note what it has not received.

        The wait ends early for a tracker that has taken nothing during a fraction of its patience, counted also before
        the end of the run: it hangs, or its client retries. Two cases have the full time: the end of the run itself,
        because it copies a state, and a tracker without a server, because MLflow takes seconds to create its database.

        Args:
            deadline: Latest end of the wait on the clock of ``time.monotonic()``.
            is_hurried: Whether the user no longer wants to wait.
        """
        silence = SILENCE * self._tracker.patience
        while self._thread.is_alive() and time.monotonic() < deadline and not is_hurried():
            if self._tracker.is_remote and time.monotonic() - self._asked_at > silence:
                break
            self._thread.join(POLL)
        is_late = self._thread.is_alive()
        missing = self._lost + self._backlog.dropped + self._left + len(self._backlog)
        if not missing and self._is_through.is_set():
            return
        silent = time.monotonic() - self._asked_at
        slow = f"it has not answered for {silent:.0f} s" if silent >= 1 else "it is slow"
        why = self._error or (slow if is_late else "")
        what = f"{missing} of the run's events" if missing else "the end of the run"
        self._notes.append(
            f"{self._tracker.name} did not receive {what}{f' ({why})' if why else ''}; "
            f"use load_run({self._run.directory!r}).watch(callbacks=[...]) to send all events again"
        )

    def _serve(self) -> None:
        self._told(self._open, patience=math.inf)
        session = self._session
        if session is None:
            self._notes.append(f"{self._tracker.name} cannot record the run: {self._error}")
            return
        if self._told_all(session) and self._told(partial(self._close, session), is_end=True):
            self._is_through.set()

    def _open(self) -> None:
        self._session = self._tracker.open(self._run)

    def _close(self, session: Session) -> None:
        if self._end is not None:
            session.close(self._end, time.time())

    def _told_all(self, session: Session) -> bool:
        """Pass on all events, earlier ones first; whether the tracker answered."""
        waiting = [WaitingEvent(event, getattr(event, "time", 0.0) or time.time()) for event in self._run.history]
        while waiting or (waiting := self._backlog.take(self._interval)):
            self._left = len(waiting)
            for item in waiting:
                if not self._told(partial(session.record, item.event, item.time)):
                    return False
                self._left -= 1
            waiting = []
        return True

    def _told(self, tell: Callable[[], None], patience: float = EVENT_PATIENCE, *, is_end: bool = False) -> bool:
        """Pass on an event until the tracker accepts or rejects it; whether the tracker answered.

        A tracker that does not answer is tried again, but only once after the run has ended.

        Args:
            tell: Passes on the event.
            patience: Seconds after which the event counts as rejected.
            is_end: Whether it is the end of the run.
        """
        self._asked_at = math.inf if is_end else time.monotonic()
        try:
            return self._tried(tell, patience)
        finally:
            self._asked_at = math.inf

    def _tried(self, tell: Callable[[], None], patience: float) -> bool:
        began, pause = time.monotonic(), PAUSES[0]
        while True:
            is_last = self._end is not None
            try:
                tell()
            except TrackerUnavailable as error:
                self._error = _short(error)
                if is_last:
                    return False
                if not self._is_down:
                    self._is_down = True
                    said = f"{self._tracker.name} does not answer ({self._error}); the run continues meanwhile"
                    self._notes.append(said)
                if time.monotonic() - began > patience:
                    self._lost += 1
                    return True
                self._backlog.pause(pause)
                pause = min(2 * pause, PAUSES[1])
            except Exception as error:  # of whatever library it is
                self._error = f"{type(error).__name__}: {_short(error)}"
                self._lost += 1
                return True
            else:
                if self._is_down:
                    self._is_down, self._error = False, ""
                return True


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:_LONGEST]
