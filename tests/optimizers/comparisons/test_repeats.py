from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from scipy import stats

from optimizers.comparisons.paired_tests import JointTests, Losses, compare, differences
from optimizers.comparisons.repeats import AdaptiveRepeats, Repeats, repeats_space
from optimizers.comparisons.sequential_tests import SequentialTests, crossing_height, crossing_probability
from optimizers.core.base import WAIT, History, Observation, Pending, Problem
from optimizers.errors import OptimizerError
from optimizers.space import Config
from optimizers.testing import check_optimizer

VARIANTS: dict[str, Config] = {
    "base": {"dropout": 0.2},
    "without A": {"dropout": 0.2},
    "without dropout": {"dropout": 0.0},
}
CONTRASTS = {name: {f"without {name}": 1.0, "base": -1.0} for name in ("A", "dropout")}


def losses_of(
    effects: dict[str, float], seeds: int, *, noise: float = 1.0, seed: int = 0
) -> dict[tuple[str, int], float]:
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=seeds)
    return {
        (name, number): effect + shared[number] + noise * rng.normal()
        for name, effect in {"base": 0.0, **effects}.items()
        for number in range(seeds)
    }


def search(
    optimizer: AdaptiveRepeats, losses: Losses, order: np.random.Generator, workers: int = 5
) -> set[tuple[str, int]]:
    """Run to the end, trials ending in any order; returns what was tried, repeats counted from 0."""
    first = optimizer.seeds[0]
    history = History(Problem(repeats_space(optimizer.variants, optimizer.tests.bound, first_seed=first)))
    tried: list[tuple[str, int]] = []
    for _ in itertools.count():
        while len(history.pending) < workers and isinstance(config := optimizer.ask(len(tried), history), dict):
            history.apply(Pending(len(tried), config))
            tried.append((config["variant"], config["seed"] - first))
        if not history.pending:
            break
        trial = int(order.choice(sorted(history.pending)))
        history.apply(Observation(trial, history.pending[trial], 1, losses[tried[trial]]))
    assert optimizer.ask(len(tried), history) is None
    assert len(set(tried)) == len(tried)
    return set(tried)


# -- the optimizers ---------------------------------------------------------------------------------


def test_repeats_keep_the_contract() -> None:
    check_optimizer(lambda: Repeats(VARIANTS, 4), spaces={"ablation": repeats_space(VARIANTS, 4)})


def test_adaptive_repeats_keep_the_contract() -> None:
    space = repeats_space(VARIANTS, 6)
    check_optimizer(lambda: AdaptiveRepeats(VARIANTS, CONTRASTS, 6), spaces={"ablation": space})


@pytest.mark.parametrize("first", [0, 100])
def test_all_variants_of_a_seed_come_together(first: int) -> None:
    optimizer, problem = Repeats(VARIANTS, 2, first_seed=first), Problem(repeats_space(VARIANTS, 2, first_seed=first))
    optimizer.validate(problem)
    asked = [optimizer.ask(index, History(problem)) for index in range(7)]
    assert [(a["variant"], a["seed"], a["dropout"]) for a in asked if isinstance(a, dict)] == [
        (name, seed, config["dropout"]) for seed in (first, first + 1) for name, config in VARIANTS.items()
    ]
    assert asked[6] is None


@settings(max_examples=examples(20))
@given(st.integers(0, 10_000), st.integers(1, 9), st.sampled_from([0, 7]))
def test_neither_the_order_of_arrival_nor_the_first_seed_changes_a_decision(
    order: int, workers: int, first: int
) -> None:
    losses = losses_of({"without A": 4.0, "without dropout": 0.0}, 12)
    optimizer = AdaptiveRepeats(VARIANTS, CONTRASTS, 12, first_seed=first)
    optimizer.validate(Problem(repeats_space(VARIANTS, 12, first_seed=first)))
    tried = search(optimizer, losses, np.random.default_rng(order), workers)
    found = optimizer.tests.compare({key: losses[key] for key in tried})
    assert found == optimizer.tests.compare(losses)
    assert found["A"].differs
    assert not found["dropout"].differs


def test_a_decided_comparison_gets_no_more_seeds() -> None:
    losses = losses_of({"without A": 10.0, "without dropout": 0.8}, 20)
    optimizer = AdaptiveRepeats(VARIANTS, CONTRASTS, 20)
    tried = search(optimizer, losses, np.random.default_rng(0), workers=1)
    count = {name: sum(variant == name for variant, _ in tried) for name in VARIANTS}
    assert count["without A"] < 12
    assert count["base"] == max(count.values())
    assert len(tried) < 60


def test_a_variant_that_always_fails_is_given_up() -> None:
    losses = losses_of({"without A": 0.0, "without dropout": 0.0}, 20)
    losses |= {("without A", seed): math.inf for seed in range(20)}
    optimizer = AdaptiveRepeats(VARIANTS, CONTRASTS, 20)
    tried = search(optimizer, losses, np.random.default_rng(0))
    assert sum(variant == "without A" for variant, _ in tried) <= 4
    found = optimizer.tests.compare({key: losses[key] for key in tried})["A"]
    assert (found.seeds, found.dropped, found.corrected, found.differs) == (0, 3, None, False)


def test_with_nothing_to_do_it_waits() -> None:
    optimizer = AdaptiveRepeats(VARIANTS, CONTRASTS, 6)
    history = History(Problem(repeats_space(VARIANTS, 6)))
    for index in range(9):  # the seeds before the first look
        config = optimizer.ask(index, history)
        assert isinstance(config, dict)
        history.apply(Pending(index, config))
    assert optimizer.ask(9, history) is WAIT


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Repeats(VARIANTS, 0), "repeats must be an integer of at least 1, got 0"),
        (lambda: Repeats(VARIANTS, 3, first_seed=-1), "first_seed must be an integer of at least 0, got -1"),
        (lambda: Repeats({}, 3), "at least one"),
        (lambda: Repeats({"base": {"seed": 3}}, 3), "must not set \\['seed'\\]"),
        (lambda: AdaptiveRepeats(VARIANTS, {"A": {"wihtout A": 1.0}}), "did you mean 'without A'"),
        (lambda: AdaptiveRepeats(VARIANTS, {}), "at least one contrast"),
        (lambda: AdaptiveRepeats(VARIANTS, CONTRASTS, 2), "at least 3, got 2"),
        (lambda: AdaptiveRepeats(VARIANTS, CONTRASTS, alpha=1.5), "alpha must be between 0 and 1"),
    ],
)
def test_mistakes_raise(make: object, message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        make()  # type: ignore[operator]


# -- tests with fixed repeats -----------------------------------------------------------------------


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
    assert 0.09 < joint.corrected(0.025) < 0.13


def test_few_seeds_are_taken_as_independent() -> None:
    losses = losses_of({"without A": 0.0, "without dropout": 0.0}, 2)
    samples = [differences(contrast, losses, range(2)) for contrast in CONTRASTS.values()]
    assert JointTests(samples, 0.05).level == pytest.approx(0.05 / 2, rel=0.03)


@pytest.mark.parametrize("resampled", [-0.1, math.inf, math.nan])
def test_a_wrong_ratio_of_rows_is_told(resampled: float) -> None:
    with pytest.raises(OptimizerError, match=r"resampled must be .*, got .*; use 0\.3 / 0\.7"):
        compare(CONTRASTS, {}, resampled=resampled)


def test_splits_of_the_same_rows_widen_the_intervals_of_sequential_tests_too() -> None:
    losses = losses_of({"without A": 0.0, "without dropout": 0.0}, 3, seed=3)
    plain, split = (SequentialTests(CONTRASTS, 3, resampled=ratio).compare(losses)["A"] for ratio in (0.0, 0.5))
    assert split.high - split.low == pytest.approx(math.sqrt((1 / 3 + 0.5) * 3) * (plain.high - plain.low))


# -- sequential tests -------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.05, 0.01, 0.05 / 12])
def test_no_more_walks_cross_the_boundary_than_the_level_says(level: float) -> None:
    """Seeded simulation of t-statistics without a difference, looked at after every seed."""
    rng, bound, n_walks, crossed = np.random.default_rng(1), 8, 1000, 0
    tests = SequentialTests({"A": {"A": 1.0}}, bound, alpha=level)
    for walk in rng.normal(size=(n_walks, bound)).tolist():
        crossed += tests.compare({("A", seed): value for seed, value in enumerate(walk)})["A"].differs
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
