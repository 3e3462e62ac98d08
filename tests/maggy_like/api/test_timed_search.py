"""What an optimizer is told where time bounds a search."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maggy_like import Float, Integer, Result, SearchSpace, lagom
from optimizers.core.base import Answer, History, Observation, Optimizer

LONG, N = 0.02, 3


class Told(Optimizer):
    """Proposes a few configurations, and keeps what it was told."""

    def __init__(self, n: int = N) -> None:
        self.asked: list[tuple[bool, list[Observation]]] = []
        self._n = n

    def ask(self, index: int, history: History) -> Answer:
        self.asked.append((history.problem.is_timed, list(history.observations)))
        return {"x": 0.1 * index} if index < self._n else None

    def describe(self) -> str:
        return "Told"


def sleep(x: float) -> float:
    time.sleep(LONG)
    return x


@pytest.fixture
def search(tmp_path: Path) -> Callable[..., Result]:
    def run(optimizer: Optimizer, **options: Any) -> Result:
        kept = {"engine": "inline", "directory": tmp_path, "name": "timed", "progress": False}
        return lagom(sleep, {"x": Float(0, 1)}, optimizer=optimizer, **kept, **options)

    return run


@pytest.mark.parametrize(
    ("limits", "is_timed"),
    [({"timeout": 600}, True), ({"timeout": 600, "n_trials": N}, False), ({"n_trials": N}, False), ({}, False)],
)
def test_time_bounds_a_search_that_no_number_of_trials_does(
    search: Callable[..., Result], limits: dict[str, Any], is_timed: bool
) -> None:
    optimizer = Told()
    search(optimizer, **limits)
    assert {asked for asked, _ in optimizer.asked} == {is_timed}


def test_run_times_are_there_after_a_resume(search: Callable[..., Result]) -> None:
    search(Told(), timeout=600)
    later = Told(N + 1)
    result = search(later, timeout=600, resume=True)
    _, observations = later.asked[0]
    assert [seen.seconds for seen in observations] == [trial.seconds for trial in result.trials[:N]]
    assert all(seen.seconds >= LONG for seen in observations)


FINITE: dict[str, tuple[SearchSpace, int]] = {
    "listed": (SearchSpace(x=[1, 2, 3]), 3),
    "stepped": (SearchSpace(x=Integer(0, 4, step=2), y=Float(0, 1, step=0.5)), 9),
    "conditional": (SearchSpace(x=[1, 2], y=Integer(1, 3, when={"x": 1})), 4),
    "constrained": (SearchSpace(x=[1, 2], y=Integer(1, 3)).where(lambda config: config["x"] < config["y"]), 3),
}


def worth(x: int, y: float = 0.0) -> float:
    return x + y


@pytest.mark.parametrize("limits", [{"n_trials": 200}, {}, {"timeout": 600}], ids=["trials", "neither", "time"])
@pytest.mark.parametrize("space", FINITE)
def test_a_search_ends_once_everything_was_tried(
    space: str, limits: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searched, count = FINITE[space]
    options: dict[str, Any] = {"direction": "max", "engine": "inline", "directory": tmp_path, "name": "all"}
    result = lagom(worth, searched, optimizer="random", progress="plain", **limits, **options)
    assert result.ending == "completed"
    tried = [searched.key(trial.config) for trial in result.trials]
    assert len(set(tried)) == count
    assert tried.count(tried[-1]) == 1  # the last one was the first of its kind
    assert f"the search space has {count} configurations, and " in capsys.readouterr().out
    again = lagom(worth, searched, optimizer="random", progress=False, resume=True, **limits, **options)
    assert len(again.trials) == len(result.trials)


@pytest.mark.parametrize("optimizer", ["bayesian", "tpe", "asha", "grid", "sobol"])
def test_each_optimizer_ends_once_everything_was_tried(optimizer: str, tmp_path: Path) -> None:
    result = lagom(worth, {"x": [1, 2, 3]}, optimizer=optimizer, n_trials=60, direction="max", engine="inline",
                   directory=tmp_path, progress=False, points_to_evaluate=[{"x": 2}, {"x": 2}])  # fmt: skip
    assert {trial.config["x"] for trial in result.trials} == {1, 2, 3}
    assert len(result.trials) < 60


def test_a_space_of_as_many_configurations_is_searched_as_ever(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = lagom(worth, {"x": [1, 2, 3]}, optimizer="random", n_trials=3, direction="max", engine="inline",
                   directory=tmp_path, progress="plain")  # fmt: skip
    assert len(result.trials) == 3
    assert "the search space has" not in capsys.readouterr().out
