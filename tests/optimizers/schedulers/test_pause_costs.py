"""Early rungs are left out where a pause takes longer than the training up to them, and only there."""

from __future__ import annotations

import random

import pytest

from optimizers import ASHA, Float, Study
from optimizers.core.events import Event, Measured, TrialCreated
from optimizers.schedulers.successive_halving import PromotionScheduler

SPACE = {"x": Float(0.0, 1.0)}


def budgets(optimizer: ASHA, *, pause: float, step: float, n_trials: int = 30) -> tuple[list[int], list[Event]]:
    """The budget of each trial's first attempt where an attempt takes ``pause`` seconds beside those of its steps."""
    study = Study(SPACE, optimizer, direction="min", max_budget=27, n_trials=n_trials)
    events: list[Event] = []

    def apply(event: Event) -> None:
        events.append(event)
        study.apply(event)

    now, rng, first = 0.0, random.Random(0), []
    while True:
        if (trial := study.next_promotion()) is None:
            proposal = None if len(study.trials) == n_trials else optimizer.ask(len(study.trials), study.history)
            if proposal is None:
                return first, events
            apply(TrialCreated(len(study.trials), study.checked(proposal).config, len(study.trials)))
            trial = study.trials[-1]
        before = trial.step
        apply(study.started(trial, 0, now))
        if trial.attempt == 1:
            first.append(trial.budget)
        slowness = rng.uniform(0.5, 2.0)  # configurations differ
        now += pause + step * slowness * (trial.budget - before)
        column = {"loss": ([trial.budget], [trial.config["x"]])}
        apply(Measured(trial.id, trial.attempt, "loss", column))
        for event in study.conclude(trial, None, {}, now):
            apply(event)


@pytest.mark.parametrize(
    ("pause", "step", "last"),
    [(0.0, 0.1, 1), (0.05, 1.0, 1), (0.5, 0.01, 9), (2.0, 1.0, 3)],
    ids=["free pauses", "long epochs", "short epochs", "a pause of two epochs"],
)
def test_new_trials_leave_out_rungs_that_are_shorter_than_a_pause(pause: float, step: float, last: int) -> None:
    first, _ = budgets(ASHA(), pause=pause, step=step)
    assert first[:3] == [1, 1, 1]
    assert first[-1] == last
    assert first == sorted(first)


def test_rungs_that_the_user_chose_are_kept() -> None:
    for optimizer in (ASHA(sampler="random"), ASHA(min_budget=1)):
        first, _ = budgets(optimizer, pause=10.0, step=0.01)
        assert set(first) == {1}


def test_a_replayed_search_leaves_out_the_same_rungs() -> None:
    first, events = budgets(ASHA(), pause=0.5, step=0.01)
    study = Study(SPACE, ASHA(), direction="min", max_budget=27, n_trials=len(first) + 1)
    for event in events:
        study.apply(event)
        if isinstance(event, TrialCreated):
            assert study.grant(study.trials[-1]).budget == first[event.trial]
    assert isinstance(study.scheduler, PromotionScheduler)


def test_times_that_are_not_known_leave_nothing_out() -> None:
    study = Study(SPACE, ASHA(), direction="min", max_budget=27, n_trials=40)
    while (trial := study.ask()) is not None:  # ask and tell know no time
        if trial.attempt == 1:
            assert trial.budget == 1
        study.report(trial, trial.budget, trial.config["x"])
        study.tell(trial)
