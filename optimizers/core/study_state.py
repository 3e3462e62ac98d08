"""The state of a study: all trials and their ranking. Only events change it."""

from __future__ import annotations

import heapq
import math
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from optimizers.checks import short
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
from optimizers.core.direction import Direction, direction_of
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Columns, Event, Measured, TrialCreated
from optimizers.core.objectives import Objectives, ParetoFront
from optimizers.core.trial import LONGEST, Checkpoint, Curve, PackedCurves, PackedValues, Trial, TrialState
from optimizers.errors import OptimizerError, UserError
from optimizers.space import Config

ValueRule = Literal["best", "last"]
"""A trial's value: the best of its reports, or the newest one when it last paused or ended."""

VALUE_RULES: tuple[ValueRule, ...] = ("best", "last")


class Ranking:
    """Track the values of trials, and the best trial.

    With ``best``, a trial's value can only improve, and so can the best value. A trial that fails after good reports
    keeps its value, because the reports were measured and its checkpoints remain. With ``last``, a trial is ranked by
    its newest value when it last paused or ended (during its first attempt, by its newest report), and a failed trial
    does not count.

    A value that is not finite ranks worst and is never the best. Trainings are not ranked. With several objectives, the
    first one ranks the trials, and the rule is always ``last``.

    A returned value is the result of an attempt. It has no step, and the checkpoint that it belongs to is unknown. So
    it is the trial's value only if the function has reported nothing, or if there are several objectives.
    """

    def __init__(self, trials: list[Trial], objectives: Objectives, rule: ValueRule = "best") -> None:
        if rule not in VALUE_RULES:
            raise UserError(f"value must be 'best' or 'last', got {short(rule)}; use value='best'")
        self.value_rule: ValueRule = rule if len(objectives) == 1 else "last"
        self._trials = trials  # the study appends to them
        self._objectives = objectives
        self._heap: list[tuple[float, int]] = []  # (loss, trial); may hold stale entries

    @property
    def best(self) -> Trial | None:
        """The best trial; None while no trial has a finite value, or if there are several objectives."""
        while self._heap and len(self._objectives) == 1:
            loss, number = self._heap[0]
            trial = self._trials[number]
            if self._loss(trial) == loss:
                return trial
            heapq.heappop(self._heap)
        return None

    def measured(self, trial: Trial, value: float, loss: float, step: int | None) -> bool:
        """Record a report of a running trial. Return whether it is the trial's value now."""
        trial.last_value = value
        if self.value_rule == "last":
            counts = not trial.rested
        else:
            counts = trial.value is None or loss < self._objectives.loss(trial.value)
        if counts:
            self._enter(trial, value, loss, step)
        return counts

    def returned(self, trial: Trial, value: float, loss: float) -> bool:
        """Record the result of an attempt. Return whether it is the trial's value now."""
        if self._goes_by_returned(trial):
            return self.measured(trial, value, loss, None)
        trial.last_value = value
        return False

    def rested(self, trial: Trial) -> None:
        """Record that an attempt has ended and is not retried."""
        trial.rested = True
        is_returned = self._goes_by_returned(trial)
        value = trial.last_value if is_returned else trial.curve.last
        if self.value_rule == "last" and value is not None:
            step = None if is_returned and value != trial.curve.last else trial.reported
            self._enter(trial, value, self._objectives.loss(value), step)

    def _goes_by_returned(self, trial: Trial) -> bool:
        return trial.reported is None or len(self._objectives) > 1

    def _enter(self, trial: Trial, value: float, loss: float, step: int | None) -> None:
        trial.value, trial.value_step = value, step
        if loss < math.inf and not trial.training:
            entry = loss, trial.id
            if self.value_rule == "best" and self._heap:  # no value gets worse, so the best of all is never stale
                if entry < self._heap[0]:
                    self._heap[0] = entry
                return
            heapq.heappush(self._heap, entry)
            if len(self._heap) > 2 * len(self._trials) + 64:  # keep stale entries from piling up
                losses = ((self._loss(each), each.id) for each in self._trials if not each.training)
                self._heap = [entry for entry in losses if math.isfinite(entry[0])]
                heapq.heapify(self._heap)

    def _loss(self, trial: Trial) -> float:
        """Return the loss that ranks a trial; ``inf`` if it does not count."""
        if self.value_rule == "last" and trial.state is TrialState.FAILED:
            return math.inf
        return self._objectives.loss(trial.value)


_PENDING, _RUNNING, _PAUSED, _FAILED = TrialState.PENDING, TrialState.RUNNING, TrialState.PAUSED, TrialState.FAILED
_STOP = Decision.STOP
"""Members of enumerations are looked up once (see ``CONTINUE``)."""


class StudyState:
    """Trials, their scheduler and the history that the optimizer sees.

    The problem is checked against the optimizer. ``points`` are configurations to try before those of the optimizer.

    Attributes:
        points_left: Points that have no trial yet.
        failing: Numbers of the trials whose last ended attempt failed or was lost.
        repeats: Trainings that repeat a trial of the search, in order.
    """

    def __init__(
        self,
        problem: Problem,
        optimizer: Optimizer,
        objectives: Objectives,
        points: tuple[Config, ...],
        value: ValueRule,
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
        self.repeats: list[Trial] = []
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
    def value_rule(self) -> ValueRule:
        """Rule for the value of a trial: the best of its reports, or the last."""
        return self._ranking.value_rule

    @property
    def direction(self) -> Direction | None:
        """Direction of the (first) objective; None while it is unknown."""
        return None if self.objectives.is_open else self.objectives.directions[0]

    def settled(self, metric: str) -> Direction | None:
        """Return the direction that the first measurement of ``metric`` settles; None if it was known before."""
        return (direction_of(metric) or "max") if self.objectives.is_open else None

    def check_direction(self, metric: str) -> None:
        """Check that the direction that the first measurement of ``metric`` settles suits the optimizer.

        Raises:
            OptimizerError: It does not.
        """
        if (direction := self.settled(metric)) is not None:
            self.optimizer.check(replace(self.problem, direction=direction))

    def loss(self, value: float | None) -> float:
        """Return a value of the objective as algorithms see it: smaller is better, ``inf`` if it is not finite."""
        return self.objectives.loss(value)

    @property
    def pareto(self) -> list[Trial]:
        """Ended trials that no other trial dominates, if there are several objectives. Failed trials do not count."""
        return [self.trials[number] for number in self._front]

    @property
    def best(self) -> Trial | None:
        """The trial with the best value (see :attr:`Trial.value`).

        None if there are several objectives; see :attr:`pareto`.
        """
        return self._ranking.best

    def grant(self, trial: Trial) -> Grant:
        """Return the steps of the current attempt of ``trial``, or of its next one."""
        scheduler = self._scheduler_of(trial)
        grant = scheduler.grant(trial.id)
        most = trial.training or self.problem.max_budget
        if not is_grant(grant, most):
            raise OptimizerError(
                f"{type(scheduler).__name__}.grant({trial.id}) must return a Grant, got {short(grant)}; use "
                f"Grant(budget, milestones): the step up to which the trial may run, from 1 to max_budget={most}, and "
                "a tuple of the steps below it, in rising order, at which the scheduler decides"
            )
        return grant

    def is_final(self, trial: Trial) -> bool:
        """Return whether a trial that has used up its grant is completed. Otherwise it is paused."""
        return self._scheduler_of(trial).is_final(trial.id)

    @property
    def size(self) -> int:
        """Number of configurations that the search has tried or is trying: all trials except trainings."""
        return len(self.trials) - len(self._trainings)

    def next_promotion(self) -> Trial | None:
        """Return the paused trial to promote now, if any."""
        return self._paused("next_promotion", self.scheduler.next_promotion())

    def closing_promotion(self) -> Trial | None:
        """Return the paused trial to promote before the search ends, if any.

        Call it only when the search would end otherwise.
        """
        return self._paused("closing_promotion", self.scheduler.closing_promotion())

    def _paused(self, method: str, number: int | None) -> Trial | None:
        """Return the paused trial that a method of the scheduler returned, if any."""
        if number is None:
            return None
        trial = self.trials[number] if type(number) is int and 0 <= number < len(self.trials) else None
        if trial is None or trial.state is not _PAUSED:
            got = short(number) if trial is None else f"trial {number}, which is {trial.state.value}"
            raise OptimizerError(
                f"{type(self.scheduler).__name__}.{method}() must return the number of a paused trial or None, got "
                f"{got}; add a trial in pause(trial), and remove it in promote(trial)"
            )
        return trial

    @property
    def has_updates(self) -> bool:
        """Whether there are updates for the optimizer's history."""
        return bool(self._updates)

    def take_updates(self) -> tuple[Update, ...]:
        """Remove and return the updates for the optimizer's history, in order."""
        updates = tuple(self._updates)
        self._updates.clear()
        return updates

    # -- changes ------------------------------------------------------------------------------

    def retry(self, trial: Trial) -> bool:
        """Retry a failed trial as if it had never failed. Return False if the scheduler cannot undo the failure.

        The failure was that of a function that has been changed since, so nothing is known about the configuration.
        """
        scheduler = self._scheduler_of(trial)
        if not scheduler.can_retry:
            return False
        scheduler.retry(trial.id)
        self._move(trial, _PENDING)
        trial.losses = trial.stage_losses = 0
        trial.rested = False
        self._updates = [update for update in self._updates if not _is_failure(update, trial.id)]
        self._updates.append(Pending(trial.id, trial.config))
        return True

    def apply(self, event: Event) -> Decision:
        """Apply one event. Return the decision on the trial, if the event is a report."""
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
        trial = Trial(
            event.trial, event.config, ask=ask, parent=event.parent, training=event.training, repeat=event.repeat
        )
        if event.parent is not None:
            parent = self.trials[event.parent]
            if (state := parent.checkpoint if parent.training else parent.rest) is not None:
                trial.checkpoint, trial.start = state, state.step
        self.trials.append(trial)
        if event.ask is None and self.points_left and not trial.training:
            self._leave_out(event.config)
        if trial.training:
            self._trainings[trial.id] = FullBudget(trial.training)
            if trial.repeat is not None:
                self.repeats.append(trial)
            return
        self.counts[_PENDING] += 1
        self.scheduler.create(event.trial, event.parent)
        if event.ask is not None:
            self.n_asks = event.ask + 1
        self._updates.append(Pending(event.trial, event.config))

    def _leave_out(self, config: Config) -> None:
        """Remove a point from those that are left. A resumed search may have other points."""
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
            if event.direction is None:
                self.check_direction(objective)
            self.objectives.settle(direction)
        trial = self.trials[event.trial]
        if trial.objective != objective:
            trial.objective = sys.intern(objective)
        if event.returned:
            return self._returned(trial, event)
        curves = trial.opened_curves()
        if trial.reported is None:  # it has the returned values of attempts that reported nothing
            curves.pop(objective, None)
        fresh: Columns = [], []
        before = 0  # step of the report before
        for name, (steps, values) in event.columns.items():
            curve = curves.get(name)
            if curve is None:
                curve = curves[name] = Curve()
            last = curve.last_step
            taken = curve.extend(steps, values)
            if name == objective:
                before, fresh = last, taken
        decision = CONTINUE
        scheduler, number = self._scheduler_of(trial), trial.id
        grant = scheduler.grant(number)
        milestones, budget = grant.milestones, grant.budget
        for step, value in zip(*fresh, strict=True):
            loss = self.objectives.loss(value)
            trial.reported = step
            self._ranking.measured(trial, value, loss, step)
            verdict = scheduler.report(number, step, loss)
            if verdict is _STOP:
                decision, trial.stop_due = verdict, True
            elif verdict is not CONTINUE:
                raise _no_decision(scheduler, verdict)
            elif milestones and step < budget and any(before < milestone <= step for milestone in milestones):
                self._observe(Observation(number, trial.config, step, loss, ended=False))
            before = step
        return decision

    def _returned(self, trial: Trial, event: Measured) -> Decision:
        """Let the scheduler compare the value of a function that returned before the end of its budget."""
        steps, values = event.columns[event.objective]
        if trial.reported is None:
            trial.opened_curves().setdefault(event.objective, Curve()).extend(steps, values)
        trial.returned_at = steps[-1]
        self._take_result(trial, values[-1])
        scheduler = self._scheduler_of(trial)
        decision = scheduler.report(trial.id, steps[-1], self.loss(values[-1]))
        if not isinstance(decision, Decision):
            raise _no_decision(scheduler, decision)
        trial.stop_due |= decision is _STOP
        return decision

    def _take_result(self, trial: Trial, value: float) -> None:
        """Record the result of an attempt."""
        if self._ranking.returned(trial, value, self.loss(value)) and trial.reported is None:
            trial.best_checkpoint = trial.checkpoint

    def _saved(self, event: CheckpointSaved) -> None:
        trial = self.trials[event.trial]
        trial.checkpoint = Checkpoint(event.step, event.name)
        best = trial.best_checkpoint
        if best is None:
            known = math.inf
        elif trial.value_step is None:  # it is the state of the returned value
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
            trial.stage_losses += kind is not None and kind.is_stage_loss
            self._interrupted.add(trial.id)
        if state is _PENDING or trial.training:
            return
        failed, paused = state is _FAILED, state is _PAUSED
        if failed:
            self.scheduler.fail(trial.id)
        elif paused:
            self.scheduler.pause(trial.id)
        if paused or trial.rest is None:
            trial.rest = trial.checkpoint
        # A trial that is paused at a rung is compared with others there, by its value there.
        value_now = trial.value if self.value_rule == "best" and not paused else trial.last_value
        loss = math.inf if failed else self.loss(value_now)
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
        """Return the names as one tuple that all trials share."""
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


def _no_decision(scheduler: Scheduler, answer: object) -> OptimizerError:
    return OptimizerError(
        f"{type(scheduler).__name__}.report() must return a Decision, got {short(answer)}; use Decision.CONTINUE or "
        "Decision.STOP"
    )
