"""Whether an attempt is to stop, and in which report; and whether its trial waits for the store."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import NoReturn

from maggy_like.protocol.messages import Beat, ToDriver, Waiting


class TrialStopped(BaseException):
    """The trial was stopped. A ``BaseException``, so that ``except Exception`` does not catch it."""


class StopPhase(enum.Enum):
    """Progress of a stop."""

    RUNNING = "running"
    HALTED = "halted"
    """The next report waits until it is known in which one the ranks stop."""
    LAST_REPORT_KNOWN = "last report known"
    """Reports pass up to that one, which stops the trial."""
    STOP_REQUESTED = "stop requested"
    """The next report stops the trial."""


class StopState:
    """The stop of one attempt: the service thread makes the transitions, and the trial's thread queries them.

    ::

        RUNNING --halt()--> HALTED --stop_at(n)--> LAST_REPORT_KNOWN
        any phase --request()--> STOP_REQUESTED

    The ranks of a multi-worker attempt must stop in the same report. If one of them stopped earlier, the others would
    wait for it in a collective operation forever. So they are halted first: each sends how many reports it has passed,
    and passes no more. No rank can be past the report after the largest of these numbers, so all stop there.
    """

    def __init__(self, *, is_multi_worker: bool) -> None:
        self.is_multi_worker = is_multi_worker
        # Whether a report must call :meth:`passes`; if not, it may skip the call to save time.
        self.must_ask = is_multi_worker
        self.is_told = False  # whether the function was stopped, even if it caught that
        self._phase = StopPhase.RUNNING
        self._changed = threading.Condition()
        self._passed = 0
        self._last_report = 0
        self._verdicts: SimpleQueue[bool] = SimpleQueue()

    # -- transitions, by the service thread ---------------------------------------------------

    def halt(self) -> int:
        """Hold back further reports, and return how many have passed."""
        with self._changed:
            if self._phase is StopPhase.RUNNING:
                self._phase = StopPhase.HALTED
            return self._passed

    def stop_at(self, report: int) -> None:
        """Let all reports pass up to ``report``, counted from 1, and stop the trial there."""
        with self._changed:
            if self._phase is not StopPhase.STOP_REQUESTED:
                self._phase, self._last_report = StopPhase.LAST_REPORT_KNOWN, report
            self._changed.notify_all()

    def request(self) -> None:
        """Stop the trial in its next report, or in the one in which it waits."""
        with self._changed:
            self._phase = StopPhase.STOP_REQUESTED
            self.must_ask = True
            self._changed.notify_all()
        self._verdicts.put(True)

    def decide(self, stop: bool) -> None:
        """Pass the driver's verdict to the waiting trial."""
        self._verdicts.put(stop)

    # -- by the trial's thread ----------------------------------------------------------------

    def tell(self) -> NoReturn:
        """Stop the function by raising TrialStopped. If it catches that, each further report raises it again."""
        with self._changed:
            self.is_told = self.must_ask = True
            self._phase = StopPhase.STOP_REQUESTED
            self._changed.notify_all()
        raise TrialStopped

    @property
    def is_requested(self) -> bool:
        """Whether the trial is to stop now, even while it waits."""
        return self._phase is StopPhase.STOP_REQUESTED

    def passes(self) -> bool:
        """Whether the next report passes or stops the trial; waits while the ranks are halted."""
        with self._changed:
            while self._phase is StopPhase.HALTED:
                self._changed.wait()
            if self._phase is StopPhase.STOP_REQUESTED:
                return False
            if self._phase is StopPhase.LAST_REPORT_KNOWN and self._passed + 1 >= self._last_report:
                return False
            self._passed += 1
            return True

    def wait_for_verdict(self) -> bool:
        """Wait for the driver's verdict at a milestone, and return whether the trial must stop."""
        return self._verdicts.get()


QUIET = 0.5
"""Seconds of waiting after which the driver is informed; for shorter waits a message is too expensive."""

CALL_PATIENCE = 600.0
"""Seconds of one call after which the trial's time limits apply again, because the store may never answer."""


class StoreWait:
    """The wait of one attempt for its store.

    A client of a store may retry for minutes before it raises. The trial's thread is in that call meanwhile, so the
    service thread sends the messages (:meth:`look`).
    """

    def __init__(self, trial: int, attempt: int, send: Callable[[ToDriver], None]) -> None:
        self._trial = trial
        self._attempt = attempt
        self._send = send
        self._lock = threading.Lock()
        self._began = 0.0
        self._called: float | None = None  # when the call under way began
        self._is_told = False

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Mark a call of the store, one or repeated (see :meth:`refused`)."""
        self._began = self._called = time.monotonic()
        try:
            yield
        except TrialStopped:  # the store does not serve, and nobody waits now
            self._called = None
            raise
        except BaseException:
            self._end()
            raise
        self._end()

    def refused(self, reason: str) -> None:
        """Record that the store has refused a call; :meth:`call_again` follows."""
        with self._lock:
            self._called = None
            self._is_told = self._is_told or time.monotonic() - self._began >= QUIET
            self._send(Waiting(self._trial, self._attempt, reason) if self._is_told else Beat())

    def call_again(self) -> None:
        """Begin another call."""
        self._called = time.monotonic()

    def look(self) -> None:
        """Report a call that takes long. Called repeatedly by the service thread."""
        if self._called is not None:
            with self._lock:
                self._tell_of_call()

    def _tell_of_call(self) -> None:
        if (called := self._called) is None:  # it has just returned
            return
        now = time.monotonic()
        if now - called >= CALL_PATIENCE:
            self._called = None
            self._tell_end()
        elif not self._is_told:
            self._is_told = now - self._began >= QUIET
            self._send(Waiting(self._trial, self._attempt, calls=True) if self._is_told else Beat())

    def _end(self) -> None:
        self._called = None
        with self._lock:
            self._tell_end()

    def _tell_end(self) -> None:
        if self._is_told:
            self._is_told = False
            self._send(Waiting(self._trial, self._attempt))
