"""A tracker that fails, hangs or is slow costs a run nothing, and what it has not got is said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from maggy_like.display.base import LineBuffer
from maggy_like.driver.followers import Followers
from maggy_like.driver.settings import FileSettings
from maggy_like.driver.stream import Backlog, Cursor, Entry
from maggy_like.protocol.endings import Ending
from maggy_like.storage.run_paths import RunPaths
from maggy_like.trackers import base as module
from maggy_like.trackers.base import Session, TrackedEnd, TrackedRun, Tracker, TrackerUnavailable, tracked
from optimizers.core.events import AttemptEnded, Event, Measured, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

END = TrackedEnd(Ending.COMPLETED, "value")


@dataclass
class Noting(Tracker, Session):
    """Notes what it is told; ``act`` is called before."""

    act: Callable[[Event | None], None] = lambda event: None
    told: list[Event | TrackedEnd] = field(default_factory=list)
    name: str = "noting"
    patience: float = 60.0

    def check(self, directory: str) -> None: ...

    def open(self, run: TrackedRun) -> Session:
        self.act(None)
        return self

    def record(self, event: Event, now: float) -> None:
        self.act(event)
        self.told.append(event)

    def close(self, end: TrackedEnd, now: float) -> None:
        self.told.append(end)


def measured(trial: int, step: int, attempt: int = 1) -> Measured:
    return Measured(trial, attempt, "loss", {"loss": ([step], [float(step)])})


class Followed(Followers):
    """A tracker that follows a run whose events the test puts, and that gets earlier trials first."""

    def __init__(self, tracker: Tracker, earlier: int = 0) -> None:
        self.study = Study(SearchSpace({"x": Float(0, 1)}), RandomSearch())
        for trial in range(earlier):
            self.study.apply(TrialCreated(trial, {"x": 0.5}))
        self.backlog, self.lines = Backlog(lambda number: iter(())), LineBuffer(99, 99_999)
        super().__init__(
            self,  # type: ignore[arg-type]  # it has no snapshot, which only a display needs
            [tracker],
            pytest.fail,  # type: ignore[arg-type]
            FileSettings("run", RunPaths("/runs/run", "/runs/run"), resume=bool(earlier)),
            "random",
            in_threads=True,
        )

    @property
    def said(self) -> list[str]:
        return [line.text for line in self.lines]

    def put(self, event: Event) -> None:
        self.backlog.put([entry(event)])


def entry(event: Event) -> Entry:
    return Entry(0, event, event.value if isinstance(event, AttemptEnded) else None, 0.0)


begin = Followed


def finish(followed: Followed, is_hurried: Callable[[], bool] = lambda: False) -> list[str]:
    followed.finish(Ending.COMPLETED, is_hurried)
    return followed.said


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.0)


def test_all_is_told_in_order_and_the_end_last() -> None:
    tracker = Noting()
    events: list[Event] = [TrialCreated(1, {"x": 1.0}), measured(1, 1), AttemptEnded(1, 1, TrialState.COMPLETED, 1.0)]
    thread = begin(tracker, earlier=1)
    for event in events:
        thread.put(event)
    assert finish(thread) == []
    assert tracker.told == [TrialCreated(0, {"x": 0.5}), *events, END]


def test_measurements_of_a_trial_are_put_together_until_something_else_happens_to_it() -> None:
    backlog = Backlog(pytest.fail)
    cursor = Cursor(backlog)
    ended = AttemptEnded(0, 1, TrialState.PAUSED, 1.0)
    for event in (measured(0, 1), measured(1, 1), measured(0, 2), ended, measured(0, 3, attempt=2)):
        backlog.put([entry(event)])
    backlog.close()
    together = Measured(0, 1, "loss", {"loss": ([1, 2], [1.0, 2.0])})
    taken = [item.event for item in tracked(cursor.take())]
    assert taken == [together, measured(1, 1), ended, measured(0, 3, attempt=2)]
    assert cursor.take() == []


def test_a_tracker_that_hangs_delays_nothing_and_gets_all_later() -> None:
    hangs, hanging = threading.Event(), threading.Event()

    def hang(event: Event | None) -> None:
        hanging.set()
        hangs.wait()

    tracker = Noting(hang)
    thread = begin(tracker)
    hanging.wait(60)
    for step in range(25):
        thread.put(measured(0, step))
    thread.put(AttemptEnded(0, 1, TrialState.COMPLETED, 1.0))
    (note,) = finish(thread, lambda: True)
    assert "noting did not receive 26 of the run's events (it is slow)" in note
    assert "load_run('/runs/run').watch(callbacks=[...])" in note
    hangs.set()
    for other in threading.enumerate():
        if other.name == "maggy-noting":
            other.join(60)
    assert isinstance(tracker.told[1], AttemptEnded)


def test_one_that_takes_nothing_is_named_and_the_end_waits_for_a_part_of_its_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs, hanging = threading.Event(), threading.Event()

    def hang(event: Event | None) -> None:
        hanging.set()
        hangs.wait()

    thread = begin(Noting(hang, patience=3600.0))
    hanging.wait(60)
    monkeypatch.setattr(module, "SAID_AFTER", 0.0)
    monkeypatch.setattr(module, "SILENCE", 1e-5)
    said = ["noting has not answered for 0 s; the run continues meanwhile"]
    thread.look()
    assert thread.said == said
    thread.look()
    assert thread.said == said
    assert len(finish(thread)) == 2
    hangs.set()


def test_one_that_asks_no_server_is_waited_for_although_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class OnThisMachine(Noting):
        is_remote: bool = False  # type: ignore[misc]

    goes_on, looks = threading.Event(), list[None]()

    def hang(event: Event | None) -> None:
        goes_on.wait()

    def look() -> bool:
        looks.append(None)
        if len(looks) == 2:  # by then a silent server would have been given up
            goes_on.set()
        return False

    monkeypatch.setattr(module, "SILENCE", 0.0)
    assert finish(begin(OnThisMachine(hang)), look) == []


def test_a_server_that_comes_back_is_told_what_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSES", (0.0, 0.0))
    tries: list[Event | None] = []
    through = threading.Event()

    def refuse_twice(event: Event | None) -> None:
        tries.append(event)
        if tries.count(event) < 3:
            raise TrackerUnavailable("connection refused")
        if event is not None:
            through.set()

    tracker = Noting(refuse_twice)
    thread = begin(tracker)
    thread.put(measured(0, 1))
    assert through.wait(60)
    notes = finish(thread)
    assert notes == ["noting does not answer (connection refused); the run continues meanwhile"] * 2
    assert tracker.told == [measured(0, 1), END]


def test_a_server_that_is_gone_at_the_end_is_not_waited_for() -> None:
    def refuse(event: Event | None) -> None:
        raise TrackerUnavailable("connection refused")

    thread = begin(Noting(refuse))
    thread.put(measured(0, 1))
    *_, note = finish(thread)
    assert "did not receive 1 of the run's events (connection refused)" in note


def test_what_it_refuses_is_left_out_and_the_rest_is_told() -> None:
    def refuse(event: Event | None) -> None:
        if isinstance(event, Measured):
            raise ValueError("no such metric")

    tracker = Noting(refuse)
    thread = begin(tracker)
    thread.put(measured(0, 1))
    thread.put(TrialCreated(1, {}))
    (note,) = finish(thread)
    assert "did not receive 1 of the run's events (ValueError: no such metric)" in note
    assert tracker.told == [TrialCreated(1, {}), END]
