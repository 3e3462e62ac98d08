"""How many workers a run gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from maggy_like.driver.run_spec import MOST_UNASKED, count_workers, least_workers, size_hints
from maggy_like.driver.settings import (
    FailurePolicy,
    FileSettings,
    SearchSettings,
    Settings,
    SizeSettings,
    TrainingSettings,
)
from maggy_like.driver.state_machine.interface import StopRequested
from maggy_like.driver.supervisor import HINT_AGAIN, JOIN_PATIENCE, LOOK, START_PATIENCE, FirstWorkers
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


# -- what the reader is told while no worker comes, and when that ends ----------------------------


class Fake:
    """A driver whose clock is moved by hand, and an engine that says what it is told to."""

    name = "spark"
    is_elastic = False

    def __init__(self, reason: str | Exception = "") -> None:
        self.reason = reason
        self.now = 0.0
        self.lines: list[Any] = []
        self.posted: list[Any] = []
        self.came = 0
        self.has_ended = False
        self.looks = 0

    def elapsed(self) -> float:
        return self.now

    def post(self, event: Any) -> None:
        self.posted.append(event)

    def slots(self) -> int:
        return 0

    def waits_for(self, workers: int, came: int) -> str:
        self.looks += 1
        if isinstance(self.reason, Exception):
            raise self.reason
        return self.reason

    @property
    def told(self) -> list[str]:
        return [line.text for line in self.lines]


def watch(fake: Any, size: int = 2) -> Callable[[float], None]:
    first = FirstWorkers(fake, fake, size)

    def until(now: float) -> None:
        while fake.now < now:
            fake.now += 0.5
            first.look()

    return until


def test_nothing_is_said_while_a_worker_may_still_come_soon() -> None:
    fake = Fake("why")
    watch(fake)(JOIN_PATIENCE - 1)
    assert (fake.looks, fake.told) == (0, [])


def test_the_reason_is_told_once_and_again_when_it_is_another() -> None:
    fake = Fake("job 7 'count at etl.py:12' holds 2 slots")
    until = watch(fake)
    until(JOIN_PATIENCE + HINT_AGAIN + 5)
    fake.reason = "job 8 'sum at etl.py:14' holds 2 slots"
    until(JOIN_PATIENCE + 2 * HINT_AGAIN)
    start = "still waiting for engine='spark' to start 2 workers: "
    assert fake.told == [
        f"{start}job 7 'count at etl.py:12' holds 2 slots",
        f"{start}job 8 'sum at etl.py:14' holds 2 slots",
    ]


def test_reasons_that_change_all_the_time_flood_nobody() -> None:
    fake = Fake()
    until = watch(fake)
    for second in range(int(JOIN_PATIENCE), int(JOIN_PATIENCE + 4 * HINT_AGAIN)):
        fake.reason = f"job {second} holds 2 slots"
        until(second)
    assert 3 <= len(fake.told) <= 5
    assert fake.looks <= 4 * HINT_AGAIN / LOOK + 2


@pytest.mark.parametrize("reason", ["", EngineError("the session was stopped")])
def test_a_wait_without_a_reason_is_told_as_such(reason: str | Exception) -> None:
    fake = Fake(reason)
    watch(fake, 1)(JOIN_PATIENCE + 5)
    assert fake.told == ["still waiting for engine='spark' to start a worker"]


def test_some_of_the_workers_are_enough_for_a_search_and_the_reader_hears_of_the_others() -> None:
    fake = Fake()
    until = watch(fake, 4)
    fake.came = 1
    until(JOIN_PATIENCE + 2)
    fake.reason = "job 7 'count' holds 3 slots"
    until(START_PATIENCE + 60)
    assert fake.told == ["still waiting for 3 of 4 workers: job 7 'count' holds 3 slots"]
    assert fake.posted == []


@pytest.mark.parametrize("elastic", [False, True])
def test_workers_end_the_wait_for_good(elastic: bool) -> None:
    fake = Fake("why")
    fake.is_elastic = elastic
    until = watch(fake)
    fake.came = 1 if elastic else 2
    until(JOIN_PATIENCE + 1)
    fake.came = 0
    until(START_PATIENCE + 10)
    assert (fake.told, fake.posted) == ([], [])


def test_a_search_that_has_ended_waits_for_nobody() -> None:
    fake = Fake("why")
    fake.has_ended = True
    watch(fake)(START_PATIENCE + 10)
    assert (fake.told, fake.posted) == ([], [])


def test_an_hour_without_any_worker_ends_the_search_with_the_reason() -> None:
    fake = Fake("job 7 'count' holds 2 slots")
    watch(fake)(START_PATIENCE + 60)
    [stop] = fake.posted
    assert isinstance(stop, StopRequested)
    assert stop.reason == "error"
    assert str(stop.error) == "waited 3600 s for engine='spark' to start 2 workers: job 7 'count' holds 2 slots"


def test_a_cluster_that_has_no_executor_yet_was_told_of_before() -> None:
    fake = Fake("why")
    fake.is_elastic = True
    until = watch(fake, 8)
    until(JOIN_PATIENCE + 5)
    assert fake.told == []
    fake.slots = lambda: 2  # type: ignore[method-assign]
    until(JOIN_PATIENCE + 10)
    assert fake.told == ["still waiting for engine='spark' to start one of 8 workers: why"]
