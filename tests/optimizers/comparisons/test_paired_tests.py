from __future__ import annotations

import itertools
import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from paired_losses import CONTRASTS, losses_of
from scipy import stats

from optimizers.comparisons.paired_tests import JointTests, LeastSquares, compare, differences, power
from optimizers.comparisons.sequential_tests import (
    SequentialTests,
    crossing_height,
    crossing_probability,
    farther,
    median_unbiased,
)

pytestmark = pytest.mark.slow


def test_the_paired_t_test_is_scipy_s() -> None:
    losses = losses_of({"without A": 0.7, "without dropout": 0.1}, 8)
    base, without = ([losses[name, seed] for seed in range(8)] for name in ("base", "without A"))
    expected = stats.ttest_rel(without, base)
    found = compare({"A": CONTRASTS["A"]}, losses)["A"]
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert compare(CONTRASTS, losses)["A"].low < found.low  # two comparisons make wider intervals


@settings(max_examples=examples(60))
@given(st.integers(0, 10_000), st.integers(2, 9), st.floats(0.0, 4.0), st.booleans())
def test_intervals_agree_with_decisions(seed: int, seeds: int, effect: float, sequential: bool) -> None:
    losses = losses_of({"without A": effect, "without dropout": -effect / 2}, seeds, seed=seed)
    tests = SequentialTests(CONTRASTS, max(seeds, 3))
    for found in (tests.compare(losses) if sequential else compare(CONTRASTS, losses)).values():
        assert found.low <= found.difference <= found.high
        assert found.differs == (not found.low < 0.0 < found.high)
        assert found.differs == (found.corrected is not None and found.corrected <= 0.05)


def test_failed_trials_leave_their_pair_out() -> None:
    losses = losses_of({"without A": 5.0, "without dropout": 0.0}, 6) | {("base", 2): math.inf}
    found = compare(CONTRASTS, losses)
    assert {(finding.seeds, finding.dropped) for finding in found.values()} == {(5, 1)}


def test_one_repeat_is_no_test() -> None:
    found = compare(CONTRASTS, losses_of({"without A": 5.0, "without dropout": 0.0}, 1))["A"]
    assert (found.p, found.differs, found.low, found.high) == (None, False, -math.inf, math.inf)


def test_the_same_difference_every_time_is_no_test_unless_it_is_zero() -> None:
    losses = {("base", seed): seed / 7 for seed in range(5)}
    losses |= {("without A", seed): seed / 7 + 0.1 for seed in range(5)}
    losses |= {("without dropout", seed): float(np.float32(seed / 7)) for seed in range(5)}  # rounded only
    found = compare(CONTRASTS, losses)
    assert (found["A"].p, found["A"].differs) == (None, False)
    assert (found["dropout"].p, found["dropout"].differs) == (1.0, False)


@pytest.mark.parametrize("precision", [np.float64, np.float32])
def test_a_small_share_of_large_losses_is_no_rounding(precision: type) -> None:
    rng = np.random.default_rng(0)
    losses = {("base", seed): 1e6 + seed for seed in range(10)}
    losses |= {("without A", seed): loss + 0.7 + 0.4 * rng.normal() for (_, seed), loss in losses.items()}
    losses = {key: float(precision(loss)) for key, loss in losses.items()}
    t = stats.ttest_rel(*([losses[name, seed] for seed in range(10)] for name in ("without A", "base")))
    assert compare({"A": CONTRASTS["A"]}, losses)["A"].p == pytest.approx(t.pvalue)


def test_without_a_base_there_is_nothing_to_compare() -> None:
    found = compare(CONTRASTS, {("without A", 0): 1.0, ("without A", 1): 2.0})["A"]
    assert found.seeds == 0
    assert math.isnan(found.difference)


def test_an_interaction_is_the_difference_of_differences() -> None:
    contrast = {"AB": 1.0, "A": -1.0, "B": -1.0, "base": 1.0}
    losses = {("base", 0): 1.0, ("A", 0): 2.0, ("B", 0): 4.0, ("AB", 0): 8.0}
    assert differences(contrast, losses, range(1)).values.tolist() == [3.0]


@pytest.mark.parametrize("precision", [np.float64, np.float32])
@pytest.mark.parametrize("as_loss", [False, True])
def test_equal_differences_of_counts_are_no_test_however_they_are_told(precision: type, as_loss: bool) -> None:
    """Of 114 rows one more is wrong without A with every seed, and 1 - accuracy rounds each accuracy anew."""
    wrong = {("base", seed): seed % 3 + 1 for seed in range(8)}
    wrong |= {("without A", seed): count + 1 for (_, seed), count in wrong.items()}
    accuracy = {key: precision((114 - count) / 114) for key, count in wrong.items()}
    losses = {key: float(precision(1) - value if as_loss else -value) for key, value in accuracy.items()}
    found = compare({"A": CONTRASTS["A"]}, losses)["A"]
    assert (found.p, found.differs) == (None, False)


@pytest.mark.parametrize("precision", [np.float64, np.float32])
def test_differences_of_differences_that_are_zero_but_for_rounding_are_zero(precision: type) -> None:
    contrast = {"AB": 1.0, "A": -1.0, "B": -1.0, "base": 1.0}
    losses = {
        (name, seed): float(precision(1) - precision((110 - removed - seed % 3) / 114))
        for name, removed in {"base": 0, "A": 1, "B": 2, "AB": 3}.items()
        for seed in range(6)
    }
    assert compare({"AxB": contrast}, losses)["AxB"].p == 1.0


@pytest.mark.parametrize("precision", [np.float64, np.float32])
def test_whole_numbers_differ_by_what_they_differ(precision: type) -> None:
    losses = {("base", seed): float(precision(10_000_000 + seed)) for seed in range(6)}
    losses |= {("without A", seed): loss + 1.0 + seed % 2 for (_, seed), loss in losses.items()}
    found = compare({"A": CONTRASTS["A"]}, losses)["A"]
    assert found.p == pytest.approx(stats.ttest_1samp([1, 2, 1, 2, 1, 2], 0).pvalue)


def test_of_comparisons_with_one_base_the_level_is_near_dunnett_s() -> None:
    rng = np.random.default_rng(0)
    names = {f"A{number}": {f"without A{number}": 1.0, "base": -1.0} for number in range(6)}
    losses = {(name, seed): rng.normal() for name in ("base", *(f"without {n}" for n in names)) for seed in range(400)}
    samples = [differences(contrast, losses, range(400)) for contrast in names.values()]
    joint = JointTests(samples, 0.05)
    assert 0.0095 < joint.level < 0.0120  # Bonferroni's is 0.0083; correlations of a half have 0.0108
    assert joint.corrected(joint.level) == pytest.approx(0.05, abs=0.001)
    assert joint.corrected(joint.level) <= 0.05 < joint.corrected(math.nextafter(joint.level, 1.0))
    assert 0.09 < joint.corrected(0.025) < 0.13


def test_few_seeds_are_taken_as_independent() -> None:
    losses = losses_of({"without A": 0.0, "without dropout": 0.0}, 2)
    samples = [differences(contrast, losses, range(2)) for contrast in CONTRASTS.values()]
    assert JointTests(samples, 0.05).level == pytest.approx(0.05 / 2, rel=0.03)


def test_the_corrected_p_value_of_a_clear_difference_is_far_below_alpha() -> None:
    losses = losses_of({"without A": 20.0, "without dropout": 0.0}, 9)
    found = SequentialTests(CONTRASTS, 9).compare(losses)["A"]
    assert found.p is not None
    assert found.corrected is not None
    assert found.p < found.corrected < 0.02


def test_splits_of_the_same_rows_widen_the_intervals_of_sequential_tests_too() -> None:
    losses = losses_of({"without A": 0.0, "without dropout": 0.0}, 3, seed=3)
    plain, split = (SequentialTests(CONTRASTS, 3, resampled=ratio).compare(losses)["A"] for ratio in (0.0, 0.5))
    assert split.high - split.low == pytest.approx(math.sqrt((1 / 3 + 0.5) * 3) * (plain.high - plain.low))


@pytest.mark.parametrize("level", [0.05, 0.01, 0.05 / 12])
def test_no_more_walks_cross_the_boundary_than_the_level_says(level: float) -> None:
    """Seeded simulation of t-statistics without a difference, looked at after every seed."""
    rng, bound, n_walks, crossed = np.random.default_rng(1), 8, 1000, 0
    tests = SequentialTests({"A": {"A": 1.0}}, bound, alpha=level)
    for walk in rng.normal(size=(n_walks, bound)).tolist():
        crossed += tests.follow({("A", seed): value for seed, value in enumerate(walk)}).last["A"].found
    assert crossed <= n_walks * level + 2.0 * math.sqrt(n_walks * level)


@given(st.floats(1e-6, 0.5))
def test_heights_and_probabilities_are_inverse(level: float) -> None:
    assert crossing_probability(crossing_height(level)) == pytest.approx(level, rel=1e-6)


def test_a_brownian_motion_crosses_the_line_as_often_as_its_probability_says() -> None:
    rng, n = np.random.default_rng(0), 1000
    walks = np.cumsum(rng.normal(size=(5000, n)), axis=1) / math.sqrt(n)
    line = (1.0 + 0.5 * np.arange(1, n + 1) / n) / 1.5
    highest = np.max(np.abs(walks) / line, axis=1)
    seen = float(np.mean(highest >= crossing_height(0.2)))
    assert 0.15 < seen < 0.21  # a walk crosses less often than the motion, and both lines count


def test_p_values_never_rise_and_decisions_stay() -> None:
    losses = losses_of({"without A": 2.0, "without dropout": 0.0}, 20, seed=4)
    tests, p, found = SequentialTests(CONTRASTS, 20), 1.0, False
    for n in range(1, 21):
        finding = tests.compare({key: loss for key, loss in losses.items() if key[1] < n})["A"]
        assert finding.p is None or finding.p <= p
        assert finding.differs >= found
        p, found = finding.p or 1.0, finding.differs
    assert found


def test_before_the_first_look_nothing_bounds_a_difference() -> None:
    losses = losses_of({"without A": 0.0, "without dropout": 0.0}, 2, seed=168)  # two differences close to each other
    found = SequentialTests(CONTRASTS, 3).compare(losses)["A"]
    assert (found.low, found.high, found.differs, found.decided) == (-math.inf, math.inf, False, False)


def test_what_is_not_decided_says_so() -> None:
    losses = losses_of({"without A": 1.0, "without dropout": 0.5}, 4, seed=2)
    found = SequentialTests(CONTRASTS, 20).compare(losses)
    assert not found["A"].decided
    assert SequentialTests(CONTRASTS, 20).compare({})["A"].seeds == 0


# -- factorials -------------------------------------------------------------------------------------


CELLS = ["".join(levels) for levels in product("01", repeat=4)]
"""Combinations of four components; 1 is without it."""


def sign(cell: str, *components: int) -> int:
    return math.prod(1 if cell[component] == "1" else -1 for component in components)


MAIN = {f"{a}": {cell: sign(cell, a) / 8 for cell in CELLS} for a in range(4)}
TWO = {f"{a} x {b}": {cell: sign(cell, a, b) / 4 for cell in CELLS} for a, b in combinations(range(4), 2)}
FACTORIAL = MAIN | TWO


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
    fit = LeastSquares(FACTORIAL.values())
    terms = [(), *((a,) for a in range(4)), *combinations(range(4), 2)]
    found = {name: differences(contrast, losses, range(20), fit=fit) for name, contrast in FACTORIAL.items()}
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
    fit = LeastSquares(FACTORIAL.values())
    for contrast in FACTORIAL.values():
        made = fit.weights(contrast, CELLS)
        assert made is not None
        assert made == pytest.approx(contrast)


def test_what_the_others_do_not_determine_has_no_value() -> None:
    fit = LeastSquares(FACTORIAL.values())
    without_0 = [cell for cell in CELLS if cell[0] == "0"]
    assert fit.weights(FACTORIAL["0"], without_0) is None
    assert fit.weights(FACTORIAL["0"], []) is None
    one_base = {name: {name: 1.0, "base": -1.0} for name in "AB"}
    assert not LeastSquares(one_base.values()).has_spare
    assert LeastSquares(one_base.values()).weights(one_base["A"], ["A"]) is None
    assert LeastSquares(one_base.values()).weights(one_base["A"], ["A", "base"]) == pytest.approx(one_base["A"])


def test_factorials_with_gaps_are_tested() -> None:
    losses = losses_with_gaps(12, 0.1)
    fixed = compare(FACTORIAL, losses, planned=12)
    adaptive = SequentialTests(FACTORIAL, 12).compare(losses)
    for found in (fixed, adaptive):
        assert [name for name, finding in found.items() if finding.differs] == ["0"]
        assert found["0"].dropped == 0
    assert fixed["0"].seeds == 12


def test_a_seed_that_has_not_ended_is_not_fitted() -> None:
    losses = losses_with_gaps(1, 0.1) | {(CELLS[1], 0): math.inf}
    del losses[CELLS[0], 0]
    sample = differences(FACTORIAL["0"], losses, range(1), fit=LeastSquares(FACTORIAL.values()))
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
