from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from optimizers.core.base import History, Observation, Problem
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.bayesian.search import short_trainings_agree
from optimizers.samplers.bayesian.surrogate import MODEL_SIZE, Surrogate
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

PLANE = SearchSpace(x=Float(0, 1), y=Float(0, 1))


def observations(
    n: int, loss: Callable[[float, float], float], step: Callable[[int], int] = lambda trial: 9
) -> list[Observation]:
    points = np.random.default_rng(0).random((n, 2))
    return [
        Observation(t, {"x": float(x), "y": float(y)}, step(t), loss(float(x), float(y)))
        for t, (x, y) in enumerate(points)
    ]


def bowl(x: float, y: float) -> float:
    return (x - 0.7) ** 2 + (y - 0.2) ** 2


def surrogate(history: History) -> Surrogate:
    made = Surrogate(history, 8)
    made.update()
    return made


def test_a_function_is_trusted_and_chance_is_not() -> None:
    chance = np.random.default_rng(1)
    sure = History(Problem(PLANE, max_budget=9), observations(30, bowl))
    unsure = History(Problem(PLANE, max_budget=9), observations(30, lambda x, y: float(chance.random())))
    assert surrogate(sure).fit().trust > 0.9
    assert surrogate(unsure).fit().trust < 0.4


def test_fits_do_not_depend_on_when_they_are_asked_for() -> None:
    seen = observations(24, bowl)
    history = History(Problem(PLANE, max_budget=9))
    often = Surrogate(history, 8)
    for observation in seen:
        history.apply(observation)
        often.update()
        often.fit()
    once = surrogate(history).fit()
    assert (often.fit().hyperparameters.values == once.hyperparameters.values).all()
    assert often.fit().trust == once.trust


def test_a_large_model_keeps_the_best_that_got_furthest_and_the_newest() -> None:
    seen = observations(3 * MODEL_SIZE, bowl, lambda trial: 9 if trial % 5 == 0 else 3)
    data = surrogate(History(Problem(PLANE, max_budget=9), seen)).data(len(seen))
    assert len(data.scores) == len(data.units) == len(data.features) == MODEL_SIZE
    best = sorted((trial for trial in seen if trial.step == 9), key=lambda trial: trial.loss)[: MODEL_SIZE // 2]
    kept = set(data.trials.tolist())
    assert {trial.trial for trial in best} <= kept
    rest = {trial.trial for trial in seen} - {trial.trial for trial in best}
    assert set(sorted(rest)[-MODEL_SIZE // 2 :]) <= kept


def test_levels_and_earlier_searches_have_axes_of_their_own() -> None:
    earlier = tuple(observations(10, bowl))
    problem = Problem(PLANE, max_budget=8, earlier=(earlier,))
    made = surrogate(History(problem, [Observation(0, {"x": 0.5, "y": 0.5}, 1, 1.0)]))
    data = made.data(1)
    assert made.groups.tolist() == [0, 1, 2, 3]
    assert data.features[0].tolist() == pytest.approx([0.5, 0.5, 0.0, 0.0])  # an eighth of the steps
    assert (data.features[1:, 3] == 1.0).all()
    assert (data.trials[1:] < 0).all()
    assert len(set(data.trials.tolist())) == 11
    assert made.features(np.array([[0.1, 0.2]])).tolist() == [[0.1, 0.2, 1.0, 0.0]]  # what is proposed runs to the end


@pytest.mark.parametrize(("searches", "points"), [(20, 60), (31, 31), (60, 60), (61, 60)])
def test_of_many_earlier_searches_each_has_its_best_point_in_the_model(searches: int, points: int) -> None:
    trials = tuple(observations(60, bowl))
    problem = Problem(PLANE, max_budget=9, earlier=tuple(trials[search % 2 :] for search in range(searches)))
    made = surrogate(History(problem))
    data = made.data(0)
    assert len(data.scores) == points
    best = min(trials, key=lambda seen: seen.loss).config
    assert (data.units == [best["x"], best["y"]]).all(axis=1).sum() == min(searches, 60)
    improvement, starts = made.improvement(np.random.default_rng(0))
    assert np.isfinite(improvement(starts)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("early", "floored"), [(bowl, False), (lambda x, y: -bowl(x, y), True)])
def test_short_trainings_are_modelled_where_that_predicts_long_ones_better(
    early: Callable[[float, float], float], *, floored: bool
) -> None:
    short = observations(60, early, lambda trial: 1)
    long = [trial for trial in observations(60, bowl) if trial.trial % 5 == 0]
    made = Surrogate(History(Problem(PLANE, max_budget=9), [*short, *long]), 8, 1 / 3)
    made.update()
    fit = made.fit()
    assert fit.floored is floored
    data = made.data(72, floored=fit.floored)
    assert set(data.levels.tolist()) == {0, -4}
    assert 12 < len(data.scores) <= 32 if floored else len(data.scores) == 72  # the worst third of the short ones


# -- agreement ------------------------------------------------------------------------------------


LINE = SearchSpace(x=Float(0, 1))


def at(step: int, loss: Callable[[float], float], trials: int, first: int = 0) -> list[Observation]:
    points = np.random.default_rng(0).random(first + trials)[first:]
    return [Observation(first + n, {"x": float(x)}, step, loss(float(x))) for n, x in enumerate(points)]


@pytest.mark.parametrize(
    ("longer", "agree"),
    [
        (at(5, lambda x: 10.0 * x, 6), True),
        (at(5, lambda x: -x, 6), False),
        (at(5, lambda x: 10.0 * x, 5), False),  # too few
        (at(5, lambda x: 10.0 * x, 6, first=8), False),  # of other trials
        (at(5, lambda x: x if x < 0.9 else math.inf, 8), True),
    ],
)
def test_short_trainings_agree_where_trials_come_in_the_same_order(longer: list[Observation], *, agree: bool) -> None:
    assert short_trainings_agree(at(1, lambda x: x, 8) + longer) is agree
    assert not short_trainings_agree(longer)


def test_budgets_that_are_near_count_as_one() -> None:
    uneven = [Observation(n, {"x": 0.5}, 5 + n % 3, float(n)) for n in range(6)]
    assert short_trainings_agree(
        at(1, lambda x: x, 0) + [Observation(n, {"x": 0.5}, 1, float(n)) for n in range(6)] + uneven
    )


def test_short_trainings_start_the_model_only_where_they_agree() -> None:
    sampler = BayesianSearch(min_share=1 / 3)
    short = at(1, lambda x: x, 8)

    def is_blind(*observations: Observation) -> bool:
        return sampler.is_blind(History(Problem(LINE, max_budget=50), [*short, *observations]))

    assert is_blind()
    assert is_blind(*at(5, lambda x: -x, 6))
    assert not is_blind(*at(5, lambda x: 2.0 * x, 6))
    assert is_blind(*at(16, lambda x: -x, 7))
    assert not is_blind(*at(16, lambda x: -x, 8))
    assert BayesianSearch(min_share=0.0).is_blind(History(Problem(LINE, max_budget=50), short[:7]))
    assert not BayesianSearch(min_share=0.0).is_blind(History(Problem(LINE, max_budget=50), short))
