"""The race of the best configurations of a search, and what their repeats show: with planted losses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from optimizers.comparisons.confirmation import Noise, estimates, pairwise, standing
from optimizers.comparisons.paired_tests import compare

Losses = dict[tuple[int, int], float]


def drawn(means: list[float], repeats: int, *, noise: float = 0.1, shared: float = 0.0, seed: int = 0) -> Losses:
    """Losses of all repeats of all candidates."""
    rng = np.random.default_rng(seed)
    of_seeds = shared * rng.normal(size=repeats)
    return {
        (candidate, number): mean + float(of_seeds[number]) + noise * float(rng.normal())
        for candidate, mean in enumerate(means)
        for number in range(repeats)
    }


def raced(losses: Losses, candidates: list[int], repeats: int) -> Losses:
    """Those that a race asks for."""
    known: Losses = {}
    while not (state := standing(known, candidates, repeats)).is_over:
        known |= {(c, number): losses[c, number] for c in state.racing for number in range(state.rounds)}
    return known


def test_each_candidate_gets_two_repeats_and_the_winner_gets_all() -> None:
    losses = drawn([0.5, 3.0, 0.0, 4.0], 6, noise=0.01)
    known = raced(losses, [0, 1, 2, 3], 6)
    counts = [sum(c == candidate for c, _ in known) for candidate in range(4)]
    assert counts == [2, 2, 6, 2]
    assert standing(known, [0, 1, 2, 3], 6).leader == 2


def test_those_that_may_still_win_stay_in_the_race() -> None:
    noise = {0: (0.0, 0.3, 0.1, 0.2, 0.3, 0.0, 0.2, 0.1), 1: (0.3, 0.0, 0.2, 0.1, 0.0, 0.3, 0.1, 0.2), 2: (5.0,) * 8}
    known = raced({(c, number): noise[c][number] for c in noise for number in range(8)}, [0, 1, 2], 8)
    assert [sum(c == candidate for c, _ in known) for candidate in range(3)] == [8, 8, 2]


def test_a_round_needs_all_that_are_in_the_race() -> None:
    state = standing({(0, 0): 1.0, (0, 1): 1.1, (1, 0): 1.0}, [0, 1], 5)
    assert (state.racing, state.rounds, state.is_over) == ((0, 1), 2, False)


def test_a_failed_repeat_ends_a_candidates_race() -> None:
    losses = drawn([0.0, 1.0], 4) | {(0, 1): math.inf}
    known = raced(losses, [0, 1], 4)
    assert standing(known, [0, 1], 4).leader == 1
    found = estimates(known, [0, 1])
    assert found[0].mean == math.inf
    assert (found[0].low, found[0].high) == (-math.inf, math.inf)
    assert len(found[1].values) == 4


def test_nothing_is_recommended_if_all_have_failed() -> None:
    state = standing({(0, 0): math.inf, (1, 0): math.nan}, [0, 1], 5)
    assert (state.leader, state.is_over) == (None, True)


def test_a_function_without_noise_is_decided_after_two_repeats() -> None:
    known = raced(drawn([0.2, 0.1], 5, noise=0.0), [0, 1], 5)
    assert len(known) == 2 + 5
    assert estimates(known, [0, 1])[1].low == -math.inf  # as the noise is unknown


def test_the_recommended_is_nearly_always_that_of_full_repeats() -> None:
    means, same, trainings = [0.0, 0.05, 0.1, 0.2, 0.3], 0, 0
    for seed in range(60):
        losses = drawn(means, 5, seed=seed)
        known = raced(losses, list(range(5)), 5)
        full = min(range(5), key=lambda c: sum(losses[c, number] for number in range(5)))
        same += standing(known, list(range(5)), 5).leader == full
        trainings += len(known)
    assert same >= 55
    assert trainings / 60 < 20


@pytest.mark.slow
def test_the_interval_of_the_winner_covers_its_true_mean() -> None:
    covered = 0
    for seed in range(150):
        known = raced(drawn([0.0] * 5, 5, seed=seed), list(range(5)), 5)
        leader = standing(known, list(range(5)), 5).leader
        assert leader is not None
        found = estimates(known, list(range(5)))[leader]
        covered += found.low <= 0.0 <= found.high
    assert covered >= 0.93 * 150


def test_the_noise_is_that_of_a_randomised_block_design() -> None:
    losses = drawn([0.0, 1.0, 2.0], 200, noise=0.1, shared=0.3)
    noise = Noise.of(losses, [0, 1, 2])
    assert noise.variance == pytest.approx(0.1**2 + 0.3**2, rel=0.2)
    assert noise.paired == pytest.approx(0.1**2, rel=0.1)
    assert noise.paired_degrees == 2 * 199
    assert 199 < noise.degrees < 1.3 * 199  # of almost one candidate, since seeds move all together
    assert Noise.of(drawn([0.0, 1.0, 2.0], 200), [0, 1, 2]).degrees > 0.95 * 3 * 199


def test_two_candidates_are_tested_as_in_an_ablation() -> None:
    losses = drawn([0.0, 0.1], 10, shared=1.0)
    ((_, ours),) = pairwise(losses, [0, 1]).items()
    named = {(str(c), number): loss for (c, number), loss in losses.items()}
    theirs = compare({"difference": {"0": 1.0, "1": -1.0}}, named)["difference"]
    assert ours.p == pytest.approx(theirs.p)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


@pytest.mark.slow
def test_pairs_are_corrected_for_their_number() -> None:
    false = 0
    for seed in range(80):
        known = raced(drawn([0.0] * 4, 4, shared=0.5, seed=seed), list(range(4)), 4)
        false += any(finding.differs for finding in pairwise(known, list(range(4))).values())
    assert false <= 0.09 * 80


def test_pairs_with_two_seeds_are_found_with_the_noise_of_all() -> None:
    known = raced(drawn([0.0, 0.02, 2.0], 5), [0, 1, 2], 5)
    found = pairwise(known, [0, 1, 2])
    assert len(found[0, 2].sample.values) == 2
    assert found[0, 2].differs
    assert found[0, 2].low < -2.0 < found[0, 2].high


@pytest.mark.parametrize("counts", [(1, 0, 0), (0.1, 0.3, 0.7)])
def test_nothing_is_tested_if_the_function_does_not_use_its_seed(counts: tuple[float, ...]) -> None:
    known = {(c, number): float(count) for c, count in enumerate(counts) for number in range(3)}
    assert [finding.p for finding in pairwise(known, [0, 1, 2]).values()] == [None] * 3
    assert not any(math.isfinite(found.high) for found in estimates(known, [0, 1, 2]).values())


def test_equal_differences_by_chance_are_neither_a_finding_nor_the_end_of_the_race() -> None:
    known = {(0, 0): -0.90, (0, 1): -0.91, (1, 0): -0.89, (1, 1): -0.90}  # accuracies on a hundred rows
    (found,) = pairwise(known, [0, 1]).values()
    assert (found.p, found.differs) == (None, False)
    assert not standing(known, [0, 1], 5).is_over
    assert standing(known, [0, 1], 5).racing == (0, 1)
