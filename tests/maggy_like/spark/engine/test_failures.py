"""What is said of a Spark whose Java is gone, or whose workers run another Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from maggy_like.api.run_settings import choose_engine
from maggy_like.errors import ConfigError, EngineError
from maggy_like.spark.engine.engine import SparkEngine
from maggy_like.spark.engine.job import SparkRun, cause_of, check_python


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
        _sc=None, conf=settings, sparkContext=SimpleNamespace(pythonExec=another_python, _jsc=None)
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
