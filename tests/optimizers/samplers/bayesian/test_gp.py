"""The Gaussian process, and what it makes of noisy results."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from optimizers.samplers.bayesian.acquisition import Axes
from optimizers.samplers.bayesian.gp import GaussianProcess, Hyperparameters, fit
from optimizers.samplers.bayesian.posterior import FEWEST, SIZE, Posterior, posterior
from optimizers.space import Config
from optimizers.space.domains import Choice, Float, Ordinal
from optimizers.space.search_space import SearchSpace
from optimizers.testing import SPACES

Array = NDArray[np.float64]


GROUPS = np.array([0, 1, 1])
HYPERS = Hyperparameters(np.log([0.4, 0.9, 1.3, 0.01]))
CLEAN = Hyperparameters(np.log([0.4, 0.9, 1.3, 1e-9]))


def points(n: int, seed: int = 0) -> tuple[Array, Array]:
    """Features, and targets of the first of them alone."""
    features = np.random.default_rng(seed).random((n, 3))
    return features, np.sin(7.0 * features[:, 0])


def covariance(a: Array, b: Array, values: Array) -> Array:
    """As GPML 4.17 has it, one pair at a time, with the constant mean."""
    scales, signal = np.exp(values[:-2])[GROUPS], np.exp(values[-2])
    r = np.sqrt(5.0) * np.array([[np.linalg.norm((x - y) / scales) for y in b] for x in a])
    return np.asarray(signal * (1.0 + r + r**2 / 3.0) * np.exp(-r) + 1.0)


def energy(features: Array, targets: Array, values: Array) -> float:
    """Negative logarithm of the posterior density of hyperparameters, up to a constant."""
    noisy = covariance(features, features, values) + (np.exp(values[-1]) + 1e-8) * np.eye(len(targets))
    likelihood = multivariate_normal(cov=noisy).logpdf(targets)
    residual = (values - Hyperparameters.default(2).values) / [1.0, 1.0, 1.0, 2.0]
    return float(0.5 * residual @ residual - likelihood - 0.5 * len(targets) * np.log(2.0 * np.pi))


def test_a_fit_comes_to_a_peak_of_the_density() -> None:
    features, targets = points(20)
    targets = targets + np.random.default_rng(1).normal(0.0, 0.1, 20)
    fitted = fit(features, GROUPS, targets, HYPERS)
    assert fitted.energy == pytest.approx(energy(features, targets, fitted.values), abs=1e-6)
    assert fitted.energy < energy(features, targets, HYPERS.values) - 1.0
    for step in 0.05 * np.concatenate([np.eye(4), -np.eye(4)]):
        assert energy(features, targets, fitted.values + step) > fitted.energy


def test_a_fit_tells_what_matters() -> None:
    features, targets = points(40)
    fitted = fit(features, GROUPS, targets, Hyperparameters.default(2))
    assert fitted.scales[0] < 0.7
    assert fitted.scales[1] > 5.0 * fitted.scales[0]
    assert fitted.noise < 1e-3


def test_the_posterior_is_that_of_the_book() -> None:
    features, targets = points(12)
    new, _ = points(5, seed=1)
    model = GaussianProcess(features, GROUPS, HYPERS)
    means, variances = model.predict(new, model.condition(targets))
    gain = covariance(new, features, HYPERS.values) @ np.linalg.inv(
        covariance(features, features, HYPERS.values) + 0.01 * np.eye(12)
    )
    assert means == pytest.approx(gain @ targets, abs=1e-5)
    assert variances == pytest.approx(
        np.diag(covariance(new, new, HYPERS.values) - gain @ covariance(features, new, HYPERS.values)), abs=1e-5
    )


def test_targets_without_noise_are_met() -> None:
    features, targets = points(12)
    model = GaussianProcess(features, GROUPS, CLEAN)
    means, variances = model.predict(features, model.condition(targets))
    assert means == pytest.approx(targets, abs=1e-5)
    assert variances.max() < 1e-5


def test_an_extended_model_is_that_of_all_points() -> None:
    features, targets = points(14)
    new, _ = points(6, seed=1)
    extended = GaussianProcess(features[:10], GROUPS, CLEAN)
    extended.extend(features[10:])
    at_once = GaussianProcess(features, GROUPS, CLEAN)
    for got, expected in zip(
        *(model.predict(new, model.condition(targets)) for model in (extended, at_once)), strict=True
    ):
        assert got == pytest.approx(expected, abs=1e-4)


def test_left_out_is_as_never_seen() -> None:
    features, targets = points(12)
    labels = np.array([0, 0, 0, 1, 1, 2, 3, 4, 5, 5, 6, 0])
    predicted = GaussianProcess(features, GROUPS, HYPERS).leave_out(targets, labels)
    for label in range(7):
        out = labels == label
        rest = GaussianProcess(features[~out], GROUPS, HYPERS)
        assert predicted[out] == pytest.approx(rest.predict(features[out], rest.condition(targets[~out]))[0], abs=1e-8)


def test_draws_have_the_mean_and_variance_of_the_posterior() -> None:
    features, targets = points(8)
    new, _ = points(3, seed=1)
    model = GaussianProcess(features, GROUPS, HYPERS)
    weights = model.condition(targets)
    means, variances = model.predict(new, weights)
    draws = model.draw(new, weights, 20_000, np.random.default_rng(0))
    assert draws.shape == (3, 20_000)
    assert draws.mean(axis=1) == pytest.approx(means, abs=0.03)
    assert draws.var(axis=1) == pytest.approx(variances, rel=0.05)


# -- axes -----------------------------------------------------------------------------------------
NESTED = SearchSpace(
    kind=Choice(["a", "b"]),
    sort=Choice(["x", "y"], when={"kind": "a"}),
    depth=Ordinal([1, 2, 4, 8, 16], when={"sort": ["x"]}),
    rate=Float(0.1, 0.95, step=0.2, when={"depth": [1, 16]}),
)
ALL = {**SPACES, "nested": NESTED}


@pytest.mark.parametrize("name", ALL)
def test_snapped_points_are_those_of_configurations(name: str) -> None:
    space = ALL[name]
    axes = Axes(space)
    units = np.random.default_rng(0).random((60, axes.d))
    units[:4] = np.array([0.0, 1.0, 0.25, 0.5])[:, None]
    snapped = axes.snap(units)
    assert snapped == pytest.approx(np.array([space.to_unit(space.from_unit(u)) for u in units]), abs=1e-9)
    assert (axes.snap(snapped) == snapped).all()


@pytest.mark.parametrize("name", [name for name in ALL if name != "single"])
@pytest.mark.parametrize("scale", [0.5, 1e-3])
def test_neighbors_lie_in_the_cube_and_most_are_others(name: str, scale: float) -> None:
    axes, rng = Axes(ALL[name]), np.random.default_rng(1)
    units = axes.snap(rng.random((200, axes.d)))
    moved = axes.mutate(units, rng, np.full(200, scale), 0.3)
    assert ((moved >= 0.0) & (moved <= 1.0)).all()
    assert (axes.snap(moved) == moved).all()
    # A choice may draw the value that it had, and an axis that is not active stays where it is.
    assert (moved != units).any(axis=1).mean() > 0.2


def test_a_neighbor_of_a_discrete_number_leaves_its_cell_at_the_borders_too() -> None:
    axes = Axes(SearchSpace(size=Ordinal([1, 2, 3, 4])))
    units = axes.snap(np.linspace(0.0, 1.0, 40)[:, None])
    moved = axes.mutate(units, np.random.default_rng(2), np.full(40, 1e-6), 1.0)
    assert np.abs(moved - units) == pytest.approx(np.full((40, 1), 0.25))


def test_two_values_of_a_choice_are_as_far_apart_as_the_ends_of_an_axis() -> None:
    space = SearchSpace(act=Choice(["a", "b", "c"]), lr=Float(1e-3, 1.0, log=True))
    axes = Axes(space)
    configs = [{"act": act, "lr": lr} for act in "abc" for lr in (1e-3, 1.0)]
    features = axes.features(np.array([space.to_unit(config) for config in configs]))
    assert features.shape == (6, len(axes.groups))
    assert axes.groups.tolist() == [0, 0, 0, 1]
    squares = ((features[:, None] - features) ** 2).sum(axis=2)
    for (i, a), (j, b) in pairwise([*enumerate(configs), (0, configs[0]), (3, configs[3]), (4, configs[4])]):
        assert squares[i, j] == pytest.approx((a["act"] != b["act"]) + (a["lr"] != b["lr"]))


def test_other_choices_change_one_choice_and_what_depends_on_it() -> None:
    axes = Axes(NESTED)
    names = list(NESTED.dimensions)
    sort, depth = names.index("sort"), names.index("depth")
    point = NESTED.to_unit({"kind": "a", "sort": "y"})
    others = axes.other_choices(np.array(point))
    assert (axes.snap(others) == others).all()
    configs = [NESTED.from_unit(other) for other in others]
    assert [config["kind"] for config in configs] == ["b", "a"]
    assert "sort" not in configs[0]
    assert configs[1]["sort"] == "x"
    assert "depth" in configs[1]
    assert others[0, [sort, depth]].tolist() == [0.5, 0.5]


def test_without_choices_there_are_no_others() -> None:
    axes = Axes(SearchSpace(x=Float(0, 1), size=Ordinal([1, 2])))
    assert axes.other_choices(np.array([0.5, 0.25])).shape == (0, 2)


# -- what noisy results say about configurations, with planted truth --------------------------------


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
    assert found.noise < 0.1 * losses.std()
    assert not found.is_noisy


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
