"""What a trial is worth, and which is the best."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from optimizers.core.base import Decision, Observation, Optimizer
from optimizers.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Event,
    Measured,
    TrialCreated,
    from_json,
    to_json,
)
from optimizers.core.study import Study
from optimizers.core.study_state import ValueRule
from optimizers.core.trial import Failure, FailureKind, Trial, TrialState
from optimizers.errors import UserError
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA, Mode
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


@pytest.mark.parametrize("rule", ["best", "last"])
def test_a_returned_value_counts_only_where_nothing_was_reported(rule: ValueRule) -> None:
    study = Study(SPACE, RandomSearch(), max_budget=9, value=rule)
    better, worse, alone = started(study), started(study), started(study)
    for trial in (better, worse):
        study.report(trial, 2, 0.3)
    study.tell(better, 0.7)
    study.tell(worse, 0.2)
    study.tell(alone, 0.6)
    assert [worth(trial) for trial in study.trials] == [(0.3, 2, 0.7), (0.3, 2, 0.2), (0.6, None, 0.6)]
    assert [trial.reported for trial in study.trials] == [2, 2, None]


class Life:
    """Trials of a function that saves, restores, and may stop early, whose attempts may be lost.

    The value at a step is that of the trial, whichever attempt measures it.
    """

    def __init__(self, study: Study, draw: random.Random) -> None:
        self.study = study
        self.draw = draw
        self.first = draw.choice([0, 1])  # how it counts its epochs
        self.save_every = draw.choice([1, 2, 3])
        self.returns = draw.choice(["nothing", "best", "last", "test score"])
        self.events: list[Event] = []
        self.reported: dict[int, dict[int, float]] = {}
        self.saved: dict[int, set[int]] = {}

    def apply(self, event: Event) -> None:
        self.events.append(event)
        self.study.apply(event)

    def run(self, trial: Trial) -> None:
        """Run an attempt, and others while one is lost."""
        curve = random.Random(trial.id)
        values = [curve.choice([0.1, 0.2, 0.3, 0.4]) + trial.id / 100 for _ in range(20)]
        reported, saved = self.reported.setdefault(trial.id, {}), self.saved.setdefault(trial.id, set())
        step = self.first - 1 if trial.checkpoint is None else trial.checkpoint.step
        best = max(values[self.first : step + 1], default=0.0)
        while step + 1 < self.first + trial.budget:
            step += 1
            best = max(best, values[step])
            reported[step] = values[step]
            self.apply(Measured(trial.id, trial.attempt, "value", {"value": ([step], [values[step]])}))
            if step % self.save_every == 0:
                self.apply(CheckpointSaved(trial.id, trial.attempt, step, f"{trial.attempt}-{step}"))
                saved.add(step)
            check_that_all_belongs_together(self, trial)
            match self.draw.choice(["go on"] * 6 + ["stop", "lose"]):
                case "stop":
                    break
                case "lose":
                    failure = Failure(FailureKind.WORKER_LOST, "silent")
                    self.apply(AttemptEnded(trial.id, trial.attempt, TrialState.PENDING, 0.0, failure=failure))
                    check_that_all_belongs_together(self, trial)
                    self.apply(self.study.started(trial, 0, 0.0))
                    return self.run(trial)
        returned = {"nothing": None, "best": best, "last": values[step], "test score": self.draw.choice([0.0, 0.9])}
        for event in self.study.conclude(trial, returned[self.returns], {}, 0.0):
            self.apply(event)
        check_that_all_belongs_together(self, trial)
        return None


def check_that_all_belongs_together(life: Life, trial: Trial) -> None:
    reported, rule = life.reported[trial.id], life.study.value_rule
    assert trial.columns() == {"value": (sorted(reported), [reported[step] for step in sorted(reported)])}
    assert trial.value_step is not None
    assert trial.value == trial.curve.at(trial.value_step)
    if rule == "best":
        assert trial.value == max(reported.values())
    elif trial.state is not TrialState.RUNNING and trial.state is not TrialState.PENDING:
        assert trial.value_step == max(reported)
    state = trial.saved(newest=rule == "last")
    if trial.value_step in life.saved[trial.id]:
        assert state is not None
        assert state.step == trial.value_step
    elif rule == "best" and state is not None:
        assert trial.curve.at(state.step) == max(trial.curve.at(step) or 0.0 for step in life.saved[trial.id])


@settings(max_examples=examples(100))
@given(
    rule=st.sampled_from(["best", "last"]),
    mode=st.sampled_from(["promotion", "stopping"]),
    draw=st.randoms(use_true_random=False),
)
def test_curve_value_step_and_state_belong_together(rule: ValueRule, mode: Mode, draw: random.Random) -> None:
    """Through promotions, early returns, lost attempts and a resume."""

    def study() -> Study:
        asha = ASHA(sampler="random", eta=2, mode=mode)
        return Study(SPACE, asha, direction="max", value=rule, seed=1, max_budget=8, n_trials=8)

    life = Life(study(), draw)
    for _ in range(20):
        known = len(life.study.trials)
        if (trial := life.study.ask()) is None:
            break
        if len(life.study.trials) > known:
            life.events.append(TrialCreated(trial.id, trial.config, trial.ask, trial.parent))
        life.events.append(AttemptStarted(trial.id, trial.attempt, 0, trial.budget, 0.0))
        life.run(trial)
        if draw.random() < 0.2:
            life.study = study()
            for event in life.events:
                life.study.apply(from_json(to_json(event)))
    finite = [trial for trial in life.study.trials if trial.value is not None]
    assert life.study.best is min(finite, key=lambda trial: (life.study.loss(trial.value), trial.id))
    for trial in life.study.trials:
        check_that_all_belongs_together(life, trial)


def test_the_state_of_the_best_returned_value_stands_for_a_trial_that_reports_nothing() -> None:
    study = Study(SPACE, ASHA(sampler="random", eta=2), max_budget=4, n_trials=2)
    values = {1: 0.5, 2: 0.9, 4: 0.7}
    while (trial := study.ask()) is not None:
        study.apply(CheckpointSaved(trial.id, trial.attempt, 0, f"of {trial.budget}"))
        study.tell(trial, values[trial.budget] - trial.id)
    best = study.best
    assert best is not None
    assert (best.value, best.value_step, best.last_value) == (0.9, None, 0.7)
    assert [state and state.name for state in (best.best_checkpoint, best.checkpoint)] == ["of 2", "of 4"]


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
def test_a_value_that_is_not_finite_is_never_the_best(direction: Direction, value: float, rule: ValueRule) -> None:
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
def test_the_best_is_right_after_any_number_of_reports(rule: ValueRule) -> None:
    study = Study(SPACE, RandomSearch(), value=rule, max_budget=1000)
    trials = [started(study) for _ in range(3)]
    draw = random.Random(0)
    for step in range(1, 200):
        for trial in trials:
            study.report(trial, step, draw.random())
            ranked = [(-other.value, other.id) for other in trials if other.value is not None]
            assert study.best is trials[min(ranked)[1]]
