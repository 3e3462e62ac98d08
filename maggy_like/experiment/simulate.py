"""Run the real state machine in virtual time: thousands of workers, no process, no waiting.

The driver's own :class:`~maggy_like.experiment.Experiment` is fed from a heap of virtual times, so
what a simulation shows of an optimizer's decisions is what a real search would do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from maggy_like.experiment.commands import AskOptimizer, Command, Send
from maggy_like.experiment.experiment import Experiment
from maggy_like.experiment.inputs import (
    Input,
    SuggestionReady,
    TrialFinished,
    TrialReported,
    WorkerGone,
    WorkerId,
    WorkerJoined,
    WorkerReady,
)
from maggy_like.messages import Assign, Decided, Finished, Reported, Shutdown
from optimizers.study import Study
from optimizers.trial import Config


class Objective(Protocol):
    """A training to be simulated."""

    def __call__(self, config: Config, step: int) -> tuple[float, float]:
        """The objective after ``step`` steps, and the seconds that this one step took."""
        ...


def simulate(
    study: Study,
    objective: Objective,
    *,
    workers: int,
    horizon: float | None = None,
    on_event: Callable[[float, int], None] | None = None,
) -> float:
    """Search in virtual time; the study holds the outcome.

    Trials report after every step, pause and go on where they were, and cost nothing but the
    seconds that ``objective`` names.

    Args:
        study: A new study.
        objective: The training.
        workers: Size of the gang.
        horizon: Virtual seconds after which to end.
        on_event: Called with the virtual time and the number of events handled so far.

    Returns:
        The virtual time at the end.

    Example:
        >>> study = Study({"lr": Float(1e-4, 1, log=True)}, ASHA(), max_budget=27, n_trials=100)
        >>> simulate(study, lambda config, step: (1 - 1 / step, 1.0), workers=8)
    """
    simulation = _Simulation(study, objective, workers)
    return simulation.run(horizon, on_event)


class _Simulation:
    def __init__(self, study: Study, objective: Objective, workers: int) -> None:
        self.study = study
        self.objective = objective
        self.experiment = Experiment(study, workers=workers)
        self.heap: list[tuple[float, int, Input]] = []
        self.order = 0
        self.now = 0.0
        self.reached: dict[int, int] = {}  # steps already trained, by trial: its checkpoint
        self.running: dict[int, Assign] = {}
        for index in range(workers):
            worker = WorkerId(index, 0)
            self.push(0.0, WorkerJoined(worker, "virtual"))
            self.push(0.0, WorkerReady(worker))

    def push(self, time: float, event: Input) -> None:
        self.order += 1
        heapq.heappush(self.heap, (time, self.order, event))

    def run(self, horizon: float | None, on_event: Callable[[float, int], None] | None) -> float:
        self.execute(self.experiment.start(0.0))
        handled = 0
        while self.heap and not self.experiment.is_over:
            time, _, event = heapq.heappop(self.heap)
            if horizon is not None and time > horizon:
                return horizon
            self.now = time
            handled += 1
            if on_event is not None:
                on_event(time, handled)
            self.execute(self.experiment.handle(event, time))
        if self.experiment.error is not None:
            raise self.experiment.error
        return self.now

    def execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case AskOptimizer(index=index, updates=updates):
                    for update in updates:
                        self.study.history.apply(update)
                    config = self.study.optimizer.ask(index, self.study.history)
                    self.push(self.now, SuggestionReady(index, config))
                case Send(worker=worker, message=Assign() as assign):
                    self.running[worker.index] = assign
                    self.step(worker, assign)
                case Send(worker=worker, message=Decided(stop=stop)):
                    self.verdict(worker, stop)
                case Send(worker=worker, message=Shutdown()):
                    self.push(self.now, WorkerGone(worker))

    def step(self, worker: WorkerId, assign: Assign) -> None:
        """Train one step, and report it when its seconds have passed."""
        step = self.reached.get(assign.trial, 0) + 1
        value, seconds = self.objective(assign.config, step)
        self.reached[assign.trial] = step
        message = Reported(assign.trial, assign.attempt, "value", {"value": ([step], [value])}, awaiting=True)
        self.push(self.now + seconds, TrialReported(worker, message))

    def verdict(self, worker: WorkerId, stop: bool) -> None:
        assign = self.running[worker.index]
        if stop or self.reached[assign.trial] >= assign.budget:
            outcome = Finished(assign.trial, assign.attempt, "stopped" if stop else "returned")
            self.push(self.now, TrialFinished(worker, outcome))
        else:
            self.step(worker, assign)
