"""Workers whose machines are about to be taken away: what they run is ended in time, and goes on elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from maggy_like.driver.state_machine.worker_groups import Teams
from maggy_like.driver.state_machine.workers import Team, Worker
from optimizers.core.study import NODE_LEFT
from optimizers.core.trial import Failure

LEAVE_PATIENCE = 20.0
"""Seconds in which an attempt may save its state once more before it is ended: clouds give notice of 30 and more."""


class Leaving:
    """Ends the attempts of leaving workers after their next saved state, or after :data:`LEAVE_PATIENCE`.

    An attempt that ends so costs its trial nothing.

    Args:
        teams: The attempts that run.
    """

    def __init__(self, teams: Teams) -> None:
        self._teams = teams

    def announce(self, worker: Worker, reason: str, now: float) -> None:
        """Take in that a worker is to leave."""
        worker.leaving = reason
        if worker.team is not None and worker.team.leave_by is None:
            worker.team.leave_by = now + LEAVE_PATIENCE

    def saved(self, team: Team) -> None:
        """Take in that an attempt has saved its state: it ends in its next report if one of its workers is to leave."""
        if team.leave_by is not None:
            self._end(team)

    def tick(self, teams: Iterable[Team], now: float) -> None:
        """End the attempts that have saved nothing in time."""
        for team in teams:
            if team.leave_by is not None and now >= team.leave_by:
                self._end(team)

    def _end(self, team: Team) -> None:
        leaver = next(member for member in team.members if member.leaving)
        self._teams.stop(
            team, Failure(NODE_LEFT, f"worker {leaver.id.index} on {leaver.host} leaves: {leaver.leaving}")
        )
