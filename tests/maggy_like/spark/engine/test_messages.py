"""What people read of Spark's faults: one line in our words, and the rest in a file."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hand import Hand

from maggy_like.api import run_settings as choice
from maggy_like.driver.state_machine.interface import WorkerLost
from maggy_like.engines.local import LocalEngine
from maggy_like.errors import EngineError
from maggy_like.protocol.task import WorkerId
from maggy_like.spark import connection, session
from maggy_like.spark.engine.job import cause_of, hidden_progress_bar, write_details

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
    folder = tmp_path / "workers"
    path = write_details(str(folder), "august", (0, 1), 2, CRASHED)
    assert write_details(str(folder), "august", (0,), 3, "once more") == path == str(folder / "spark.log")
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
