"""Simulation of a search in virtual time, with thousands of workers and without processes or waiting.

The driver's :class:`~maggy_like.driver.state_machine.StateMachine` takes its inputs from a heap in virtual time. So an
optimizer decides in a simulation exactly as in a real search.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any, Protocol

from maggy_like.argument_checks import real, seconds, whole
from maggy_like.driver.state_machine.interface import (
    Append,
    AskOptimizer,
    Command,
    Input,
    Send,
    SuggestionReady,
    TrialSaid,
    WorkerGone,
    WorkerJoined,
    WorkerReady,
)
from maggy_like.driver.state_machine.machine import StateMachine
from maggy_like.errors import ConfigError
from maggy_like.protocol.messages import Assign, Decided, Finished, Reported, Shutdown
from maggy_like.protocol.task import WorkerId
from optimizers.checks import short
from optimizers.core.events import AttemptEnded, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.space import Config


class SimulatedObjective(Protocol):
    """A training to simulate."""

    def __call__(self, config: Config, step: int) -> tuple[float, float]:
        """Return the objective after ``step`` steps, and the seconds of this step."""
        ...


class StatefulObjective(Protocol):
    """A training whose value depends on all earlier steps and their configurations, which PBT changes."""

    def __call__(self, config: Config, step: int, state: Any) -> tuple[float, float, Any]:
        """Return the objective after ``step`` steps, the seconds of this step, and the new state.

        It must not change ``state``, since other trials may start from it.
        """
        ...


def simulate(
    study: Study,
    objective: SimulatedObjective | StatefulObjective,
    *,
    workers: int,
    state: Any = None,
    horizon: float | None = None,
    on_event: Callable[[float, int], None] | None = None,
) -> float:
    """Simulate a search in virtual time. Afterwards the study has the trials.

    A trial reports after every step, and a paused trial resumes at its last step. Only the seconds that ``objective``
    returns pass in virtual time.

    Args:
        study: A new study. It needs ``n_trials``, unless its optimizer has an end or ``horizon`` is given.
        objective: Function of a configuration and a step, which returns the value and the seconds of that step.
        workers: Number of workers.
        state: State from which a training starts, for an objective that takes a state. Default None: it takes none.
        horizon: Virtual seconds after which the simulation ends. Default no limit.
        on_event: Function of the virtual time and the number of handled events, called before each event.

    Returns:
        The virtual time at the end, in seconds.

    Raises:
        ConfigError: An argument is not valid, the study has trials or no end, or the objective returns something else.

    Example:
        >>> study = Study({"lr": Float(1e-4, 1, log=True)}, ASHA(), max_budget=27, n_trials=30)
        >>> simulate(study, lambda config, step: (1 - 1 / step, 1.0), workers=8)  # seconds of virtual time
        41.0
    """
    if not isinstance(study, Study):
        raise ConfigError(f"study must be a Study, got {short(study)}; use Study(space, optimizer, n_trials=100)")
    if study.trials:
        raise ConfigError(f"study must be new, got one with {len(study.trials)} trials; use a new Study")
    if not callable(objective):
        raise ConfigError(f"objective must be a function of a configuration and a step, got {short(objective)}")
    if on_event is not None and not callable(on_event):
        raise ConfigError(f"on_event must be a function of the time and a number, got {short(on_event)}; leave it out")
    seconds("horizon", horizon)
    if study.problem.n_trials is None and horizon is None and not study.optimizer.size(study.problem.space):
        raise ConfigError(
            f"study must have n_trials, because {type(study.optimizer).__name__} proposes without end; use "
            "Study(..., n_trials=100), or pass horizon= to end the simulation after that many virtual seconds"
        )
    simulation = _Simulation(study, objective, whole("workers", workers, least=1), state)
    return simulation.run(horizon, on_event)


class _Simulation:
    def __init__(
        self, study: Study, objective: SimulatedObjective | StatefulObjective, workers: int, state: Any
    ) -> None:
        self.study = study
        self.objective: Callable[..., object] = objective
        self.stateful = state is not None
        self.machine = StateMachine(study, size=workers)
        self.heap: list[tuple[float, int, Input]] = []
        self.order = 0
        self.now = 0.0
        self.begin = (0, state)
        self.reached: dict[int, tuple[int, Any]] = {}  # by trial: steps trained so far, and the state after them
        self.rests: dict[int, tuple[int, Any]] = {}  # by trial: the same as it last paused
        self.running: dict[int, Assign] = {}
        for index in range(workers):
            worker = WorkerId(index, 0)
            self.push(0.0, WorkerJoined(worker, "virtual"))
            self.push(0.0, WorkerReady(worker))

    def push(self, time: float, event: Input) -> None:
        self.order += 1
        heapq.heappush(self.heap, (time, self.order, event))

    def run(self, horizon: float | None, on_event: Callable[[float, int], None] | None) -> float:
        self.execute(self.machine.start(0.0))
        handled = 0
        while self.heap and not self.machine.is_over:
            time, _, event = heapq.heappop(self.heap)
            if horizon is not None and time > horizon:
                return horizon
            self.now = time
            handled += 1
            if on_event is not None:
                on_event(time, handled)
            self.execute(self.machine.handle(event, time))
        if self.machine.error is not None:
            raise self.machine.error
        return self.now

    def execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case AskOptimizer(index=index, updates=updates):
                    for update in updates:
                        self.study.history.apply(update)
                    answer = self.study.optimizer.ask(index, self.study.history)
                    self.push(self.now, SuggestionReady(index, self.study.checked(answer)))
                case Append(event=TrialCreated(trial=trial, parent=parent)) if parent is not None:
                    self.reached[trial] = self.rests.get(parent, self.begin)
                case Append(event=AttemptEnded(trial=trial, state=TrialState.PAUSED)):
                    self.rests[trial] = self.reached[trial]
                case Send(worker=worker, message=Assign() as assign):
                    self.running[worker.index] = assign
                    self.step(worker, assign)
                case Send(worker=worker, message=Decided(stop=stop)):
                    self.verdict(worker, stop)
                case Send(worker=worker, message=Shutdown()):
                    self.push(self.now, WorkerGone(worker))

    def step(self, worker: WorkerId, assign: Assign) -> None:
        """Train one step, and report it when its seconds have passed."""
        reached, state = self.reached.get(assign.trial, self.begin)
        step = reached + 1
        value, seconds, state = self.train(assign.config, step, state)
        self.reached[assign.trial] = step, state
        message = Reported(assign.trial, assign.attempt, "value", {"value": ([step], [value])}, awaiting=True)
        self.push(self.now + seconds, TrialSaid(worker, message))

    def train(self, config: Config, step: int, state: Any) -> tuple[float, float, Any]:
        """Return the value of a step, its seconds, and the state after it."""
        returned: object = self.objective(config, step, state) if self.stateful else self.objective(config, step)
        if isinstance(returned, tuple | list) and len(returned) == 2 + self.stateful:
            value, seconds = map(real, returned[:2])
            if value is not None and seconds is not None and 0.0 <= seconds < math.inf:
                return value, seconds, returned[-1] if self.stateful else None
        what, use = "the value and the seconds of the step", "return value, seconds"
        if self.stateful:
            what, use = "the value and the seconds of the step, and the new state", f"{use}, state"
        raise ConfigError(f"objective must return {what}, got {short(returned)}; use '{use}', with seconds >= 0")

    def verdict(self, worker: WorkerId, stop: bool) -> None:
        assign = self.running[worker.index]
        if stop or self.reached[assign.trial][0] >= assign.budget:
            outcome = Finished(assign.trial, assign.attempt, "stopped" if stop else "returned")
            self.push(self.now, TrialSaid(worker, outcome))
        else:
            self.step(worker, assign)
