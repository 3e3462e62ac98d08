"""When a worker's next beat is due: whatever it says proves that it lives, so a beat is for when it says nothing."""

from __future__ import annotations

HEARTBEAT = 1.0
"""Seconds between two beats of a worker that says nothing else."""

TALK = 2.0
"""Heartbeats for which any other message stands in for a beat: a report each heartbeat, with some to spare."""

HEARSAY = 3.0
"""Heartbeats without a word of the driver after which a worker beats although it talks: the answer to a beat says that
the driver is alive, and acknowledges what it has."""


class Heartbeat:
    """Says when a worker's next beat is due.

    Args:
        now: By the monotonic clock.
        interval: Seconds between two beats of a worker that says nothing else.

    Attributes:
        heard: When the driver last said anything.

    Example:
        >>> heartbeat = Heartbeat(now=0.0)
        >>> heartbeat.beat(0.0)
        >>> heartbeat.due
        1.0
        >>> heartbeat.spoke(0.9)
        >>> heartbeat.due
        2.9
    """

    def __init__(self, now: float, interval: float = HEARTBEAT) -> None:
        self._interval = interval
        self._beat = self._spoke = float("-inf")
        self.heard = now

    @property
    def due(self) -> float:
        """When the next beat is, by the monotonic clock."""
        silent = min(self._spoke + TALK * self._interval, self.heard + HEARSAY * self._interval)
        return max(self._beat + self._interval, silent)

    def beat(self, now: float) -> None:
        """Take in that the worker beats."""
        self._beat = now

    def spoke(self, now: float) -> None:
        """Take in that the worker says something else to the driver, over a connection that the driver knows."""
        self._spoke = now
