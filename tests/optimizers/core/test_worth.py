"""What a trial is worth, and which is the best."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Literal

import pytest

from optimizers.core.base import Decision, Observation, Optimizer
from optimizers.core.ranking import Worth
from optimizers.core.study import Study
from optimizers.core.trial import Trial
from optimizers.errors import UserError
from optimizers.samplers.random_search import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.stopping import Patience
from optimizers.space.domains import Float

Direction = Literal["max", "min"]
SPACE = {"x": Float(0, 1)}

OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "random": RandomSearch,
    "promotion": lambda: ASHA(sampler="random", eta=2),
    "stopping": lambda: ASHA(sampler="random", eta=2, mode="stopping"),
    "patience": lambda: Patience(ASHA(sampler="random", eta=2, min_budget=2), patience=2),
}


def search(study: Study, quality: Callable[[Trial], float]) -> int:
    """Run a study to its end, one trial at a time with a report a step; how many steps that took."""
    steps = 0
    while (trial := study.ask()) is not None:
        for step in range(trial.step + 1, trial.budget + 1):
            steps += 1
            if study.report(trial, step, quality(trial)) is Decision.STOP:
                break
        else:
            study.tell(trial)
    return steps


def started(study: Study) -> Trial:
    trial = study.ask()
    assert trial is not None
    return trial


# -- what a trial is worth --------------------------------------------------------------------------


def worth(trial: Trial) -> tuple[float | None, int | None, float | None]:
    return trial.value, trial.value_step, trial.last_value


def test_a_trial_is_worth_its_best_report() -> None:
    study = Study(SPACE, RandomSearch(), max_budget=9)
    first, second = started(study), started(study)
    study.report(first, 1, 0.5)
    study.report(second, 1, 0.4)
    study.report(first, 2, 0.3)
    assert study.best is first
    assert worth(first) == (0.5, 1, 0.3)
    study.report(second, 3, 0.6)
    assert study.best is second
    study.tell(second, 0.2)
    assert worth(second) == (0.6, 3, 0.2)
    assert study.best is second


def test_a_promoted_trial_keeps_its_best_report() -> None:
    study = Study(SPACE, ASHA(sampler="random", eta=3), max_budget=3, n_trials=3)
    for value in (0.1, 0.2, 0.9):
        trial = started(study)
        study.report(trial, 1, value)
        study.tell(trial)
    promoted = started(study)
    study.report(promoted, 2, 0.05)
    study.tell(promoted)
    assert worth(promoted) == (0.9, 1, 0.05)
    assert study.best is promoted


def test_a_returned_value_is_one_more_measurement_at_the_last_step() -> None:
    study = Study(SPACE, RandomSearch(), max_budget=9)
    better, worse, alone = started(study), started(study), started(study)
    for trial in (better, worse):
        study.report(trial, 2, 0.3)
    study.tell(better, 0.7)
    study.tell(worse, 0.2)
    study.tell(alone, 0.6)
    assert [worth(trial) for trial in study.trials] == [(0.7, 2, 0.7), (0.3, 2, 0.2), (0.6, None, 0.6)]
    assert [trial.reported for trial in study.trials] == [2, 2, None]


def test_what_a_failed_trial_has_reported_counts() -> None:
    """Else the best would get worse when a running trial that is the best fails."""
    study = Study(SPACE, RandomSearch(), max_budget=9)
    first, second = started(study), started(study)
    study.report(first, 1, 0.9)
    study.report(second, 1, 0.1)
    study.fail(first, "boom")
    assert study.best is first
    study.fail(second, "boom")
    assert study.best is first
    updates = [update for update in study.take_updates() if isinstance(update, Observation)]
    assert [update.loss for update in updates] == [math.inf, math.inf]  # but nobody proposes more like them


def test_a_trial_that_failed_without_a_report_is_never_the_best() -> None:
    study = Study(SPACE, RandomSearch(), max_budget=9)
    study.fail(started(study), "boom")
    assert study.best is None


@pytest.mark.parametrize("rule", ["best", "last"])
@pytest.mark.parametrize("direction", ["max", "min"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_never_the_best(direction: Direction, value: float, rule: Worth) -> None:
    study = Study(SPACE, RandomSearch(), direction=direction, value=rule, max_budget=9)
    diverged = started(study)
    study.report(diverged, 1, value)
    bests = [study.best]
    study.report(diverged, 2, 0.5)
    bests.append(study.best)
    study.report(diverged, 3, value)
    bests.append(study.best)
    study.tell(diverged)
    other = started(study)
    study.tell(other, 0.5)
    assert bests == [None, diverged, diverged if rule == "best" else None]
    assert study.best is (diverged if rule == "best" else other)
    assert diverged.value_step == (2 if rule == "best" else 3)


def test_what_the_optimizer_is_told_of_a_trial_that_ended_is_what_it_is_worth() -> None:
    study = Study(SPACE, RandomSearch(), max_budget=3, n_trials=3)
    trial = started(study)
    for step, value in ((1, 0.9), (2, 0.3), (3, 0.4)):
        study.report(trial, step, value)
    study.tell(trial)
    seen = [update for update in study.take_updates() if isinstance(update, Observation)]
    assert [(each.step, each.loss, each.ended) for each in seen] == [(3, -0.9, True)]
    paused = Study(SPACE, ASHA(sampler="random", eta=3, min_budget=3), max_budget=9, n_trials=3)
    trial = started(paused)
    for step, value in ((1, 0.9), (2, 0.3), (3, 0.4)):
        paused.report(trial, step, value)
    paused.tell(trial)
    seen = [update for update in paused.take_updates() if isinstance(update, Observation)]
    assert [(each.step, each.loss, each.paused) for each in seen] == [(3, -0.4, True)]  # as the rung compares it


# -- with value="last" -----------------------------------------------------------------------------


def test_a_trial_that_runs_for_the_first_time_is_worth_its_newest_report() -> None:
    study = Study(SPACE, RandomSearch(), value="last", max_budget=9)
    first, second = started(study), started(study)
    study.report(first, 1, 0.5)
    study.report(second, 1, 0.4)
    assert study.best is first
    study.report(first, 2, 0.3)
    assert study.best is second
    assert worth(first) == (0.3, 2, 0.3)


def test_a_promoted_trial_keeps_its_rank_until_it_rests() -> None:
    study = Study(SPACE, ASHA(sampler="random", eta=3), value="last", max_budget=3, n_trials=3)
    for value in (0.1, 0.2, 0.9):
        trial = started(study)
        study.report(trial, 1, value)
        study.tell(trial)
    promoted = started(study)
    study.report(promoted, 2, 0.05)
    assert worth(promoted) == (0.9, 1, 0.05)
    assert study.best is promoted
    study.tell(promoted)
    assert worth(promoted) == (0.05, 2, 0.05)
    assert study.best is study.trials[1]


def test_a_failed_trial_is_never_the_last_ones_best() -> None:
    study = Study(SPACE, RandomSearch(), value="last", max_budget=9)
    first, second = started(study), started(study)
    study.report(first, 1, 0.9)
    study.report(second, 1, 0.1)
    study.fail(first, "boom")
    assert study.best is second
    study.fail(second, "boom")
    assert study.best is None


def test_a_wrong_rule_is_told() -> None:
    with pytest.raises(UserError, match="value must be 'best' or 'last', got 'newest'"):
        Study(SPACE, RandomSearch(), value="newest")  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["best", "last"])
def test_the_best_is_right_after_any_number_of_reports(rule: Worth) -> None:
    study = Study(SPACE, RandomSearch(), value=rule, max_budget=1000)
    trials = [started(study) for _ in range(3)]
    draw = random.Random(0)
    for step in range(1, 200):
        for trial in trials:
            study.report(trial, step, draw.random())
            ranked = [(-other.value, other.id) for other in trials if other.value is not None]
            assert study.best is trials[min(ranked)[1]]
