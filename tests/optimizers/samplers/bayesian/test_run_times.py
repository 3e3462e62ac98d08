from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from optimizers.core.base import History, Observation, Problem
from optimizers.samplers.bayesian.acquisition import Axes
from optimizers.samplers.bayesian.surrogate import RunTimes
from optimizers.space import Config
from optimizers.space.domains import Choice, Float
from optimizers.space.search_space import SearchSpace

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
    assert found is not None
    assert found[0] < found[1]
