"""``block=False``: a handle on a run in the background."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import ablation_functions as ablation
import psutil
import pytest
from gate import Gate

from maggy_like import AblationStudy, Float, InlineEngine, Result, RunHandle, ablate, lagom, run
from maggy_like.ablation import Ablation
from maggy_like.display.dashboard_link import Dashboard
from maggy_like.driver.run_handle import Status
from maggy_like.driver.run_spec import StopSwitch
from maggy_like.errors import ConfigError, TrainingError, TrialsFailedError, UserError
from maggy_like.rpc.endpoint import Endpoint
from optimizers.core.events import Event

SPACE = {"x": Float(0, 1)}


def options(directory: Path, **more: Any) -> dict[str, Any]:
    return {"engine": "inline", "directory": directory, "progress": False, **more}


class KeepsAGroup(InlineEngine):
    """Keeps a value for each thread, as Spark keeps its local properties."""

    local = threading.local()

    def inheriting(self, execute: Callable[[], Any]) -> Callable[[], Any]:
        group = self.local.group

        def inherited() -> Any:
            if group == "gone":
                raise ConnectionError("nobody keeps what this thread had")
            self.local.group = group
            return execute()

        return inherited

    def endpoint(self) -> Endpoint:
        self.seen = self.local.group
        return super().endpoint()


def test_a_run_in_the_background_has_what_its_engine_keeps_for_the_callers_thread(tmp_path: Path) -> None:
    engine = KeepsAGroup()
    engine.local.group = "cell 7"
    run(lambda: 1, block=False, **{**options(tmp_path), "engine": engine}).result()
    assert engine.seen == "cell 7"


def test_an_error_before_the_run_begins_is_raised_by_the_call(tmp_path: Path) -> None:
    engine = KeepsAGroup()
    engine.local.group = "gone"
    with pytest.raises(ConnectionError, match="nobody keeps"):
        run(lambda: 1, block=False, **{**options(tmp_path), "engine": engine})


def test_a_name_in_use_is_an_error_of_the_call(tmp_path: Path) -> None:
    search = partial(lagom, lambda x: x, SPACE, optimizer="random", n_trials=1, name="august", **options(tmp_path))
    search(block=False).result()
    with pytest.raises(ConfigError, match="there is a run named 'august'"):
        search(block=False)


def test_ctrl_c_before_the_run_begins_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, stopped = StopSwitch(), threading.Event()
    stop.attach(stopped.set)
    handle: RunHandle[bool] = RunHandle("august", tmp_path, stop, lambda where, _: Dashboard(where, stop.stop))

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(handle.recorder.has_begun, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        handle.begin(partial(stopped.wait, 100), InlineEngine(), outlives=False)
    assert handle.result() is True


def test_a_handle_says_how_far_the_search_is_and_what_it_prints(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    path = gate.path

    def train(x: float, reporter: Any) -> float:
        print("trial", reporter.trial)
        reporter.report(score=x, step=1)
        if reporter.trial == 1:
            open(path).close()
        return x

    handle = lagom(train, SPACE, optimizer="random", n_trials=3, name="august", block=False, **options(tmp_path))
    assert isinstance(handle, RunHandle)
    assert (handle.name, handle.directory) == ("august", tmp_path / "august")
    with pytest.raises(TimeoutError, match=r"august has not ended after timeout=0\.01 s and continues; .* or stop\(\)"):
        handle.result(timeout=0.01)
    assert "august: s" in str(handle.status())  # starting or searching
    gate.open()
    result = handle.result()
    status = handle.status()
    assert (status.phase, status.n_trials, sum(status.counts.values())) == ("completed", 3, 3)
    assert (status.best_trial, status.best_value) == (result.best_trial and result.best_trial.id, result.best_value)
    assert re.fullmatch(
        r"august: completed, 0:\d+; 3 completed of 3; best score 0.* at step 1 \(trial \d\)", str(status)
    )
    assert handle.result() is result
    assert repr(handle) == f"<RunHandle {status}>"


def test_a_status_counts_trials_where_there_are_none_yet() -> None:
    assert str(Status("august", "searching", 3.0, {}, 30)) == "august: searching, 0:03; 0 trials of 30"
    assert str(Status("august", "training", 3.0)) == "august: training, 0:03"


@pytest.mark.e2e
def test_the_newest_lines_of_all_or_of_one_trial(tmp_path: Path) -> None:
    def train(x: float, reporter: Any) -> float:
        for number in range(3):
            print(f"line {number} of {reporter.trial}", flush=True)
        return x

    handle = lagom(train, SPACE, optimizer="random", n_trials=2, workers=1, block=False,
                   **options(tmp_path, engine="local"))  # fmt: skip
    handle.result()
    assert handle.tail(1) == "line 0 of 1\nline 1 of 1\nline 2 of 1"
    assert handle.tail(0, lines=1) == "line 2 of 0"
    assert len(handle.tail().splitlines()) >= 6


def test_a_search_is_stopped_with_what_it_has(tmp_path: Path) -> None:
    def train(x: float, reporter: Any) -> None:
        step = 0
        while True:
            step += 1
            reporter.report(score=x, step=step)

    handle = lagom(train, SPACE, optimizer="random", max_budget=10**9, block=False, **options(tmp_path))
    handle.stop()
    assert handle.result().ending == "stopped"
    handle.stop()  # nothing happens any more
    assert handle.status().phase == "stopped"


def test_a_callback_does_not_wait_for_its_own_run(tmp_path: Path) -> None:
    handles: Future[RunHandle[Result]] = Future()
    refused: list[UserError] = []

    def wait(event: Event) -> None:
        with pytest.raises(UserError, match="a callback cannot wait for the end of its own run") as caught:
            handles.result().result()
        refused.append(caught.value)

    handles.set_result(
        lagom(lambda x: x, SPACE, optimizer="random", n_trials=1, callbacks=[wait], block=False, **options(tmp_path))
    )
    assert handles.result().result().ending == "completed"
    assert refused


def test_what_ends_a_run_early_comes_with_its_result(tmp_path: Path) -> None:
    def fail(x: float) -> float:
        raise ValueError("always")

    handle = lagom(fail, SPACE, optimizer="random", block=False, **options(tmp_path))
    with pytest.raises(TrialsFailedError, match="always") as caught:
        handle.result()
    assert caught.value.result is not None
    assert handle.status().phase == "error"
    assert re.search(r"; TrialsFailedError: \d trials failed identically .*: ValueError: always", str(handle.status()))
    with pytest.raises(ConfigError, match="n_trials must be"):  # at once
        lagom(fail, SPACE, n_trials=0, block=False, **options(tmp_path))


def test_ablate_and_run_go_on_in_the_background_too(tmp_path: Path) -> None:
    study = AblationStudy(data=ablation.COLUMNS, label="y").features("A")
    answer = ablate(ablation.worth, study, repeats=2, block=False, **options(tmp_path)).result()
    assert isinstance(answer, Ablation)
    assert len(answer.result.trials) == 4
    assert run(lambda x: x + 1, {"x": 1}, block=False, **options(tmp_path)).result() == 2


def test_a_function_that_was_stopped_returned_nothing(tmp_path: Path) -> None:
    def train(reporter: Any) -> None:
        while True:
            reporter.report(score=1.0)

    handle = run(train, block=False, **options(tmp_path))
    handle.stop()
    with pytest.raises(TrainingError, match="the function was stopped before it returned"):
        handle.result()


LEAVES = """
import sys, threading
from maggy_like import Float, lagom

def train(x, reporter):
    print("under way", flush=True)
    threading.Event().wait()

under_way = threading.Event()
handle = lagom(train, {{"x": Float(0, 1)}}, optimizer="random", workers=2, engine="local", directory=sys.argv[1],
               progress="plain", block=False)
while "under way" not in handle.tail():
    under_way.wait(0.05)
{then}
"""


@pytest.mark.e2e
@pytest.mark.parametrize(("then", "code"), [("", 0), ("raise SystemExit(3)", 3), ("handle.result()", -2)],
                         ids=["the script ends", "sys.exit", "Ctrl-C while it is waited for"])  # fmt: skip
def test_a_search_that_nobody_waits_for_ends_with_the_interpreter(tmp_path: Path, then: str, code: int) -> None:
    (tmp_path / "script.py").write_text(LEAVES.format(then=f"print('waits', flush=True)\n{then}"))
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "runs")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        shown = ""
        while "waits" not in shown:
            line = process.stdout.readline()
            assert line, shown
            shown += line
        workers = psutil.Process(process.pid).children(recursive=True)
        if then == "handle.result()":
            os.kill(process.pid, signal.SIGINT)
        shown += process.communicate(timeout=120)[0]
    assert process.returncode == code, shown
    assert not psutil.wait_procs(workers, timeout=60)[1]
    assert "stopped" in shown


@pytest.mark.e2e
def test_a_script_whose_other_thread_waits_goes_on_to_the_result(tmp_path: Path) -> None:
    script = """
import sys, threading
from maggy_like import Float, lagom

handle = lagom(lambda x: x, {"x": Float(0, 1)}, optimizer="random", n_trials=20, workers=1, engine="local",
               directory=sys.argv[1], progress=False, block=False)
threading.Thread(target=lambda: print("ending", handle.result().ending)).start()
while not handle._waiting:
    threading.Event().wait(0.01)
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py"), str(tmp_path / "runs")],
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert done.stdout == "ending completed\n", done.stderr
