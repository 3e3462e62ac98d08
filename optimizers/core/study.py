"""The ledger of a search: all trials, changed by events alone.

:meth:`Study.apply` is the only thing that changes a study, so the journal of its events is the
study: replaying them gives the same trials, rungs and pending promotions.

Alone, without the runtime, a study is a plain ask/tell library::

    study = Study({"x": Float(-5, 5)}, RandomSearch(), direction="min", n_trials=20)
    while (trial := study.ask()) is not None:
        study.tell(trial, (trial.config["x"] - 2) ** 2)
    study.best.config
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from optimizers.core.base import (
    WAIT,
    Answer,
    Decision,
    FullBudget,
    Grant,
    History,
    Observation,
    Optimizer,
    Pending,
    Problem,
    Proposal,
    Scheduler,
    Update,
    Wait,
)
from optimizers.core.direction import Direction, direction_of
from optimizers.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Event,
    Measured,
    TrialCreated,
)
from optimizers.core.failure_kinds import FailureKind
from optimizers.core.initial_points import initial_points
from optimizers.core.multi_objective import ParetoFront
from optimizers.core.objectives import Directions, Objectives
from optimizers.core.ranking import Ranking, Worth
from optimizers.core.trial import Checkpoint, Curve, Failure, Trial, TrialState
from optimizers.errors import OptimizerError, UserError
from optimizers.space.config import Config
from optimizers.space.search_space import SearchSpace


class Study:
    """Trials, their scheduler and the history that the optimizer sees.

    Args:
        space: The search space, or any mapping that :class:`SearchSpace` reads.
        optimizer: Proposes configurations and brings its scheduler.
        direction: ``max`` or ``min`` of the objective; one for each where there are several. None where its name shall
            say it, at its first report if it was not given (see :class:`~optimizers.core.objectives.Objectives`).
        objectives: Names of the objectives, as they are reported; of a single one it may be left out.
        value: What a trial is worth: the ``best`` of its reports or the ``last`` (see
            :class:`~optimizers.core.ranking.Ranking`).
        seed: Source of all randomness.
        max_budget: Steps of a full training.
        n_trials: Upper bound on the number of configurations.
        points: Configurations to try before the optimizer's; the attribute has those of
            :func:`~optimizers.core.initial_points.initial_points` as well.
        earlier: Observations of earlier searches (see :attr:`Problem.earlier`).

    Raises:
        OptimizerError: The optimizer cannot serve this problem.
        SearchSpaceError: The space or a point is not valid.
    """

    def __init__(
        self,
        space: SearchSpace | Mapping[str, Any],
        optimizer: Optimizer,
        *,
        direction: Directions = None,
        objectives: Sequence[str] = (),
        value: Worth = "best",
        seed: int = 0,
        max_budget: int = 1,
        n_trials: int | None = None,
        points: Sequence[Mapping[str, Any]] = (),
        earlier: Sequence[Sequence[Observation]] = (),
    ) -> None:
        wanted = Objectives(direction, objectives)
        space = space if isinstance(space, SearchSpace) else SearchSpace(space)
        runs = tuple(map(tuple, earlier))
        problem = Problem(space, seed, max_budget, n_trials, runs, n_objectives=len(wanted))
        optimizer.check(problem)
        self._begin(problem, optimizer, wanted, initial_points(problem, points), value)

    @classmethod
    def of_checked(
        cls, problem: Problem, optimizer: Optimizer, objectives: Objectives, points: tuple[Config, ...], value: Worth
    ) -> Study:
        """A study of what was checked before.

        Args:
            problem: What ``optimizer`` was checked against.
            optimizer: Proposes configurations and brings its scheduler.
            objectives: What is optimised.
            points: All of :func:`~optimizers.core.initial_points.initial_points`.
            value: What a trial is worth.
        """
        study = cls.__new__(cls)
        study._begin(problem, optimizer, objectives, points, value)
        return study

    def _begin(
        self, problem: Problem, optimizer: Optimizer, objectives: Objectives, points: tuple[Config, ...], value: Worth
    ) -> None:
        self.problem = problem
        self.objectives = objectives
        self.points = points
        self.optimizer = optimizer
        self.scheduler = optimizer.scheduler(problem)
        self.trials: list[Trial] = []
        self.counts: Counter[TrialState] = Counter()
        self.n_asks = 0
        self._trainings: dict[int, Scheduler] = {}
        self.history = History(problem)
        self._updates: list[Update] = []
        self._front = ParetoFront()
        self._ranking = Ranking(self.trials, objectives, value)

    # -- what is known ------------------------------------------------------------------------

    @property
    def worth(self) -> Worth:
        """What a trial is worth: the best of its reports, or the last."""
        return self._ranking.worth

    @property
    def direction(self) -> Direction | None:
        """Of the objective, of the first where there are several; None while it is not known."""
        return None if self.objectives.is_open else self.objectives.directions[0]

    def settled(self, metric: str) -> Direction | None:
        """The direction that the first measurement of ``metric`` settles; None if it was known before."""
        return (direction_of(metric) or "max") if self.objectives.is_open else None

    def loss(self, value: float | None) -> float:
        """The objective as the algorithms see it: smaller is better, ``inf`` for no finite value."""
        return self.objectives.loss(value)

    @property
    def pareto(self) -> list[Trial]:
        """Of several objectives: the ended trials that no other dominates; failed ones do not count."""
        return [self.trials[number] for number in self._front]

    @property
    def best(self) -> Trial | None:
        """The trial that is worth most (see :attr:`Trial.value`).

        None in a search of several objectives, which has a :attr:`pareto` set.
        """
        return self._ranking.best

    def grant(self, trial: Trial) -> Grant:
        """The steps that the present attempt of ``trial`` has, or that its next one gets."""
        return self._scheduler_of(trial).grant(trial.id)

    def is_final(self, trial: Trial) -> bool:
        """Whether a trial that has used up its present grant is completed (else it is paused)."""
        return self._scheduler_of(trial).is_final(trial.id)

    @property
    def size(self) -> int:
        """How many configurations the search has tried or is trying: all trials but the trainings."""
        return len(self.trials) - len(self._trainings)

    def next_promotion(self) -> Trial | None:
        """The paused trial that should run on now, if one is due."""
        number = self.scheduler.next_promotion()
        return None if number is None else self.trials[number]

    def closing_promotion(self) -> Trial | None:
        """The paused trial that should run on before the search ends; to be asked where it would end otherwise."""
        number = self.scheduler.closing_promotion()
        return None if number is None else self.trials[number]

    @property
    def has_updates(self) -> bool:
        """Whether there is anything that the optimizer's history has not yet been told."""
        return bool(self._updates)

    def take_updates(self) -> tuple[Update, ...]:
        """What the optimizer's history has not yet been told, in order."""
        updates = tuple(self._updates)
        self._updates.clear()
        return updates

    # -- changes ------------------------------------------------------------------------------

    def apply(self, event: Event) -> Decision:
        """Take in one event; what it asks of the trial, if it is a report."""
        match event:
            case Measured():
                return self._measured(event)
            case TrialCreated():
                self._created(event)
            case AttemptStarted():
                self._started(event)
            case CheckpointSaved():
                self._saved(event)
            case AttemptEnded():
                self._ended(event)
        return Decision.CONTINUE

    def conclude(
        self,
        trial: Trial,
        value: float | None,
        metrics: Mapping[str, float],
        now: float,
        attributes: Mapping[str, Any] | None = None,
    ) -> list[Event]:
        """The events that say: the training function returned.

        What it returned is one more measurement of the objective, at the last step. If that lies before the end of
        the budget, it stands for the rest of it.

        Args:
            value: What it returned as the objective, or None to take the last report.
            attributes: What it returned that is no number.
        """
        final = value if value is not None else trial.curve.last
        rest: dict[str, Any] = {"metrics": dict(metrics), "attributes": dict(attributes or {})}
        if final is None and trial.training:
            return [AttemptEnded(trial.id, trial.attempt, TrialState.COMPLETED, now, **rest)]
        if final is None:
            failure = Failure(
                FailureKind.NO_VALUE, "train_fn returned no number and reported nothing; return a number or report one"
            )
            return [AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, now, failure=failure)]
        if not trial.training and (missing := self.objectives.missing(trial, metrics)):
            failure = Failure(FailureKind.NO_VALUE, missing)
            return [AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, now, failure=failure)]
        events: list[Event] = []
        if trial.step < trial.budget and (value is not None or not trial.training):
            sole = next(iter(metrics)) if len(metrics) == 1 else None
            objective = trial.objective or next(iter(self.objectives.given), None) or sole or "value"
            column = {objective: ([trial.budget], [final])}
            events.append(Measured(trial.id, trial.attempt, objective, column, returned=True))
        state = TrialState.COMPLETED if self.is_final(trial) else TrialState.PAUSED
        events.append(AttemptEnded(trial.id, trial.attempt, state, now, final, **rest))
        return events

    def started(self, trial: Trial, worker: int, now: float, world_size: int = 1) -> AttemptStarted:
        """The event that says: the next attempt of ``trial`` begins on ``world_size`` workers, ``worker`` the first."""
        return AttemptStarted(
            trial.id,
            trial.attempt + 1,
            worker,
            self.grant(trial).budget,
            now,
            trial.config,
            trial.ask,
            trial.parent,
            trial.training,
            world_size,
        )

    def _created(self, event: TrialCreated) -> None:
        trial = Trial(event.trial, event.config, ask=event.ask, parent=event.parent, training=event.training)
        if event.parent is not None and (rest := self.trials[event.parent].rest) is not None:
            trial.checkpoint, trial.start = rest, rest.step
        self.trials.append(trial)
        if trial.training:
            self._trainings[trial.id] = FullBudget(trial.training)
            return
        self.counts[TrialState.PENDING] += 1
        self.scheduler.create(event.trial, event.parent)
        if event.ask is not None:
            self.n_asks = event.ask + 1
        self._updates.append(Pending(event.trial, event.config))

    def _started(self, event: AttemptStarted) -> None:
        trial = self.trials[event.trial]
        if trial.state is TrialState.PAUSED:
            self.scheduler.promote(trial.id)
            self._updates.append(Pending(trial.id, trial.config))
        self._move(trial, TrialState.RUNNING)
        trial.attempt = event.attempt
        trial.budget = event.budget
        trial.worker = event.worker
        trial.world_size = event.world_size
        trial.started = event.time

    def _measured(self, event: Measured) -> Decision:
        if (direction := event.direction or self.settled(event.objective)) is not None:
            self.objectives.settle(direction)  # before anything is decided by it
        trial = self.trials[event.trial]
        trial.objective = event.objective
        fresh = len(trial.curve)
        curves = trial.curves
        for name, (steps, values) in event.columns.items():
            curve = curves.get(name)
            if curve is None:
                curve = curves[name] = Curve()
            curve.extend(steps, values)
        curve = trial.curve
        decision = Decision.CONTINUE
        scheduler, milestones = self._scheduler_of(trial), self.grant(trial).milestones
        for step, value in zip(curve.steps[fresh:], curve.values[fresh:], strict=True):
            loss = self.loss(value)
            if not event.returned:
                trial.reported = step
            self._ranking.measured(trial, value, trial.reported)
            verdict = scheduler.report(trial.id, step, loss)
            if verdict is Decision.STOP:
                decision = verdict
            elif step in milestones:
                self._observe(Observation(trial.id, trial.config, step, loss, ended=False))
        return decision

    def _saved(self, event: CheckpointSaved) -> None:
        trial = self.trials[event.trial]
        trial.checkpoint = Checkpoint(event.step, event.name)
        best = trial.best_checkpoint
        known = math.inf if best is None else self.loss(trial.curve.at(best.step))
        if self.loss(trial.curve.at(event.step)) < known:
            trial.best_checkpoint = trial.checkpoint

    def _ended(self, event: AttemptEnded) -> None:
        trial = self.trials[event.trial]
        trial.failure = event.failure
        if trial.started is not None:
            trial.seconds += max(0.0, event.time - trial.started)
            trial.started = None
        self._move(trial, event.state)
        if event.value is not None:
            self._ranking.measured(trial, event.value, trial.reported)
        self._ranking.rested(trial)
        if event.metrics:
            trial.metrics = event.metrics
        if event.attributes:
            trial.attributes = event.attributes
        if event.state is TrialState.PENDING:
            kind = event.failure.kind if event.failure is not None else None
            trial.losses += kind is None or kind.counts
            trial.falls += kind is not None and kind.is_fall
        if event.state is TrialState.PENDING or trial.training:
            return
        match event.state:
            case TrialState.FAILED:
                self.scheduler.fail(trial.id)
            case TrialState.PAUSED:
                self.scheduler.pause(trial.id)
        paused = event.state is TrialState.PAUSED
        if paused or trial.rest is None:
            trial.rest = trial.checkpoint
        # A trial that rests at a rung is compared with others there, by its value there.
        worth = trial.last_value if paused else trial.value
        loss = math.inf if event.state is TrialState.FAILED else self.loss(worth)
        trial.values = self.objectives.values(trial)
        losses = self.objectives.losses(trial)
        if losses:
            self._front.enter(trial.id, losses)
        metrics = trial.newest | ({} if event.value is None else {trial.objective or "value": event.value})
        self._observe(
            Observation(trial.id, trial.config, trial.step, loss, paused=paused, losses=losses, metrics=metrics)
        )

    def _observe(self, observation: Observation) -> None:
        self._updates.append(observation)
        self.scheduler.observe(observation)

    def _move(self, trial: Trial, state: TrialState) -> None:
        if not trial.training:
            self.counts[trial.state] -= 1
            self.counts[state] += 1
        trial.state = state

    def _scheduler_of(self, trial: Trial) -> Scheduler:
        return self._trainings.get(trial.id, self.scheduler)

    # -- ask and tell, for use without the runtime --------------------------------------------

    def ask(self) -> Trial | None:
        """Start the next attempt: a promotion if one is due, else a new configuration.

        Returns:
            The running trial; its ``budget`` says up to which step. None when nothing is due now.
        """
        trial = self.next_promotion() or self._new_trial()
        if trial is None and not self.counts[TrialState.RUNNING]:
            trial = self.closing_promotion()
        if trial is not None:
            self.apply(self.started(trial, 0, 0.0))
        return trial

    def report(self, trial: Trial, step: int, value: float) -> Decision:
        """Enter a measurement of a running trial; a ``STOP`` also ends it."""
        decision = self.apply(Measured(trial.id, trial.attempt, "value", {"value": ([step], [value])}))
        if decision is Decision.STOP:
            self.apply(AttemptEnded(trial.id, trial.attempt, TrialState.STOPPED, 0.0))
        return decision

    def tell(self, trial: Trial, value: float | Sequence[float] | None = None) -> None:
        """End a running trial with its final value (or values, of several objectives), or with its last report."""
        metrics: dict[str, float] = {}
        if isinstance(value, Sequence):
            metrics = dict(zip(self.objectives.names, value, strict=True))
            value = value[0]
        for event in self.conclude(trial, value, metrics, 0.0):
            self.apply(event)

    def fail(self, trial: Trial, message: str = "failed") -> None:
        """End a running trial without a value."""
        failure = Failure(FailureKind.EXCEPTION, message)
        self.apply(AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, 0.0, failure=failure))

    def _new_trial(self) -> Trial | None:
        if self.problem.n_trials is not None and self.size >= self.problem.n_trials:
            return None
        if (n := self.size - self.n_asks) < len(self.points):
            self.apply(TrialCreated(len(self.trials), self.points[n]))
            return self.trials[-1]
        for update in self.take_updates():
            self.history.apply(update)
        proposal = self.checked(self.optimizer.ask(self.n_asks, self.history))
        if not isinstance(proposal, Proposal):
            return None
        self.apply(TrialCreated(len(self.trials), proposal.config, self.n_asks, proposal.parent))
        return self.trials[-1]

    def checked(self, answer: Answer) -> Proposal | Wait | None:
        """An optimizer's answer, with a proposed configuration as the search space has it.

        Raises:
            OptimizerError: The optimizer proposed something outside the space, or a parent that is none.
        """
        if answer is None or answer is WAIT:
            return answer
        proposal = answer if isinstance(answer, Proposal) else Proposal(answer)
        name = type(self.optimizer).__name__
        if proposal.parent is not None and proposal.parent not in range(len(self.trials)):
            known = f"there are {len(self.trials)} trials"
            raise OptimizerError(f"{name} proposed a trial with the parent {proposal.parent!r}, but {known}")
        try:
            return replace(proposal, config=self.problem.space.validate(proposal.config))
        except UserError as error:
            raise OptimizerError(f"{name} proposed {proposal.config!r}, which is not in the space: {error}") from error
