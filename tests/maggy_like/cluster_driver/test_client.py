"""A run whose driver is a task, with threads for tasks."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from background import Background
from thread_host import ThreadHost, ThreadRun

from maggy_like import Float, lagom, load_run
from maggy_like.engines.base import EngineRun
from maggy_like.errors import ConfigError, EngineError, TrialsFailedError, UserError
from maggy_like.storage.control_files import ControlFiles, StopRequestRecord
from optimizers.core.events import AttemptEnded, Event, TrialCreated


def train(x: float, reporter: Any) -> None:
    for step in range(1, reporter.budget + 1):
        reporter.report(quality=step - (x - 0.3) ** 2, step=step)


def fail(x: float) -> float:
    raise ValueError("no such file: data.csv")


def last(x: float, reporter: Any) -> None:
    step = 0
    while True:
        step += 1
        reporter.report(quality=x, step=step)
        threading.Event().wait(0.01)  # the process has the driver and the client too


SPACE = {"x": Float(0, 1)}


def search(function: Any, directory: Path, **options: Any) -> Any:
    given = {"n_trials": 6, "max_budget": 9, "name": "run", "progress": False, "engine": ThreadHost(), **options}
    return lagom(function, SPACE, driver="cluster", directory=directory, **given)


@pytest.mark.e2e
def test_a_search_from_its_first_event_to_its_result(tmp_path: Path) -> None:
    events: list[Event] = []
    result = search(train, tmp_path, callbacks=[events.append, "tensorboard"])
    assert (result.ending, len(result.trials)) == ("completed", 6)
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 6  # the tracker is in this process
    again = load_run(tmp_path / "run")
    assert again.ending == "completed"
    assert again.best_value == result.best_value
    ends = [event for event in events if isinstance(event, AttemptEnded)]
    assert len(ends) == sum(trial.attempt for trial in result.trials)
    record = ControlFiles(str(tmp_path / "run")).driver()
    assert record is not None
    assert record.is_over


@pytest.mark.e2e
def test_what_ends_it_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(TrialsFailedError, match=r"no such file: data\.csv") as caught:
        search(fail, tmp_path)
    assert caught.value.result is not None
    assert caught.value.result.ending == "error"


@pytest.mark.e2e
def test_the_traceback_of_a_failure_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrialsFailedError) as caught:
        search(fail, tmp_path, progress="plain")
    printed = capsys.readouterr().out
    assert printed.count("Traceback (most recent call last)") == 1
    assert "Traceback" not in str(caught.value)
    assert "Fix the function" in str(caught.value)


@pytest.mark.e2e
def test_a_handle_stops_it(tmp_path: Path) -> None:
    background, seen = Background(), threading.Event()

    def stop(event: Event) -> None:
        seen.set()
        background.stop()

    result = background.run(search, last, tmp_path, callbacks=[stop], max_budget=10**9, optimizer="random")
    assert seen.is_set()
    assert result.ending == "stopped"
    assert load_run(tmp_path / "run").ending == "stopped"


@pytest.mark.slow
def test_an_engine_without_slots_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"driver='cluster' needs a Spark session, and engine='local' has none"):
        search(train, tmp_path, engine="local")
    with pytest.raises(ConfigError, match=r"driver must be one of 'client', 'cluster', got 'clusters'"):
        lagom(train, SPACE, driver="clusters", directory=tmp_path, engine=ThreadHost())  # type: ignore[arg-type]
    with pytest.raises(
        EngineError, match="workers=3 and the driver need 4 slots, and engine='threads' has 3; pass worke"
    ):
        search(train, tmp_path, workers=3)
    with pytest.raises(EngineError, match="a driver and one worker need 2 slots, and engine='threads' has 1; give it"):
        search(train, tmp_path, engine=ThreadHost(1))
    assert os.listdir(tmp_path) == []


@pytest.mark.e2e
def test_others_watch_and_stop_it(tmp_path: Path) -> None:
    began, results = threading.Event(), list[Any]()
    options = {"callbacks": [lambda event: began.set()], "max_budget": 10**9, "optimizer": "random"}
    thread = threading.Thread(target=lambda: results.append(search(last, tmp_path, **options)))
    thread.start()
    assert began.wait(60)
    run = load_run(tmp_path / "run")
    assert run.ending == "running"
    run.stop()
    seen: list[Event] = []
    watched = run.watch(progress=False, callbacks=[seen.append])
    thread.join(60)
    assert watched.ending == results[0].ending == "stopped"
    assert [trial.id for trial in watched.trials] == [trial.id for trial in results[0].trials]
    assert isinstance(seen[0], TrialCreated)
    with pytest.raises(UserError, match="has ended; there is nothing to stop"):
        watched.stop()
    assert watched.watch(progress=False).ending == "stopped"


@pytest.mark.long
@pytest.mark.e2e
def test_either_kind_of_driver_goes_on_with_what_the_other_began(tmp_path: Path) -> None:
    options = {"optimizer": "random", "name": "run", "max_budget": 9, "progress": False}
    search(train, tmp_path, n_trials=2, optimizer="random")
    here = lagom(train, SPACE, n_trials=3, directory=tmp_path, engine="local", workers=1, resume=True, **options)
    assert ControlFiles(str(tmp_path / "run")).driver() is None  # nobody is to follow or stop the driver that was
    created: list[Event] = []
    last = search(train, tmp_path, n_trials=4, optimizer="random", resume=True, callbacks=[created.append])
    assert [trial.config for trial in last.trials][:3] == [trial.config for trial in here.trials]
    assert [event.trial for event in created if isinstance(event, TrialCreated)] == [3]


@pytest.mark.e2e
def test_a_driver_that_fails_is_started_again(tmp_path: Path) -> None:
    def begin(attempt: int) -> None:
        if not attempt:
            raise OSError("no space left on device")

    result = search(train, tmp_path, engine=ThreadHost(begin=begin), workers_per_trial=2, n_trials=2)
    assert (result.ending, len(result.trials)) == ("completed", 2)
    record = ControlFiles(str(tmp_path / "run")).driver()
    assert record is not None
    assert record.attempt == 1


@pytest.mark.long
@pytest.mark.e2e
def test_a_store_that_does_not_serve_just_now_is_no_reason_to_cancel_a_driver_that_was_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ControlFiles.driver

    def refuse(files: ControlFiles) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise OSError("slow down")
        return ask(files)

    def interrupt(event: Event) -> None:
        monkeypatch.setattr(ControlFiles, "driver", refuse)
        raise KeyboardInterrupt

    host = ThreadHost()
    result = search(last, tmp_path, engine=host, callbacks=[interrupt], max_budget=10**9, optimizer="random")
    assert result.ending == "interrupted"
    assert host.run is not None
    assert not host.run.cancelled.is_set()


@pytest.mark.e2e
def test_a_job_is_cancelled_whose_driver_has_not_begun_when_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maggy_like.cluster_driver.driver.CANCEL_PATIENCE", 0.0)
    background, ended = Background(), threading.Event()

    def begin(attempt: int) -> None:
        background.stop()
        ended.wait(60)

    host = ThreadHost(begin=begin)
    assert background.run(search, last, tmp_path, engine=host, max_budget=10**9).ending == "stopped"
    assert host.run is not None
    assert host.run.cancelled.is_set()
    ended.set()
    host.run.wait(60)


@pytest.mark.e2e
@pytest.mark.long
def test_a_second_ctrl_c_leaves_a_job_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.cluster_driver.driver.CANCEL_PATIENCE", 0.1)
    monkeypatch.setattr(ThreadRun, "cancel", lambda run: None)  # as where the server of a Connect session is gone
    monkeypatch.setattr(ThreadRun, "wait", lambda run, timeout: False)
    unheard: list[StopRequestRecord] = []
    monkeypatch.setattr(ControlFiles, "ask_to_stop", lambda files, record: unheard.append(record))
    signals = [signal.SIGTERM, signal.SIGTERM]

    def hurry(event: Event) -> None:
        if len(signals) == 2 or (signals and unheard):  # two at once would be one
            os.kill(os.getpid(), signals.pop())

    host = ThreadHost()
    result = search(last, tmp_path, engine=host, callbacks=[hurry], max_budget=10**9, optimizer="random")
    assert result.ending == "interrupted"
    monkeypatch.undo()
    ControlFiles(str(tmp_path / "run")).ask_to_stop(unheard[0])
    assert host.run is not None
    assert host.run.wait(60)


def test_tasks_that_do_not_see_the_directory_say_so(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()

    class FarHost(ThreadHost):
        """Its tasks look at another machine's directories."""

        def launch_with_driver(self, *args: Any) -> EngineRun:
            (tmp_path / "here").rename(tmp_path / "elsewhere")
            return super().launch_with_driver(*args)

    with pytest.raises(EngineError, match=r"does not see the run's directory .*; pass directory=URL of a place that"):
        search(train, tmp_path / "here", engine=FarHost())
