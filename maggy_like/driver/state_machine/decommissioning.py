"""Workers whose machines are about to be removed: their attempts end in time, and continue elsewhere."""

from __future__ import annotations

from maggy_like.driver.state_machine.commands import Commands
from maggy_like.driver.state_machine.stopping import Stopping
from maggy_like.driver.state_machine.worker_groups import WorkerGroups
from maggy_like.driver.state_machine.workers import Worker, WorkerGroup
from optimizers.core.failure_kinds import FailureKind
from optimizers.core.trial import Failure

LEAVE_PATIENCE = 20.0
"""Seconds within which an attempt may save its state before the driver ends it; clouds grant 30 or more."""


class Decommissioning:
    """Ends the attempts of leaving workers after their next saved state, or after :data:`LEAVE_PATIENCE`.

    Such an end costs its trial nothing.

    Args:
        groups: Running attempts.
    """

    def __init__(self, groups: WorkerGroups) -> None:
        self._groups = groups
        self._was_announced = False  # ever: most runs need not look at every attempt at each tick

    def announce(self, worker: Worker, reason: str, now: float) -> None:
        """Record that a worker is to leave, and the deadline of its attempt."""
        self._was_announced = True
        worker.leaving = reason
        if worker.group is not None and worker.group.leave_by is None:
            worker.group.leave_by = now + LEAVE_PATIENCE

    def saved(self, group: WorkerGroup) -> Commands:
        """Let an attempt that has saved its state end at its next report if one of its workers is to leave."""
        return self._end(group) if group.leave_by is not None else []

    def tick(self, now: float) -> Commands:
        """End the attempts that have saved no state in time."""
        if not self._was_announced:
            return []
        due = [group for group in self._groups if group.leave_by is not None and now >= group.leave_by]
        return [command for group in due for command in self._end(group)]

    def _end(self, group: WorkerGroup) -> Commands:
        leaver = next(member for member in group.members if member.leaving)
        message = f"worker {leaver.id.index} on {leaver.host} leaves: {leaver.leaving}"
        return self._groups.stop(group, Stopping.FAULT, failure=Failure(FailureKind.NODE_LEFT, message))
