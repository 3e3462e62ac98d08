"""How many workers a run gets, and how they are launched, waited for, replaced and ended, without a process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like.driver import supervisor
from maggy_like.driver.run_spec import MOST_UNASKED, count_workers, least_workers, size_hints
from maggy_like.driver.settings import (
    FailurePolicy,
    FileSettings,
    SearchSettings,
    Settings,
    SizeSettings,
    TrainingSettings,
)
from maggy_like.driver.state_machine.interface import StopRequested, WorkerLeaving, WorkerLost
from maggy_like.driver.supervisor import (
    GOODBYE_PATIENCE,
    GROWTH_PATIENCE,
    HELD_PATIENCE,
    HINT_AGAIN,
    IDLE_PATIENCE,
    JOIN_PATIENCE,
    LOOK,
    MAX_FUTILE_LAUNCHES,
    START_PATIENCE,
    FirstWorkers,
    GrowingSupervisor,
    Supervisor,
)
from maggy_like.engines.base import Capacity, EngineRun, Launcher
from maggy_like.errors import EngineError
from maggy_like.protocol.endings import Phase
from maggy_like.protocol.task import WorkerId, WorkerTask
from maggy_like.storage.run_paths import RunPaths
from optimizers.samplers.non_adaptive import Grid
from optimizers.space.search_space import SearchSpace

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
            post=self.posted.append, snapshot=SimpleNamespace(workers=(), tried=0))  # fmt: skip
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


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_a_silent_worker_is_replaced_and_the_others_of_its_gang_go_on(scene: Scene) -> None:
    first = scene.engine.launched[0]
    scene.lose(WorkerId(2, 0))
    assert scene.launched == [((2,), 1)]
    scene.attend(10 * HELD_PATIENCE)
    scene.come(WorkerId(2, 1))
    scene.attend(10 * HELD_PATIENCE)
    assert (first.indexes, first.is_cancelled, scene.posted) == ((0, 1, 3), False, [])


def test_the_last_worker_of_a_gang_is_ended_and_launched_again(scene: Scene) -> None:
    for index in range(SIZE):
        scene.driver.replacements.put(WorkerId(index, 0))
    scene.attend()
    assert scene.engine.launched[0].is_cancelled
    scene.attend(1.0)
    assert sorted(scene.launched) == [((index,), 1) for index in range(SIZE)]


def test_a_gang_that_falls_after_one_of_its_workers_starts_again_beside_that_one(scene: Scene) -> None:
    scene.lose(WorkerId(2, 0))
    scene.engine.launched[0].ended = "an executor was lost"
    scene.attend()
    lost = [WorkerLost(WorkerId(index, 0), "an executor was lost", with_others=True) for index in (0, 1, 3)]
    assert scene.posted == lost
    scene.attend(0.1)
    assert scene.launched == [((2,), 1), ((0, 1, 3), 1)]


def test_all_start_again_where_nothing_can_run_without_the_silent_worker(scene: Scene) -> None:
    scene.lose(WorkerId(2, 0))
    scene.states |= dict.fromkeys((0, 1, 3), "idle")
    scene.attend(HELD_PATIENCE)
    assert not scene.engine.launched[0].is_cancelled
    scene.attend(0.1)
    assert scene.engine.launched[0].is_cancelled
    assert scene.driver.lines[0].text == "nothing can run without worker 2: all workers restart"
    scene.attend(0.1)
    assert scene.launched == [((2,), 1), ((0, 1, 3), 1)]


def test_idle_workers_are_left_alone_once_the_silent_one_is_replaced(scene: Scene) -> None:
    scene.lose(WorkerId(2, 0))
    scene.come(WorkerId(2, 1))
    scene.states = dict.fromkeys(range(SIZE), "idle")
    scene.attend(10 * HELD_PATIENCE)
    assert not any(run.is_cancelled for run in scene.engine.launched)


@pytest.mark.parametrize("wakes", [False, True])
def test_in_the_end_a_job_is_waited_for_unless_a_silent_worker_holds_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, wakes: bool
) -> None:
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


def test_a_worker_that_ends_before_it_has_come_is_told_of(scene: Scene) -> None:
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
            snapshot=SimpleNamespace(workers=(), phase=Phase.SEARCHING, tried=0))  # fmt: skip
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


@pytest.fixture
def growing(monkeypatch: pytest.MonkeyPatch) -> GrowingScene:
    return GrowingScene(monkeypatch)


def test_all_places_are_launched_at_once_and_those_that_never_came_are_cancelled_first(growing: GrowingScene) -> None:
    assert len(growing.cluster.launched) == 50
    growing.come(0, 1)
    growing.attend(10 * GROWTH_PATIENCE)  # the others may wait for as long as some run
    assert growing.posted == []
    for run in growing.cluster.launched[:2]:
        run.ended = ""
    growing.driver.has_ended = True
    growing.gang.leave((), 2.0)
    assert [run.is_cancelled for run in growing.cluster.launched] == [False, False] + [True] * 48


def test_a_worker_that_is_to_leave_is_told_once_and_its_place_launched_again(growing: GrowingScene) -> None:
    growing.come(0, 1)
    run = growing.cluster.launched[0]
    run.leaving = "decommissioned"
    growing.attend()
    growing.attend()
    assert growing.posted == [WorkerLeaving(WorkerId(0, 0), "decommissioned")]
    run.ended = ""
    growing.attend()
    assert growing.posted[1:] == [WorkerLost(WorkerId(0, 0), "decommissioned", with_node=True)]
    growing.attend(0.1)
    assert [(again.indexes, again.incarnation) for again in growing.cluster.launched[50:]] == [((0,), 1)]
    assert not growing.driver.lines


def test_places_that_wait_are_no_futile_launches_but_what_fails_everywhere_ends_the_search(
    growing: GrowingScene,
) -> None:
    for count in range(1, 2 * MAX_FUTILE_LAUNCHES + 1):
        assert not any(isinstance(event, StopRequested) for event in growing.posted)
        growing.cluster.launched[count].ended = "no such module"
        growing.attend(0.1)
    [stop] = [event for event in growing.posted if isinstance(event, StopRequested)]
    assert "no such module" in str(stop.error)


def test_a_node_on_which_nothing_runs_ends_no_search_that_others_run(growing: GrowingScene) -> None:
    growing.come(0)
    for count in range(1, 20):
        growing.cluster.launched[count].ended = "no such module"
        growing.attend(0.1)
    assert not any(isinstance(event, StopRequested) for event in growing.posted)


def test_a_place_that_fails_again_and_again_beside_others_that_run_is_launched_less_and_less_often(
    growing: GrowingScene,
) -> None:
    growing.come(0)
    growing.cluster.launched[1].ended = "no such module"
    for _ in range(600):  # a minute
        growing.attend(0.1)
        for run in growing.cluster.launched[50:]:
            run.ended = "no such module"
    assert 3 <= len(growing.cluster.launched) - 50 <= 20


def test_a_cluster_that_grants_nothing_is_waited_for_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = GrowingScene(monkeypatch, slots=0)
    scene.attend(GROWTH_PATIENCE - 1)
    assert scene.posted == []
    scene.attend(2)
    [stop] = scene.posted
    assert "had 0 of the 1 worker that a trial needs for 600 s, though 50 were requested" in str(stop.error)


def test_places_that_wait_are_taken_back_while_workers_have_nothing_to_do(growing: GrowingScene) -> None:
    growing.come(0, 1)
    first = growing.driver.snapshot.workers[0]
    first.state = "idle"
    growing.attend(IDLE_PATIENCE - 1)
    assert not any(run.is_cancelled for run in growing.cluster.launched)
    growing.attend(2)
    assert sum(run.is_cancelled for run in growing.cluster.launched) == 48
    growing.attend(100)
    assert len(growing.cluster.launched) == 50
    first.state = "busy"
    growing.attend()
    growing.attend(IDLE_PATIENCE - 1)
    assert len(growing.cluster.launched) == 50
    growing.attend(2)
    assert len(growing.cluster.launched) == 98
    assert {run.incarnation for run in growing.cluster.launched[50:]} == {1}
    assert not any(isinstance(event, StopRequested) for event in growing.posted)


# -- how many workers a run gets, and what the user reads while none comes ---------------------------------


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


def test_the_wait_for_workers_begins_after_a_long_load_of_the_function() -> None:
    fake = Fake("why")
    fake.now = before = 2 * START_PATIENCE
    until = watch(fake)
    until(before + JOIN_PATIENCE - 1)
    assert (fake.told, fake.posted) == ([], [])
    until(before + JOIN_PATIENCE + 5)
    assert fake.told == ["still waiting for engine='spark' to start 2 workers: why"]
    assert fake.posted == []


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
    fake = Fake("")
    fake.is_elastic = True
    until = watch(fake, 8)
    until(JOIN_PATIENCE + 5)
    assert fake.told == []
    fake.reason = "why"
    until(JOIN_PATIENCE + 10)
    assert fake.told == ["still waiting for engine='spark' to start one of 8 workers: why"]
