from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from optimizers.core.base import History, Observation, Optimizer, Pending, Problem
from optimizers.core.study import Study
from optimizers.core.trial import Trial
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.schedulers.asha import ASHA, MOBSTER
from optimizers.space import Config
from optimizers.space.domains import Choice, Float, Integer
from optimizers.space.search_space import SearchSpace
from optimizers.testing import SPACES

pytestmark = pytest.mark.slow

PLANE = SearchSpace(x=Float(0, 1), y=Float(0, 1))
BOTTOM = (0.7, 0.2)


def bowl(config: Config) -> float:
    return float((config["x"] - BOTTOM[0]) ** 2 + (config["y"] - BOTTOM[1]) ** 2)


def away(config: Config, x: float = BOTTOM[0], y: float = BOTTOM[1]) -> float:
    return math.hypot(config["x"] - x, config["y"] - y)


def seen(n: int, loss: Callable[[Config], float] = bowl) -> list[Observation]:
    rng = np.random.default_rng(0)
    configs = [PLANE.sample(rng) for _ in range(n)]
    return [Observation(trial, config, 1, loss(config)) for trial, config in enumerate(configs)]


def search(study: Study, loss: Callable[[Config], Any], workers: int = 4) -> None:
    """The last to begin is the first to end, but for one in five."""
    running: list[Trial] = []
    ended = 0
    while (trial := study.ask()) is not None or running:
        if trial is not None:
            running.append(trial)
        if trial is None or len(running) == workers:
            ended += 1
            done = running.pop(0 if ended % 5 == 0 else -1)
            study.tell(done, loss(done.config))


def test_the_bottom_is_found_though_trials_end_in_another_order() -> None:
    study = Study(PLANE, BayesianSearch(), direction="min", seed=1, n_trials=32)
    search(study, bowl)
    assert away(study.best.config) < 0.03
    # A model of configurations paired with others' results would not dwell there; 0.5 by chance.
    assert np.median([away(trial.config) for trial in study.trials[20:]]) < 0.2


def test_each_configuration_of_a_small_space_comes_once() -> None:
    space = SPACES["tiny"]
    study = Study(space, BayesianSearch(4), direction="min", n_trials=space.size)
    search(study, lambda config: float(config["layers"]))
    assert len({space.to_unit(trial.config).tobytes() for trial in study.trials}) == space.size == 12


def test_it_looks_elsewhere_while_a_configuration_runs() -> None:
    history = History(Problem(PLANE), seen(14))
    first = BayesianSearch().ask(14, history)
    alone = BayesianSearch().ask(15, history)
    history.apply(Pending(14, first))
    beside = BayesianSearch().ask(15, history)
    assert away(alone, **first) < 0.5 * away(beside, **first)


def test_a_promoted_trial_counts_with_what_it_has() -> None:
    """Its result so far, and no draw of the model in its place."""
    history = History(Problem(PLANE), seen(14))
    history.apply(Pending(3, history.observations[3].config))
    assert BayesianSearch().ask(14, history) == BayesianSearch().ask(14, History(Problem(PLANE), seen(14)))


def test_a_prior_pulls_the_first_proposals() -> None:
    """Where the results tell nothing: the loss does not depend on ``x``."""
    with_prior = SearchSpace(x=Float(0, 1, prior=0.9), y=Float(0, 1))
    distances = []
    for space in (PLANE, with_prior):
        history = History(Problem(space), seen(8, lambda config: config["y"]))
        optimizer = BayesianSearch(4)
        distances.append(np.mean([abs(optimizer.ask(index, history)["x"] - 0.9) for index in range(8, 16)]))
    assert distances[1] < 0.5 * distances[0]


@pytest.mark.parametrize("seed", range(5))
def test_an_earlier_search_of_the_same_function_makes_the_first_proposals_good(seed: int) -> None:
    earlier = seen(30, lambda config: 5.0 + 1000.0 * bowl(config))
    history = History(Problem(PLANE, earlier=(tuple(earlier),), seed=seed))
    optimizer = BayesianSearch()
    for index in range(4):
        history.apply(Pending(index, optimizer.ask(index, history)))
    distances = [away(config) for config in history.pending.values()]
    assert np.mean(distances) < 0.25  # of random ones it is 0.49
    assert min(distances) < 0.1


@pytest.mark.conformance
def test_an_answer_needs_no_memory() -> None:
    """Over rungs, with failures, several at a time and other ends than begins."""
    space, optimizer = SPACES["conditional"], BayesianSearch(4)
    study = Study(space, ASHA(sampler=optimizer), max_budget=9, direction="min")
    rng = np.random.default_rng(0)
    running: list[Trial] = []
    while len(study.history.observations) < 30:
        while len(running) < 4 and (trial := study.ask()):
            running.append(trial)
        trial = running.pop(int(rng.integers(4)))
        loss = math.nan if trial.id % 7 == 3 else float(np.sum((space.to_unit(trial.config) - 0.3) ** 2))
        study.tell(trial, loss / trial.budget)
    assert {observed.step for observed in study.history.observations} == {1, 3, 9}
    resumed = History(study.problem, list(study.history.observations), dict(study.history.pending))
    for index in range(study.n_asks, study.n_asks + 3):
        assert BayesianSearch(4).ask(index, resumed) == optimizer.ask(index, study.history)


def test_a_model_that_cannot_predict_leaves_part_to_chance() -> None:
    chance = np.random.default_rng(5)

    def drawn(loss: Callable[[Config], float]) -> int:
        """How many of twenty proposals are what a plain draw would have given."""
        optimizer, history = BayesianSearch(), History(Problem(PLANE), seen(30, loss))
        count = 0
        for index in range(30, 50):
            rng = history.rng(index)
            rng.random()
            count += optimizer.ask(index, history) == PLANE.sample(rng)
        return count

    assert drawn(bowl) == 0
    assert 4 <= drawn(lambda config: float(chance.random())) <= 16


@pytest.mark.conformance
def test_a_value_that_is_bad_elsewhere_is_tried_beside_the_best() -> None:
    costs = {"none": 1.0, "skip": 1.5, "pool": 0.6, "narrow": 0.2, "wide": 0.0}
    space = SearchSpace({f"edge{index}": Choice(list(costs)) for index in range(6)})

    def trap(config: Config) -> float:
        rest = sum(costs[value] for name, value in config.items() if name != "edge3")
        return rest - 0.5 if config["edge3"] == "skip" and rest <= 0.2 else rest + costs[config["edge3"]]

    study = Study(space, BayesianSearch(), direction="min", seed=3, n_trials=80)
    search(study, trap)
    assert study.best.config == dict.fromkeys(space, "wide") | {"edge3": "skip"}


@pytest.mark.conformance
def test_several_objectives_are_spread_over_the_front() -> None:
    """Of two bowls, side by side, the front is the line between their bottoms."""
    study = Study(PLANE, BayesianSearch(), direction=["min", "min"], objectives=["a", "b"], n_trials=36)
    search(study, lambda config: [away(config, 0.2, 0.5) ** 2, away(config, 0.8, 0.5) ** 2])
    late = study.trials[12:]
    assert np.median([abs(trial.config["y"] - 0.5) for trial in late]) < 0.1  # 0.25 by chance
    shares = np.histogram([trial.config["x"] for trial in study.pareto], bins=[0.15, 0.4, 0.6, 0.85])[0]
    assert shares.min() >= 2


@pytest.mark.conformance
def test_the_ends_of_a_front_are_found_from_its_middle() -> None:
    """What is best lies where the first objective is bad: a reference point near a short front would never value it."""
    study = Study(PLANE, BayesianSearch(), direction=["min", "min"], objectives=["a", "b"], n_trials=30)
    search(study, lambda config: [config["x"], (1.0 + config["y"]) * (1.0 - config["x"] ** 0.5)])
    firsts = sorted(trial.config["x"] for trial in study.pareto)
    assert firsts[0] < 0.05
    assert firsts[-1] > 0.9


def test_what_constraints_forbid_is_not_looked_at() -> None:
    """The best lies at a border, and all that is better without it beyond."""
    space = PLANE.where(lambda config: config["x"] + config["y"] >= 1.0)
    study = Study(space, BayesianSearch(), direction="min", seed=1, n_trials=25)
    search(study, lambda config: config["x"] + 2.0 * config["y"])
    assert study.best.value is not None
    assert study.best.value < 1.05  # at (1, 0); 1.18 where proposals that are not allowed are drawn anew


# -- where time bounds the search ---------------------------------------------------------------------
def timed(n: int, *, is_timed: bool = True, seconds: Callable[[Config], float]) -> History:
    """Results that are alike on both sides of the middle, with the seconds that they took."""
    results = seen(n, lambda config: (abs(config["x"] - 0.5) - 0.3) ** 2 + (config["y"] - 0.5) ** 2)
    told = [Observation(each.trial, each.config, 1, each.loss, seconds=seconds(each.config)) for each in results]
    return History(Problem(PLANE, is_timed=is_timed), told)


def test_of_two_that_promise_alike_the_quicker_is_proposed() -> None:
    for dear_side in (1.0, -1.0):
        history = timed(16, seconds=lambda config, side=dear_side: 20.0 ** (side * config["x"]))
        optimizer = BayesianSearch()
        proposals = [optimizer.ask(index, history)["x"] for index in range(16, 26)]
        assert sum((x - 0.5) * dear_side < 0.0 for x in proposals) >= 9


def test_times_change_nothing_in_a_search_of_so_many_trials() -> None:
    dear = timed(16, is_timed=False, seconds=lambda config: 20.0 ** config["x"])
    unknown = timed(16, is_timed=False, seconds=lambda config: 0.0)
    first, second = BayesianSearch(), BayesianSearch()
    for index in range(16, 22):
        assert first.ask(index, dear) == second.ask(index, unknown)


@pytest.mark.parametrize("few", [0.01, 0.3, 0.9])
def test_a_seed_repeats_the_proposals_of_short_trials_however_long_they_take(few: float) -> None:
    quick, slow = (timed(16, is_timed=False, seconds=lambda config, s=each: s) for each in (0.05, few))
    first, second = BayesianSearch(), BayesianSearch()
    for index in range(16, 20):
        assert first.ask(index, quick) == second.ask(index, slow)


def test_times_that_are_not_known_change_nothing() -> None:
    bounded, unbounded = (timed(16, is_timed=is_timed, seconds=lambda config: 0.0) for is_timed in (True, False))
    assert BayesianSearch().ask(16, bounded) == BayesianSearch().ask(16, unbounded)


@pytest.mark.conformance
@pytest.mark.parametrize(("make", "max_budget"), [(BayesianSearch, 1), (BayesianSearch, 27), (ASHA, 27), (MOBSTER, 27)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_what_failed_before_its_first_report_is_not_proposed_for_ever(
    make: Callable[[], Optimizer], max_budget: int, seed: int
) -> None:
    """A quarter of the space does not fit into memory, next to where the best lies."""
    space = {"lr": Float(1e-4, 1.0, log=True), "units": Integer(8, 256, log=True), "depth": Integer(1, 8)}
    study = Study(space, make(), direction="max", n_trials=50, max_budget=max_budget, seed=seed)
    failed = []
    while (trial := study.ask()) is not None:
        lr, units, depth = trial.config.values()
        if trial.attempt == 1:
            failed.append(units * depth > 600)
        if units * depth > 600:
            study.fail(trial)
            continue
        learned = 1.0 - math.exp(-trial.budget / 9)
        study.tell(
            trial, learned * (1.0 - (math.log10(lr) + 2.0) ** 2 / 4.0) * (1.0 - 1.0 / (1.0 + units * depth / 100))
        )
    assert sum(failed[25:]) <= 8
