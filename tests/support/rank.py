"""A worker of a group as it may behave, and what it has heard and said."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from maggy_like.driver.state_machine.interface import (
    Input,
    TrialSaid,
)
from maggy_like.protocol.messages import (
    Assign,
    Finished,
    OutcomeKind,
    ToWorker,
)
from maggy_like.protocol.task import WorkerId
from optimizers.core.study import Study
from optimizers.core.trial import FailureKind
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.stopping import Threshold
from optimizers.space.domains import Float


@dataclass
class Rank:
    """A worker, and what its child does in the attempt that it runs: a collective operation, then a report, again.

    Attributes:
        inbox: What the driver has sent and did not arrive yet.
        outbox: What the driver has not heard yet.
        arrived: Collective operations that it has begun.
        passed: Reports that went through the gate.
        waiting: Whether it waits for a verdict.
        ended: How the child ended; None while it runs.
        cut: Whether it was killed or told to leave, so that it stopped wherever it was.
    """

    id: WorkerId
    inbox: deque[ToWorker] = field(default_factory=deque)
    outbox: deque[Input] = field(default_factory=deque)
    order: Assign | None = None
    arrived: int = 0
    passed: int = 0
    verdicts: deque[bool] = field(default_factory=deque)
    waiting: bool = False
    halted: bool = False
    stop_at: int | None = None
    ended: OutcomeKind | None = None
    cut: bool = False

    @property
    def is_running(self) -> bool:
        return self.order is not None and self.ended is None

    def begin(self, order: Assign) -> None:
        self.order, self.arrived, self.passed = order, 0, 0
        self.waiting = self.halted = self.cut = False
        self.stop_at = self.ended = None
        self.verdicts.clear()

    def end(self, outcome: OutcomeKind, kind: FailureKind | None = None, *, cut: bool = False) -> None:
        assert self.order is not None
        self.ended, self.cut = outcome, cut
        message = f"{kind} of {self.id}" if kind else ""
        finished = Finished(self.order.trial, self.order.attempt, outcome, kind=kind, message=message)
        self.outbox.append(TrialSaid(self.id, finished))


def study(n_trials: int) -> Study:
    rule = Threshold(ASHA(sampler="random", eta=2, min_budget=2), step=1, worse_than=0.5, direction="max")
    return Study({"x": Float(0, 1)}, rule, max_budget=4, n_trials=n_trials)
