"""How many workers a run gets."""

from __future__ import annotations

from typing import Any

import pytest

from maggy_like.driver.failure_policy import FailurePolicy
from maggy_like.driver.settings import (
    MOST_UNASKED,
    FileSettings,
    SearchSettings,
    Settings,
    SizeSettings,
    TrainingSettings,
    count_workers,
    least_workers,
    size_hints,
)
from maggy_like.engines.base import Capacity
from maggy_like.errors import EngineError
from maggy_like.storage.run_paths import RunPaths
from optimizers.samplers.non_adaptive import Grid
from optimizers.space.search_space import SearchSpace


class Slots(Capacity):
    """An engine of so many slots; one that grows to so many, where it is elastic."""

    name = "cluster"
    is_elastic = False  # type: ignore[assignment]

    def __init__(self, slots: int | None, *, elastic: bool = False) -> None:
        self._slots = slots
        self.is_elastic = elastic  # type: ignore[misc]

    def slots(self) -> int | None:
        return self._slots

    def most_workers(self) -> int | None:
        return self._slots

    def default_workers(self) -> int:
        assert self._slots is not None
        return self._slots


def settings(n_trials: int | None = 50, train_steps: int = 0, min_workers: int | None = None, **gang: Any) -> Settings:
    return Settings(
        search=SearchSettings(SearchSpace(x=[1, 2]), Grid(), "grid", n_trials=n_trials),
        files=FileSettings("run", RunPaths("s3://runs/run", "s3://runs/run/checkpoints")),
        size=SizeSettings(**gang),
        failures=FailurePolicy(min_workers=min_workers),
        training=TrainingSettings(train_steps) if train_steps else None,
    )


@pytest.mark.parametrize(
    ("slots", "elastic", "given", "size"),
    [
        (8, False, {}, 8),
        (8, False, {"n_trials": 3}, 3),
        (8, False, {"max_workers": 5}, 5),
        (8, False, {"max_workers": 12}, 8),
        (8, False, {"workers": 4}, 4),
        (None, True, {}, 50),
        (None, True, {"n_trials": 3, "workers_per_trial": 2}, 6),
        (None, True, {"n_trials": None}, MOST_UNASKED),
        (None, True, {"n_trials": 1000, "max_workers": 200}, 200),
        (20, True, {}, 20),
        (20, True, {"max_workers": 200}, 20),
        (400, True, {"n_trials": 1000}, MOST_UNASKED),
    ],
)
def test_a_gang_has_the_size_that_is_of_use_and_that_there_can_be(
    slots: int | None, elastic: bool, given: dict[str, Any], size: int
) -> None:
    assert count_workers(settings(**given), Slots(slots, elastic=elastic)) == size


def test_a_bound_that_nobody_asked_for_is_told() -> None:
    def hints(slots: int | None, **given: Any) -> list[str]:
        engine = Slots(slots, elastic=True)
        return size_hints(settings(**given), engine, count_workers(settings(**given), engine))

    told = [f"the run grows to {MOST_UNASKED} workers at most; use max_workers=N for more"]
    assert hints(None, n_trials=1000) == hints(None, n_trials=None) == hints(400, n_trials=1000) == told
    assert hints(None) == hints(20, n_trials=1000) == hints(None, n_trials=1000, max_workers=64) == []


def test_only_as_many_as_a_trial_needs_are_waited_for_where_a_gang_grows() -> None:
    growing, fixed = Slots(None, elastic=True), Slots(8)
    assert least_workers(settings(workers_per_trial=2), growing, 50) == 2
    assert least_workers(settings(), fixed, 8) == 8
    assert least_workers(settings(n_trials=0, train_steps=9, workers=4), growing, 4) == 4
    assert least_workers(settings(min_workers=3), growing, 50) == 3


def test_a_training_that_does_not_say_for_how_many_to_wait_is_refused() -> None:
    with pytest.raises(EngineError, match="needs a number of workers to wait for; use workers=N"):
        count_workers(settings(n_trials=0, train_steps=9), Slots(None, elastic=True))
