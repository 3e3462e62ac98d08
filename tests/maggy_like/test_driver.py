"""The driver itself fails: whoever waits for it is told at once, and of what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wire import wait_for

from maggy_like.display.base import Snapshot
from maggy_like.driver import Driver
from maggy_like.experiment import StateMachine
from maggy_like.journal import Journal, place_of
from maggy_like.proposer.base import DirectProposer
from maggy_like.rpc.server import Server
from optimizers import Float
from optimizers.random_search import RandomSearch
from optimizers.study import Study

PATIENCE = 60.0
"""Seconds that stand for "not for ever"."""


class Broken(Exception):
    """What the fakes raise."""


def fail(*_: object, **__: object) -> Any:
    raise Broken("it fails")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """A driver that would wait for its only worker."""
    study = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=4)
    server = Server("127.0.0.1")
    journal = Journal(place_of(str(tmp_path)))
    base = Snapshot("run", str(tmp_path), "random", "max", "starting", 0.0)
    made = Driver(StateMachine(study), DirectProposer(study), server, journal, base, 1, keep=None, timeout=None)
    yield made
    made.release()
    made.join()
    server.close()
    journal.close()


@pytest.mark.parametrize("part", ["_server.poll", "_write_ahead.carry", "_experiment.handle"])
def test_what_fails_in_the_loop_ends_the_driver_with_that_error(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    owner, name = part.split(".")
    monkeypatch.setattr(getattr(driver, owner), name, fail)
    driver.start()
    assert driver.done.wait(PATIENCE)
    assert isinstance(driver.error, Broken)
    assert driver.has_ended


@pytest.mark.parametrize("released", [False, True], ids=["while it runs", "as it ends"])
def test_a_drawing_that_fails_keeps_nobody_waiting(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    monkeypatch.setattr(driver, "_draw", fail)
    if released:
        driver.release()
    driver.start()
    assert driver.done.wait(PATIENCE)
    driver.join()
    assert isinstance(driver.error, Broken)


def test_a_proposer_that_cannot_start_ends_the_search_with_its_error(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver._proposer, "start", fail)
    driver.start()
    wait_for(lambda: driver._experiment.ending is not None, PATIENCE)
    assert isinstance(driver._experiment.error, Broken)
    assert driver._experiment.ending == "error"
