"""The ledger of a search: all trials, changed by events alone."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable

from optimizers.checks.options import short
from optimizers.core.base import (
    CONTINUE,
    Decision,
    FullBudget,
    Grant,
    History,
    Observation,
    Optimizer,
    Pending,
    Problem,
    Scheduler,
    Update,
    is_grant,
)
from optimizers.core.curve import Curve
from optimizers.core.direction import Direction, direction_of
from optimizers.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Columns,
    Event,
    Measured,
    TrialCreated,
)
from optimizers.core.multi_objective import ParetoFront
from optimizers.core.objectives import Objectives
from optimizers.core.packed import LONGEST, PackedCurves, PackedValues
from optimizers.core.ranking import Ranking, Worth
from optimizers.core.trial import Checkpoint, Trial, TrialState
from optimizers.errors import OptimizerError
from optimizers.space.config import Config

_PENDING, _RUNNING, _PAUSED, _FAILED = TrialState.PENDING, TrialState.RUNNING, TrialState.PAUSED, TrialState.FAILED
_STOP = Decision.STOP
"""Members of enumerations are looked up once (see ``CONTINUE``)."""


class Ledger:
    """Trials, their scheduler and the history that the optimizer sees.

    Args:
        problem: What ``optimizer`` was checked against.
        optimizer: Proposes configurations and brings its scheduler.
        objectives: What is optimised.
        points: Configurations to try before the optimizer's.
        value: What a trial is worth.

    Attributes:
        points_left: Those of the points that are no trial yet.
        failing: Numbers of the trials whose last attempt to end failed or was lost.
    """

    def __init__(
        self, problem: Problem, optimizer: Optimizer, objectives: Objectives, points: tuple[Config, ...], value: Worth
    ) -> None:
        self.problem = problem
        self.objectives = objectives
        self.points = points
        self.points_left = list(points)
        self.optimizer = optimizer
        self.scheduler = optimizer.scheduler(problem)
        self.trials: list[Trial] = []
        self.counts: Counter[TrialState] = Counter()
        self.failing: set[int] = set()
        self.n_asks = 0
        self._trainings: dict[int, Scheduler] = {}
        self.history = History(problem)
        self._updates: list[Update] = []
        self._interrupted: set[int] = set()  # trials that lost an attempt: their times say little of configurations
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
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
        """The steps that the present attempt of ``trial`` has, or that its next one gets.

        Raises:
            OptimizerError: The scheduler answered with something else than a grant of one step or more.
        """
        scheduler = self._scheduler_of(trial)
        grant = scheduler.grant(trial.id)
        if not is_grant(grant):
            raise OptimizerError(
                f"{type(scheduler).__name__}.grant({trial.id}) answered {short(grant)}; let it return Grant(budget, "
                "milestones): the step up to which the trial may run, a whole number of at least 1, and a tuple of "
                "the steps below it at which the scheduler decides"
            )
        return grant

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

    def retry(self, trial: Trial) -> bool:
        """Have a failed trial run again as if it had never failed, if the scheduler can forget it; whether it can.

        What failed was the function, which has been changed since: nothing is known of the configuration.
        """
        scheduler = self._scheduler_of(trial)
        if not scheduler.can_retry:
            return False
        scheduler.retry(trial.id)
        self._move(trial, _PENDING)
        trial.losses = trial.gang_losses = 0
        self._updates = [update for update in self._updates if not _is_failure(update, trial.id)]
        self._updates.append(Pending(trial.id, trial.config))
        return True

    def apply(self, event: Event) -> Decision:
        """Take in one event; what it asks of the trial, if it is a report."""
        match event:  # the most frequent first
            case Measured():
                return self._measured(event)
            case AttemptEnded():
                self._ended(event)
            case AttemptStarted():
                self._started(event)
            case TrialCreated():
                self._created(event)
            case CheckpointSaved():
                self._saved(event)
        return CONTINUE

    def _created(self, event: TrialCreated) -> None:
        ask = event.trial if event.ask == event.trial else event.ask  # one integer, where they are equal
        trial = Trial(event.trial, event.config, ask=ask, parent=event.parent, training=event.training)
        if event.parent is not None and (rest := self.trials[event.parent].rest) is not None:
            trial.checkpoint, trial.start = rest, rest.step
        self.trials.append(trial)
        if event.ask is None and self.points_left and not trial.training:
            self._leave_out(event.config)
        if trial.training:
            self._trainings[trial.id] = FullBudget(trial.training)
            return
        self.counts[_PENDING] += 1
        self.scheduler.create(event.trial, event.parent)
        if event.ask is not None:
            self.n_asks = event.ask + 1
        self._updates.append(Pending(event.trial, event.config))

    def _leave_out(self, config: Config) -> None:
        """Take a point off those that are left; a resumed search may have been given others."""
        key = self.problem.space.key(config)
        for place, point in enumerate(self.points_left):
            if self.problem.space.key(point) == key:
                del self.points_left[place]
                return

    def _started(self, event: AttemptStarted) -> None:
        trial = self.trials[event.trial]
        if trial.state is _FAILED:
            self.retry(trial)
        if trial.state is _PAUSED:
            self.scheduler.promote(trial.id)
            self._updates.append(Pending(trial.id, trial.config))
        self._move(trial, _RUNNING)
        trial.opened_curves()
        trial.returned_at = 0
        trial.attempt = event.attempt
        trial.budget = event.budget
        trial.worker = event.worker
        trial.world_size = event.world_size
        trial.started = event.time

    def _measured(self, event: Measured) -> Decision:
        objective = event.objective
        if direction := event.direction or self.settled(objective):  # before anything is decided by it
            self.objectives.settle(direction)
        trial = self.trials[event.trial]
        if trial.objective != objective:
            trial.objective = sys.intern(objective)
        if event.returned:
            return self._returned(trial, event)
        curves = trial.opened_curves()
        if trial.reported is None:  # what was returned by attempts that reported nothing
            curves.pop(objective, None)
        fresh: Columns = [], []
        for name, (steps, values) in event.columns.items():
            curve = curves.get(name)
            if curve is None:
                curve = curves[name] = Curve()
            taken = curve.extend(steps, values)
            if name == objective:
                fresh = taken
        decision = CONTINUE
        scheduler, number = self._scheduler_of(trial), trial.id
        milestones = scheduler.grant(number).milestones
        for step, value in zip(*fresh, strict=True):
            loss = self.objectives.loss(value)
            trial.reported = step
            self._ranking.measured(trial, value, loss, step)
            verdict = scheduler.report(number, step, loss)
            if verdict is _STOP:
                decision, trial.stop_due = verdict, True
            elif step in milestones:
                self._observe(Observation(number, trial.config, step, loss, ended=False))
        return decision

    def _returned(self, trial: Trial, event: Measured) -> Decision:
        """Have the scheduler compare what a function returned before the end of its budget."""
        steps, values = event.columns[event.objective]
        if trial.reported is None:
            trial.opened_curves().setdefault(event.objective, Curve()).extend(steps, values)
        trial.returned_at = steps[-1]
        self._take_result(trial, values[-1])
        decision = self._scheduler_of(trial).report(trial.id, steps[-1], self.loss(values[-1]))
        trial.stop_due |= decision is _STOP
        return decision

    def _take_result(self, trial: Trial, value: float) -> None:
        """Enter what an attempt ended with."""
        if self._ranking.returned(trial, value, self.loss(value)) and trial.reported is None:
            trial.best_checkpoint = trial.checkpoint

    def _saved(self, event: CheckpointSaved) -> None:
        trial = self.trials[event.trial]
        trial.checkpoint = Checkpoint(event.step, event.name)
        best = trial.best_checkpoint
        if best is None:
            known = math.inf
        elif trial.value_step is None:  # it is the state of the value that was returned
            known = self.loss(trial.value)
        else:
            known = self.loss(trial.curve.at(best.step))
        if self.loss(trial.curve.at(event.step)) < known:
            trial.best_checkpoint = trial.checkpoint

    def _ended(self, event: AttemptEnded) -> None:
        trial, state = self.trials[event.trial], event.state
        trial.failure, trial.stop_due = event.failure, False
        if event.failure is not None:
            self.failing.add(trial.id)
        else:
            self.failing.discard(trial.id)
        if trial.started is not None:
            if event.time > trial.started:
                trial.seconds += event.time - trial.started
            trial.started = None
        self._move(trial, state)
        if (value := event.value) is not None:
            if value == trial.last_value:
                value = trial.last_value  # the same object, since millions of them are kept
            self._take_result(trial, value)
        if state is not _PENDING:
            self._ranking.rested(trial)
        if event.metrics:
            trial.metrics = event.metrics
        if event.attributes:
            trial.attributes = event.attributes
        if state is _PENDING:
            kind = event.failure.kind if event.failure is not None else None
            trial.losses += kind is None or kind.counts
            trial.gang_losses += kind is not None and kind.is_gang_loss
            self._interrupted.add(trial.id)
        if trial.training and state is _FAILED:
            trial.rest = trial.checkpoint  # from which a resume continues
        if state is _PENDING or trial.training:
            return
        failed, paused = state is _FAILED, state is _PAUSED
        if failed:
            self.scheduler.fail(trial.id)
        elif paused:
            self.scheduler.pause(trial.id)
        if paused or trial.rest is None:
            trial.rest = trial.checkpoint
        # A trial that rests at a rung is compared with others there, by its value there.
        worth = trial.value if self.worth == "best" and not paused else trial.last_value
        loss = math.inf if failed else self.loss(worth)
        losses: tuple[float, ...] = ()
        if self.problem.n_objectives > 1:
            trial.values = self.objectives.values(trial)
            losses = self.objectives.losses(trial)
            self._front.enter(trial.id, losses)
        metrics = trial.newest
        if value is not None:
            metrics[trial.objective or "value"] = value
        packed = PackedValues.of(metrics, self._shared(metrics))
        self._observe(
            Observation(
                trial.id,
                trial.config,
                trial.step,
                loss,
                paused=paused,
                losses=losses,
                metrics=packed,
                seconds=0.0 if trial.id in self._interrupted else trial.seconds,
            )
        )
        if type(trial.curves) is dict and sum([len(curve.steps) for curve in trial.curves.values()]) <= LONGEST:
            trial.curves = PackedCurves.of(trial.curves, self._shared(trial.curves))

    def _shared(self, names: Iterable[str]) -> tuple[str, ...]:
        """Names in one tuple for all trials that have them."""
        return self._names.setdefault(known := tuple(names), known)

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


def _is_failure(update: Update, trial: int) -> bool:
    return isinstance(update, Observation) and update.trial == trial and not math.isfinite(update.loss)
