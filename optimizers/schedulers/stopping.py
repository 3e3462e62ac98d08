"""Rules that stop poor trials early. Each rule wraps any optimizer and watches every report.

A rule only changes the scheduler. All decisions of the wrapped optimizer remain (its rungs, promotions and stops), and
the rule can only add a stop.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from array import array
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from optimizers.checks import explains_init, integer, real
from optimizers.core.base import Answer, Decision, Grant, History, Observation, Optimizer, Problem, Scheduler
from optimizers.errors import OptimizerError
from optimizers.registry import make_optimizer
from optimizers.space.search_space import SearchSpace

Wrapped = str | Optimizer | Callable[..., Optimizer]
"""The optimizer that a rule wraps: a name, an optimizer or its class."""


class RuleScheduler(Scheduler):
    """Add a rule to the scheduler ``inner``."""

    watches_reports = True

    def __init__(self, inner: Scheduler) -> None:
        self._inner = inner
        self.may_promote = inner.may_promote
        self.resumes_all = inner.resumes_all
        self.can_retry = inner.can_retry
        self._stopped: set[int] = set()  # by this rule

    @property
    @abstractmethod
    def reason(self) -> str:
        """Why this rule stops trials, for the decision log."""

    @abstractmethod
    def stops(self, trial: int, step: int, loss: float) -> bool:
        """Process a report, with ``inf`` for a loss that is not finite. Return whether the trial should stop."""

    def report(self, trial: int, step: int, loss: float) -> Decision:
        decision = self._inner.report(trial, step, loss)
        stops = self.stops(trial, step, loss if math.isfinite(loss) else math.inf)
        if stops:
            self._stopped.add(trial)
        return Decision.STOP if stops else decision

    def why_stopped(self, trial: int) -> str:
        return self.reason if trial in self._stopped else self._inner.why_stopped(trial)

    def create(self, trial: int, parent: int | None) -> None:
        self._inner.create(trial, parent)

    def grant(self, trial: int) -> Grant:
        return self._inner.grant(trial)

    def fail(self, trial: int) -> None:
        self._inner.fail(trial)

    def retry(self, trial: int) -> None:
        self._inner.retry(trial)

    def is_final(self, trial: int) -> bool:
        return self._inner.is_final(trial)

    def pause(self, trial: int) -> None:
        self._inner.pause(trial)

    def next_promotion(self) -> int | None:
        return self._inner.next_promotion()

    def closing_promotion(self) -> int | None:
        return self._inner.closing_promotion()

    def promote(self, trial: int) -> None:
        self._inner.promote(trial)

    def observe(self, observation: Observation) -> None:
        self._inner.observe(observation)


class StoppingRule(Optimizer):
    """Propose the configurations of ``optimizer``, and stop its trials early."""

    def __init__(self, optimizer: Wrapped) -> None:
        self.optimizer = make_optimizer(optimizer)
        self.adaptive = self.optimizer.adaptive
        self.needs_checkpoints = self.optimizer.needs_checkpoints

    @abstractmethod
    def watch(self, inner: Scheduler) -> RuleScheduler:
        """Return the rule over the scheduler of the wrapped optimizer."""

    def suited_to(self, *, checkpoints: bool) -> Optimizer:
        suited = copy.copy(self)
        suited.optimizer = self.optimizer.suited_to(checkpoints=checkpoints)
        return suited

    def ask(self, index: int, history: History) -> Answer:
        return self.optimizer.ask(index, history)

    def is_blind(self, history: History) -> bool:
        return self.optimizer.is_blind(history)

    def validate(self, problem: Problem) -> None:
        self.optimizer.validate(problem)

    def size(self, space: SearchSpace) -> int | None:
        return self.optimizer.size(space)

    def load_libraries(self) -> None:
        self.optimizer.load_libraries()

    def remarks(self, problem: Problem) -> list[str]:
        return self.optimizer.remarks(problem)

    def full_trainings(self, problem: Problem) -> float:
        return self.optimizer.full_trainings(problem)

    def scheduler(self, problem: Problem) -> RuleScheduler:
        return self.watch(self.optimizer.scheduler(problem))


@explains_init
class MedianRule(StoppingRule):
    """Stop a trial that does worse than half of the others did at the same step.

    At a report at step ``s``, the trial's best loss so far is compared with the running averages of the other trials up
    to that step. Running trials are included. If the loss is worse than the median, the trial stops.

    Trials need not report at the same steps. The comparison uses the newest step up to ``s``, after the trial's
    previous report, at which ``min_trials`` others have reported. If there is none, the trial continues. So it is never
    compared with later results than its own.

    Source: Golovin, Solnik, Moitra, Kochanski, Karro and Sculley, "Google Vizier: A Service for Black-Box
    Optimization", KDD 2017, section 3.2.2.

    Args:
        optimizer: Proposes the configurations: a name, an optimizer or its class. Default ``"random"``.
        grace: Steps during which no trial stops. Default 1.
        min_trials: Number of other trials that must have reported at a step before it counts. Default 3.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, optimizer=MedianRule(Sobol(), grace=3), max_budget=50)
    """

    def __init__(self, optimizer: Wrapped = "random", *, grace: int = 1, min_trials: int = 3) -> None:
        super().__init__(optimizer)
        self.grace = integer("grace", grace, least=0)
        self.min_trials = integer("min_trials", min_trials, least=1)

    def watch(self, inner: Scheduler) -> RuleScheduler:
        return _MedianWatcher(inner, self.grace, self.min_trials)


@dataclass(slots=True)
class _Run:
    """The last step of a trial, its best loss and the sum of its losses."""

    step: int = -1
    best: float = math.inf
    total: float = 0.0
    count: int = 0


class _MedianWatcher(RuleScheduler):
    def __init__(self, inner: Scheduler, grace: int, min_trials: int) -> None:
        super().__init__(inner)
        self._grace = grace
        self._min_trials = min_trials
        self._runs: dict[int, _Run] = {}
        self._averages: dict[int, array[float]] = {}  # running averages by step, sorted
        self._counting: list[int] = []  # steps with min_trials averages, sorted

    @property
    def reason(self) -> str:
        return "worse than the median of the other trials"

    def stops(self, trial: int, step: int, loss: float) -> bool:
        run = self._runs.setdefault(trial, _Run())
        run.best = min(run.best, loss)
        # The average of this report is not entered yet, so no average of the trial is past its last step.
        median = self._median(run.step, step)
        self._enter(run, step, loss)
        return step > self._grace and run.best > median

    def _median(self, after: int, upto: int) -> float:
        """Return the median at the newest step in ``(after, upto]`` that counts; ``inf`` if there is none."""
        place = bisect_right(self._counting, upto)
        if place == 0 or self._counting[place - 1] <= after:
            return math.inf
        averages = self._averages[self._counting[place - 1]]
        middle = len(averages) // 2
        return averages[middle] if len(averages) % 2 else (averages[middle - 1] + averages[middle]) / 2.0

    def _enter(self, run: _Run, step: int, loss: float) -> None:
        run.step = step
        average = math.inf  # a loss that is not finite ranks worst at its step, without affecting later ones
        if math.isfinite(loss):
            run.total += loss
            run.count += 1
            average = run.total / run.count
        averages = self._averages.setdefault(step, array("d"))
        insort(averages, average)
        if len(averages) == self._min_trials:
            insort(self._counting, step)


@explains_init
class Patience(StoppingRule):
    """Stop a trial whose loss has not improved for several reports.

    Args:
        optimizer: Proposes the configurations: a name, an optimizer or its class. Default ``"random"``.
        patience: Number of consecutive reports without an improvement after which a trial stops. Default 5.
        min_delta: Smallest improvement over the best value that counts, in units of the metric. Default 0.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, optimizer=Patience(patience=10), max_budget=50)
    """

    def __init__(self, optimizer: Wrapped = "random", *, patience: int = 5, min_delta: float = 0.0) -> None:
        super().__init__(optimizer)
        self.patience = integer("patience", patience, least=1)
        self.min_delta = real("min_delta", min_delta, "a finite number of at least 0", lambda delta: delta >= 0.0)

    def watch(self, inner: Scheduler) -> RuleScheduler:
        return _PatienceWatcher(inner, self.patience, self.min_delta)


class _PatienceWatcher(RuleScheduler):
    def __init__(self, inner: Scheduler, patience: int, min_delta: float) -> None:
        super().__init__(inner)
        self._patience = patience
        self._min_delta = min_delta
        self._best: dict[int, float] = {}
        self._waited: dict[int, int] = {}

    @property
    def reason(self) -> str:
        return f"no improvement in {self._patience} reports"

    def stops(self, trial: int, step: int, loss: float) -> bool:
        if loss < self._best.get(trial, math.inf) - self._min_delta:
            self._best[trial] = loss
            self._waited[trial] = 0
            return False
        self._waited[trial] = self._waited.get(trial, 0) + 1
        return self._waited[trial] >= self._patience


@explains_init
class Threshold(StoppingRule):
    """Stop a trial that reports a value worse than a bound, from a given step on.

    A value that is not finite is worse than any bound.

    Args:
        optimizer: Proposes the configurations: a name, an optimizer or its class. Default ``"random"``.
        step: Step from which reports are compared with the bound.
        worse_than: The bound, in units of the metric.
        direction: Direction of the metric, ``max`` or ``min``, as in the search. The rule cannot infer it, because
            algorithms only see losses.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> optimizer = Threshold(Sobol(), step=3, worse_than=0.2, direction="max")  # accuracy of at least 0.2
        >>> result = lagom(train_fn, space, optimizer=optimizer, max_budget=9)
    """

    def __init__(
        self,
        optimizer: Wrapped = "random",
        *,
        step: int,
        worse_than: float,
        direction: Literal["max", "min"],
    ) -> None:
        super().__init__(optimizer)
        if direction not in ("max", "min"):
            raise OptimizerError(f"direction must be 'max' or 'min', got {direction!r}; use direction='max'")
        self.step = integer("step", step, least=0)
        self.worse_than = real("worse_than", worse_than, "a finite number", math.isfinite)
        self.direction = direction

    def validate(self, problem: Problem) -> None:
        if problem.direction not in (None, self.direction):
            raise OptimizerError(
                f"Threshold(direction={self.direction!r}) contradicts the search, which has "
                f"direction={problem.direction!r}: the rule would stop the good trials; give both the same direction"
            )
        super().validate(problem)

    def watch(self, inner: Scheduler) -> RuleScheduler:
        bound = -self.worse_than if self.direction == "max" else self.worse_than
        return _ThresholdWatcher(inner, self.step, bound)


class _ThresholdWatcher(RuleScheduler):
    def __init__(self, inner: Scheduler, step: int, bound: float) -> None:
        super().__init__(inner)
        self._step = step
        self._bound = bound

    @property
    def reason(self) -> str:
        return "worse than the threshold"

    def stops(self, trial: int, step: int, loss: float) -> bool:
        return step >= self._step and loss > self._bound
