from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from optimizers.samplers.bayesian.acquisition import Axes, log_augmented_improvement, maximize, one_choice_away
from optimizers.space.domains import Choice, Float, Integer
from optimizers.space.search_space import SearchSpace
from optimizers.testing import SPACES

Array = NDArray[np.float64]


def test_it_is_the_logarithm_of_the_mean_over_fantasies() -> None:
    rng = np.random.default_rng(0)
    means, variances, best = rng.normal(size=(30, 4)), rng.uniform(0.05, 2.0, 30), rng.normal(size=4)
    std = np.sqrt(variances)[:, None]
    z = (best - means) / std
    expected = (std * (norm.pdf(z) + z * norm.cdf(z))).mean(axis=1)
    augmented = expected * (1.0 - np.sqrt(0.1 / (variances + 0.1)))
    got = log_augmented_improvement(means, variances, best, 0.1)
    assert got == pytest.approx(np.log(augmented), abs=1e-9)


def test_far_out_it_still_tells_better_from_worse() -> None:
    z = -np.logspace(-3, 6, 2000)
    got = log_augmented_improvement(-z[:, None], np.ones(len(z)), np.zeros(1), 1e-3)
    assert np.isfinite(got).all()
    assert (np.diff(got) < 0.0).all()


def test_the_best_point_is_found() -> None:
    axes = Axes(SearchSpace(x=Float(0, 1), y=Float(0, 1), z=Float(0, 1)))

    def score(units: Array) -> Array:
        return np.asarray(-np.sum((units - [0.21, 0.55, 0.87]) ** 2, axis=1))

    found = maximize(score, axes, np.full((1, 3), 0.5), np.random.default_rng(0), set())
    assert found[0] == pytest.approx([0.21, 0.55, 0.87], abs=0.02)
    assert (np.diff(score(found)) <= 0.0).all()


@pytest.mark.parametrize("name", ["tiny", "mixed"])
def test_a_taken_point_never_comes(name: str) -> None:
    axes, rng = Axes(SPACES[name]), np.random.default_rng(0)
    known = axes.snap(rng.random((8, axes.d)))
    taken = {point.tobytes() for point in known}
    found = maximize(lambda units: -np.abs(units - known[0]).sum(axis=1), axes, known, rng, taken)
    assert len(found)
    assert not taken & {point.tobytes() for point in found}


def test_nothing_comes_where_all_is_taken() -> None:
    axes = Axes(SearchSpace(n=Integer(1, 3)))
    all_points = axes.snap(np.linspace(0.1, 0.9, 9)[:, None])
    taken = {point.tobytes() for point in all_points}
    found = maximize(lambda units: units[:, 0], axes, all_points, np.random.default_rng(0), taken)
    assert found.shape == (0, 1)


def test_a_constraint_is_asked_of_few_points_though_the_best_are_forbidden() -> None:
    asked: list[float] = []

    def below(config: dict[str, float]) -> bool:
        asked.append(config["x"] + config["y"])
        return asked[-1] <= 0.6

    axes = Axes(SearchSpace(x=Float(0, 1), y=Float(0, 1)).where(below))
    start = np.array([[0.2, 0.3]])
    found = maximize(lambda units: units.sum(axis=1), axes, start, np.random.default_rng(0), set())
    assert 0.599 < found[0].sum() <= 0.6
    assert (found.sum(axis=1) <= 0.6).all()
    assert len(asked) < 800  # of 2,300 points that are looked at, of which three quarters are forbidden


def test_nothing_comes_where_nothing_is_allowed() -> None:
    limit = 1.0
    axes = Axes(SearchSpace(x=Float(0, 1), y=Float(0, 1)).where(lambda config: config["x"] <= limit))
    limit = -1.0
    found = maximize(lambda units: units[:, 0], axes, np.full((1, 2), 0.5), np.random.default_rng(0), set())
    assert found.shape == (0, 2)


def test_one_choice_away_are_the_neighbours_that_are_not_taken() -> None:
    axes = Axes(SearchSpace(a=Choice(["x", "y", "z"]), b=Choice(["u", "v"])))
    start = axes.snap(np.array([[0.1, 0.1]]))[0]

    def score(units: Array) -> Array:
        return np.asarray(units[:, 0] - 10.0 * units[:, 1])

    near = one_choice_away(score, axes, start, set())
    assert near == pytest.approx(np.array([[5 / 6, 0.25], [0.5, 0.25], [1 / 6, 0.75]]))
    taken = {near[0].tobytes(), near[2].tobytes()}
    assert one_choice_away(score, axes, start, taken).tolist() == [near[1].tolist()]
    assert one_choice_away(score, axes, start, {point.tobytes() for point in near}).shape == (0, 2)
