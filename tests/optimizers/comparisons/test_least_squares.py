from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from optimizers.comparisons.paired_tests import LeastSquares, compare, differences
from optimizers.comparisons.sequential_tests import SequentialTests

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
