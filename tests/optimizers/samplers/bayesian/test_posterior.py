"""What noisy results say about configurations, with planted truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from optimizers.samplers.bayesian.posterior import FEWEST, SIZE, posterior
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


def test_the_noise_is_told_apart_from_the_configurations() -> None:
    for noise in (0.03, 0.1):
        configs, true, losses = drawn(150, noise)
        found = posterior(SPACE, configs, [1] * 150, losses.tolist())
        assert found is not None
        assert found.noise == pytest.approx(noise, rel=0.3)
        errors = found.means - true[found.rows]
        assert np.abs(errors).mean() < 0.5 * np.abs(losses - true).mean()
        assert 0.5 < np.std(errors / found.stds) < 1.5
        assert np.mean([truth(configs[row]) for row in found.rows[np.argsort(found.means)[:5]]]) < 0.02


def test_without_noise_the_means_are_the_losses() -> None:
    configs, _, losses = drawn(60, 0.0)
    found = posterior(SPACE, configs, [1] * 60, losses.tolist())
    assert found is not None
    best = losses[found.rows] < np.median(losses)  # those above are cut
    assert found.means[best] == pytest.approx(losses[found.rows][best], abs=0.01)
    assert found.noise < 0.1 * found.spread


def test_short_trainings_count_as_such() -> None:
    configs, true, losses = drawn(120, 0.05)
    steps = np.where(np.arange(120) % 3, 1, 27)
    found = posterior(SPACE, configs, steps.tolist(), np.where(steps == 1, losses + 1.0, losses).tolist())
    assert found is not None
    assert np.abs(found.means - true[found.rows]).mean() < 0.1  # of full trainings, for all of them


def test_failed_trainings_are_bad_and_do_not_hide_the_others() -> None:
    configs, _, losses = drawn(80, 0.05)
    failed = np.array([config["x"] > 0.8 for config in configs])
    steps = np.where(failed, 0, 9)
    for broken in (math.inf, math.nan, 1e30):
        found = posterior(SPACE, configs, steps.tolist(), np.where(failed, broken, losses).tolist())
        assert found is not None
        assert np.isfinite(found.means).all()
        assert np.median(found.means[failed[found.rows]]) > np.median(found.means[~failed[found.rows]])
        assert truth(configs[found.rows[np.argmin(found.means)]]) < 0.1


def test_many_results_are_thinned_out_and_the_best_are_kept() -> None:
    configs, _, losses = drawn(1000, 0.05)
    found = posterior(SPACE, configs, [1] * 1000, losses.tolist())
    assert found is not None
    assert len(found.rows) == len(set(found.rows.tolist())) == SIZE
    assert {*np.argsort(losses)[: SIZE // 2].tolist()} <= {*found.rows.tolist()}
    assert np.median(losses[found.rows]) < np.median(losses) < losses[found.rows].max()


def test_nothing_is_said_where_nothing_is_known() -> None:
    configs, _, losses = drawn(FEWEST, 0.1)
    assert posterior(SPACE, configs, [1] * FEWEST, losses.tolist()) is not None
    assert posterior(SPACE, configs, [1] * FEWEST, [math.inf, *losses[1:].tolist()]) is None
    assert posterior(SPACE, configs, [1] * FEWEST, [0.5] * FEWEST) is None
    assert posterior(SearchSpace(x=1), [{"x": 1}] * FEWEST, [1] * FEWEST, losses.tolist()) is None
    assert posterior(SPACE, [], [], []) is None
