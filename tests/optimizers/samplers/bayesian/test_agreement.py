from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from optimizers.core.base import History, Observation, Problem
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.bayesian.search import short_trainings_agree
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

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
