"""The kinds of failure that end an attempt, and what each means for its trial."""

from __future__ import annotations

import enum


class FailureKind(enum.StrEnum):
    """What ended an attempt without a usable value.

    The first ones are faults of the trial, as its worker tells of them; the last ones are the platform's.
    """

    EXCEPTION = "exception"
    """The training function raised."""
    EXIT = "exit"
    """Its process exited, or it called ``sys.exit``."""
    SIGNAL = "signal"
    """Its process was killed by a signal."""
    OOM = "oom"
    """It ran out of memory, and the kernel killed it."""
    TIMEOUT = "timeout"
    """It took longer than ``trial_timeout``, or reported nothing for ``report_timeout``."""
    DISCONNECTED = "disconnected"
    """Its process closed its connection to the agent."""
    TOO_LARGE = "too_large"
    """It sent a message past the limit."""
    REPORT = "report"
    """It reported what is no measurement, or saved what cannot be saved."""
    COLLECTIVE = "collective"
    """An operation of all ranks failed, as it does when one of them is gone."""
    NO_VALUE = "no_value"
    """It returned no number and reported none."""
    STORE = "store"
    """The store refused to save or restore a state."""
    WORKER_LOST = "worker_lost"
    """Its worker was lost, and nobody knows why."""
    GANG_LOST = "gang_lost"
    """The whole gang was lost, whichever worker brought it down."""
    NODE_LOST = "node_lost"
    """The cluster took its machine away, as far as anybody knows."""
    NODE_LEFT = "node_left"
    """It was ended before its machine was taken away, as the cluster had announced."""
    DRIVER_LOST = "driver_lost"
    """The driver went down, or ended the search, while it ran."""

    @property
    def counts(self) -> bool:
        """Whether it counts towards ``max_attempts``."""
        return self not in _UNCOUNTED

    @property
    def is_fault(self) -> bool:
        """Whether it says something of the trial; after any other, the next attempt may well succeed."""
        return self.counts and self is not FailureKind.WORKER_LOST

    @property
    def is_final(self) -> bool:
        """Whether another attempt could only end in the same way."""
        return self in (FailureKind.REPORT, FailureKind.NO_VALUE)

    @property
    def is_gang_loss(self) -> bool:
        """Whether workers were lost under the trial in a way that it may, or may not, have brought about."""
        return self in (FailureKind.GANG_LOST, FailureKind.NODE_LOST)

    @property
    def is_drivers(self) -> bool:
        """Whether only the driver may record it, and no worker may tell of it."""
        return self in _DRIVERS


_DRIVERS = frozenset(
    {
        FailureKind.WORKER_LOST,
        FailureKind.GANG_LOST,
        FailureKind.NODE_LOST,
        FailureKind.NODE_LEFT,
        FailureKind.DRIVER_LOST,
    }
)
_UNCOUNTED = _DRIVERS - {FailureKind.WORKER_LOST} | {FailureKind.STORE}
