"""What the experiment knows of each worker."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from maggy_like.experiment.inputs import WorkerId
from optimizers.trial import Failure


class WorkerState(enum.StrEnum):
    """``JOINING -> IDLE <-> BUSY -> DRAINING -> GONE``; any of them ``-> LOST``."""

    JOINING = "joining"
    IDLE = "idle"
    BUSY = "busy"
    DRAINING = "draining"
    GONE = "gone"
    LOST = "lost"


@dataclass(slots=True)
class Worker:
    """One incarnation of a place in the gang.

    Attributes:
        seen: When it last said anything.
        trial: The trial it runs while ``BUSY``.
        since: When that attempt was assigned.
        stopping: Whether the trial was told to stop.
        failure: What the trial's end is to be called if it was stopped for a fault (a timeout).
        saved: URLs of the states that the attempt told of.
    """

    id: WorkerId
    host: str
    accelerators: tuple[str, ...]
    seen: float
    state: WorkerState = WorkerState.JOINING
    trial: int | None = None
    since: float = 0.0
    stopping: bool = False
    failure: Failure | None = None
    saved: set[str] = field(default_factory=set)

    @property
    def is_live(self) -> bool:
        """Whether it may still speak."""
        return self.state not in (WorkerState.GONE, WorkerState.LOST)

    def take(self, trial: int, now: float) -> None:
        """Begin an attempt."""
        self.state, self.trial, self.since = WorkerState.BUSY, trial, now
        self.stopping, self.failure, self.saved = False, None, set()

    def release(self, state: WorkerState) -> None:
        """Let go of the trial, if any."""
        self.state, self.trial = state, None
        self.stopping, self.failure = False, None
