"""Searches in which trials are stopped and promoted, beside trainings of the same configurations in one go."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maggy_like import ASHA, Result, lagom
from optimizers.core.base import Decision, FullBudget, Grant, Problem
from optimizers.core.trial import Trial, TrialState
from optimizers.samplers.non_adaptive import RandomSearch

MAX_BUDGET = 4


class StopAtTwo(RandomSearch):
    """Stops each trial at its second step, in which the trial waits until it knows."""

    def scheduler(self, problem: Problem) -> _StopAtTwo:
        return _StopAtTwo(problem.max_budget)


class _StopAtTwo(FullBudget):
    def __init__(self, max_budget: int) -> None:
        self._grant = Grant(max_budget, milestones=(2,))

    def report(self, trial: int, step: int, loss: float) -> Decision:
        return Decision.STOP if step == 2 else Decision.CONTINUE


def search(train_fn: Callable[..., Any], space: dict[str, Any], directory: Path, **options: Any) -> Result:
    """ASHA over six configurations: rungs at 1, 2 and 4 steps, in this process, which has loaded the library."""
    defaults = {"optimizer": ASHA(eta=2), "n_trials": 6, "max_budget": MAX_BUDGET, "seed": 3, "engine": "inline"}
    return lagom(train_fn, space, directory=directory, **{"progress": False, **defaults, **options})


def changed(train_fn: Callable[..., Any], names: dict[str, Any], *changes: tuple[str, str]) -> Callable[..., Any]:
    """The function with other source text, in a module with these names."""
    source = inspect.getsource(train_fn)
    for old, new in changes:
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    exec(source, {**names}, made)
    return made[train_fn.__name__]


def check_callback_alone(
    train_fn: Callable[..., Any],
    space: dict[str, Any],
    directory: Path,
    capfd: pytest.CaptureFixture[str],
    remedy: str,
    **options: Any,
) -> Result:
    """Search with a function that does not continue from its state: promoted trials start over, and a line says so."""
    result = search(train_fn, space, directory, progress="plain", **options)
    assert not result.failures
    assert {len(trial.curve.steps) for trial in result.trials if trial.attempt == 3} == {MAX_BUDGET}
    (line,) = (line for line in "".join(capfd.readouterr()).splitlines() if "trains from the beginning" in line)
    assert line.endswith(f"although it has a checkpoint; to continue from there, {remedy}")
    return result


def check_promoted_trials_equal_whole_trainings(
    train_fn: Callable[..., Any], space: dict[str, Any], directory: Path, *, tolerance: float, **options: Any
) -> Trial:
    """Search; train the best again in one go; compare the curves. The best trial."""
    result = search(train_fn, space, directory, **options)
    assert result.counts.get(TrialState.FAILED, 0) == 0, [trial.error for trial in result.trials]
    assert result.counts[TrialState.PAUSED] > 0
    promoted = [trial for trial in result.trials if len(trial.curve.steps) == MAX_BUDGET]
    assert promoted
    for trial in promoted:
        assert trial.attempt == 3  # each rung is an attempt of its own
        assert list(trial.curve.steps) == [1, 2, 3, 4]
    best = promoted[0]
    again = search(train_fn, space, directory, optimizer="random", n_trials=1, points_to_evaluate=[best.config],
                   **options)  # fmt: skip
    (whole,) = again.trials
    assert whole.attempt == 1
    assert list(best.curve.values) == pytest.approx(list(whole.curve.values), rel=tolerance, abs=tolerance)
    return best
