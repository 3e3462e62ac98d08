"""The wait for the first workers of a run: hints about what keeps them, and an end to it."""

from __future__ import annotations

import contextlib

from maggy_like.display.base import LogLine
from maggy_like.driver.loop import Driver
from maggy_like.driver.state_machine.inputs import StopRequested
from maggy_like.engines.base import Launcher
from maggy_like.errors import EngineError
from maggy_like.protocol.endings import Ending

JOIN_PATIENCE = 10.0
"""Seconds without any worker after which a hint says what the search waits for."""

LOOK = 2.0
"""Seconds between two looks at why."""

HINT_AGAIN = 30.0
"""Seconds between two hints, where the reason has changed."""

START_PATIENCE = 3600.0
"""Seconds without any worker after which the search ends: a job of the user's that holds the slots may take long."""


class FirstWorkers:
    """Watches until a search has had all its workers; used from the thread that called ``lagom``.

    Args:
        engine: Knows why none comes, if it can be known.
        size: How many workers were launched.
    """

    def __init__(self, engine: Launcher, size: int) -> None:
        self._engine = engine
        self._size = size
        self._is_over = False
        self._due = JOIN_PATIENCE
        self._hint_at = 0.0
        self._hint = ""

    def look(self, driver: Driver) -> None:
        """Give a hint about what the search waits for, if it is time to; end the search after too long a wait."""
        now = driver.elapsed()
        came = driver.came
        # Where slots come and go, they need not all come.
        self._is_over = self._is_over or driver.has_ended or came >= (1 if self._engine.is_elastic else self._size)
        if self._is_over or now < self._due:
            return
        self._due = now + LOOK
        line = self._waits_for(came)
        if line and line != self._hint and now >= self._hint_at:
            self._hint, self._hint_at = line, now + HINT_AGAIN
            driver.lines.append(LogLine(None, f"still waiting for {line}"))
        if now > START_PATIENCE and not came:
            self._is_over = True
            driver.post(StopRequested(Ending.ERROR, EngineError(f"waited {START_PATIENCE:g} s for {line}")))

    def _waits_for(self, came: int) -> str:
        """What the search waits for; empty where another hint says it, and where nothing keeps the others away."""
        one = "one of " if self._engine.is_elastic else ""
        noun = f"{one}{self._size} workers" if self._size > 1 else "a worker"
        reason = ""
        with contextlib.suppress(Exception):  # whatever it is, the supervisor reports it
            if self._engine.is_elastic and self._engine.slots() == 0:
                return ""
            reason = self._engine.waits_for(self._size, came)
        if came:
            return f"{self._size - came} of {self._size} workers: {reason}" if reason else ""
        return f"engine={self._engine.name!r} to start {noun}" + (f": {reason}" if reason else "")
