"""A search that ends by its number of trials has trained something to the end, however small it is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.driver.simulate import simulate
from optimizers.core.base import Decision, Optimizer
from optimizers.core.events import AttemptStarted, Event
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA, Mode
from optimizers.schedulers.stopping import MedianRule, Patience, Threshold
from optimizers.schedulers.successive_halving import PromotionScheduler, rung_levels
from optimizers.space import Config
from optimizers.space.domains import Float


class Recorded(Study):
    """A study that keeps its events."""

    def apply(self, event: Event) -> Decision:
        vars(self).setdefault("events", []).append(event)
        return super().apply(event)


def halving(mode: Mode) -> Optimizer:
    """The rungs of ``"asha"``, without its model, which is slow."""
    made = ASHA(mode=mode)
    made.sampler = RandomSearch()
    return made


KINDS: dict[str, Callable[[Mode], Optimizer]] = {
    "plain": lambda mode: ASHA(sampler="random", mode=mode),
    "eta=2": lambda mode: ASHA(sampler="random", eta=2, mode=mode),
    "asha": halving,
    "hyperband": lambda mode: ASHA(sampler="random", mode=mode, brackets=None),
    "patience": lambda mode: Patience(ASHA(sampler="random", mode=mode), patience=100),
    "threshold": lambda mode: Threshold(ASHA(sampler="random", mode=mode), step=1, worse_than=9.0, direction="min"),
}


def learn(config: Config, step: int) -> tuple[float, float]:
    """A loss that falls at a pace of its own, in steps that take a time of their own; curves cross."""
    return config["x"] + config["pace"] / step, 1.0 + config["pace"]


def search(optimizer: Optimizer, n_trials: int, max_budget: int, workers: int, seed: int) -> Recorded:
    space = {"x": Float(0, 1), "pace": Float(0, 2)}
    study = Recorded(space, optimizer, direction="min", seed=seed, max_budget=max_budget, n_trials=n_trials)
    simulate(study, learn, workers=workers)
    return study


@settings(max_examples=examples(150))
@given(
    kind=st.sampled_from(sorted(KINDS)),
    mode=st.sampled_from(["promotion", "stopping"]),
    n_trials=st.integers(1, 12),
    max_budget=st.sampled_from([1, 2, 3, 5, 9, 20, 27]),
    workers=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_some_training_completes(
    kind: str, mode: Mode, n_trials: int, max_budget: int, workers: int, seed: int
) -> None:
    optimizer = KINDS[kind](mode)
    study = search(optimizer, n_trials, max_budget, workers, seed)
    completed = [trial for trial in study.trials if trial.state is TrialState.COMPLETED]
    assert len(study.trials) == n_trials
    assert completed
    assert all(trial.step == max_budget for trial in completed)
    assert study.closing_promotion() is None
    if isinstance(study.scheduler, PromotionScheduler) and isinstance(optimizer, ASHA):
        counts = [len(rung) for rung in study.scheduler.rungs]
        etas = optimizer.etas(optimizer.levels(max_budget))
        assert all(above <= max(1, below // eta) for eta, (below, above) in zip(etas, pairwise(counts), strict=False))
    replayed = Recorded(study.problem.space, KINDS[kind](mode), direction="min", seed=seed, max_budget=max_budget)
    for event in study.events:
        replayed.apply(event)
    assert repr(replayed.trials) == repr(study.trials)
    assert replayed.closing_promotion() is None


@pytest.mark.parametrize(("n_trials", "max_budget"), [(10, 27), (20, 27), (5, 9)])
@pytest.mark.parametrize("seed", range(3))
def test_the_stopping_form_ends_a_small_search_with_a_full_training(n_trials: int, max_budget: int, seed: int) -> None:
    study = search(halving("stopping"), n_trials, max_budget, 2, seed)
    assert study.counts[TrialState.COMPLETED] >= 1


@pytest.mark.parametrize("mode", ["promotion", "stopping"])
@pytest.mark.parametrize("n_trials", [54, 270])
def test_about_as_many_trainings_complete_as_the_schedule_means(mode: Mode, n_trials: int) -> None:
    studies = [search(ASHA(sampler="random", mode=mode), n_trials, 27, 4, seed) for seed in range(10)]
    meant = ASHA(sampler="random", mode=mode).full_trainings(studies[0].problem)
    assert meant == pytest.approx(n_trials / 27)
    mean = np.mean([study.counts[TrialState.COMPLETED] for study in studies])
    assert meant - 1 <= mean <= 2 * meant + 2


def test_at_the_close_the_best_at_rest_is_trained_on_once_nothing_runs() -> None:
    study = search(ASHA(sampler="random"), 5, 27, 3, 0)
    (completed,) = (trial for trial in study.trials if trial.state is TrialState.COMPLETED)
    starts = [event for event in study.events if isinstance(event, AttemptStarted)]
    assert [event.trial for event in starts if event.attempt > 1] == [completed.id] * 3
    assert [event.budget for event in starts if event.trial == completed.id] == list(rung_levels(27))


def test_a_rule_that_stops_the_last_training_has_the_last_word() -> None:
    """Else each trial at rest would be trained on until the rule stops it too."""
    rule = Threshold(ASHA(sampler="random"), step=5, worse_than=-1.0, direction="min")
    study = search(rule, 8, 9, 2, 0)
    assert (study.counts[TrialState.COMPLETED], study.counts[TrialState.STOPPED]) == (0, 1)


def test_a_median_rule_around_it_leaves_a_training_or_has_stopped_it() -> None:
    for seed in range(5):
        study = search(MedianRule(ASHA(sampler="random"), grace=3), 9, 27, 2, seed)
        assert study.counts[TrialState.COMPLETED] + study.counts[TrialState.STOPPED] >= 1


def test_one_that_fails_at_the_close_makes_room_for_the_next() -> None:
    study = Study({"x": Float(0, 1)}, ASHA(sampler="random"), direction="min", max_budget=9, n_trials=4)
    while (trial := study.ask()) is not None:
        if trial.attempt > 1 and trial.id < 3:
            study.fail(trial)
        else:
            study.tell(trial, float(trial.id))
    assert [trial.state for trial in study.trials] == [TrialState.FAILED] * 3 + [TrialState.COMPLETED]
