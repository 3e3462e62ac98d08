"""What the agent and the driver are told while a trial waits for its store: that counts against no limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from maggy_like.protocol.messages import Beat, ToDriver, Waiting
from maggy_like.worker.child.stop_state import TrialStopped

QUIET = 0.5
"""Seconds of waiting after which the driver is informed; shorter waits are not worth a message."""

CALL_PATIENCE = 600.0
"""Seconds of one call after which the trial's limits count again: the store may never answer."""


class StoreWait:
    """The wait of one attempt for its store.

    A client of a store may try again by itself for minutes before it raises. The trial's thread is in its call
    meanwhile, so the service thread sends the messages (:meth:`look`).

    Args:
        trial: Number of the trial.
        attempt: Number of its run.
        send: Sends a message to the agent.
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
        """Call the store, once or until it serves (see :meth:`refused`)."""
        self._began = self._called = time.monotonic()
        try:
            yield
        except TrialStopped:  # the store does not serve, and nobody waits any more
            self._called = None
            raise
        except BaseException:
            self._end()
            raise
        self._end()

    def refused(self, reason: str) -> None:
        """Take in that the store has refused a call; :meth:`call_again` follows."""
        with self._lock:
            self._called = None
            self._is_told = self._is_told or time.monotonic() - self._began >= QUIET
            self._send(Waiting(self._trial, self._attempt, reason) if self._is_told else Beat())

    def call_again(self) -> None:
        """Begin another call."""
        self._called = time.monotonic()

    def look(self) -> None:
        """Tell of a call that is under way. Called by the service thread, again and again."""
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
