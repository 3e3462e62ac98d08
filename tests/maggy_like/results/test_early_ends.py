"""What is kept of attempts that end before their budget: at a rung that stops them, or by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maggy_like import ASHA, Float, Result, lagom
from maggy_like.trackers.base import Session, TrackedEnd, TrackedRun, Tracker
from optimizers.core.events import Event, Measured
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.e2e


def search(train_fn: Callable[..., Any], directory: Path, **options: Any) -> Result:
    defaults: dict[str, Any] = {"n_trials": 9, "metric": "acc", "engine": "inline", "progress": False, "seed": 1}
    return lagom(train_fn, {"lr": Float(0, 1)}, directory=directory, **{**defaults, **options})


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_trial_that_is_stopped_at_a_rung_has_the_state_of_its_last_report(engine: str, tmp_path: Path) -> None:
    rungs = ASHA(sampler="random", mode="stopping")
    result = search(saves_first, tmp_path, optimizer=rungs, n_trials=9, max_budget=9, engine=engine, workers=1)
    stopped = [trial for trial in result.trials if trial.state is TrialState.STOPPED]
    assert stopped
    assert [result.load(trial)["step"] for trial in stopped] == [trial.value_step for trial in stopped]


def saves_first(lr: float, reporter: Any) -> None:
    for step in range(1, reporter.budget + 1):
        reporter.checkpoint({"step": step})
        reporter.report(acc=lr * step, step=step)


class Told(Tracker, Session):
    """Keeps the measurements that it is told."""

    name, patience = "told", 60.0

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def check(self, directory: str) -> None: ...

    def open(self, run: TrackedRun) -> Session:
        return self

    def record(self, event: Event, now: float) -> None:
        if isinstance(event, Measured):
            self.seen += [(event.trial, step) for step in event.columns["acc"][0]]

    def close(self, end: TrackedEnd, now: float) -> None: ...


def test_an_attempt_that_ends_early_hides_no_report_of_the_next(tmp_path: Path) -> None:
    """Early stopping that counts anew in each attempt: what stands for the rest of a budget gives way to reports."""

    def two_steps(lr: float, reporter: Any) -> None:
        step = (reporter.restore() or {"step": 0})["step"]
        for number in range(step + 1, min(step + 2, reporter.budget) + 1):
            reporter.checkpoint({"step": number})
            reporter.report(acc=lr + number, step=number)

    rungs = ASHA(sampler="random", min_budget=3)
    tracker = Told()
    options: dict[str, Any] = {"n_trials": 9, "max_budget": 27, "metric": "acc", "seed": 1, "callbacks": [tracker]}
    result = search(two_steps, tmp_path, optimizer=rungs, **options)
    promoted = [trial for trial in result.trials if trial.attempt == 3]
    assert promoted
    for trial in promoted:
        assert (trial.value_step, trial.value) == (6, trial.config["lr"] + 6)
    assert result.load_best() == {"step": 6}
    assert sorted(tracker.seen) == [(trial.id, step) for trial in result.trials for step in trial.columns()["acc"][0]]
    table = result.curves()
    assert (
        table["value"] == table["trial"].map(lambda number: result.trials[number].config["lr"]) + table["step"]
    ).all()
