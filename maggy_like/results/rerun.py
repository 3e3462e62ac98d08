"""Running a recorded trial again in this process, and comparing what it reports with what was recorded."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from maggy_like.errors import SavedStateError, UserError
from maggy_like.protocol.messages import UNBOUNDED
from maggy_like.protocol.state_names import state_url
from maggy_like.results.data import ResultData, read_saved
from maggy_like.results.record import read_record
from maggy_like.train_function.load import arguments_for
from maggy_like.train_function.parameters import check_function
from maggy_like.worker.child.reporter import BudgetUsed, Reporter
from maggy_like.worker.child.sender import as_number
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, TrialCreated
from optimizers.core.trial import Trial, TrialState

TOLERANCE = 1e-6
"""Relative difference up to which two values count as equal."""


class Difference(NamedTuple):
    """A value that differs from the recorded one."""

    step: int
    metric: str
    recorded: float
    now: float


@dataclass(frozen=True)
class Rerun:
    """What a trial did when it was run again.

    Attributes:
        trial: The recorded trial.
        reports: Each reported step and its metrics, in order.
        returned: What the function returned.
        compared: How many reported values have a recorded value of the same step and metric.
        difference: The first of them that differs; None if none does.
    """

    trial: Trial
    reports: list[tuple[int, Mapping[str, float]]] = field(repr=False)
    returned: Any = field(repr=False)
    compared: int
    difference: Difference | None

    def __str__(self) -> str:
        steps = f"{len(self.reports)} report{'s' * (len(self.reports) != 1)}"
        head = f"trial {self.trial.id} was run again: {steps}, {self.compared} values compared"
        if self.difference is None:
            return f"{head}, all equal" if self.compared else head
        step, metric, recorded, now = self.difference
        return f"{head}; the first difference is at step {step}: {metric} was {recorded:.6g} and is {now:.6g}"


def rerun(result: ResultData, trial: Trial, train_fn: Callable[..., Any], *, from_checkpoint: bool) -> Rerun:
    """Run a trial again (see :meth:`maggy_like.Result.rerun`)."""
    check_function(train_fn)
    state = _began_from(result, trial) if from_checkpoint else None
    reporter = _RecordingReporter(trial, state, read_record(result).contents.header.max_budget)
    config = copy.deepcopy(trial.config)  # which the function may change
    returned = None
    with contextlib.suppress(BudgetUsed):
        returned = train_fn(**arguments_for(inspect.signature(train_fn).parameters.values(), config, reporter))
    compared, difference = _compare(trial, reporter.reports)
    return Rerun(trial, reporter.reports, returned, compared, difference)


class _RecordingReporter(Reporter):
    """Keeps what is reported. States are saved in memory, so the run's own are not touched."""

    def __init__(self, trial: Trial, state: Any, max_budget: int) -> None:
        super().__init__(max(trial.budget, 1 if trial.training else max_budget))
        if trial.step > trial.budget:  # nobody had set a budget, so it trained to its own end
            self._limit = UNBOUNDED
        elif 0 < trial.budget < self._budget:
            self._limit, self._pauses = trial.budget, True
        self.trial, self.attempt, self.config = trial.id, max(trial.attempt, 1), dict(trial.config)
        self.reports: list[tuple[int, Mapping[str, float]]] = []
        self._state = state

    def restore(self, into: Any = None) -> Any:
        state = super().restore(into)
        if state is None and self._state is not None:
            state, self._restored = self._state, True
        return state

    def report(self, value: float | None = None, /, *unnamed: Any, step: int | None = None, **metrics: float) -> None:
        last = self._step
        try:
            super().report(value, *unnamed, step=step, **metrics)
        finally:
            if self._step is not None and self._step != last:
                named = metrics if value is None else {self._objective or "value": value, **metrics}
                self.reports.append((self._step, {name: as_number(name, number) for name, number in named.items()}))


def _began_from(result: ResultData, trial: Trial) -> Any:
    """Return the state from which the last attempt of a trial began."""
    newest: dict[int, str] = {}  # by trial, the state from which its next attempt begins
    rests: dict[int, str] = {}  # by trial, the state from which another trial begins (see Trial.rest)
    began = None
    for event in read_record(result).contents.events:
        match event:
            case TrialCreated(parent=int(parent), training=training) if parent in (newest if training else rests):
                newest[event.trial] = newest[parent] if training else rests[parent]
            case AttemptStarted() if event.trial == trial.id:
                began = newest.get(trial.id)
            case CheckpointSaved():
                newest[event.trial] = event.name
            case AttemptEnded(state=state) if event.trial in newest and state is not TrialState.PENDING:
                if state is TrialState.PAUSED or event.trial not in rests:
                    rests[event.trial] = newest[event.trial]
    if began is None:
        raise UserError(
            f"from_checkpoint needs the state that the last attempt of trial {trial.id} began from, got none; omit it"
        )
    try:
        return read_saved(state_url(result.store, began), f"trial {trial.id}")
    except SavedStateError as error:
        raise SavedStateError(
            f"the state {began} that trial {trial.id} began from is missing or damaged; leave out from_checkpoint"
        ) from error


def _compare(trial: Trial, reports: list[tuple[int, Mapping[str, float]]]) -> tuple[int, Difference | None]:
    compared = 0
    for step, metrics in reports:
        for name, now in metrics.items():
            metric = trial.objective if name == "value" and trial.objective else name
            curve = trial.curves.get(metric)
            before = None if curve is None else curve.at(step)
            if before is None:
                continue
            compared += 1
            if not (math.isclose(before, now, rel_tol=TOLERANCE) or (math.isnan(before) and math.isnan(now))):
                return compared, Difference(step, metric, before, now)
    return compared, None
