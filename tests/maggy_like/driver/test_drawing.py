"""Snapshots of many workers are drawn in parts, in a small share of the driver's time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hand import settings_of
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.display.base import Snapshot
from maggy_like.driver.drawing import LINES, LONGEST, Drawing, Pace
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.interface import WorkerJoined
from maggy_like.protocol.task import WorkerId
from optimizers import Float, RandomSearch
from optimizers.core.study import Study


@pytest.fixture
def machine() -> StateMachine:
    study = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=4)
    return StateMachine(study, settings_of(study))


@pytest.fixture
def drawing(machine: StateMachine) -> Drawing:
    return Drawing(Snapshot("run", "/runs", "random", "max", "starting", 0.0), machine)


@pytest.fixture
def join(machine: StateMachine) -> Callable[[int], None]:
    def joins(index: int) -> None:
        machine.handle(WorkerJoined(WorkerId(index, 0), f"host-{index}", ()), 100.0)

    return joins


def test_a_small_gang_is_drawn_at_once(drawing: Drawing, join: Callable[[int], None]) -> None:
    for index in (2, 0, 1):
        join(index)
    drawn = drawing.advance(1.0, 101.0)
    assert [line.index for line in drawn.workers] == [0, 1, 2]
    assert drawn == drawing.at_once(1.0, 101.0)


def test_a_large_gang_is_drawn_in_parts(drawing: Drawing, join: Callable[[int], None]) -> None:
    for index in range(2 * LINES + 1):
        join(index)
    assert [drawing.advance(1.0, 101.0) for _ in range(2)] == [None, None]
    join(2 * LINES + 1)  # comes with the next snapshot
    drawn = drawing.advance(1.0, 101.0)
    assert [line.index for line in drawn.workers] == list(range(2 * LINES + 1))
    drawings = [drawing.advance(2.0, 102.0) for _ in range(3)]
    assert drawings[:2] == [None, None]
    assert drawings[2] == drawing.at_once(2.0, 102.0)


def test_a_run_without_workers_is_starting(drawing: Drawing) -> None:
    drawn = drawing.advance(0.0, 100.0)
    assert drawn.workers == ()
    assert drawn.phase == "starting"


def test_what_takes_no_time_is_done_at_each_interval() -> None:
    pace = Pace(0.1, 0.02)
    done = 0
    for now in range(1000):  # milliseconds
        if pace.is_due(now / 1000):
            pace.took(now / 1000, now / 1000)
            done += 1
    assert done == 10


@given(st.floats(1e-3, 0.04), st.floats(0.01, 0.5))
def test_what_takes_long_is_done_as_seldom_as_its_share_of_the_time_says(seconds: float, share: float) -> None:
    pace, now = Pace(0.1, share), 0.0
    pace.took(now, now + seconds)
    assert not pace.is_due(now + seconds + 0.99 * seconds / share)
    assert pace.is_due(now + seconds + 1.01 * seconds / share + 0.1)


def test_a_process_that_was_stopped_meanwhile_goes_on_soon() -> None:
    pace = Pace(0.1, 0.02)
    pace.took(0.0, 3600.0)
    assert pace.is_due(3600.0 + LONGEST)
