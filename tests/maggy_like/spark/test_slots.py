"""Slots: how long those of a cluster are awaited."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from maggy_like.spark import slots as module
from maggy_like.spark.slots import FIRST_PATIENCE, NEXT_PATIENCE, SETTLING, Slots

Wait = Callable[..., tuple[int | None, float]]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Wait:
    """What ``Slots.wait(wanted)`` says of executors that come at given seconds, and how many seconds it took."""

    def wait_for(wanted: int | None, *coming: float, master: str = "spark://far:7077") -> tuple[int | None, float]:
        now = 0.0

        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

        class Executors(Slots):
            def __init__(self) -> None:
                pass

            def count(self) -> int:
                return sum(at <= now for at in coming)

            def conf(self, key: str, default: str) -> str:
                return {"spark.master": master}.get(key, default)

        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
        return Executors().wait(wanted), now

    return wait_for


def test_as_many_as_are_wanted_are_enough(wait: Wait) -> None:
    assert wait(2, 0.0, 0.0, 5.0) == (2, 0.0)
    assert wait(2, 0.0, 9.0, 20.0) == (2, pytest.approx(9.0, abs=0.2))


def test_the_first_may_take_long_and_each_further_one_gets_its_time(wait: Wait) -> None:
    first, third = FIRST_PATIENCE - 1, FIRST_PATIENCE + 2 * NEXT_PATIENCE - 5
    assert wait(3, first, first + NEXT_PATIENCE - 1, third) == (3, pytest.approx(third, abs=0.2))


def test_a_gang_that_is_too_large_is_refused_when_no_more_come(wait: Wait) -> None:
    assert wait(3, 0.0, 1.0) == (2, pytest.approx(1.0 + NEXT_PATIENCE, abs=0.5))
    assert wait(3) == (0, pytest.approx(FIRST_PATIENCE, abs=0.5))


def test_where_any_number_will_do_it_has_to_settle(wait: Wait) -> None:
    assert wait(None, 4.0, 5.0, 5.0 + SETTLING - 0.5) == (3, pytest.approx(5.0 + 2 * SETTLING - 0.5, abs=0.5))


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_a_local_master_has_all_its_slots_at_once(wait: Wait, master: str) -> None:
    assert wait(3, 0.0, 0.0, 1.0, master=master) == (2, 0.0)


def test_a_cluster_in_one_process_is_waited_for(wait: Wait) -> None:
    assert wait(2, 3.0, 3.0, master="local-cluster[2,1,1024]") == (2, pytest.approx(3.0, abs=0.2))
