"""The state of each worker, and of the workers that run an attempt together."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from maggy_like.driver.state_machine.stopping import Stopping
from maggy_like.protocol.identity import WorkerId
from maggy_like.protocol.messages import Finished
from maggy_like.protocol.torchrun import UNEVEN
from optimizers.core.failure_kinds import FailureKind
from optimizers.core.trial import Failure


class WorkerState(enum.StrEnum):
    """``JOINING -> IDLE <-> BUSY -> DRAINING -> GONE``; any of them ``-> LOST``."""

    JOINING = "joining"
    IDLE = "idle"
    BUSY = "busy"
    DRAINING = "draining"
    GONE = "gone"
    LOST = "lost"


_LEFT = WorkerState.GONE, WorkerState.LOST  # looked up once, since each message asks


@dataclass(slots=True, eq=False)
class Worker:
    """One incarnation of a worker.

    Attributes:
        seen: Time of its last message.
        group: Group with which it runs an attempt while ``BUSY``, itself included.
        leaving: Why it must leave after its attempt, because its machine is about to be removed; else empty.
    """

    id: WorkerId
    host: str
    accelerators: tuple[str, ...]
    seen: float
    state: WorkerState = WorkerState.JOINING
    group: WorkerGroup | None = None
    leaving: str = ""

    @property
    def trial(self) -> int | None:
        """The trial it runs, if any."""
        return None if self.group is None else self.group.trial

    @property
    def is_live(self) -> bool:
        """Whether its messages still count."""
        return self.state not in _LEFT

    def take(self, group: WorkerGroup) -> None:
        """Begin an attempt."""
        self.state, self.group = WorkerState.BUSY, group

    def release(self, state: WorkerState) -> None:
        """Give up the trial, if it runs one."""
        self.state, self.group = state, None


@dataclass(slots=True, eq=False)
class WorkerGroup:
    """One attempt's workers, in order of rank.

    Attributes:
        since: Time of the assignment.
        stopping: Why the attempt is to end early, if it is.
        failure: Failure to record in that case, if it is a fault.
        cause: Why the search is over, if that interrupts it.
        saved: Names of the states that the attempt announced.
        ends: Ends of ranks, in order of arrival.
        waits: Members that wait for the store, with the start of the wait.
        excused: Seconds for which any of them did, which count against no limit.
        held: Number of reports of halted ranks; None while no stop is requested.
        leave_by: Deadline of the attempt, because a member's machine is about to be removed.
    """

    trial: int
    attempt: int
    members: tuple[Worker, ...]
    since: float
    stopping: Stopping = Stopping.NO
    failure: Failure | None = None
    cause: str = ""
    saved: set[str] = field(default_factory=set)
    ends: dict[int, Finished | Failure] = field(default_factory=dict)
    waits: dict[WorkerId, float] = field(default_factory=dict)
    excused: float = 0.0
    held: dict[int, int] | None = None
    leave_by: float | None = None

    def stop(self, why: Stopping, *, failure: Failure | None = None, cause: str = "") -> bool:
        """Record why the attempt is to end early; whether its workers must still be asked to stop."""
        before = self.stopping
        if why <= before:
            return False
        self.stopping, self.failure, self.cause = why, failure or self.failure, cause or self.cause
        return not before.asks_to_end

    def rank(self, worker: WorkerId) -> int:
        """The rank of a member."""
        return next(rank for rank, member in enumerate(self.members) if member.id == worker)

    @property
    def running(self) -> list[WorkerId]:
        """The members that have not ended."""
        return [member.id for rank, member in enumerate(self.members) if rank not in self.ends]

    @property
    def has_ended(self) -> bool:
        """Whether every member has."""
        return len(self.ends) == len(self.members)

    def serve(self, worker: WorkerId, now: float) -> None:
        """Record that a member no longer waits for the store."""
        since = min(self.waits.values(), default=now)
        if self.waits.pop(worker, None) is not None and not self.waits:
            self.excused += now - since

    @property
    def stop_at(self) -> int | None:
        """Return the report in which all must stop, the first that none has passed; None until all have answered."""
        if self.held is None or not all(rank in self.held or rank in self.ends for rank in range(len(self.members))):
            return None
        return max(self.held.values(), default=0) + 1

    def end(self) -> Finished | Failure:
        """Return how the attempt ended: as rank 0 did, or with the earliest failure.

        A failed collective operation is not a cause while there is another: the others notice by it that a rank is
        gone. Nor is the loss of a worker, if a rank had failed before.
        """
        faults = {rank: end for rank, end in self.ends.items() if is_fault(end)}
        if not faults:
            return self.ends[0]
        rank = min(faults, key=lambda rank: _order(faults[rank]))
        return faults[rank] if len(self.members) == 1 else _of_rank(rank, faults[rank], self._elsewhere(rank, faults))

    def _elsewhere(self, rank: int, faults: dict[int, Finished | Failure]) -> str:
        """Return where the others were, if a rank failed because they were not where it was."""
        others = ((other, end) for other, end in faults.items() if other != rank and isinstance(end, Finished))
        places = [f"rank {other} was at {end.place}" for other, end in sorted(others) if end.place]
        return f" ({', '.join(places)})" if places and UNEVEN in faults[rank].message else ""


def is_fault(end: Finished | Failure) -> bool:
    """Whether such an end of a rank ends the attempt for all."""
    return isinstance(end, Failure) or end.outcome in ("raised", "died")


def _order(end: Finished | Failure) -> tuple[int, float]:
    if isinstance(end, Failure):
        return 1, 0.0
    return (2, end.at) if end.kind is FailureKind.COLLECTIVE else (0, end.at)


def _of_rank(rank: int, end: Finished | Failure, more: str) -> Finished | Failure:
    message = f"rank {rank}: {end.message}{more}"
    return msgspec.structs.replace(end, message=message)
