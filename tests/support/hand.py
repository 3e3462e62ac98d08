"""Feeds a state machine by hand."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from maggy_like.driver.settings import Settings
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.interface import (
    Append,
    AskOptimizer,
    Command,
    Input,
    Replace,
    Send,
    Show,
    StoreReturned,
    SuggestionReady,
    TrialSaid,
    WorkerJoined,
    WorkerReady,
)
from maggy_like.protocol.messages import (
    Assign,
    Finished,
    Reported,
    ToWorker,
)
from maggy_like.protocol.task import WorkerId
from optimizers.core.base import Optimizer
from optimizers.core.events import Event
from optimizers.core.study import Study
from optimizers.core.trial import FailureKind
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.space.domains import Float


def settings_of(study: Study, **options: Any) -> Settings:
    """The settings of a run, each option in the part that has it. Identical failures end nothing unless they are to."""
    made, options = Settings.of(study), {"max_identical_failures": 0, **options}
    parts = {name: getattr(made, name) for name in ("search", "files", "limits", "size", "failures")}
    for name, part in parts.items():
        own = {field.name: options.pop(field.name) for field in fields(part) if field.name in options}
        parts[name] = replace(part, **own)
    return replace(made, **parts, **options)


OF_THE_MACHINE = ("grows", "heartbeat_timeout", "store_patience")


class Hand:
    """Feeds a state machine by hand, answers its asks, and keeps what it wants."""

    def __init__(
        self,
        optimizer: Optimizer | None = None,
        n_trials: int = 4,
        points: Any = (),
        study: dict[str, Any] | None = None,
        metric: str = "quality",
        workers: int = 2,
        **options: Any,
    ) -> None:
        optimizer = optimizer or RandomSearch()
        self.study = Study({"x": Float(0, 1)}, optimizer, max_budget=9, n_trials=n_trials, points=points, **study or {})
        given = {name: options.pop(name) for name in OF_THE_MACHINE if name in options}
        self.machine = StateMachine(self.study, settings_of(self.study, **options), size=workers, **given)
        self.metric = metric
        self.now = 0.0
        self.events: list[Event] = []
        self.sent: list[tuple[WorkerId, ToWorker]] = []
        self.kept: list[Any] = []
        self.shown: list[str] = []
        self.replaced: list[WorkerId] = []
        self.answered = 0

    def start(self) -> Hand:
        self.carry_out(self.machine.start(self.now))
        return self

    def tell(self, *events: Input) -> list[ToWorker]:
        """Hand events over; what was sent because of them."""
        before = len(self.sent)
        for event in events:
            self.carry_out(self.machine.handle(event, self.now))
        return [message for _, message in self.sent[before:]]

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Append(event=event):
                    self.events.append(event)
                case Send(worker=worker, message=message):
                    self.sent.append((worker, message))
                case AskOptimizer(index=index, updates=updates):
                    for update in updates:
                        self.study.history.apply(update)
                    config = self.study.optimizer.ask(index, self.study.history)
                    self.answered += 1
                    self.tell(SuggestionReady(index, self.study.checked(config)))
                case StoreReturned(returned=returned):
                    self.kept.append(returned)
                case Show(text=text):
                    self.shown.append(text)
                case Replace(worker=worker):
                    self.replaced.append(worker)

    @property
    def ready(self) -> int:
        """How many proposals wait for a worker."""
        return self.answered - len(self.study.trials)

    def join(self, index: int, incarnation: int = 0) -> WorkerId:
        worker = WorkerId(index, incarnation)
        self.tell(WorkerJoined(worker, "host"), WorkerReady(worker))
        return worker

    def assigned(self, worker: WorkerId) -> Assign:
        """The newest assignment of a worker."""
        return [m for who, m in self.sent if who == worker and isinstance(m, Assign)][-1]

    def report(self, worker: WorkerId, step: int, value: float, *, awaiting: bool = False) -> list[ToWorker]:
        assign = self.assigned(worker)
        message = Reported(assign.trial, assign.attempt, self.metric, {self.metric: ([step], [value])}, awaiting)
        return self.tell(TrialSaid(worker, message))

    def finish(self, worker: WorkerId, value: float | None = None, **fields: Any) -> list[ToWorker]:
        assign = self.assigned(worker)
        fields = {"outcome": "returned", "value": value, **fields}
        if "kind" in fields:
            fields["kind"] = FailureKind(fields["kind"])
        return self.tell(TrialSaid(worker, Finished(assign.trial, assign.attempt, **fields)))

    def states(self) -> list[str]:
        return [trial.state.value for trial in self.study.trials]
