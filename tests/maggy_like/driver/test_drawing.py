"""A large gang is drawn in parts; what comes out is a whole snapshot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maggy_like.display.base import Snapshot
from maggy_like.driver.loop import LINES, Drawing
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.interface import WorkerJoined
from maggy_like.protocol.task import WorkerId
from optimizers import Float
from optimizers.core.study import Study
from optimizers.samplers.non_adaptive import RandomSearch


@pytest.fixture
def machine() -> StateMachine:
    return StateMachine(Study({"x": Float(0, 1)}, RandomSearch(), n_trials=4))


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
    assert drawn is not None
    assert [line.index for line in drawn.workers] == [0, 1, 2]
    assert drawn == drawing.at_once(1.0, 101.0)


def test_a_large_gang_is_drawn_in_parts(drawing: Drawing, join: Callable[[int], None]) -> None:
    for index in range(2 * LINES + 1):
        join(index)
    assert [drawing.advance(1.0, 101.0) for _ in range(2)] == [None, None]
    join(2 * LINES + 1)  # comes with the next snapshot
    drawn = drawing.advance(1.0, 101.0)
    assert drawn is not None
    assert [line.index for line in drawn.workers] == list(range(2 * LINES + 1))
    drawings = [drawing.advance(2.0, 102.0) for _ in range(3)]
    assert drawings[:2] == [None, None]
    assert drawings[2] == drawing.at_once(2.0, 102.0)


def test_a_run_without_workers_is_starting(drawing: Drawing) -> None:
    drawn = drawing.advance(0.0, 100.0)
    assert drawn is not None
    assert drawn.workers == ()
    assert drawn.phase == "starting"
