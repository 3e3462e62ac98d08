"""What is said of a Spark whose Java is gone, or whose workers run another Python."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hand import Hand

from maggy_like.api import run_settings as choice
from maggy_like.api.run_settings import choose_engine
from maggy_like.driver.state_machine.interface import WorkerLost
from maggy_like.engines.local import LocalEngine
from maggy_like.errors import ConfigError, EngineError
from maggy_like.protocol.task import WorkerId
from maggy_like.spark import connection, session
from maggy_like.spark.engine.engine import SparkEngine
from maggy_like.spark.engine.job import SparkRun, cause_of, check_python, hidden_progress_bar, write_details


@pytest.fixture
def another_python(tmp_path: Path) -> str:
    """A Python of another minor version, as far as anybody asks it."""
    program = tmp_path / "python3.8"
    program.write_text("#!/bin/sh\necho 3.8\n")
    program.chmod(0o700)
    return str(program)


def test_a_local_master_s_other_python_is_told_before_anything_starts(another_python: str) -> None:
    settings = {"spark.master": "local[2]"}
    session = SimpleNamespace(
        _sc=None, sparkContext=SimpleNamespace(pythonExec=another_python, _jsc=None, _conf=settings)
    )
    for ask in (lambda engine: engine.require(2), lambda engine: engine.default_workers()):
        with pytest.raises(EngineError, match=r"must run Python .*, got 3\.8 .*spark_session\(\), or set PYSPARK_"):
            ask(SparkEngine(session))  # type: ignore[arg-type]


def test_the_same_version_elsewhere_will_do(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    check_python(SimpleNamespace(pythonExec=str(link)))
    check_python(SimpleNamespace(pythonExec=str(tmp_path / "none")))  # Spark says what is wrong with it


@pytest.mark.parametrize(
    ("program", "chosen", "runs"),
    [("python3", None, sys.executable), ("python3", "python3", "python3"), ("/opt/python3", None, "/opt/python3")],
)
def test_where_no_python_was_chosen_a_local_master_runs_this_one(
    program: str, chosen: str | None, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if chosen:
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=version))
    context = SimpleNamespace(pythonExec=program)
    check_python(context)
    assert context.pythonExec == runs


@pytest.mark.parametrize(
    "error",
    [
        'Traceback (most recent call last):\n  File "w.py", line 1\npyspark.errors.PySparkRuntimeError: '
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.8 than that in driver: 3.11",
        "Traceback (most recent call last):\n  File \"w.py\", line 1\nModuleNotFoundError: No module named 'msgspec'",
    ],
)
def test_another_python_on_a_cluster_is_told_at_the_first_failure(error: str) -> None:
    run = SparkRun.__new__(SparkRun)
    run._session = SimpleNamespace()  # type: ignore[assignment]
    said = run._explain(error, None)
    assert run.is_hopeless
    assert f"set PYSPARK_PYTHON={sys.executable}" in said


def test_too_few_slots_are_counted_with_what_the_tasks_ask_for() -> None:
    run = SparkRun.__new__(SparkRun)
    run.indexes = (0, 1, 2)
    for slots, said in ((1, "got 1 now"), (3, "got fewer now"), (None, "got fewer now")):
        run._count = lambda slots=slots: slots  # type: ignore[misc]
        assert said in run._too_few_slots()


def test_of_a_long_error_the_cause_is_shown() -> None:
    text = """An error occurred while calling o1.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed ResultStage.
\tat org.apache.spark.X(Y.scala:1)
Caused by: org.apache.spark.SparkException: wrapped
\t... 12 more
Caused by: java.io.IOException: No space left on device
\tat java.base/Z(W.java:1)"""
    assert cause_of(text) == "java.io.IOException: No space left on device"
    assert cause_of("first\n\tat org.X(Y.scala:1)\nsecond") == "first second"


def test_what_is_no_session_is_refused_and_so_is_what_is_no_engine() -> None:
    with pytest.raises(ConfigError, match=r"got 'local\[2\]'; use maggy_like\.spark_session\(\)"):
        SparkEngine("local[2]")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"did you mean SparkEngine\(\)\?"):
        choose_engine(SparkEngine)  # type: ignore[arg-type]
    session = type("SparkSession", (), {})()
    with pytest.raises(ConfigError, match=r"; pass SparkEngine\(session\)"):
        choose_engine(session)


# -- what people read of it --------------------------------------------------------------------------


CRASHED = """An error occurred while calling o578.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier \
ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(9, 1) finished unsuccessfully.
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'spark.sql.x' to 'true'.
\tat org.apache.spark.api.python.BasePythonRunner.applyOrElse(PythonRunner.scala:1136)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CRASHED, "the Python process of a Spark task died, or was killed"),
        (
            CRASHED.replace("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).",
                            "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: it"),
            "Spark lost executor 1: it Consider setting 'spark.sql.x' to 'true'.",
        ),
        (
            "An error occurred while calling o1.collectToPython.\n: org.apache.spark.SparkException: Job aborted due "
            "to stage failure: [SPARK-24819]: Too few slots.\n\tat org.apache.spark.X(Y.scala:1)",
            "[SPARK-24819]: Too few slots.",
        ),
    ],
)  # fmt: skip
def test_a_failure_is_told_in_one_line_of_ours(text: str, told: str) -> None:
    assert cause_of(text) == told


def test_the_whole_of_it_stands_in_a_file(tmp_path: Path) -> None:
    directory = tmp_path / "workers"
    path = write_details(str(directory), "august", (0, 1), 2, CRASHED)
    assert write_details(str(directory), "august", (0,), 3, "once more") == path == str(directory / "spark.log")
    text = Path(path).read_text()
    assert "august: the job of workers 0, 1, incarnation 2, ended\n" + CRASHED in text
    assert text.endswith("incarnation 3, ended\nonce more\n")
    (tmp_path / "file").touch()
    assert write_details(str(tmp_path / "file"), "august", (0,), 0, CRASHED) == ""


def test_a_gang_that_falls_is_told_of_once_and_each_of_its_trials_in_short() -> None:
    hand = Hand().start()
    workers = [hand.join(index) for index in (0, 1)]
    shown = len(hand.shown)
    hand.tell(*(WorkerLost(worker, "Spark lost executor 1: exit code 137", with_others=True) for worker in workers))
    assert hand.shown[shown:] == ["attempt 1 lost; the trial will be retried"] * 2
    hand.join(0, incarnation=1)
    hand.tell(WorkerLost(WorkerId(0, 1), "its process died"))
    assert "worker 0 on host was lost: its process died" in hand.shown


def test_a_connect_client_s_progress_is_hidden_from_the_thread_of_our_job_alone() -> None:
    progress: Any = importlib.import_module("pyspark.sql.connect.shell.progress")
    shown: list[str] = []
    client = SimpleNamespace(_progress_handlers=[lambda **_: shown.append(threading.current_thread().name)])
    spark: Any = SimpleNamespace(client=client)
    before = progress.progress_bar_enabled

    def tell() -> None:
        progress.Progress(handlers=client._progress_handlers)._notify()

    def beside() -> None:
        thread = threading.Thread(target=tell, name="theirs")
        thread.start()
        thread.join()

    try:
        with hidden_progress_bar(spark), pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_CONNECT_PROGRESS_BAR_ENABLED", "1")
            tell()
            assert not progress.progress_bar_enabled()
            beside()
        assert shown == ["theirs"]
        tell()
        assert shown == ["theirs", threading.current_thread().name]
        assert len(client._progress_handlers) == 1
    finally:
        progress.progress_bar_enabled = before


def test_auto_inside_a_task_is_refused_and_local_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "is_in_task", lambda: True)
    monkeypatch.setattr(session, "active_session", lambda: None)
    with pytest.raises(EngineError, match=r"inside a Spark task.*call it on the Spark driver, or use engine='local'"):
        choice.choose_engine("auto")
    assert isinstance(choice.choose_engine("local"), LocalEngine)
    monkeypatch.setattr(connection, "is_in_task", lambda: False)
    assert isinstance(choice.choose_engine("auto"), LocalEngine)
