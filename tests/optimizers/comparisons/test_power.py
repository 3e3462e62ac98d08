"""The probability of finding a difference, beside draws and in the tails."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from optimizers.comparisons.paired_tests import power
from optimizers.errors import OptimizerError


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
