"""The choice of the next trial, and of the idle workers that run it."""

from __future__ import annotations

from dataclasses import dataclass

from maggy_like.driver.state_machine.attempts import Attempts
from maggy_like.driver.state_machine.commands import Commands
from maggy_like.driver.state_machine.proposals import Proposals
from maggy_like.driver.state_machine.store_outage import StoreOutage
from maggy_like.driver.state_machine.training_phase import TrainingPhase
from maggy_like.driver.state_machine.worker_groups import WorkerGroups
from maggy_like.driver.state_machine.worker_pool import WorkerPool
from maggy_like.driver.state_machine.workers import Worker
from maggy_like.protocol.messages import Assign
from optimizers.core.study import Study
from optimizers.core.trial import Trial


@dataclass
class Dispatcher:
    """Gives work to idle workers: retries first, then promotions, then new configurations.

    Attributes:
        study: State of the study.
        pool: Workers.
        groups: Running attempts.
        attempts: Records what begins.
        proposals: Configurations to come.
        outage: Trials that wait for the store.
        training_phase: Training after the search.
        width: Number of workers per trial of the search.
    """

    study: Study
    pool: WorkerPool
    groups: WorkerGroups
    attempts: Attempts
    proposals: Proposals
    outage: StoreOutage
    training_phase: TrainingPhase
    width: int

    def dispatch(self, objective: str | None, now: float) -> Commands:
        """Assign trials while there are both work and workers.

        Args:
            objective: Name of the optimised metric, if known.
        """
        commands: Commands = []
        if not self.pool.has_idle and not self._trains:  # so it is after most reports
            return commands
        if self._trains and not self.groups and (created := self.training_phase.begin()) is not None:
            commands += self.attempts.record(created)
            self.attempts.retries.append(created.trial)
        while members := self._free_members(now):
            trial, cause, creation = self._next_trial(now)
            if trial is None:
                break
            commands += creation
            commands += self._assign(members, trial, cause, objective, now)
        return commands

    def closing_promotion(self) -> Trial | None:
        """Return the trial that is promoted only because the search would end without it.

        A running trial may yet turn out better than the paused ones, so the choice waits until none runs.
        """
        if self.groups or self.attempts.retries or self.proposals.has_more:
            return None
        return self.study.closing_promotion()

    @property
    def _trains(self) -> bool:
        return self.training_phase.search_ended is not None

    def _free_members(self, now: float) -> list[Worker]:
        """Return the idle workers that would run the next attempt together; none while there are too few."""
        if not self._trains:
            return self.pool.members(self.width)
        return [] if self.groups else self.pool.members(self.training_phase.members(self.pool.workers.values(), now))

    def _next_trial(self, now: float) -> tuple[Trial | None, str, Commands]:
        """Return the next trial; its reason, if the study does not have it; and its creation, if it is new."""
        for number in self.attempts.retries:
            if self.outage.is_due(number, now):
                self.attempts.retries.remove(number)
                return self.study.trials[number], "", []
        if self._trains:
            return None, "", []
        if (promotion := self.study.next_promotion()) is not None:
            return promotion, "", []
        if (created := self.proposals.take(self.pool.idle_since)) is not None:
            commands = self.attempts.record(created)
            return self.study.trials[-1], "", commands
        return self.closing_promotion(), "nothing else is left to run", []

    def _assign(self, members: list[Worker], trial: Trial, cause: str, objective: str | None, now: float) -> Commands:
        grant = self.study.grant(trial)
        attempt = trial.attempt + 1
        discard = self.attempts.states.unneeded(trial.id)
        first, *others = (member.id.index for member in members)
        saved = trial.checkpoint.name if trial.checkpoint is not None else None
        older = self.attempts.states.older(saved) if saved is not None else ()
        started = self.study.started(trial, first, now, others=tuple(others), cause=cause)
        commands = self.attempts.record(started)
        self.pool.engage(members)
        order = Assign(
            trial.id,
            attempt,
            trial.config,
            grant.budget,
            grant.milestones,
            objective,
            is_search=self.study.problem.n_trials != 0,
            checkpoint=saved,
            discard=discard,
            older=older,
        )
        commands += self.groups.start(order, members, now, always_ranked=trial.training > 0)
        self.training_phase.started()
        return commands
