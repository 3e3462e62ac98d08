"""The training after the search: all workers train one configuration together, if that is planned."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from maggy_like.driver.state_machine.workers import Worker, WorkerState
from maggy_like.protocol.endings import Ending
from optimizers.core.events import TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.space.config import Config

PATIENCE = 30.0
"""Seconds that a training waits for lost workers before it continues with the others."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The training at the end.

    Attributes:
        steps: Number of steps.
        config: Configuration; None for the best of the search.
        workers: Number of workers that should train together.
        least: Sufficient number, if the others are lost and do not return.
    """

    steps: int
    workers: int
    least: int
    config: Config | None = None


class TrainingPhase:
    """Decides when the training begins, and who takes part.

    Args:
        study: State of the study.
        plan: Training; None ends the run with the search.

    Attributes:
        search_ended: Why the search is over, before and during the training; None before.
    """

    def __init__(self, study: Study, plan: TrainingPlan | None) -> None:
        self.search_ended: Ending | None = None
        self._study = study
        self._plan = plan
        self._has_begun = False
        self._short_since: float | None = None

    @property
    def is_planned(self) -> bool:
        """Whether there is anything to train."""
        return self._plan is not None

    def take_up(self) -> None:
        """Continue the training that a replayed journal had started."""
        if self._plan is not None and any(trial.training and not trial.is_over for trial in self._study.trials):
            self.search_ended, self._has_begun = Ending.COMPLETED, True

    def follows(self, reason: Ending) -> bool:
        """Whether a training follows a search that ends for ``reason``; if so, the search is over."""
        last = self._study.trials[-1] if self._study.trials else None
        if self._plan is None or not reason.is_planned or self._config is None:
            return False
        if last is not None and last.training and last.is_over and last.state is not TrialState.FAILED:
            return False  # a resumed run that has nothing to add
        self.search_ended = reason
        return True

    def begin(self) -> TrialCreated | None:
        """Return once the event that makes the training a trial; ``None`` after that, and if no trial has a value.

        Call it after the last trial of the search has ended, because that may be the best.
        """
        plan, config = self._plan, self._config
        if self._has_begun or plan is None or config is None:
            return None
        self._has_begun = True
        return TrialCreated(len(self._study.trials), dict(config), parent=self._failed(config), training=plan.steps)

    def _failed(self, config: Config) -> int | None:
        """Return the training of an earlier driver that failed just before, from whose state this one continues."""
        last = self._study.trials[-1] if self._study.trials else None
        is_same = last is not None and last.training and last.config == config
        return last.id if last is not None and is_same and last.state is TrialState.FAILED else None

    def members(self, workers: Collection[Worker], now: float) -> int:
        """Return how many of the workers should train together now; 0 while others are waited for."""
        assert self._plan is not None
        idle = sum(worker.state is WorkerState.IDLE for worker in workers)
        if idle >= self._plan.workers:
            self._short_since = None
            return self._plan.workers
        if self._short_since is None:
            self._short_since = now
        coming = len(workers) < self._plan.workers or any(worker.state is WorkerState.JOINING for worker in workers)
        patient = now - self._short_since < PATIENCE or (coming and now - self._short_since < 2 * PATIENCE)
        return 0 if patient or idle < self._plan.least else idle

    def started(self) -> None:
        """Record that the training runs; the wait for a worker that is lost from now on starts again."""
        self._short_since = None

    @property
    def _config(self) -> Config | None:
        if self._plan is not None and self._plan.config is not None:
            return self._plan.config
        return self._study.best.config if self._study.best is not None else None
