"""A gang on an engine whose slots come and go, without a process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like.driver import supervisor as gang
from maggy_like.driver import supervisor as growing_gang
from maggy_like.driver.state_machine.inputs import StopRequested, WorkerLeaving, WorkerLost
from maggy_like.driver.supervisor import GROWTH_PATIENCE, IDLE_PATIENCE, MAX_FUTILE_LAUNCHES, GrowingSupervisor
from maggy_like.engines.base import EngineRun, Launcher
from maggy_like.protocol.endings import Phase
from maggy_like.protocol.task import WorkerId, WorkerTask


class Launched(EngineRun):
    """A place that waits for a slot until the test gives it one."""

    ended: str | None = None
    is_cancelled = False

    def poll(self) -> str | None:
        return self.ended

    def cancel(self) -> None:
        self.is_cancelled = True
        self.ended = "cancelled"

    def wait(self, timeout: float) -> bool:
        return self.ended is not None


class Cluster(Launcher):
    """Launches whatever it is asked for."""

    name = "cluster"
    is_elastic = True  # type: ignore[assignment]

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.launched: list[Launched] = []

    def slots(self) -> int | None:
        return self._slots

    def default_workers(self) -> int:
        return 1

    def launch(self, task: Any, indexes: Sequence[int], incarnation: int, keys: Any, logs: str) -> list[EngineRun]:
        runs = [Launched([index], incarnation) for index in indexes]
        self.launched += runs
        return list(runs)


class Scene:
    """A gang of 50 places, what its driver knows, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slots: int = 2) -> None:
        self.now = 0.0
        for module in (gang, growing_gang):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.cluster = Cluster(slots)
        task = WorkerTask("", b"", "", b"", (), (), (), "", "")
        self.gang = GrowingSupervisor(self.cluster, task, lambda worker: (b"", b""), 50, 1, "")
        self.posted: list[Any] = []
        self.driver: Any = SimpleNamespace(
            replacements=SimpleQueue(), has_ended=False, met=set(), ready=set(), lines=deque(), post=self.posted.append,
            snapshot=SimpleNamespace(workers=(), phase=Phase.SEARCHING, counts={}))  # fmt: skip

    def attend(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.gang.attend(self.driver)

    def come(self, *indexes: int) -> None:
        for index in indexes:
            self.driver.met.add(WorkerId(index, 0))
            self.driver.ready.add(WorkerId(index, 0))
        self.driver.snapshot.workers = tuple(SimpleNamespace(state="busy") for _ in self.driver.met)
        self.attend()


def test_all_places_are_launched_at_once_and_those_that_never_came_are_cancelled_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    assert len(scene.cluster.launched) == 50
    scene.come(0, 1)
    scene.attend(10 * GROWTH_PATIENCE)  # the others may wait for as long as some run
    assert scene.posted == []
    for run in scene.cluster.launched[:2]:
        run.ended = ""
    scene.driver.has_ended = True
    scene.gang.leave((), 2.0)
    assert [run.is_cancelled for run in scene.cluster.launched] == [False, False] + [True] * 48


def test_a_worker_that_is_to_leave_is_told_once_and_its_place_launched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.come(0, 1)
    run = scene.cluster.launched[0]
    run.leaving = "decommissioned"
    scene.attend()
    scene.attend()
    assert scene.posted == [WorkerLeaving(WorkerId(0, 0), "decommissioned")]
    run.ended = ""
    scene.attend()
    assert scene.posted[1:] == [WorkerLost(WorkerId(0, 0), "decommissioned", with_node=True)]
    scene.attend(0.1)
    assert [(again.indexes, again.incarnation) for again in scene.cluster.launched[50:]] == [((0,), 1)]
    assert not scene.driver.lines


def test_places_that_wait_are_no_futile_launches_but_what_fails_everywhere_ends_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, slots=2)
    for count in range(1, 2 * MAX_FUTILE_LAUNCHES + 1):
        assert not any(isinstance(event, StopRequested) for event in scene.posted)
        scene.cluster.launched[count].ended = "no such module"
        scene.attend(0.1)
    [stop] = [event for event in scene.posted if isinstance(event, StopRequested)]
    assert "no such module" in str(stop.error)


def test_a_node_on_which_nothing_runs_ends_no_search_that_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, slots=2)
    scene.come(0)
    for count in range(1, 20):
        scene.cluster.launched[count].ended = "no such module"
        scene.attend(0.1)
    assert not any(isinstance(event, StopRequested) for event in scene.posted)


def test_a_place_that_fails_again_and_again_beside_others_that_run_is_launched_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, slots=2)
    scene.come(0)
    scene.cluster.launched[1].ended = "no such module"
    for _ in range(600):  # a minute
        scene.attend(0.1)
        for run in scene.cluster.launched[50:]:
            run.ended = "no such module"
    assert 3 <= len(scene.cluster.launched) - 50 <= 20


def test_a_cluster_that_grants_nothing_is_waited_for_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, slots=0)
    scene.attend(GROWTH_PATIENCE - 1)
    assert scene.posted == []
    scene.attend(2)
    [stop] = scene.posted
    assert "had 0 of the 1 worker that a trial needs for 600 s, though 50 were requested" in str(stop.error)


def test_places_that_wait_are_taken_back_while_workers_have_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.come(0, 1)
    first = scene.driver.snapshot.workers[0]
    first.state = "idle"
    scene.attend(IDLE_PATIENCE - 1)
    assert not any(run.is_cancelled for run in scene.cluster.launched)
    scene.attend(2)
    assert sum(run.is_cancelled for run in scene.cluster.launched) == 48
    scene.attend(100)
    assert len(scene.cluster.launched) == 50
    first.state = "busy"
    scene.attend()
    scene.attend(IDLE_PATIENCE - 1)
    assert len(scene.cluster.launched) == 50
    scene.attend(2)
    assert len(scene.cluster.launched) == 98
    assert {run.incarnation for run in scene.cluster.launched[50:]} == {1}
    assert not any(isinstance(event, StopRequested) for event in scene.posted)
