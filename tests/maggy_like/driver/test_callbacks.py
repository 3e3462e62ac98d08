"""Callbacks in whole searches: whatever one does with what it is given, the search goes its way."""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import train_functions as fns

from maggy_like import FailurePolicy, Float, lagom, load_run
from maggy_like.driver import followers
from maggy_like.driver.followers import Followers
from maggy_like.driver.stream import Backlog, Entry, JournalReader
from maggy_like.storage.journal import backend_of, read_journal
from maggy_like.trackers.base import Session, TrackedEnd, TrackedRun, Tracker
from optimizers.core.events import AttemptEnded, Event
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.e2e

PATIENCE = 300.0


def entries_in(directory: str) -> list[Entry]:
    return list(itertools.chain.from_iterable(JournalReader(backend_of(directory)).look()))


def wait_for_the_driver(event: Event) -> None:
    """Return once the driver's thread has ended."""
    for thread in threading.enumerate():
        if thread.name == "maggy-driver":  # it may have ended already
            thread.join(PATIENCE)


def search(train: Callable[..., Any], directory: Path, **options: Any) -> Any:
    defaults = {"engine": "local", "workers": 2, "optimizer": "random", "n_trials": 4, "progress": False}
    return lagom(train, {"x": Float(0, 1)}, directory=directory, **{**defaults, **options})


def test_lost_workers_are_replaced_while_a_callback_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.driver.followers.FUNCTION_PATIENCE", 0.0)
    hangs = threading.Event()

    def kill_the_agent_once(x: float) -> float:
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


@pytest.mark.parametrize("kind", ["path", "memory"])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_callback_that_is_slow_gets_each_event_once_and_as_it_was(
    kind: str, is_resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backlog keeps 5 events, and the callback gets its first one after the last one was added."""
    directory = str(tmp_path) if kind == "path" else f"memory://{tmp_path.name}-{is_resumed}"
    block = 2000  # more than two of the longest records, since a look ends with a part of less than half a block
    monkeypatch.setattr("maggy_like.storage.journal.object_store.SEGMENT", block)
    monkeypatch.setattr("maggy_like.storage.journal.journal.BLOCK", block)
    monkeypatch.setattr("maggy_like.driver.stream.BLOCK", block)
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
        first = lagom(fns.climb_on, space, directory=directory, n_trials=3, **options)
        before = entries_in(str(first.directory))
    monkeypatch.setattr("maggy_like.driver.loop.Backlog", partial(Backlog, most=5))
    monkeypatch.setattr(Followers, "look", lambda run: None)
    late, tracker = list[Event](), Noting()
    result = lagom(
        fns.climb_on,
        space,
        directory=directory,
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


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_callbacks_run_in_the_callers_thread_only_if_trials_do(engine: str, tmp_path: Path) -> None:
    threads = set[threading.Thread]()
    search(
        lambda x: x, tmp_path, engine=engine, workers=1, callbacks=[lambda _: threads.add(threading.current_thread())]
    )
    assert len(threads) == 1
    assert (threads == {threading.current_thread()}) is (engine == "inline")


@pytest.mark.parametrize("log", ["default", "stdout", "file"])
def test_a_failed_callback_is_printed_once_where_log_and_display_share_a_terminal(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_callback_that_raises_keyboard_interrupt_ends_the_search_as_ctrl_c_does(tmp_path: Path) -> None:
    seen: list[Event] = []

    def enough(event: Event) -> None:
        if isinstance(event, AttemptEnded):
            raise KeyboardInterrupt

    result = search(lambda x: x, tmp_path, n_trials=10_000, workers=1, callbacks=[enough, seen.append])
    assert result.ending == "interrupted"
    assert len(result.trials) < 10_000
    ended = [event.trial for event in seen if isinstance(event, AttemptEnded) and event.state.is_final]
    assert ended == [trial.id for trial in result.trials if trial.state.is_final]


def test_a_run_lasts_as_long_as_its_search_and_not_as_its_callbacks(tmp_path: Path) -> None:
    ended: list[float] = []

    def wait_for_the_end(event: Event) -> None:
        if not ended:
            wait_for_the_driver(event)
            threading.Event().wait(0.5)  # more than the difference between two clocks
            ended.append(time.time())

    result = search(fns.climb, tmp_path, workers=1, n_trials=2, callbacks=[wait_for_the_end])
    journal = read_journal(backend_of(str(result.directory)))
    assert journal.ended.time <= ended[0]


def call_back(directory: Path, callback: Any, **options: Any) -> Any:
    """A short search in this process with one callback."""
    defaults = {"engine": "inline", "workers": 1, "n_trials": 6, "max_budget": 3, "name": "run"}
    return search(fns.climb, directory, callbacks=[callback], **{**defaults, **options})


class Mistaken:
    def __call__(self, event: Event) -> None:
        raise ValueError("a mistake")

    def take(self, event: Event) -> None:
        raise ValueError("a mistake")


def mistaken(event: Event) -> None:
    raise ValueError("a mistake")


@pytest.mark.parametrize(
    ("engine", "callback", "name"),
    [
        ("inline", mistaken, "mistaken"),
        ("local", mistaken, "mistaken"),
        ("inline", Mistaken(), "Mistaken"),
        ("inline", Mistaken().take, "take"),
        ("inline", partial(Mistaken()), "Mistaken"),
    ],
)
def test_a_callback_that_raises_is_logged_once_with_where_it_was_written_and_its_traceback(
    engine: str, callback: Any, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert call_back(tmp_path, callback, engine=engine).ending == "completed"
    (record,) = caplog.records
    line = r"test_callbacks.py, line \d+"
    assert re.match(rf"callback {name} \({line}\) raised ValueError: a mistake; it gets no more", record.getMessage())
    assert str(record.exc_info[1]) == "a mistake"


def test_a_tracker_that_cannot_begin_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Unreachable(Tracker):
        name = "unreachable"
        patience = 5.0
        is_remote = False

        def check(self, directory: str) -> None:
            pass

        def open(self, run: TrackedRun) -> Session:
            raise RuntimeError("no such server")

    assert call_back(tmp_path, Unreachable()).ending == "completed"
    said = [record.getMessage() for record in caplog.records]
    assert any("unreachable cannot record the run: " in line and "no such server" in line for line in said)


def test_a_callback_that_exits_ends_the_run_with_an_error(tmp_path: Path) -> None:
    def leave(event: Event) -> None:
        if isinstance(event, AttemptEnded):
            sys.exit(3)

    with pytest.raises(SystemExit) as caught:
        search(lambda x: x, tmp_path, n_trials=10_000, name="run", callbacks=[leave])
    assert caught.value.code == 3
    assert load_run(tmp_path / "run").ending == "error"


@pytest.mark.parametrize("block", [True, False])
def test_a_callback_that_leaves_the_program_ends_the_run_first(tmp_path: Path, block: bool) -> None:
    seen: list[Event] = []

    def leave(event: Event) -> None:
        seen.append(event)
        if len(seen) == 5:
            sys.exit(3)

    with pytest.raises(SystemExit) as left:
        call_back(tmp_path, leave, block=block).result()
    assert left.value.code == 3
    run = load_run(tmp_path / "run")
    assert run.ending == "error"
    assert TrialState.RUNNING not in run.counts
    assert call_back(tmp_path, lambda event: None, resume=True).counts == {TrialState.COMPLETED: 6}
