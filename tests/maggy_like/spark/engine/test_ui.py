"""What Spark's UI says of a search: its name, a group to cancel it by, and that it succeeded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like.driver.supervisor import GOODBYE_PATIENCE, Supervisor
from maggy_like.protocol.task import WorkerId, WorkerTask
from maggy_like.spark import session
from maggy_like.spark.engine.job import describe, job_group

TASK: Any = SimpleNamespace(name="august", about="search of 50 trials")


def test_a_job_is_described_in_words() -> None:
    assert describe(TASK, 8, 0) == "maggy_like august: search of 50 trials, 8 workers, incarnation 0"
    one = SimpleNamespace(name="august", about="search of 50 trials, 12 done")
    assert describe(one, 1, 3) == "maggy_like august: search of 50 trials, 12 done, 1 worker, incarnation 3"  # type: ignore[arg-type]


def test_a_group_s_name_can_be_typed_and_is_a_tag_too() -> None:
    assert job_group("august") == "maggy_like-august"
    assert job_group("a, b") == "maggy_like-a__b"


def test_the_ui_is_off_for_local_masters_alone() -> None:
    assert "spark.ui.enabled" not in session.LONG_TASK_DEFAULTS
    assert session._LOCAL_DEFAULTS["spark.ui.enabled"] == "false"


class Leaving:
    """A run whose end is waited for."""

    def __init__(self, index: int) -> None:
        self.indexes, self.incarnation, self.waited, self.cancelled, self.has_come = (index,), 0, [0.0], False, True
        self.given_up: set[int] = set()

    def wait(self, timeout: float) -> bool:
        self.waited.append(timeout)
        return self.cancelled

    def cancel(self) -> None:
        self.cancelled = True


def test_workers_that_said_goodbye_get_the_time_to_end_by_themselves() -> None:
    said, silent = Leaving(0), Leaving(1)
    engine, task = SimpleNamespace(launch=lambda *_: [said, silent]), WorkerTask("", b"", "", b"", (), (), (), "", "")
    gang = Supervisor(SimpleNamespace(), engine, task, lambda _: (b"", b""), 2, 2, "")  # type: ignore[arg-type]
    gang.leave({WorkerId(0, 0)}, timeout=0.0)
    assert said.waited[1] == pytest.approx(GOODBYE_PATIENCE, abs=5.0)
    assert silent.waited[1] == 0.0
