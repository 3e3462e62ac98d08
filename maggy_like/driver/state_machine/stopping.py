"""Reasons to end an attempt before it has used up its budget."""

from __future__ import annotations

import enum


class Stopping(enum.IntEnum):
    """The driver's decision about a running attempt; only a later one of this list may replace it.

    Every reason to end an attempt early passes through :meth:`WorkerGroup.stop
    <maggy_like.driver.state_machine.workers.WorkerGroup.stop>`, and determines how the attempt is recorded.
    """

    NO = 0
    """It continues."""
    CUT = 1
    """The search is over: the attempt ends, and its trial continues if the run is resumed."""
    FAULT = 2
    """It has run for too long, or its machine leaves: it ends with that failure."""
    RULE = 3
    """A rule has stopped its trial, which ends as stopped."""

    @property
    def asks_to_end(self) -> bool:
        """Whether the attempt is to end at the next report that waits for a verdict."""
        return self >= Stopping.FAULT
