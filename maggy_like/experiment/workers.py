"""What the experiment knows of each worker."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maggy_like.experiment.inputs import WorkerId

if TYPE_CHECKING:
    from maggy_like.experiment.teams import Team


class WorkerState(enum.StrEnum):
    """``JOINING -> IDLE <-> BUSY -> DRAINING -> GONE``; any of them ``-> LOST``."""

    JOINING = "joining"
    IDLE = "idle"
    BUSY = "busy"
    DRAINING = "draining"
    GONE = "gone"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class Worker:
    """One incarnation of a place in the gang.

    Attributes:
        seen: When it last said anything.
        team: With whom it runs an attempt while ``BUSY``, itself included.
    """

    id: WorkerId
    host: str
    accelerators: tuple[str, ...]
    seen: float
    state: WorkerState = WorkerState.JOINING
    team: Team | None = None

    @property
    def trial(self) -> int | None:
        """The trial it runs, if any."""
        return None if self.team is None else self.team.trial

    @property
    def is_live(self) -> bool:
        """Whether it may still speak."""
        return self.state not in (WorkerState.GONE, WorkerState.LOST)

    def take(self, team: Team) -> None:
        """Begin an attempt."""
        self.state, self.team = WorkerState.BUSY, team

    def release(self, state: WorkerState) -> None:
        """Let go of the trial, if any."""
        self.state, self.team = state, None
