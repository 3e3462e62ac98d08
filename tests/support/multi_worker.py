"""Feeds a state machine by hand whose trials run on several workers each."""

from __future__ import annotations

from typing import Any

from hand import Hand

from maggy_like.driver.state_machine.interface import (
    TrialSaid,
    WorkerJoined,
    WorkerReady,
)
from maggy_like.protocol.messages import (
    Assign,
    Checkpointed,
    Held,
    ToWorker,
)
from maggy_like.protocol.state_names import StateName
from maggy_like.protocol.task import WorkerId
from optimizers.core.base import Optimizer
from optimizers.core.events import AttemptEnded
from optimizers.schedulers.stopping import Threshold

BOUND = Threshold(step=1, worse_than=0.5, direction="max")


class MultiWorkerHand(Hand):
    """Trials of ``workers_per_trial`` workers."""

    def __init__(self, workers_per_trial: int = 2, optimizer: Optimizer | None = None, **options: Any) -> None:
        super().__init__(
            optimizer,
            **{"workers": workers_per_trial, "n_trials": 1, "workers_per_trial": workers_per_trial, **options},
        )

    def come(self, index: int, host: str = "host", gpus: tuple[str, ...] = (), incarnation: int = 0) -> WorkerId:
        worker = WorkerId(index, incarnation)
        self.tell(WorkerJoined(worker, host, gpus), WorkerReady(worker))
        return worker

    def members(self) -> list[WorkerId]:
        """Who got the newest attempt, by rank."""
        newest = max((m.trial, m.attempt) for _, m in self.sent if isinstance(m, Assign))
        found = [(m, who) for who, m in self.sent if isinstance(m, Assign) and (m.trial, m.attempt) == newest]
        return [who for _, who in sorted(found, key=lambda pair: pair[0].rank_info.rank if pair[0].rank_info else 0)]

    def to(self, *events: Any) -> list[tuple[WorkerId, ToWorker]]:
        """What was sent to whom because of some events."""
        before = len(self.sent)
        self.tell(*events)
        return self.sent[before:]

    def held(self, worker: WorkerId, reports: int) -> list[tuple[WorkerId, ToWorker]]:
        order = self.assigned(worker)
        return self.to(TrialSaid(worker, Held(order.trial, order.attempt, reports)))

    def save(self, worker: WorkerId, step: int) -> list[tuple[WorkerId, ToWorker]]:
        order = self.assigned(worker)
        name = str(StateName(order.trial, order.attempt, step))
        return self.to(TrialSaid(worker, Checkpointed(order.trial, order.attempt, step, name)))

    def fail(
        self, worker: WorkerId, message: str, at: float, kind: str = "exception", place: str = ""
    ) -> list[ToWorker]:
        said = {"message": message, "traceback": f"of {message}", "place": place}
        return self.finish(worker, outcome="raised", kind=kind, at=at, **said)

    @property
    def ends(self) -> list[AttemptEnded]:
        return [event for event in self.events if isinstance(event, AttemptEnded)]


def multi_worker(
    workers_per_trial: int = 2, optimizer: Optimizer | None = None, **options: Any
) -> tuple[MultiWorkerHand, list[WorkerId]]:
    """A trial under way on all workers, those of a host side by side."""
    run = MultiWorkerHand(workers_per_trial, optimizer, **options)
    run.start()
    for index in range(workers_per_trial):
        run.come(index)
    return run, run.members()
