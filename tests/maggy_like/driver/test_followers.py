"""Displays, callbacks and trackers that are slow, hang or fail: nothing of that reaches the search."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from maggy_like.display.base import LineBuffer, LogLine, Snapshot
from maggy_like.display.plain import PlainDisplay
from maggy_like.driver.followers import DisplayFollower, Followers, read_callbacks
from maggy_like.driver.settings import FileSettings
from maggy_like.driver.stream import Backlog, Cursor, Entry, entry_of
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.storage.run_paths import RunPaths
from maggy_like.trackers import base
from maggy_like.trackers.base import Session, TrackedEnd, TrackedRun, Tracker, TrackerUnavailable, tracked
from optimizers import Choice, Float, RandomSearch
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, Measured, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.space import Config

SNAPSHOT = Snapshot("run", "here", "random", "max", Phase.SEARCHING, 0.0)
PATIENCE = 300.0
SPACE = {"x": Float(0, 1), "layers": Choice([[64, [32]], []])}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "INTERVAL", 0.0)


class Following(Followers):
    """Functions or trackers that follow a run whose events the test puts, and that has had earlier trials."""

    def __init__(self, *callbacks: Any, in_threads: bool = True, earlier: int = 0) -> None:
        self.stops: list[BaseException] = []
        self.backlog, self.lines = Backlog(lambda number: iter(())), LineBuffer(100, 10_000)
        self.study = Study(SPACE, RandomSearch())
        for trial in range(earlier):
            self.study.apply(TrialCreated(trial, {"x": 0.5}))
        super().__init__(
            self,  # type: ignore[arg-type]  # it has no snapshot, which only a display needs
            callbacks,
            self.stops.append,
            FileSettings("run", RunPaths("runs/run", "runs/run"), resume=bool(earlier)),
            "random",
            in_threads=in_threads,
        )

    @property
    def said(self) -> list[str]:
        return [line.text for line in self.lines]

    def put(self, *events: Event) -> None:
        self.backlog.put([entry(event) for event in events])


def entry(event: Event) -> Entry:
    return Entry(0, event, event.value if isinstance(event, AttemptEnded) else None, 0.0)


def finish(following: Following, is_hurried: Callable[[], bool] = lambda: False) -> list[str]:
    following.finish(Ending.COMPLETED, is_hurried)
    return following.said


def measured(trial: int, step: int, attempt: int = 1) -> Measured:
    return Measured(trial, attempt, "loss", {"loss": ([step], [float(step)])})


def events(count: int) -> list[Event]:
    return [measured(0, step) for step in range(1, count + 1)]


# -- functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_thread", [True, False])
def test_a_function_gets_each_event_by_itself_and_in_order(in_thread: bool) -> None:
    seen: list[Event] = []
    run = Following(seen.append, in_threads=in_thread)
    for event in events(8):
        run.put(event)
        run.look()
    assert finish(run) == []
    assert seen == events(8)


def test_a_function_that_hangs_misses_events_and_is_told_how_to_get_them() -> None:
    hangs, hanging = threading.Event(), threading.Event()

    def slow(event: Event) -> None:
        hanging.set()
        hangs.wait(PATIENCE)

    run = Following(slow)
    run.put(TrialCreated(0, {"x": 1.0}))
    assert hanging.wait(PATIENCE)
    run.put(*events(25))
    (line,) = finish(run, lambda: True)
    hangs.set()
    assert "slow (test_followers.py, line " in line
    assert "is slow and has missed 26 events" in line
    assert "load_run('runs/run').watch(callbacks=[...])" in line


def test_a_function_that_raises_is_reported_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []

    def mistaken(event: Event) -> None:
        seen.append(event)
        raise ValueError("a mistake")

    run = Following(mistaken, in_threads=False)
    run.put(*events(3))
    run.look()
    said = finish(run)
    assert len(seen) == 1
    assert said[0].startswith("callback ")
    assert "mistaken (test_followers.py, line " in said[0]
    assert "raised ValueError: a mistake; it gets no more events, and the search continues" in said[0]
    assert len(said) == len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None
    assert not run.stops


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("in_threads", [True, False])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (asyncio.CancelledError("too late"), "raised CancelledError: too late; it gets no more events"),
        (Unprintable(), "raised Unprintable: <exception str() failed>; it gets no more events"),
    ],
)
def test_a_function_that_raises_anything_is_reported(error: BaseException, said: str, *, in_threads: bool) -> None:
    def mistaken(event: Event) -> None:
        raise error

    run = Following(mistaken, in_threads=in_threads)
    run.put(*events(3))
    (line,) = finish(run)
    assert said in line
    assert not run.stops


def test_a_mock_is_called_with_each_event() -> None:
    (listener,) = read_callbacks([mock.MagicMock()], "runs")
    run = Following(listener)
    run.put(*events(3))
    assert finish(run) == []
    assert [call.args for call in listener.call_args_list] == [(event,) for event in events(3)]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_function_can_end_the_run_and_gets_the_rest_of_the_events(kind: type[BaseException]) -> None:
    seen: list[Event] = []

    def enough(event: Event) -> None:
        seen.append(event)
        if len(seen) == 2:
            raise kind

    run = Following(enough)
    run.put(*events(4))
    finish(run)
    assert seen == events(4)
    assert [type(error) for error in run.stops] == [kind]


def a_trial() -> tuple[Event, ...]:
    config: Config = {"x": 0.5, "layers": [64, [32]]}
    return (
        TrialCreated(0, dict(config)),
        AttemptStarted(0, 1, 0, 9, 0.0, dict(config)),
        Measured(0, 1, "score", {"score": ([1, 2], [0.5, 0.75])}),
        CheckpointSaved(0, 1, 2, "0/2"),
        AttemptEnded(0, 1, TrialState.COMPLETED, 1.0, 0.75, {"loss": 0.1}, attributes={"words": ["a", {"b": "c"}]}),
    )


def spoil(value: Any) -> None:
    """Change all that can be changed in what a callback is given."""
    if isinstance(value, dict | list | tuple):
        for each in list(value.values() if isinstance(value, dict) else value):
            spoil(each)
    if isinstance(value, dict | list):
        value.clear()


def spoil_event(event: Event) -> None:
    for name in event.__struct_fields__:
        spoil(getattr(event, name))


def test_what_a_callback_changes_reaches_neither_the_ledger_nor_another_callback() -> None:
    seen: list[Event] = []
    run = Following(spoil_event, seen.append, in_threads=False)
    other = Study(SPACE, RandomSearch())
    for number, (event, same) in enumerate(zip(a_trial(), a_trial(), strict=True)):
        run.study.apply(event)
        run.backlog.put([entry_of(number, event, None, run.study, 0.0)])
        run.look()
        other.apply(same)
    assert (run.study.trials, run.study.best) == (other.trials, other.best)
    assert run.study.trials[0].config["layers"] == [64, [32]]
    assert seen[:4] == list(a_trial()[:4])
    assert seen[4] == AttemptEnded(
        0, 1, TrialState.COMPLETED, 1.0, 0.75, {"loss": 0.1}, attributes={"words": ["a", {"b": "c"}]},
        config={"x": 0.5, "layers": [64, [32]]},
    )  # fmt: skip


def test_what_neither_the_backlog_nor_the_journal_has_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(number: int) -> Any:
        raise OSError("the disk is gone")

    backlog = Backlog(refuse, most=10)
    cursor = Cursor(backlog)
    backlog.put(Entry(number, event, None, 0.0) for number, event in enumerate(events(25), 1))
    assert cursor.take() == []
    assert [entry.number for entry in cursor.take()] == list(range(16, 26))
    assert cursor.lost == 15
    assert "15 events that a callback has not received cannot be read from the journal: the disk is gone" in caplog.text


def test_an_event_costs_the_same_however_many_were_passed_on_before() -> None:
    assert seconds_per_event(earlier=100_000) < 10 * seconds_per_event(earlier=10)


def seconds_per_event(earlier: int) -> float:
    """Return the core time of this thread for adding an event and taking it, after others that the backlog keeps."""
    backlog = Backlog(pytest.fail)
    cursor, entry = Cursor(backlog), Entry(1, TrialCreated(0, {}), None, 0.0)
    backlog.put([entry] * earlier)
    cursor.take()
    before = time.thread_time()
    for _ in range(300):
        backlog.put([entry])
        assert cursor.take() == [entry]
    return (time.thread_time() - before) / 300


# -- displays -------------------------------------------------------------------------------------


class Failing:
    """A display whose second update fails."""

    updates = 0

    def start(self, snapshot: Snapshot) -> None:
        pass

    def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        self.updates += 1
        if self.updates == 2:
            raise ValueError("no such cell")

    def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
        raise AssertionError("it has been replaced")


@pytest.fixture
def source() -> Any:
    """What a display follows."""
    return SimpleNamespace(snapshot=SNAPSHOT, lines=LineBuffer(100, 10_000))


def show_three_lines(follower: DisplayFollower, source: Any) -> None:
    for line in ("first", "second", "third"):
        source.lines.append(LogLine(None, line))
        follower.look()
    follower.finish(lambda: False)


def test_plain_lines_take_the_place_of_a_display_that_fails(
    source: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    follower = DisplayFollower(Failing(), source, in_thread=False)
    show_three_lines(follower, source)
    shown = capsys.readouterr().out
    assert "third" in shown
    assert "0 trials" in shown
    (record,) = caplog.records
    assert "the display failed: ValueError: no such cell" in record.getMessage()
    assert record.exc_info is not None


def test_a_plain_display_that_fails_once_continues(source: Any, capsys: pytest.CaptureFixture[str]) -> None:
    class FailingPlain(Failing, PlainDisplay):
        start, finish = PlainDisplay.start, PlainDisplay.finish

    follower = DisplayFollower(FailingPlain(), source, in_thread=False)
    show_three_lines(follower, source)
    assert "third" in capsys.readouterr().out


def test_a_closed_stdout_ends_the_display_alone(source: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
    follower = DisplayFollower(PlainDisplay(), source, in_thread=False)
    follower.look()
    follower.finish(lambda: False)


@pytest.mark.parametrize("call", ["start", "update"])
def test_neither_the_start_nor_the_end_of_a_run_waits_for_a_display_that_blocks(
    source: Any, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    blocks, blocking = threading.Event(), threading.Event()

    class Blocking(Failing):
        def start(self, snapshot: Snapshot) -> None:
            self.block("start")

        def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
            self.block("update")

        def block(self, now: str) -> None:
            if now == call:
                assert threading.current_thread() is not threading.main_thread()
                blocking.set()
                blocks.wait(PATIENCE)

        def finish(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
            pass

    follower = DisplayFollower(Blocking(), source, in_thread=True)
    assert blocking.wait(PATIENCE)
    follower.finish(lambda: True)  # after a second Ctrl-C
    assert "Blocking has not shown the end of the run" in caplog.text
    blocks.set()


# -- trackers -------------------------------------------------------------------------------------

END = TrackedEnd(Ending.COMPLETED, "value", files="runs/run/files")


@dataclass
class Noting(Tracker, Session):
    """Records each call, and calls ``act`` before it."""

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


def test_all_is_told_in_order_and_the_end_last() -> None:
    tracker = Noting()
    ended = AttemptEnded(1, 1, TrialState.COMPLETED, 1.0)
    all_events = (TrialCreated(1, {"x": 1.0}), measured(1, 1), ended)
    run = Following(tracker, earlier=1)
    run.put(*all_events)
    assert finish(run) == []
    assert tracker.told == [TrialCreated(0, {"x": 0.5}), *all_events, END]


def test_measurements_of_a_trial_are_put_together_until_something_else_happens_to_it() -> None:
    backlog = Backlog(pytest.fail)
    cursor = Cursor(backlog)
    ended = AttemptEnded(0, 1, TrialState.PAUSED, 1.0)
    given = (measured(0, 1), measured(1, 1), measured(0, 2), ended, measured(0, 3, attempt=2))
    backlog.put(entry(event) for event in given)
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
    run = Following(tracker)
    hanging.wait(60)
    run.put(*events(25), AttemptEnded(0, 1, TrialState.COMPLETED, 1.0))
    (note,) = finish(run, lambda: True)
    assert "noting did not receive 26 of the run's events (it is slow)" in note
    assert "load_run('runs/run').watch(callbacks=[...])" in note
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

    run = Following(Noting(hang, patience=3600.0))
    hanging.wait(60)
    monkeypatch.setattr(base, "SAID_AFTER", 0.0)
    monkeypatch.setattr(base, "SILENCE", 1e-5)
    said = ["noting has not answered for 0 s; the run continues meanwhile"]
    run.look()
    assert run.said == said
    run.look()
    assert run.said == said
    assert len(finish(run)) == 2
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

    monkeypatch.setattr(base, "SILENCE", 0.0)
    assert finish(Following(OnThisMachine(hang)), look) == []


def test_a_server_that_comes_back_is_told_what_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0.0, 0.0))
    tries: list[Event | None] = []
    through = threading.Event()

    def refuse_twice(event: Event | None) -> None:
        tries.append(event)
        if tries.count(event) < 3:
            raise TrackerUnavailable("connection refused")
        if event is not None:
            through.set()

    tracker = Noting(refuse_twice)
    run = Following(tracker)
    run.put(measured(0, 1))
    assert through.wait(60)
    notes = finish(run)
    assert notes == ["noting does not answer (connection refused); the run continues meanwhile"] * 2
    assert tracker.told == [measured(0, 1), END]


def test_a_server_that_is_gone_at_the_end_is_not_waited_for() -> None:
    def refuse(event: Event | None) -> None:
        raise TrackerUnavailable("connection refused")

    run = Following(Noting(refuse))
    run.put(measured(0, 1))
    *_, note = finish(run)
    assert "did not receive 1 of the run's events (connection refused)" in note


def test_what_it_refuses_is_left_out_and_the_rest_is_told() -> None:
    def refuse(event: Event | None) -> None:
        if isinstance(event, Measured):
            raise ValueError("no such metric")

    tracker = Noting(refuse)
    run = Following(tracker)
    run.put(measured(0, 1), TrialCreated(1, {}))
    (note,) = finish(run)
    assert "did not receive 1 of the run's events (ValueError: no such metric)" in note
    assert tracker.told == [TrialCreated(1, {}), END]
