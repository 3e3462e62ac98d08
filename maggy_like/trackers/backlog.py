"""Events that wait for a tracker or a callback, in bounded memory."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from optimizers.core.events import Columns, Event, Measured

MOST = 200_000
"""Maximum number of events and measured values that wait for a tracker (about 20 MB). Starts and ends of trials have
the same capacity to themselves, because they matter more than single measurements."""


@dataclass
class WaitingEvent:
    """An event and its Unix time."""

    event: Event
    time: float


class Backlog:
    """A bounded queue from a run's thread to another. Putting never waits.

    Args:
        most: Maximum number of waiting events and measured values.
        merges: If True, the waiting measurements of an attempt are merged into one event.

    Attributes:
        dropped: Number of events that were dropped because the queue was full.
        is_closed: Whether no more events come.
    """

    def __init__(self, most: int = MOST, *, merges: bool = True) -> None:
        self.dropped = 0
        self.is_closed = False
        self._merges = merges
        self._most = most
        self._size = 0
        self._waiting: deque[WaitingEvent] = deque()
        self._measured: dict[int, WaitingEvent] = {}  # by trial: what more measurements may be added to
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return the number of waiting events."""
        return len(self._waiting)

    def put(self, event: Event) -> None:
        """Add an event, or count it as dropped."""
        with self._changed:
            is_measured = isinstance(event, Measured)
            size = sum(len(steps) for steps, _ in event.columns.values()) if isinstance(event, Measured) else 1
            if self._size + size > (self._most if is_measured else 2 * self._most):
                self.dropped += 1
                return
            self._size += size
            if isinstance(event, Measured) and self._merges:
                self._add(event)
            else:
                self._measured.pop(event.trial, None)
                self._waiting.append(WaitingEvent(event, time.time()))
            self._changed.notify()

    def take(self, interval: float) -> list[WaitingEvent]:
        """Wait for events and return all of them; empty if the backlog is closed and nothing is left.

        Args:
            interval: Seconds to continue collecting after the first event, unless the backlog is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.is_closed)
            self._changed.wait_for(lambda: self.is_closed, interval)
            taken = list(self._waiting)
            self._waiting.clear()
            self._measured.clear()
            self._size = 0
            return taken

    def close(self) -> None:
        """Declare that no more events come."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Wait ``seconds``, or until the backlog is closed; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_closed, seconds)

    def _add(self, event: Measured) -> None:
        known = self._measured.get(event.trial)
        if known is None or not isinstance(known.event, Measured) or known.event.attempt != event.attempt:
            copy = {name: (list(steps), list(values)) for name, (steps, values) in event.columns.items()}
            known = WaitingEvent(Measured(event.trial, event.attempt, event.objective, copy), time.time())
            self._measured[event.trial] = known
            self._waiting.append(known)
            return
        columns: dict[str, Columns] = known.event.columns
        for name, (steps, values) in event.columns.items():
            known_steps, known_values = columns.setdefault(name, ([], []))
            known_steps += steps
            known_values += values
