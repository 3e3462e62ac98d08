"""Feeds a state machine by hand that trains something in the end."""

from __future__ import annotations

from typing import Any

from hand import Hand

from maggy_like.driver.settings import TrainingSettings
from maggy_like.driver.state_machine.interface import (
    Tick,
    WorkerGone,
    WorkerSeen,
)
from maggy_like.protocol.messages import Assign
from maggy_like.protocol.task import WorkerId
from optimizers.core.events import TrialCreated

GANG = 2


class Trained(Hand):
    """A search with a plan for its end."""

    def __init__(self, plan: TrainingSettings | None = None, n_trials: int = 2, **options: Any) -> None:
        super().__init__(None, n_trials, **{"workers": GANG, "training": plan or TrainingSettings(steps=5), **options})

    @property
    def trainings(self) -> list[TrialCreated]:
        return [event for event in self.events if isinstance(event, TrialCreated) and event.training]

    @property
    def members(self) -> list[WorkerId]:
        """Who trains, by rank."""
        number = self.trainings[-1].trial
        attempt = self.study.trials[number].attempt
        orders = [
            (m, who) for who, m in self.sent if isinstance(m, Assign) and (m.trial, m.attempt) == (number, attempt)
        ]
        return [who for _, who in sorted(orders, key=lambda pair: pair[0].rank_info.rank if pair[0].rank_info else 0)]

    def come(self, *indexes: int, incarnation: int = 0) -> list[WorkerId]:
        return [self.join(index, incarnation) for index in indexes]

    def search(self, *values: float) -> None:
        """Let the search run to its end."""
        for value in values:
            busy = [worker for worker in self.machine.workers.values() if worker.trial is not None]
            self.finish(busy[0].id, value)

    def pass_time(self, seconds: float) -> None:
        """Nothing but signs of life."""
        self.now += seconds
        for worker in list(self.machine.workers.values()):
            if worker.is_live:
                self.tell(WorkerSeen(worker.id))
        self.tell(Tick())

    def leave(self) -> None:
        for worker in list(self.machine.workers.values()):
            if worker.is_live:
                self.tell(WorkerGone(worker.id))


def trained(plan: TrainingSettings | None = None, values: tuple[float, ...] = (0.3, 0.7), **options: Any) -> Trained:
    """A search that is over, on a gang that is there."""
    run = Trained(plan, len(values), **options)
    run.start()
    run.come(*range(GANG))
    run.search(*values)
    return run
