"""The benchmark of confirmations: its race, and what it counts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.confirm import judge, race, simulated


def test_the_race_repeats_those_that_may_win() -> None:
    losses = race(lambda candidate, number: candidate + 0.1 * number, [0, 1, 2])
    assert sorted(losses) == [(0, number) for number in range(5)] + [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_search_is_judged_by_its_true_losses() -> None:
    seen = np.array([0.3, 0.0, 0.4, 0.5, 0.6, 0.7])
    true = np.array([0.1, 0.8, 0.4, 0.5, 0.6, 0.7])  # the second one was lucky
    rng = np.random.default_rng(0)
    found = judge(lambda candidate, number: float(true[candidate] + 0.01 * rng.normal()), seen, true)
    assert (found["regret"], found["regret_best"], found["coverage"], found["false"]) == (0.1, 0.8, 1.0, 0.0)
    assert found["extra"] == 13.0
    assert found["width"] == pytest.approx(0.015, rel=0.5)


def test_a_world_is_the_same_again() -> None:
    assert simulated("normal", 0.3, 0) == simulated("normal", 0.3, 0) != simulated("normal", 0.3, 1)
    assert simulated("equal", 0.3, 0)["regret_more"] == 0.0
