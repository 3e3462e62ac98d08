from __future__ import annotations

import math
import random
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st
from naive_rung import NOT_FINITE, SEEDED, NaiveRung

from optimizers.core.study import Study
from optimizers.core.trial import Trial, TrialState
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.successive_halving import PromotionScheduler, rung_levels
from optimizers.space.domains import Float


def promotion_study(*, eta: int = 3, max_budget: int = 9, n_trials: int = 100, **rest: Any) -> Study:
    optimizer = ASHA(sampler="random", eta=eta, mode="promotion")
    return Study({"x": Float(0, 1)}, optimizer, max_budget=max_budget, n_trials=n_trials, **rest)


def start(study: Study, n: int) -> list[Trial]:
    """Start ``n`` attempts beside each other."""
    trials = [study.ask() for _ in range(n)]
    return [trial for trial in trials if trial is not None]


@SEEDED
@given(
    direction=st.sampled_from(["max", "min"]),
    eta=st.integers(2, 4),
    width=st.integers(1, 6),
    draw=st.randoms(use_true_random=False),
)
def test_promoted_is_the_best_at_rest_and_more_than_the_quota_only_at_the_close(
    direction: Literal["max", "min"], eta: int, width: int, draw: random.Random
) -> None:
    study = promotion_study(eta=eta, max_budget=eta**2, n_trials=20, direction=direction)
    assert isinstance(study.scheduler, PromotionScheduler)
    levels = rung_levels(eta**2, 1, eta)
    rungs = [NaiveRung(eta) for _ in levels]
    running: list[Trial] = []
    at_the_close = [0 for _ in levels]
    while True:
        trial = None
        if len(running) < width and (not running or draw.random() < 0.6):
            due = [rung.candidate() for rung in reversed(rungs[:-1])]
            expected = next((number for number in due if number is not None), None)
            if (trial := study.ask()) is None:
                assert expected is None
                if not running:
                    break
            elif expected is not None or trial.attempt > 1:
                if expected is None:
                    assert not running
                    assert study.size == 20
                    assert not any(is_well_trained(study, other) for other in study.trials)
                    rested = [rung.best_paused() for rung in reversed(rungs[:-1])]
                    expected = next(number for number in rested if number is not None)
                    at_the_close[levels.index(trial.budget) - 1] += 1
                assert trial.id == expected
                rungs[levels.index(trial.budget) - 1].promoted.add(trial.id)
        if trial is not None:
            running.append(trial)
        else:
            end(study, running.pop(draw.randrange(len(running))), rungs, draw)
        for rung, naive, extra in zip(study.scheduler.rungs, rungs, at_the_close, strict=True):
            assert len(rung) == len(naive.results)
            assert rung.promoted == len(naive.promoted) <= naive.quota + extra
    rests = any(rung.best_paused() is not None for rung in rungs[:-1])
    assert not rests or any(is_well_trained(study, trial) for trial in study.trials)


def is_well_trained(study: Study, trial: Trial) -> bool:
    """Whether a trial was trained to the end, and neither failed nor diverged."""
    ended = trial.state is TrialState.COMPLETED and trial.step >= study.problem.max_budget
    return ended and trial.value is not None and math.isfinite(trial.value)


def end(study: Study, trial: Trial, rungs: list[NaiveRung], draw: random.Random) -> None:
    """End an attempt in one of the ways it can, and enter it where it belongs."""
    rung = rungs[rung_levels(study.problem.max_budget, 1, rungs[0].eta).index(trial.budget)]
    value = draw.choice([0.0, 1.0, 2.0, *NOT_FINITE])
    ending = draw.choice(["reports", "returns", "reports", "returns", "raises", "reports and raises"])
    if ending.startswith("reports"):
        study.report(trial, trial.budget, value)
    if ending.endswith("raises"):
        study.fail(trial)
    else:
        study.tell(trial, value if ending == "returns" else None)
        rung.at_rest.add(trial.id)
    loss = math.inf if ending == "raises" else -value if study.direction == "max" else value
    rung.record(trial.id, loss)


def test_the_first_to_arrive_does_not_pass_because_it_is_first() -> None:
    study = promotion_study()
    numbers = []
    for value in (0.5, 0.1, 0.9):
        trial = study.ask()
        assert trial is not None
        numbers.append(trial.id)
        study.tell(trial, value)
    assert numbers == [0, 1, 2]
    promoted = study.ask()
    assert promoted is not None
    assert (promoted.id, promoted.attempt, promoted.budget) == (2, 2, 3)


def test_later_and_better_results_do_not_enlarge_the_quota() -> None:
    study = promotion_study(eta=2, max_budget=2)
    first, second, third, fourth = start(study, 4)
    study.tell(first, 0.1)
    study.tell(second, 0.0)
    assert study.ask() is first
    study.tell(third, 0.9)
    assert study.next_promotion() is None  # the best of three, but one of floor(3 / 2) was promoted
    study.tell(fourth, 0.8)
    assert study.ask() is third
    assert study.next_promotion() is None  # fourth is among the best two of four, two were promoted


def test_ties_go_to_the_result_that_arrived_first() -> None:
    study = promotion_study()
    for trial in reversed(start(study, 3)):
        study.tell(trial, 0.5)
    assert study.next_promotion() is study.trials[2]


def test_the_highest_rung_is_served_first() -> None:
    study = promotion_study(eta=2, max_budget=4)
    trials = start(study, 6)
    for trial in trials[:4]:
        study.tell(trial, float(trial.id))
    for expected in (3, 2):
        assert study.ask() is trials[expected]
        study.tell(trials[expected], float(expected))
    for trial in trials[4:]:
        study.tell(trial, 9.0)
    # One is due in each rung: of rung 0 trial 4, of rung 1 trial 3.
    assert study.ask() is trials[3]
    assert trials[3].budget == 4
    assert study.ask() is trials[4]


def test_a_trial_at_rest_is_no_candidate_before_it_has_left_its_worker() -> None:
    study = promotion_study(eta=2, max_budget=2)
    first, second = start(study, 2)
    study.report(first, 1, 0.9)
    study.tell(second, 0.1)
    assert study.next_promotion() is None
    study.tell(first)
    assert study.next_promotion() is first


def test_a_rung_takes_a_result_once() -> None:
    scheduler = PromotionScheduler((2, 6, 18), (3, 3, 3))
    for step in (1, 2, 3, 7, 20):
        scheduler.report(0, step, 1.0)
    scheduler.fail(0)
    assert [len(rung) for rung in scheduler.rungs] == [1, 0, 0]
