"""The trial that a model of all values recommends."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from maggy_like import Float, Result, lagom, load_run
from optimizers.core.base import Optimizer
from optimizers.core.objectives import Direction
from optimizers.core.study import Study
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT
from optimizers.space import Config

SPACE = {"lr": Float(0.0, 1.0), "decay": Float(0.0, 1.0)}


def loss(config: Config) -> float:
    return abs(config["lr"] - 0.3) + 0.2 * config["decay"]


def noisy(noise: float) -> Callable[[Config], float]:
    return lambda config: loss(config) + random.Random(repr(config)).gauss(0.0, noise)


def result(
    evaluate: Callable[[Config], float | None],
    n: int = 80,
    optimizer: Optimizer | None = None,
    direction: Direction = "min",
    max_budget: int = 1,
    objectives: tuple[str, ...] = (),
) -> Result:
    """A search whose function gives a loss, or None to fail."""
    study = Study(SPACE, optimizer or RandomSearch(), direction=direction, seed=1, max_budget=max_budget, n_trials=n)
    while trial := study.ask():
        if (found := evaluate(trial.config)) is None:
            study.fail(trial)
        else:
            study.tell(trial, found + 1.0 / trial.budget if direction == "min" else -found)
    return Result(study.trials, study.best, "value", direction, "completed", 1.0, Path("run"), study.problem.space)


@pytest.mark.parametrize("direction", ["min", "max"])
def test_a_lucky_trial_is_not_recommended(direction: Direction) -> None:
    found = result(lambda config: noisy(0.05)(config) - 1.0 * (0.62 < config["lr"] < 0.64), direction=direction)
    assert found.best_config is not None
    assert 0.62 < found.best_config["lr"] < 0.64
    recommended = found.recommended
    assert recommended is not None
    assert recommended.trial is not found.best_trial
    assert loss(recommended.config) < 0.15
    sign = 1.0 if direction == "min" else -1.0
    assert abs(sign * recommended.mean - (1.0 if direction == "min" else 0.0) - loss(recommended.config)) < 0.2
    assert recommended is found.recommended


def test_it_is_shown_where_the_noise_is_large_and_nothing_was_repeated() -> None:
    loud, quiet = result(noisy(0.3)), result(noisy(0.0))
    assert loud.recommended is not None
    assert loud.recommended.noise == pytest.approx(0.3, rel=0.3)
    assert f"recommended: {loud.recommended.sentence}" in repr(loud).splitlines()
    assert f"trial {loud.recommended.trial.id} with an estimated value of " in loud.recommended.sentence
    assert quiet.recommended is not None
    assert loss(quiet.recommended.config) < 0.05
    assert quiet.recommended.noise < 0.02
    assert "recommended" not in repr(quiet)
    assert "recommended" in str(loud)


@pytest.mark.parametrize("n", [8, 9, 12, 20])
def test_few_trials_without_noise_are_not_called_noisy(n: int) -> None:
    found = result(lambda config: loss(config) + 0.3 * math.sin(12 * config["lr"] + 5 * config["decay"]), n=n)
    assert found.recommended is not None
    assert "recommended" not in repr(found)
    assert ", at an estimated noise of " in found.recommended.sentence


def test_only_trials_that_were_trained_in_full_are_recommended() -> None:
    found = result(noisy(0.1), optimizer=ASHA(sampler="random", mode="promotion"), max_budget=27)
    assert found.recommended is not None
    assert found.recommended.trial.step == 27
    assert found.recommended.mean == pytest.approx(loss(found.recommended.config) + 1.0 / 27.0, abs=0.2)


def test_failed_trials_are_not_recommended() -> None:
    found = result(lambda config: None if config["lr"] < 0.4 else noisy(0.1)(config))
    assert found.recommended is not None
    assert 0.4 < found.recommended.config["lr"] < 0.7


@pytest.mark.parametrize("broken", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("direction", ["min", "max"])
def test_failures_by_chance_are_not_taken_for_noise(broken: float | None, direction: Direction) -> None:
    def flaky(config: Config) -> float | None:
        return broken if random.Random(repr(config)).random() < 0.2 else loss(config)

    found = result(flaky, direction=direction)
    assert found.recommended is not None
    assert found.recommended.noise < 0.02
    assert found.recommended.mean == pytest.approx(found.recommended.trial.value, abs=0.02)
    assert "recommended" not in repr(found)


def test_nothing_is_recommended_where_nothing_can_be_said() -> None:
    assert result(noisy(0.1), n=7).recommended is None
    assert result(lambda config: None).recommended is None
    assert result(noisy(0.1), optimizer=PBT(population=8, interval=1), n=40, max_budget=5).recommended is None


def score(lr: float) -> float:
    return random.Random(repr(lr)).gauss(1.0 - lr, 0.3)


@pytest.mark.e2e
def test_it_is_that_of_the_files_and_in_the_report(tmp_path: Path) -> None:
    options = {"optimizer": "random", "metric": "accuracy", "engine": "local", "progress": False, "seed": 1}
    found = lagom(score, {"lr": Float(0.0, 1.0)}, n_trials=30, workers=2, directory=tmp_path, **options)
    known = load_run(found.directory)
    assert known.recommended == found.recommended == pickle.loads(pickle.dumps(found)).recommended
    assert known.recommended is not None
    known.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert ">Recommendation</h2>" in page
    assert f"trial {known.recommended.trial.id} with an estimated accuracy" in page
