"""What noisy results say about configurations, with planted truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from optimizers.samplers.bayesian.posterior import FEWEST, SIZE, Posterior, posterior
from optimizers.space import Config
from optimizers.space.domains import Choice, Float
from optimizers.space.search_space import SearchSpace

SPACE = SearchSpace(x=Float(0.0, 1.0), y=Float(0.0, 1.0), kind=Choice(["a", "b"]))


def truth(config: Config) -> float:
    return (config["x"] - 0.3) ** 2 + 0.5 * (config["y"] - 0.6) ** 2 + 0.2 * (config["kind"] == "b")


def drawn(n: int, noise: float, seed: int = 0) -> tuple[list[Config], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Configurations, their true losses, and losses with noise."""
    rng = np.random.default_rng(seed)
    configs = [SPACE.sample(rng) for _ in range(n)]
    true = np.array([truth(config) for config in configs])
    return configs, true, true + noise * rng.normal(size=n)


def estimated(configs: list[Config], losses: Any, steps: Any = None, loss_at: Any = None) -> Posterior | None:
    return posterior(SPACE, configs, [1] * len(configs) if steps is None else steps, list(losses), loss_at)


def test_the_noise_is_told_apart_from_the_configurations() -> None:
    for noise in (0.03, 0.1):
        configs, true, losses = drawn(150, noise)
        found = estimated(configs, losses)
        assert found.noise == pytest.approx(noise, rel=0.3)
        errors = found.means - true[found.rows]
        assert np.abs(errors).mean() < 0.5 * np.abs(losses - true).mean()
        assert 0.5 < np.std(errors / found.stds) < 1.5
        assert np.mean([truth(configs[row]) for row in found.rows[np.argsort(found.means)[:5]]]) < 0.02


def test_without_noise_the_means_are_the_losses() -> None:
    configs, _, losses = drawn(60, 0.0)
    found = estimated(configs, losses)
    best = losses[found.rows] < np.median(losses)  # those above are cut
    assert found.means[best] == pytest.approx(losses[found.rows][best], abs=0.01)
    assert found.noise < 0.1 * found.spread


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_trials_that_got_further_by_luck_are_not_taken_at_their_word(seed: int) -> None:
    """The best third continues twice, on losses with the same luck, and which fall with the steps."""
    configs, true, losses = drawn(180, 0.2, seed)
    order, steps = np.argsort(losses), np.ones(180, dtype=int)
    steps[order[:60]], steps[order[:20]] = 3, 9
    found = estimated(configs, 3.0 * losses + 1.0 / steps, steps, lambda row, step: 3.0 * losses[row] + 1.0 / step)
    assert {*found.rows.tolist()} == {*order[:20].tolist()}
    truly = 3.0 * true[found.rows] + 1.0 / 9.0
    taken = 3.0 * losses[found.rows] + 1.0 / 9.0
    assert abs((found.means - truly).mean()) < 0.5 * abs((taken - truly).mean())
    assert found.noise == pytest.approx(0.6, rel=0.3)


def test_failed_trainings_are_bad_and_do_not_hide_the_others() -> None:
    configs, true, losses = drawn(80, 0.05)
    failed = np.array([config["x"] > 0.8 for config in configs])
    for broken in (math.inf, math.nan, 1e30):
        for end in (0, 5, 9):
            steps = np.where(failed, end, np.where(np.arange(80) % 2, 9, 3))
            found = estimated(configs, np.where(failed, broken, losses), steps, lambda row, step: losses[row])
            assert np.isfinite(found.means).all()
            fine = ~failed[found.rows]
            assert np.abs(found.means - true[found.rows])[fine].mean() < 0.1
            assert truth(configs[found.rows[np.argmin(found.means)]]) < 0.1


def test_many_results_are_thinned_out_and_the_best_are_kept() -> None:
    configs, _, losses = drawn(1000, 0.05)
    found = estimated(configs, losses)
    assert len(found.rows) == len(set(found.rows.tolist())) == SIZE
    assert {*np.argsort(losses)[: SIZE // 2].tolist()} <= {*found.rows.tolist()}
    assert np.median(losses[found.rows]) < np.median(losses) < losses[found.rows].max()


def test_nothing_is_said_where_nothing_is_known() -> None:
    configs, _, losses = drawn(FEWEST, 0.1)
    assert estimated(configs, losses) is not None
    assert estimated(configs, [math.inf, *losses[1:]]) is None
    assert estimated(configs, [0.5] * FEWEST) is None
    assert estimated([], []) is None
    assert posterior(SearchSpace(x=1), [{"x": 1}] * FEWEST, [1] * FEWEST, losses.tolist(), lambda row, step: 0) is None
