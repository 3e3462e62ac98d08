"""Displays and callbacks that are slow, hang or fail: nothing of that reaches the search."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import train_functions as fns

from maggy_like import FailurePolicy, Float, lagom, load_run
from maggy_like.display.base import LineBuffer, LogLine, Snapshot
from maggy_like.display.plain import PlainDisplay
from maggy_like.driver import followers
from maggy_like.driver.followers import DisplayFollower, Followers
from maggy_like.driver.settings import FileSettings
from maggy_like.driver.stream import Backlog, Cursor, Entry, JournalReader
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.storage.journal import backend_of
from maggy_like.storage.run_paths import RunPaths
from maggy_like.trackers.base import Session, TrackedEnd, TrackedRun, Tracker
from optimizers.core.events import AttemptEnded, Event, Measured, TrialCreated
from optimizers.core.study import Study
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.space.search_space import SearchSpace

SNAPSHOT = Snapshot("run", "here", "random", "max", Phase.SEARCHING, 0.0)
PATIENCE = 300.0

Stops = list[BaseException]


class Following(Followers):
    """A function that follows a run whose events the test puts."""

    def __init__(self, function: Callable[[Event], None], in_thread: bool = True) -> None:
        self.stops, self._number = Stops(), 0
        self.backlog, self.lines = Backlog(lambda number: iter(())), LineBuffer(100, 10_000)
        self.study = Study(SearchSpace({"x": Float(0, 1)}), RandomSearch())
        super().__init__(
            self,  # type: ignore[arg-type]  # it has no snapshot, which only a display needs
            [function],
            self.stops.append,
            FileSettings("run", RunPaths("runs/run", "runs/run"), resume=False),
            "random",
            in_threads=in_thread,
        )

    @property
    def said(self) -> list[str]:
        return [line.text for line in self.lines]

    def put(self, event: Event) -> None:
        self._number += 1
        self.backlog.put([Entry(self._number, event, None, 0.0)])


def finish(following: Following, is_hurried: bool = False) -> None:
    following.finish(Ending.COMPLETED, lambda: is_hurried)


def entries_in(folder: str) -> list[Entry]:
    return list(itertools.chain.from_iterable(JournalReader(backend_of(folder)).look()))


def events(count: int) -> list[Event]:
    return [Measured(0, 1, "loss", {"loss": ([step], [0.5])}) for step in range(1, count + 1)]


@pytest.mark.parametrize("in_thread", [True, False])
def test_a_function_gets_each_event_by_itself_and_in_order(in_thread: bool) -> None:
    seen: list[Event] = []
    run = Following(seen.append, in_thread)
    for event in events(8):
        run.put(event)
        run.look()
    finish(run)
    assert seen == events(8)
    assert not run.said


def test_a_function_that_hangs_misses_events_and_is_told_how_to_get_them() -> None:
    hangs, hanging = threading.Event(), threading.Event()

    def slow(event: Event) -> None:
        hanging.set()
        hangs.wait(PATIENCE)

    run = Following(slow)
    run.put(TrialCreated(0, {"x": 1.0}))
    assert hanging.wait(PATIENCE)
    for event in events(25):
        run.put(event)
    finish(run, is_hurried=True)
    hangs.set()
    (line,) = run.said
    assert "slow (test_followers.py, line " in line
    assert "is slow and has missed 26 events" in line
    assert "load_run('runs/run').watch(callbacks=[...])" in line


def test_a_function_that_raises_is_reported_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []

    def mistaken(event: Event) -> None:
        seen.append(event)
        raise ValueError("a mistake")

    run = Following(mistaken, False)
    for event in events(3):
        run.put(event)
    run.look()
    finish(run)
    said = run.said
    assert len(seen) == 1
    assert said[0].startswith("callback ")
    assert "mistaken (test_followers.py, line " in said[0]
    assert "raised ValueError: a mistake; it gets no more events, and the search continues" in said[0]
    assert len(said) == len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None
    assert not run.stops


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_function_can_end_the_run_and_gets_the_rest_of_the_events(kind: type[BaseException]) -> None:
    seen: list[Event] = []

    def enough(event: Event) -> None:
        seen.append(event)
        if len(seen) == 2:
            raise kind

    run = Following(enough)
    for event in events(4):
        run.put(event)
    finish(run)
    assert seen == events(4)
    assert [type(error) for error in run.stops] == [kind]


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


def test_plain_lines_take_the_place_of_a_display_that_fails(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    source: Any = SimpleNamespace(snapshot=SNAPSHOT, lines=LineBuffer(100, 10_000))
    follower = DisplayFollower(Failing(), source, in_thread=False)
    for line in ("first", "second", "third"):
        source.lines.append(LogLine(None, line))
        follower.look()
    follower.finish(lambda: False)
    shown = capsys.readouterr().out
    assert "third" in shown
    assert "0 trials" in shown
    (record,) = caplog.records
    assert "the display failed: ValueError: no such cell" in record.getMessage()
    assert record.exc_info is not None


def test_a_plain_display_that_fails_once_continues(capsys: pytest.CaptureFixture[str]) -> None:
    class FailingPlain(Failing, PlainDisplay):
        start, finish = PlainDisplay.start, PlainDisplay.finish

    source: Any = SimpleNamespace(snapshot=SNAPSHOT, lines=LineBuffer(100, 10_000))
    follower = DisplayFollower(FailingPlain(), source, in_thread=False)
    for line in ("first", "second", "third"):
        source.lines.append(LogLine(None, line))
        follower.look()
    follower.finish(lambda: False)
    assert "third" in capsys.readouterr().out


def test_a_closed_stdout_ends_the_display_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
    source: Any = SimpleNamespace(snapshot=SNAPSHOT, lines=LineBuffer(100, 10_000))
    follower = DisplayFollower(PlainDisplay(), source, in_thread=False)
    follower.look()
    follower.finish(lambda: False)


@pytest.mark.parametrize("call", ["start", "update"])
def test_neither_the_start_nor_the_end_of_a_run_waits_for_a_display_that_blocks(
    call: str, caplog: pytest.LogCaptureFixture
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

    source: Any = SimpleNamespace(snapshot=SNAPSHOT, lines=LineBuffer(100, 10_000))
    follower = DisplayFollower(Blocking(), source, in_thread=True)
    assert blocking.wait(PATIENCE)
    follower.finish(lambda: True)  # after a second Ctrl-C
    assert "Blocking has not shown the end of the run" in caplog.text
    blocks.set()


# -- whole searches ------------------------------------------------------------------------------------


def wait_for_the_driver(event: Event) -> None:
    """Return once the driver's thread has ended."""
    for thread in threading.enumerate():
        if thread.name == "maggy-driver":
            thread.join(PATIENCE)


def search(train: Callable[..., Any], folder: Path, **options: Any) -> Any:
    defaults = {"engine": "local", "workers": 2, "optimizer": "random", "n_trials": 4, "progress": False}
    return lagom(train, {"x": Float(0, 1)}, directory=folder, **{**defaults, **options})


@pytest.mark.e2e
def test_lost_workers_are_replaced_while_a_callback_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.driver.followers.FUNCTION_PATIENCE", 0.0)
    hangs = threading.Event()

    def kill_the_agent_once(x: float) -> float:
        import signal

        import psutil

        try:
            (tmp_path / str(x)).touch(exist_ok=False)
        except FileExistsError:
            return x
        os.kill(psutil.Process().parents()[1].pid, signal.SIGKILL)
        threading.Event().wait()
        return 0.0

    result = search(
        kill_the_agent_once,
        tmp_path,
        n_trials=2,
        failures=FailurePolicy(max_attempts=5),
        callbacks=[lambda event: hangs.wait(PATIENCE)],
    )
    hangs.set()
    assert result.ending == "completed"
    assert [trial.state for trial in result.trials] == ["completed"] * 2
    assert max(trial.attempt for trial in result.trials) > 1


class Noting(Tracker):
    """A tracker that remembers the values of ended attempts."""

    name, patience, is_remote = "noting", PATIENCE, False

    def __init__(self) -> None:
        self.ends: list[tuple[int, int, float | None]] = []

    def check(self, directory: str) -> None:
        pass

    def open(self, run: TrackedRun) -> Session:
        return NotingSession(self)


class NotingSession(Session):
    def __init__(self, tracker: Noting) -> None:
        self.tracker = tracker

    def record(self, event: Event, now: float) -> None:
        if isinstance(event, AttemptEnded):
            self.tracker.ends.append((event.trial, event.attempt, event.value))

    def close(self, end: TrackedEnd, now: float) -> None:
        pass


@pytest.mark.e2e
def test_a_tracker_gets_the_value_as_of_each_event_live_and_later(tmp_path: Path) -> None:
    live, later = Noting(), Noting()
    result = search(
        fns.climb_on,
        tmp_path,
        optimizer="asha",
        n_trials=9,
        max_budget=9,
        seed=1,
        callbacks=[wait_for_the_driver, live],
    )
    known = [
        (entry.event.trial, entry.event.attempt, entry.value)
        for entry in entries_in(str(result.directory))
        if isinstance(entry.event, AttemptEnded)
    ]
    assert len(known) > len(result.trials)  # some were promoted
    assert live.ends == known
    load_run(result.directory).watch(progress=False, callbacks=[later])
    assert later.ends == known


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["path", "memory"])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_callback_that_is_slow_gets_each_event_once_and_as_it_was(
    kind: str, is_resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backlog keeps 5 events, and the callback gets its first one after the last one was added."""
    folder = str(tmp_path) if kind == "path" else f"memory://{tmp_path.name}-{is_resumed}"
    monkeypatch.setattr("maggy_like.storage.journal.object_store.SEGMENT", 1000)
    monkeypatch.setattr("maggy_like.storage.journal.journal.BLOCK", 1000)
    monkeypatch.setattr("maggy_like.driver.stream.BLOCK", 1000)
    options: dict[str, Any] = {
        "engine": "inline",
        "optimizer": "asha",
        "max_budget": 9,
        "seed": 1,
        "name": "run",
        "progress": False,
    }
    space = {"x": Float(0, 1)}
    before: list[Entry] = []
    if is_resumed:
        first = lagom(fns.climb_on, space, directory=folder, n_trials=3, **options)
        before = entries_in(str(first.directory))
    monkeypatch.setattr("maggy_like.driver.loop.Backlog", partial(Backlog, most=5))
    monkeypatch.setattr(Followers, "look", lambda run: None)
    late, tracker = list[Event](), Noting()
    result = lagom(
        fns.climb_on,
        space,
        directory=folder,
        n_trials=9,
        resume=is_resumed,
        callbacks=[late.append, tracker],
        **options,
    )
    monkeypatch.undo()
    every, later = list[Event](), Noting()
    load_run(result.directory).watch(progress=False, callbacks=[every.append, later])
    assert late == every[len(before) :]
    assert len(late) > 20
    known = 3 if is_resumed else 0  # a tracker gets each earlier trial once more
    assert tracker.ends[known:] == later.ends[sum(isinstance(entry.event, AttemptEnded) for entry in before) :]


@pytest.mark.e2e
def test_watching_waits_for_a_callback_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = search(fns.climb, tmp_path, engine="inline", workers=1, max_budget=9)
    monkeypatch.setattr("maggy_like.driver.followers.FUNCTION_PATIENCE", 0.0)
    monkeypatch.setattr("maggy_like.cluster_driver.follow.Backlog", partial(Backlog, most=5))
    goes_on, seen = threading.Event(), list[Event]()

    def slow(event: Event) -> None:
        goes_on.wait(PATIENCE)
        seen.append(event)

    sleep = threading.Event().wait
    monkeypatch.setattr("maggy_like.cluster_driver.follow.time.sleep", lambda seconds: goes_on.set() or sleep(0.001))
    load_run(result.directory).watch(progress=False, callbacks=[slow])
    known = entries_in(str(result.directory))
    assert seen == [entry.event for entry in known]


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


@pytest.mark.e2e
def test_a_callback_that_exits_ends_the_run_with_an_error(tmp_path: Path) -> None:
    def leave(event: Event) -> None:
        if isinstance(event, AttemptEnded):
            sys.exit(3)

    with pytest.raises(SystemExit) as caught:
        search(lambda x: x, tmp_path, n_trials=10_000, name="run", callbacks=[leave])
    assert caught.value.code == 3
    assert load_run(tmp_path / "run").ending == "error"


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ["local", "inline"])
def test_callbacks_run_in_the_callers_thread_only_if_trials_do(engine: str, tmp_path: Path) -> None:
    threads = set[threading.Thread]()
    search(
        lambda x: x, tmp_path, engine=engine, workers=1, callbacks=[lambda _: threads.add(threading.current_thread())]
    )
    assert len(threads) == 1
    assert (threads == {threading.current_thread()}) is (engine == "inline")


@pytest.mark.e2e
def test_a_failed_callback_is_logged_without_a_display(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def mistaken(event: Event) -> None:
        raise ValueError("a mistake")

    with caplog.at_level(logging.WARNING):
        assert search(lambda x: x, tmp_path, callbacks=[mistaken]).ending == "completed"
    assert "raised ValueError: a mistake" in caplog.text
    (record,) = [each for each in caplog.records if each.exc_info is not None]
    assert "a mistake" in record.getMessage()


@pytest.mark.e2e
@pytest.mark.parametrize("log", ["default", "stdout", "file"])
def test_a_failed_callback_is_printed_once_where_log_and_display_share_a_terminal(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(event: Event) -> None:
        raise ValueError("a mistake")

    file, logger = logging.FileHandler(tmp_path / "log"), followers._log
    handlers = {"default": [], "stdout": [logging.StreamHandler(sys.stdout)], "file": [file]}
    monkeypatch.setattr(logger, "propagate", False)  # to the handlers of pytest
    monkeypatch.setattr(logger, "handlers", handlers[log])
    search(lambda x: x, tmp_path, callbacks=[mistaken], progress="plain")
    file.close()
    printed = "".join(capsys.readouterr())
    assert printed.count("raised ValueError: a mistake; it gets no more events") == 1
    assert printed.count('raise ValueError("a mistake")') == (log != "file")
    assert (tmp_path / "log").read_text().count('raise ValueError("a mistake")') == (log == "file")
