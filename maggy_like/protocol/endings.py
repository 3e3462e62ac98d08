"""What a run does while it goes on, and how it ends."""

from __future__ import annotations

import enum


class Phase(enum.StrEnum):
    """What a run that goes on does."""

    STARTING = "starting"
    SEARCHING = "searching"
    TRAINING = "training"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be tried or trained: never, of a phase."""
        return False


class Ending(enum.StrEnum):
    """How a run ended; :attr:`RUNNING` while it has not."""

    COMPLETED = "completed"
    """All trials have ended."""
    TIMEOUT = "timeout"
    """The time was up."""
    TARGET = "target"
    """A trial has reached the target."""
    STOPPED = "stopped"
    """The caller's program stopped it."""
    INTERRUPTED = "interrupted"
    """Somebody pressed Ctrl-C."""
    CANCELLED = "cancelled"
    """Somebody stopped it from outside, in the cluster's interface for one."""
    ERROR = "error"
    """An error ended it."""
    RUNNING = "running"
    """It goes on."""
    KILLED = "killed"
    """Its driver died before it recorded an ending."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be tried or trained."""
        return self is not Ending.RUNNING

    @property
    def is_planned(self) -> bool:
        """Whether the search came to an end that its caller had set: a training follows, if there is one."""
        return self in (Ending.COMPLETED, Ending.TIMEOUT, Ending.TARGET)

    @property
    def is_cut_short(self) -> bool:
        """Whether the search would have gone on, and ``resume=True`` does so."""
        return self in (Ending.TIMEOUT, Ending.STOPPED, Ending.INTERRUPTED, Ending.CANCELLED)
