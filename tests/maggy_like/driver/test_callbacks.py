"""Callbacks: whatever one does with what it is given, and whatever it raises, the search goes its way."""

from __future__ import annotations

import re
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import train_functions as fns

from maggy_like import Choice, Float, lagom, load_run
from maggy_like.display.base import LineBuffer
from maggy_like.driver.followers import Followers
from maggy_like.driver.settings import FileSettings
from maggy_like.driver.stream import Backlog, entry_of
from maggy_like.storage.journal import backend_of, read_journal
from maggy_like.storage.run_paths import RunPaths
from maggy_like.trackers.base import Session, TrackedRun, Tracker
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, Measured, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace


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


def test_what_a_callback_changes_reaches_neither_the_ledger_nor_another_callback(tmp_path: Path) -> None:
    space = SearchSpace({"x": Float(0, 1), "layers": Choice([[64, [32]], []])})
    study, other = (Study(space, RandomSearch()) for _ in range(2))
    seen: list[Event] = []
    source: Any = SimpleNamespace(study=study, backlog=Backlog(pytest.fail), lines=LineBuffer(9, 999))
    followers = Followers(
        source,
        [spoil_event, seen.append],
        pytest.fail,  # type: ignore[arg-type]
        FileSettings("run", RunPaths(tmp_path, str(tmp_path)), resume=False),
        "random",
        in_threads=False,
    )
    for number, (event, same) in enumerate(zip(a_trial(), a_trial(), strict=True)):
        study.apply(event)
        source.backlog.put([entry_of(number, event, None, study, 0.0)])
        followers.look()
        other.apply(same)
    assert (study.trials, study.best) == (other.trials, other.best)
    assert study.trials[0].config["layers"] == [64, [32]]
    assert seen[:4] == list(a_trial()[:4])
    assert seen[4] == AttemptEnded(
        0, 1, TrialState.COMPLETED, 1.0, 0.75, {"loss": 0.1}, attributes={"words": ["a", {"b": "c"}]},
        config={"x": 0.5, "layers": [64, [32]]},
    )  # fmt: skip


@pytest.mark.e2e
def test_a_callback_that_raises_keyboard_interrupt_ends_the_search_as_ctrl_c_does(tmp_path: Path) -> None:
    seen: list[Event] = []

    def enough(event: Event) -> None:
        if isinstance(event, AttemptEnded):
            raise KeyboardInterrupt

    result = lagom(
        lambda x: x, {"x": Float(0, 1)}, optimizer="random", n_trials=10_000, engine="local", workers=1,
        directory=tmp_path,
        callbacks=[enough, seen.append], progress=False,
    )  # fmt: skip
    assert result.ending == "interrupted"
    assert len(result.trials) < 10_000
    ended = [event.trial for event in seen if isinstance(event, AttemptEnded) and event.state.is_final]
    assert ended == [trial.id for trial in result.trials if trial.state.is_final]


@pytest.mark.e2e
def test_a_run_lasts_as_long_as_its_search_and_not_as_its_callbacks(tmp_path: Path) -> None:
    ended: list[float] = []

    def wait_for_the_end(event: Event) -> None:
        if not ended:
            for thread in threading.enumerate():
                if thread.name == "maggy-driver":  # it may have ended already
                    thread.join(300)
            ended.append(time.time())

    options: dict[str, Any] = {"engine": "local", "workers": 1, "directory": tmp_path, "progress": False}
    result = lagom(
        fns.climb, {"x": Float(0, 1)}, optimizer="random", n_trials=2, callbacks=[wait_for_the_end], **options
    )
    journal = read_journal(backend_of(str(result.directory)))
    assert journal.ended is not None
    assert journal.ended.time <= ended[0]


def search(folder: Path, callback: Any, **options: Any) -> Any:
    common: dict[str, Any] = {"optimizer": "random", "n_trials": 6, "max_budget": 3, "workers": 1, "engine": "inline"}
    common |= {"name": "run", "directory": folder, "callbacks": [callback], "progress": False}
    return lagom(fns.climb, {"x": Float(0, 1)}, **common, **options)


@pytest.mark.e2e
def test_a_callback_that_raises_is_logged_once_with_its_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken(event: Event) -> None:
        raise ValueError("a mistake in the callback")

    assert search(tmp_path, mistaken).ending == "completed"
    (record,) = caplog.records
    assert "mistaken" in record.getMessage()
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a mistake in the callback"


class Mistaken:
    def __call__(self, event: Event) -> None:
        raise ValueError("a mistake in the callback")

    def take(self, event: Event) -> None:
        raise ValueError("a mistake in the callback")


@pytest.mark.parametrize(
    ("callback", "name"), [(Mistaken(), "Mistaken"), (Mistaken().take, "take"), (partial(Mistaken()), "Mistaken")]
)
def test_the_error_of_a_callback_says_where_it_was_written(
    callback: Any, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search(tmp_path, callback)
    (record,) = caplog.records
    line = r"test_callbacks.py, line \d+"
    assert re.match(rf"callback {name} \({line}\) raised ValueError: a mistake in the callback", record.getMessage())


@pytest.mark.e2e
def test_a_tracker_that_cannot_begin_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Unreachable(Tracker):
        name = "unreachable"
        patience = 5.0
        is_remote = False

        def check(self, directory: str) -> None:
            pass

        def open(self, run: TrackedRun) -> Session:
            raise RuntimeError("no such server")

    assert search(tmp_path, Unreachable()).ending == "completed"
    said = [record.getMessage() for record in caplog.records]
    assert any("unreachable cannot record the run: " in line and "no such server" in line for line in said)


@pytest.mark.e2e
@pytest.mark.parametrize("block", [True, False])
def test_a_callback_that_leaves_the_program_ends_the_run_first(tmp_path: Path, block: bool) -> None:
    seen: list[Event] = []

    def leave(event: Event) -> None:
        seen.append(event)
        if len(seen) == 5:
            sys.exit(3)

    with pytest.raises(SystemExit) as left:
        search(tmp_path, leave, block=block).result()
    assert left.value.code == 3
    run = load_run(tmp_path / "run")
    assert run.ending == "error"
    assert TrialState.RUNNING not in run.counts
    assert search(tmp_path, lambda event: None, resume=True).counts == {TrialState.COMPLETED: 6}
