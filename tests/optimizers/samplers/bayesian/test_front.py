from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from optimizers.core.base import History, Observation, Problem
from optimizers.samplers.bayesian import front as front_module
from optimizers.samplers.bayesian.acquisition import Axes
from optimizers.samplers.bayesian.front import Front, log_hypervolume_improvement, probes
from optimizers.samplers.bayesian.surrogate import MODEL_SIZE, RunTimes
from optimizers.space import Config
from optimizers.space.domains import Choice, Float
from optimizers.space.search_space import SearchSpace

Array = NDArray[np.float64]

PLANE = SearchSpace(x=Float(0, 1), y=Float(0, 1))
KNOWN = np.array([[0.0, 1.0], [0.3, 0.6], [1.0, 0.0], [1.5, 1.2], [0.9, 1.6]])


def trade(x: float, y: float) -> tuple[float, ...]:
    """The front is y = 0.5."""
    return x**2 + (y - 0.5) ** 2, (1.0 - x) ** 2 + (y - 0.5) ** 2


def history(n: int, losses: Callable[[float, float], tuple[float, ...]] = trade, n_objectives: int = 2) -> History:
    points = np.random.default_rng(0).random((n, 2)).tolist()
    made = History(Problem(PLANE, n_objectives=n_objectives))
    for trial, (x, y) in enumerate(points):
        given = losses(x, y)
        made.apply(Observation(trial, {"x": x, "y": y}, 1, given[0], losses=given))
    return made


def front(of: History) -> Front:
    made = Front(of, 8)
    made.update()
    return made


def won(points: Array, reference: Array) -> float:
    """The area that points of the plane dominate, by a fine grid."""
    axes = [np.linspace(0.0, end, 400) + (end / 800.0) for end in reference]
    first, second = np.meshgrid(*axes, indexing="ij")
    covered = np.zeros_like(first, dtype=bool)
    for a, b in points:
        covered |= (first >= a) & (second >= b)
    return float(covered.mean() * reference.prod())


def test_it_is_proportional_to_the_volume_that_is_won(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of configurations whose losses are known, beside a front whose reference point is its own worst."""
    monkeypatch.setattr(front_module, "_DIRECTIONS", 4000)
    monkeypatch.setattr(front_module, "_DISTANCES", 40)
    known = KNOWN[:3]  # all quantiles lie within the front
    points, volumes = probes(known, np.empty((1, 0, 2)), np.random.default_rng(0))
    candidates = np.array([[0.1, 0.7], [0.5, 0.2], [0.6, 0.55], [0.2, 0.3], [0.8, 0.1]])
    got = log_hypervolume_improvement(candidates[:, None], np.full((5, 2), 1e-10), points, volumes)
    reference = np.full(2, 1.101)
    expected = np.array([won(np.vstack([known, each]), reference) for each in candidates]) - won(known, reference)
    share = np.exp(got) / np.exp(got).sum()
    assert share == pytest.approx(expected / expected.sum(), abs=0.02)


def test_far_from_the_front_it_still_tells_better_from_worse() -> None:
    points, volumes = probes(KNOWN, np.empty((1, 0, 2)), np.random.default_rng(0))
    means = np.linspace(2.0, 1e4, 50)[:, None, None] * np.ones(2)
    got = log_hypervolume_improvement(means, np.full((50, 2), 0.01), points, volumes)
    assert np.isfinite(got).all()
    assert (np.diff(got) < 0.0).all()


@pytest.mark.parametrize("m", [2, 3, 5])
def test_nothing_known_dominates_a_probe(m: int) -> None:
    rng = np.random.default_rng(m)
    known, drawn = rng.normal(size=(30, m)), rng.normal(size=(8, 3, m))
    points, volumes = probes(known, drawn, rng)
    assert points.shape == (*volumes.shape, m)
    assert np.isfinite(volumes).all()
    for running, each in zip(drawn, points, strict=True):
        all_known = np.concatenate([known, running])
        assert not (all_known[:, None] < each - 1e-9).all(axis=2).any()


def test_what_is_equal_everywhere_is_stood() -> None:
    points, volumes = probes(np.ones((4, 2)), np.ones((8, 2, 2)), np.random.default_rng(0))
    assert np.isfinite(points).all()
    assert np.isfinite(volumes).all()


def test_more_is_expected_on_the_front_than_off_it() -> None:
    score, starts = front(history(25)).improvement(np.random.default_rng(0))
    x = np.linspace(0.05, 0.95, 10)
    on, off = (score(np.column_stack([x, np.full(10, y)])) for y in (0.5, 0.95))
    assert (on > off).all()
    assert 1 <= len(starts) <= 16


def test_the_model_does_without_what_failed_or_runs_in_any_objective() -> None:
    of = history(20)
    of.apply(Observation(20, {"x": 0.5, "y": 0.5}, 1, 0.0, losses=(0.0, math.nan)))
    of.apply(Observation(21, {"x": 0.4, "y": 0.5}, 1, 0.0, ended=False))
    made = front(of)
    assert len(made.units) == 21
    data = [surrogate.data(21) for surrogate in made._surrogates]
    assert all(each.scores[20] == each.scores.max() for each in data)
    made.update()
    assert len(made.units) == 21


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_an_objective_that_always_fails_leaves_a_proposal(bad: float) -> None:
    score, _ = front(history(20, lambda x, y: (x, bad))).improvement(np.random.default_rng(0))
    assert np.isfinite(score(np.random.default_rng(1).random((5, 2)))).all()


def test_a_large_model_keeps_the_middle_of_the_front() -> None:
    """A trial that is best in no objective alone is found long ago and dominated by none."""
    made = front(history(3 * MODEL_SIZE))
    losses = np.array([[seen.loss for seen in part.observations] for part in made._parts]).T
    best = {row for row in range(len(losses)) if not (losses < losses[row]).all(axis=1).any()}
    data = made._surrogates[0].data(len(losses), made._ranks())
    assert best <= set(data.trials.tolist())
    assert len(data.scores) == MODEL_SIZE


# -- run times ------------------------------------------------------------------------------------


SPACE = SearchSpace(size=Float(0, 1), kind=Choice(["quick", "slow"]), other=Float(0, 1))

STEPS = 4
SMALL: Config = {"size": 0.1, "kind": "quick", "other": 0.5}
LARGE: Config = {"size": 0.9, "kind": "quick", "other": 0.5}
SLOW: Config = {"size": 0.9, "kind": "slow", "other": 0.5}


def seconds(config: Config) -> float:
    return float(10.0 ** config["size"] * (5.0 if config["kind"] == "slow" else 1.0))


def ended(n: int, seconds: Callable[[Config], float] = seconds) -> list[Observation]:
    rng = np.random.default_rng(0)
    configs = [SPACE.sample(rng) for _ in range(n)]
    return [Observation(trial, config, STEPS, 0.5, seconds=seconds(config)) for trial, config in enumerate(configs)]


def predicted(observations: list[Observation], *configs: Config) -> list[float] | None:
    """Logarithms of seconds, up to a constant."""
    times = RunTimes(History(Problem(SPACE, max_budget=STEPS), observations), Axes(SPACE))
    times.update()
    predict = times.log_seconds()
    return None if predict is None else predict(np.array([SPACE.to_unit(config) for config in configs])).tolist()


def test_times_are_learned() -> None:
    found = predicted(ended(30), SMALL, LARGE, SLOW)
    assert found is not None
    small, large, slow = found
    assert large - small == pytest.approx(math.log(seconds(LARGE) / seconds(SMALL)), abs=0.2)
    assert slow - large == pytest.approx(math.log(5.0), abs=0.2)


@pytest.mark.parametrize(
    "observations",
    [
        ended(7),
        ended(40, lambda config: 3.0),
        ended(40, lambda config: 1.0 + 0.05 * config["size"]),
        ended(40, lambda config: 0.0),
        [Observation(seen.trial, seen.config, STEPS, math.inf, seconds=seen.seconds) for seen in ended(40)],
        [*ended(40), Observation(40, SMALL, 2, 0.5, seconds=1.0)],
        [*ended(40), Observation(40, SMALL, 2, 0.5, ended=False)],
    ],
    ids=["too few", "all alike", "nearly alike", "unknown", "of failed trials", "cut short", "passed a milestone"],
)
def test_there_is_no_model_where_times_tell_nothing(observations: list[Observation]) -> None:
    assert predicted(observations, SMALL) is None


def test_times_that_follow_from_nothing_are_trusted_little() -> None:
    rng = np.random.default_rng(1)
    found = predicted(ended(60, lambda config: float(np.exp(rng.normal()))), SMALL, LARGE, SLOW)
    assert found is None or np.ptp(found) < 0.2


def test_a_model_that_is_made_anew_says_the_same() -> None:
    history, axes = History(Problem(SPACE, max_budget=STEPS)), Axes(SPACE)
    grown = RunTimes(history, axes)
    for seen in ended(60):
        history.apply(seen)
        grown.update()
        kept = grown.log_seconds()
    units = np.array([SPACE.to_unit(config) for config in (SMALL, LARGE, SLOW)])
    assert kept is not None
    assert kept(units).tolist() == predicted(ended(60), SMALL, LARGE, SLOW)


def test_old_times_are_forgotten_in_a_long_search() -> None:
    before, after = ended(100, lambda config: 1.0 / seconds(config)), ended(260)[100:]
    found = predicted([*before, *after], SMALL, SLOW)
    assert found[0] < found[1]
