"""The part of the conformance suite that runs a whole search by ask and tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from optimizers.core.base import Decision, Optimizer, Problem
from optimizers.core.events import Event
from optimizers.core.study import Study
from optimizers.core.trial import Trial, TrialState
from optimizers.errors import OptimizerError

_WORKERS = 4


def require(holds: bool, where: str, clause: str, detail: object = "") -> None:
    """Raise if a clause of the contract is broken."""
    if not holds:
        raise AssertionError(f"broken: {clause} ({where}): {detail}")


@contextmanager
def survives(where: str, what: str) -> Iterator[None]:
    """Report an exception raised inside as a broken clause."""
    try:
        yield
    except Exception as error:
        if isinstance(error, AssertionError):
            raise
        raise AssertionError(f"broken: {what} raises nothing ({where}): {error!r}") from error


class _Recorded(Study):
    """A study that keeps its events."""

    def __init__(self, optimizer: Optimizer, problem: Problem) -> None:
        super().__init__(
            problem.space, optimizer, seed=problem.seed, max_budget=problem.max_budget, n_trials=problem.n_trials
        )
        self.events: list[Event] = []

    def apply(self, event: Event) -> Decision:
        self.events.append(event)
        return super().apply(event)


def check_search(factory: Callable[[], Optimizer], problem: Problem) -> None:
    """Check that a search comes to its end, and that the record of its events gives the same search again.

    Raises:
        AssertionError: A clause is broken.
    """
    where = "a whole search"
    try:
        study = _Recorded(factory(), problem)
    except OptimizerError:
        return  # an optimizer may ask for more trials
    with survives(where, "a search by ask and tell"):
        _run(study, np.random.default_rng(problem.seed))
    at_rest = all(trial.is_over or trial.state is TrialState.PAUSED for trial in study.trials)
    is_due = study.next_promotion() or study.closing_promotion()
    require(at_rest and is_due is None, where, "nothing is due when nothing runs any more")
    for trial in study.trials:
        if trial.parent is not None:
            require(trial.parent < trial.id, where, "a parent is older than its child", trial)
    replayed = _Recorded(factory(), problem)
    with survives(where, "the replay of a search"):
        for event in study.events:
            replayed.apply(event)
    require(repr(replayed.trials) == repr(study.trials), where, "the same events give the same trials")


def _run(study: Study, rng: np.random.Generator) -> None:
    """Four workers, which report step by step; some trials fail, some diverge."""
    running: list[Trial] = []
    while True:
        while len(running) < _WORKERS and (trial := study.ask()) is not None:
            running.append(trial)
        if not running:
            return
        trial = running.pop(int(rng.integers(len(running))))
        step = trial.step + 1
        if trial.id % 5 == 4 and step == 2:
            study.fail(trial)
        elif study.report(trial, step, math.nan if trial.id % 5 == 2 else float(rng.random())) is not Decision.STOP:
            if step == trial.budget:
                study.tell(trial)
            else:
                running.append(trial)
