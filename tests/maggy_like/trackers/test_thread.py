"""A tracker that fails, hangs or is slow costs a run nothing, and what it has not got is said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from maggy_like.protocol.endings import Ending
from maggy_like.trackers import thread as module
from maggy_like.trackers.backlog import Backlog, Cursor, Entry, merged
from maggy_like.trackers.base import Session, TrackedEnd, TrackedRun, Tracker, TrackerUnavailable
from maggy_like.trackers.thread import TrackerThread
from optimizers.core.events import AttemptEnded, Event, Measured, TrialCreated
from optimizers.core.trial import TrialState

END = TrackedEnd(Ending.COMPLETED, "loss")


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


class Followed(TrackerThread):
    """A tracker that follows a run whose events the test puts."""

    def __init__(self, tracker: Tracker, history: tuple[Event, ...] = ()) -> None:
        self.backlog = Backlog(lambda number: iter(()))
        run = TrackedRun("run", "/runs/run", {}, bool(history), history)
        super().__init__(tracker, run, Cursor(self.backlog), interval=0.0)

    def put(self, event: Event) -> None:
        self.backlog.put([entry(event)])

    def finish(self, end: TrackedEnd) -> None:
        super().finish(end)
        self.backlog.close()


def entry(event: Event) -> Entry:
    return Entry(0, event, event.value if isinstance(event, AttemptEnded) else None, 0.0)


begin = Followed


def finish(thread: Followed, patience: float = 60.0) -> list[str]:
    thread.finish(END)
    thread.wait(time.monotonic() + patience)
    return thread.take_notes()


def test_all_is_told_in_order_and_the_end_last() -> None:
    tracker = Noting()
    events: list[Event] = [TrialCreated(0, {"x": 1.0}), measured(0, 1), AttemptEnded(0, 1, TrialState.COMPLETED, 1.0)]
    thread = begin(tracker, (TrialCreated(9, {}),))
    for event in events:
        thread.put(event)
    assert finish(thread) == []
    assert tracker.told == [TrialCreated(9, {}), *events, END]


def test_measurements_of_a_trial_are_put_together_until_something_else_happens_to_it() -> None:
    backlog = Backlog(pytest.fail)
    cursor = Cursor(backlog)
    ended = AttemptEnded(0, 1, TrialState.PAUSED, 1.0)
    for event in (measured(0, 1), measured(1, 1), measured(0, 2), ended, measured(0, 3, attempt=2)):
        backlog.put([entry(event)])
    backlog.close()
    together = Measured(0, 1, "loss", {"loss": ([1, 2], [1.0, 2.0])})
    taken = [item.event for item in merged(cursor.take())]
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
    (note,) = finish(thread, patience=0.0)
    assert "noting did not receive 26 of the run's events (it is slow)" in note
    assert "load_run('/runs/run').watch(callbacks=[...])" in note
    hangs.set()
    thread.wait(time.monotonic() + 60)
    assert isinstance(tracker.told[1], AttemptEnded)


def test_one_that_takes_nothing_is_named_and_the_end_waits_for_a_part_of_its_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs, hanging = threading.Event(), threading.Event()

    def hang(event: Event | None) -> None:
        hanging.set()
        hangs.wait()

    thread = begin(Noting(hang, patience=0.03))
    hanging.wait(60)
    monkeypatch.setattr(module, "SAID_AFTER", 0.0)
    assert thread.take_notes() == ["noting has not answered for 0 s; the run continues meanwhile"]
    assert thread.take_notes() == []
    assert len(finish(thread, patience=3600.0)) == 1
    hangs.set()


def test_one_that_asks_no_server_is_waited_for_although_it_is_silent() -> None:
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

    thread = begin(OnThisMachine(hang, patience=0.0))
    thread.finish(END)
    thread.wait(time.monotonic() + 60, look)
    assert thread.take_notes() == []


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
