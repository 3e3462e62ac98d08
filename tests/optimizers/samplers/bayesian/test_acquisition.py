from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from optimizers.core.base import Observation
from optimizers.samplers.bayesian.acquisition import Axes, log_augmented_improvement, maximize, one_choice_away
from optimizers.samplers.bayesian.surrogate import Results
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


def test_one_choice_away_are_the_neighbors_that_are_not_taken() -> None:
    axes = Axes(SearchSpace(a=Choice(["x", "y", "z"]), b=Choice(["u", "v"])))
    start = axes.snap(np.array([[0.1, 0.1]]))[0]

    def score(units: Array) -> Array:
        return np.asarray(units[:, 0] - 10.0 * units[:, 1])

    near = one_choice_away(score, axes, start, set())
    assert near == pytest.approx(np.array([[5 / 6, 0.25], [0.5, 0.25], [1 / 6, 0.75]]))
    taken = {near[0].tobytes(), near[2].tobytes()}
    assert one_choice_away(score, axes, start, taken).tolist() == [near[1].tolist()]
    assert one_choice_away(score, axes, start, {point.tobytes() for point in near}).shape == (0, 2)


# -- scores ---------------------------------------------------------------------------------------


Row = tuple[int, int, float]


def results(rows: list[Row], max_budget: int = 9, min_share: float = 0.0) -> Results:
    """Of (trial, step, loss)."""
    made = Results(max_budget, min_share)
    made.extend([Observation(trial, {}, step, loss) for trial, step, loss in rows])
    return made


def scores(rows: list[Row], max_budget: int = 9, min_share: float = 0.0) -> Array:
    """Scores in the order of ``rows``; NaN where there is none."""
    chosen, given = results(rows, max_budget, min_share).scores(len(rows))
    by_row = np.full(len(rows), np.nan)
    by_row[chosen] = given
    return by_row


def full(losses: list[float]) -> Array:
    return scores([(trial, 9, loss) for trial, loss in enumerate(losses)])


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_ranks_with_the_worst(bad: float) -> None:
    given = full([3.0, bad, 1.0, 2.0])
    assert given[2] < given[3] < given[0] <= given[1]


@pytest.mark.parametrize("losses", [[math.inf] * 4, [math.nan, math.inf], [2.0] * 5])
def test_what_tells_nothing_scores_nothing(losses: list[float]) -> None:
    assert (full(losses) == 0.0).all()


@pytest.mark.parametrize("wild", [1e3, 1e300])
def test_a_diverged_loss_squeezes_no_other(wild: float) -> None:
    usual = np.linspace(0.0, 1.0, 11)
    given = full([*usual, wild])
    assert given[-1] == given.max()
    assert np.diff(given[:11]).min() > 0.2  # of standard deviations; 1e3 itself would leave 3e-4


def test_equal_losses_have_equal_scores_on_all_rungs() -> None:
    rows = [(t, 3, float(t // 2)) for t in range(8)] + [(t, 9, 0.5) for t in range(3)] + [(3, 9, 0.1)]
    given = scores(rows)
    assert given[0] == given[1]
    assert given[8] == given[9] == given[10] > given[11]


def test_promoted_trials_share_out_the_scores_that_they_had() -> None:
    below = [(t, 3, loss) for t, loss in enumerate([0.4, 0.1, 0.9, 0.3, 0.2, 0.8])]
    above = [(t, 9, loss) for t, loss in [(1, 70.0), (4, 50.0), (3, 60.0)]]  # another scale, another order
    given = scores(below + above)
    had = sorted(given[[1, 4, 3]])
    assert given[[7, 8, 6]] == pytest.approx(had)


def test_the_newest_of_a_level_counts_once() -> None:
    given = scores([(0, 5, 5.0), (1, 8, 2.0), (0, 8, 1.0), (2, 5, 3.0)])  # one halving
    assert given[2] < given[1] < given[3]
    assert math.isnan(given[0])


def test_a_failure_before_the_first_rung_is_compared_there() -> None:
    made = results([(0, 9, 1.0), (1, 9, 2.0), (2, 1, math.inf)])
    rows, given = made.scores(3)
    assert rows.tolist() == [0, 1, 2]
    assert given[2] == given.max() > given[0]


def test_a_prefix_has_the_same_scores_later() -> None:
    rng = np.random.default_rng(0)
    rows = [(t, 3, float(loss)) for t, loss in enumerate(rng.random(20))] + [(t, 9, 0.1 * t) for t in range(5)]
    for n in (1, 12, 22):
        for early, late in zip(*(made.scores(n) for made in (results(rows[:n]), results(rows))), strict=True):
            assert (early == late).all()
    assert len(results(rows).scores(0)[0]) == 0


def test_below_the_floor_only_the_worst_third_counts_and_as_failed() -> None:
    low = [(trial, 1, 0.1 * trial) for trial in range(12)]
    above = [(trial, 3, 5.0 - trial) for trial in range(7)]
    few = scores(low + above, min_share=1 / 3)
    assert not np.isnan(few).any()  # seven results above are too few to do without the others
    above.append((10, 3, 3.0))  # had a bad start, and was let go on
    given = scores(low + above, min_share=1 / 3)
    assert np.flatnonzero(~np.isnan(given)).tolist() == [8, 9, 11, *range(12, 20)]
    assert (given[[8, 9, 11]] == given[12]).all()
    assert given[12] == np.nanmax(given)  # the worst of those that got there
    assert given[18] == np.nanmin(given)
