from __future__ import annotations

import math

import numpy as np
import pytest

from optimizers.comparisons.sequential_tests import farther, median_unbiased

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
