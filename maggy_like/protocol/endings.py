"""The phases of a run, and the ways in which it ends."""

from __future__ import annotations

import enum


class Phase(enum.StrEnum):
    """What a run does before it ends."""

    STARTING = "starting"
    SEARCHING = "searching"
    CONFIRMING = "confirming"
    TRAINING = "training"

    @property
    def is_over(self) -> bool:
        """Whether no more trials or trainings will run: always False for a phase."""
        return False


class Ending(enum.StrEnum):
    """How a run ended; :attr:`RUNNING` while it has not."""

    COMPLETED = "completed"
    """All trials have ended."""
    TIMEOUT = "timeout"
    """The timeout was reached."""
    TARGET = "target"
    """A trial reached the target."""
    STOPPED = "stopped"
    """The caller's program stopped it."""
    INTERRUPTED = "interrupted"
    """The user pressed Ctrl-C."""
    CANCELLED = "cancelled"
    """It was stopped from outside, for example in the cluster's interface."""
    ERROR = "error"
    """An error ended it."""
    RUNNING = "running"
    """It has not ended."""
    KILLED = "killed"
    """Its driver died before it recorded an ending."""

    @property
    def is_over(self) -> bool:
        """Whether no more trials or trainings will run."""
        return self is not Ending.RUNNING

    @property
    def is_planned(self) -> bool:
        """Whether the search reached a limit that its caller set, so that a training may follow."""
        return self in (Ending.COMPLETED, Ending.TIMEOUT, Ending.TARGET)

    @property
    def is_cut_short(self) -> bool:
        """Whether the search was not complete, so that ``resume=True`` continues it."""
        return self in (Ending.TIMEOUT, Ending.STOPPED, Ending.INTERRUPTED, Ending.CANCELLED)
