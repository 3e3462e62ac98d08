"""Supervisors without a process: a barrier stage of which one worker falls silent, and slots that come and go."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like.driver import supervisor
from maggy_like.driver.state_machine.interface import StopRequested, WorkerLeaving, WorkerLost
from maggy_like.driver.supervisor import (
    GOODBYE_PATIENCE,
    GROWTH_PATIENCE,
    HELD_PATIENCE,
    IDLE_PATIENCE,
    MAX_FUTILE_LAUNCHES,
    GrowingSupervisor,
    Supervisor,
)
from maggy_like.engines.base import EngineRun, Launcher
from maggy_like.protocol.endings import Phase
from maggy_like.protocol.task import WorkerId, WorkerTask

SIZE = 4


class Launched(EngineRun):
    """Workers that run until the test ends them."""

    ended: str | None = None
    is_cancelled = False
    waited = 0.0

    def poll(self) -> str | None:
        return self.ended

    def cancel(self) -> None:
        self.is_cancelled = True
        self.ended = "cancelled"

    def wait(self, timeout: float) -> bool:
        self.waited = max(self.waited, timeout)
        return self.ended is not None


class Stages(Launcher):
    """Launches what it is asked for as one."""

    name = "stages"

    def __init__(self) -> None:
        self.launched: list[Launched] = []

    def slots(self) -> int | None:
        return SIZE

    def default_workers(self) -> int:
        return SIZE

    def launch(self, task: Any, indexes: Sequence[int], incarnation: int, keys: Any, logs: str) -> list[EngineRun]:
        self.launched.append(Launched(indexes, incarnation))
        return [self.launched[-1]]


class Scene:
    """A gang of four that has come and is at work, what its driver knows, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.engine = Stages()
        task = WorkerTask("", b"", "", b"", (), (), (), "", "")
        self.posted: list[Any] = []
        self.states = dict.fromkeys(range(SIZE), "busy")
        workers = {WorkerId(index, 0) for index in range(SIZE)}
        self.driver: Any = SimpleNamespace(
            replacements=SimpleQueue(), has_ended=False, met=set(workers), ready=set(workers), lines=deque(),
            post=self.posted.append, snapshot=SimpleNamespace(workers=(), counts={}))  # fmt: skip
        self.gang = Supervisor(self.driver, self.engine, task, lambda worker: (b"", b""), SIZE, SIZE, "")
        self.attend()

    @property
    def launched(self) -> list[tuple[tuple[int, ...], int]]:
        """What was launched after the first gang."""
        return [(run.indexes, run.incarnation) for run in self.engine.launched[1:]]

    def attend(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.driver.snapshot.workers = tuple(SimpleNamespace(state=state) for state in self.states.values())
        self.gang.attend()

    def lose(self, worker: WorkerId) -> None:
        """The driver has not heard of it for too long."""
        self.states[worker.index] = "lost"
        self.driver.replacements.put(worker)
        self.attend()

    def come(self, worker: WorkerId) -> None:
        self.states[worker.index] = "busy"
        self.driver.met.add(worker)
        self.driver.ready.add(worker)
        self.attend()


def test_a_silent_worker_is_replaced_and_the_others_of_its_gang_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    first = scene.engine.launched[0]
    scene.lose(WorkerId(2, 0))
    assert scene.launched == [((2,), 1)]
    scene.attend(10 * HELD_PATIENCE)
    scene.come(WorkerId(2, 1))
    scene.attend(10 * HELD_PATIENCE)
    assert (first.indexes, first.is_cancelled, scene.posted) == ((0, 1, 3), False, [])


def test_the_last_worker_of_a_gang_is_ended_and_launched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    for index in range(SIZE):
        scene.driver.replacements.put(WorkerId(index, 0))
    scene.attend()
    assert scene.engine.launched[0].is_cancelled
    scene.attend(1.0)
    assert sorted(scene.launched) == [((index,), 1) for index in range(SIZE)]


def test_a_gang_that_falls_after_one_of_its_workers_starts_again_beside_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.lose(WorkerId(2, 0))
    scene.engine.launched[0].ended = "an executor was lost"
    scene.attend()
    lost = [WorkerLost(WorkerId(index, 0), "an executor was lost", with_others=True) for index in (0, 1, 3)]
    assert scene.posted == lost
    scene.attend(0.1)
    assert scene.launched == [((2,), 1), ((0, 1, 3), 1)]


def test_all_start_again_where_nothing_can_run_without_the_silent_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.lose(WorkerId(2, 0))
    scene.states |= dict.fromkeys((0, 1, 3), "idle")
    scene.attend(HELD_PATIENCE)
    assert not scene.engine.launched[0].is_cancelled
    scene.attend(0.1)
    assert scene.engine.launched[0].is_cancelled
    assert scene.driver.lines[0].text == "nothing can run without worker 2: all workers restart"
    scene.attend(0.1)
    assert scene.launched == [((2,), 1), ((0, 1, 3), 1)]


def test_idle_workers_are_left_alone_once_the_silent_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.lose(WorkerId(2, 0))
    scene.come(WorkerId(2, 1))
    scene.states = dict.fromkeys(range(SIZE), "idle")
    scene.attend(10 * HELD_PATIENCE)
    assert not any(run.is_cancelled for run in scene.engine.launched)


@pytest.mark.parametrize("wakes", [False, True])
def test_in_the_end_a_job_is_waited_for_unless_a_silent_worker_holds_it(
    monkeypatch: pytest.MonkeyPatch, wakes: bool
) -> None:
    scene = Scene(monkeypatch)
    scene.lose(WorkerId(2, 0))
    first, second = scene.engine.launched
    if wakes:
        scene.come(WorkerId(2, 1))
        second.ended = ""
    monkeypatch.setattr(first, "wait", lambda timeout: waits.append(timeout) or first.is_cancelled)
    waits: list[float] = []
    scene.driver.has_ended = True
    leaving = {WorkerId(0, 0), WorkerId(1, 0), WorkerId(3, 0), WorkerId(2, 1)}
    scene.gang.leave(leaving, 2.0)
    assert waits[0] == (GOODBYE_PATIENCE if wakes else 2.0)
    assert first.is_cancelled
    assert second.is_cancelled is not wakes


def test_a_worker_that_ends_before_it_has_come_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.lose(WorkerId(2, 0))
    scene.engine.launched[-1].ended = "the process that forks workers did nothing for too long, and was killed"
    scene.attend()
    assert [line.text for line in scene.driver.lines] == [
        "worker 2 restarts: the process that forks workers did nothing for too long, and was killed"
    ]


# -- A gang on an engine whose slots come and go, without a process -------------------------------


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


class GrowingScene:
    """A gang of 50 places, what its driver knows, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slots: int = 2) -> None:
        self.now = 0.0
        monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.cluster = Cluster(slots)
        task = WorkerTask("", b"", "", b"", (), (), (), "", "")
        self.posted: list[Any] = []
        self.driver: Any = SimpleNamespace(
            replacements=SimpleQueue(), has_ended=False, met=set(), ready=set(), lines=deque(), post=self.posted.append,
            snapshot=SimpleNamespace(workers=(), phase=Phase.SEARCHING, counts={}))  # fmt: skip
        self.gang = GrowingSupervisor(self.driver, self.cluster, task, lambda worker: (b"", b""), 50, 1, "")

    def attend(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.gang.attend()

    def come(self, *indexes: int) -> None:
        for index in indexes:
            self.driver.met.add(WorkerId(index, 0))
            self.driver.ready.add(WorkerId(index, 0))
        self.driver.snapshot.workers = tuple(SimpleNamespace(state="busy") for _ in self.driver.met)
        self.attend()


def test_all_places_are_launched_at_once_and_those_that_never_came_are_cancelled_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = GrowingScene(monkeypatch)
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
    scene = GrowingScene(monkeypatch)
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
    scene = GrowingScene(monkeypatch, slots=2)
    for count in range(1, 2 * MAX_FUTILE_LAUNCHES + 1):
        assert not any(isinstance(event, StopRequested) for event in scene.posted)
        scene.cluster.launched[count].ended = "no such module"
        scene.attend(0.1)
    [stop] = [event for event in scene.posted if isinstance(event, StopRequested)]
    assert "no such module" in str(stop.error)


def test_a_node_on_which_nothing_runs_ends_no_search_that_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = GrowingScene(monkeypatch, slots=2)
    scene.come(0)
    for count in range(1, 20):
        scene.cluster.launched[count].ended = "no such module"
        scene.attend(0.1)
    assert not any(isinstance(event, StopRequested) for event in scene.posted)


def test_a_place_that_fails_again_and_again_beside_others_that_run_is_launched_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = GrowingScene(monkeypatch, slots=2)
    scene.come(0)
    scene.cluster.launched[1].ended = "no such module"
    for _ in range(600):  # a minute
        scene.attend(0.1)
        for run in scene.cluster.launched[50:]:
            run.ended = "no such module"
    assert 3 <= len(scene.cluster.launched) - 50 <= 20


def test_a_cluster_that_grants_nothing_is_waited_for_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = GrowingScene(monkeypatch, slots=0)
    scene.attend(GROWTH_PATIENCE - 1)
    assert scene.posted == []
    scene.attend(2)
    [stop] = scene.posted
    assert "had 0 of the 1 worker that a trial needs for 600 s, though 50 were requested" in str(stop.error)


def test_places_that_wait_are_taken_back_while_workers_have_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = GrowingScene(monkeypatch)
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
