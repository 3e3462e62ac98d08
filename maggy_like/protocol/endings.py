"""The phases of a run, the ways in which it ends, and why an attempt of a trial must end early."""

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
        return self in (Ending.TIMEOUT, Ending.STOPPED, Ending.INTERRUPTED, Ending.CANCELLED, Ending.KILLED)


class StopReason(enum.IntEnum):
    """Why an attempt must end before it has used up its budget. A reason only gives way to a later one of this list.

    The driver, the agent and the messages between them use it. It decides how the attempt is recorded.
    """

    NONE = 0
    """It continues."""
    RANK_FAILED = 1
    """Another of its workers has failed: it ends as that one did."""
    RUN_ENDED = 2
    """The search is over: the attempt ends, and its trial continues if the run is resumed."""
    FAULT = 3
    """It has run for too long, or its machine is taken away: it ends with that failure."""
    RULE = 4
    """A rule has stopped its trial, which ends as stopped."""

    @property
    def asks_to_end(self) -> bool:
        """Whether the attempt ends at the next report that waits for a verdict."""
        return self >= StopReason.FAULT


UNEVEN = "the ranks did not take the same steps"
"""Part of the message of a rank whose collective operation did not match another rank's."""

_MISMATCHES = ("Received data size doesn't match expected size", "Detected mismatch between collectives")
"""Messages of gloo and torch in that case."""


def on_uneven_steps(text: str) -> str:
    """Return the likely cause of a rank's failure if its text shows mismatched collective operations, else empty."""
    if not any(mismatch in text for mismatch in _MISMATCHES):
        return ""
    return (
        f": another rank was in a different collective operation, so {UNEVEN}. Pass the loaders to prepare(), so that "
        "they yield equally many batches on all ranks, and call average() and checkpoint() equally often on all"
    )
