from __future__ import annotations

import itertools
import math
from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from optimizers.comparisons.paired_tests import LeastSquares, compare, differences, power
from optimizers.comparisons.sequential_tests import SequentialTests, farther, median_unbiased
from optimizers.errors import OptimizerError

CELLS = ["".join(levels) for levels in product("01", repeat=4)]
"""Combinations of four components; 1 is without it."""


def sign(cell: str, *components: int) -> int:
    return math.prod(1 if cell[component] == "1" else -1 for component in components)


MAIN = {f"{a}": {cell: sign(cell, a) / 8 for cell in CELLS} for a in range(4)}
TWO = {f"{a} x {b}": {cell: sign(cell, a, b) / 4 for cell in CELLS} for a, b in combinations(range(4), 2)}
CONTRASTS = MAIN | TWO


def losses_with_gaps(seeds: int, share: float) -> dict[tuple[str, int], float]:
    rng = np.random.default_rng(5)
    return {
        (cell, seed): math.inf if rng.random() < share else sign(cell, 0) + 0.5 * rng.normal()
        for seed in range(seeds)
        for cell in CELLS
    }


def test_a_factorial_with_gaps_is_the_fit_of_an_independent_regression() -> None:
    """Coded by hand, with an intercept, main effects and interactions of two, and solved by numpy."""
    losses = losses_with_gaps(20, 0.1)
    fit = LeastSquares(CONTRASTS.values())
    terms = [(), *((a,) for a in range(4)), *combinations(range(4), 2)]
    found = {name: differences(contrast, losses, range(20), fit=fit) for name, contrast in CONTRASTS.items()}
    assert found["0"].fitted > 5
    for seed in range(20):
        there = [cell for cell in CELLS if math.isfinite(losses[cell, seed])]
        coded = np.array([[sign(cell, *term) for term in terms] for cell in there], dtype=float)
        fitted, _, rank, _ = np.linalg.lstsq(coded, np.array([losses[cell, seed] for cell in there]), rcond=None)
        assert rank == len(terms)
        for (name, sample), term in zip(found.items(), terms[1:], strict=True):
            scale = 2.0 if len(term) == 1 else 4.0  # the effect of a component, and an interaction as in "pairs"
            assert sample.values[seed] == pytest.approx(scale * fitted[terms.index(term)]), name


def test_with_all_trials_a_fit_is_the_contrast_itself() -> None:
    fit = LeastSquares(CONTRASTS.values())
    for contrast in CONTRASTS.values():
        made = fit.weights(contrast, CELLS)
        assert made is not None
        assert made == pytest.approx(contrast)


def test_what_the_others_do_not_determine_has_no_value() -> None:
    fit = LeastSquares(CONTRASTS.values())
    without_0 = [cell for cell in CELLS if cell[0] == "0"]
    assert fit.weights(CONTRASTS["0"], without_0) is None
    assert fit.weights(CONTRASTS["0"], []) is None
    one_base = {name: {name: 1.0, "base": -1.0} for name in "AB"}
    assert not LeastSquares(one_base.values()).has_spare
    assert LeastSquares(one_base.values()).weights(one_base["A"], ["A"]) is None
    assert LeastSquares(one_base.values()).weights(one_base["A"], ["A", "base"]) == pytest.approx(one_base["A"])


def test_factorials_with_gaps_are_tested() -> None:
    losses = losses_with_gaps(12, 0.1)
    fixed = compare(CONTRASTS, losses, planned=12)
    adaptive = SequentialTests(CONTRASTS, 12).compare(losses)
    for found in (fixed, adaptive):
        assert [name for name, finding in found.items() if finding.differs] == ["0"]
        assert found["0"].dropped == 0
    assert fixed["0"].seeds == 12


def test_a_seed_that_has_not_ended_is_not_fitted() -> None:
    losses = losses_with_gaps(1, 0.1) | {(CELLS[1], 0): math.inf}
    del losses[CELLS[0], 0]
    sample = differences(CONTRASTS["0"], losses, range(1), fit=LeastSquares(CONTRASTS.values()))
    assert sample.ended == 0


# -- median unbiased ------------------------------------------------------------------------------


TIMES = [number / 10 for number in range(1, 11)]
BOUNDARY = [2.2 * (1.0 + 0.5 * time) / 1.5 for time in TIMES]


def walks(drift: float, number: int) -> tuple[np.ndarray, np.ndarray]:
    """At which look Brownian motions stopped, and their height there."""
    steps = np.random.default_rng(0).normal(drift * 0.1, math.sqrt(0.1), size=(number, 10))
    paths = np.cumsum(steps, axis=1)
    across = np.abs(paths) >= BOUNDARY
    stopped = np.where(across.any(axis=1), across.argmax(axis=1), 9)
    return stopped, paths[np.arange(number), stopped]


@pytest.mark.parametrize("drift", [0.0, 1.5, 3.0])
def test_half_of_all_estimates_lie_above_the_truth(drift: float) -> None:
    """And more than half of the plain ones do, if there is a difference."""
    stopped, heights = walks(drift, 600)
    estimates = [
        median_unbiased(TIMES[: look + 1], BOUNDARY[: look + 1], height)
        for look, height in zip(stopped, heights.tolist(), strict=True)
    ]
    assert np.mean(np.array(estimates) > drift) == pytest.approx(0.5, abs=0.06)
    if drift == 3.0:
        plain = heights / np.array(TIMES)[stopped]
        assert np.mean(plain) > np.mean(estimates) > drift - 0.2


@pytest.mark.parametrize(("look", "height", "drift"), [(4, 1.9, 2.0), (9, 1.0, 1.0), (2, 2.0, 0.0)])
def test_the_probability_is_that_of_simulated_motions(look: int, height: float, drift: float) -> None:
    stopped, heights = walks(drift, 100_000)
    earlier = (stopped < look) & (heights > 0.0)
    there = (stopped == look) & (heights >= height)
    if look < 9:  # stopped later, but at least as high at that look: none, since it would have crossed by then
        assert height >= BOUNDARY[look]
    expected = farther(TIMES[: look + 1], BOUNDARY[: look + 1], height, drift)
    assert np.mean(earlier | there) == pytest.approx(expected, abs=0.006)


def test_one_look_and_the_other_side() -> None:
    assert median_unbiased([0.5], [3.0], 1.0) == 2.0
    upper = median_unbiased(TIMES[:4], BOUNDARY[:4], 2.0)
    assert 0.0 < upper < 2.0 / 0.4
    assert median_unbiased(TIMES[:4], BOUNDARY[:4], -2.0) == pytest.approx(-upper)


# -- the probability of finding a difference, beside draws and in the tails -----------------------


def test_it_is_a_probability_that_rises_with_the_effect_and_the_seeds() -> None:
    for seeds, effect in itertools.product((2, 6, 10, 20, 100), (0.0, 0.1, 1.0, 2.0, 3.0, 5.0, 20.0)):
        assert 0.0 <= power(effect, 1.0, seeds) <= power(effect + 0.5, 1.0, seeds + 5) <= 1.0
    assert power(0.0, 1.0, 20) == pytest.approx(0.05)
    assert power(-1.0, 1.0, 20) == power(1.0, 1.0, 20)


def test_it_is_the_share_of_tests_that_find_it() -> None:
    drawn = np.random.default_rng(0).normal(0.6, 1.0, (20_000, 10))
    found = stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05
    assert power(0.6, 1.0, 10) == pytest.approx(found.mean(), abs=0.01)


def test_what_is_no_number_is_told() -> None:
    with pytest.raises(
        OptimizerError, match=r"effect must be a number and deviation a number above 0, got nan and 1.0"
    ):
        power(float("nan"), 1.0, 10)
