"""What an optimizer is told where time bounds a search."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maggy_like import Float, Result, lagom
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
