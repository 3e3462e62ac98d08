"""Where Spark's files are is known in the processes of trials."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from maggy_like.worker.launch import pass_on_spark_files, take_over_spark_files


def test_a_trial_knows_what_its_task_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    in_task = SimpleNamespace(SparkFiles=SimpleNamespace(_is_running_on_worker=True, _root_directory="."))
    monkeypatch.setitem(sys.modules, "pyspark.core.files", in_task)
    environment: dict[str, str] = {}
    pass_on_spark_files(environment)
    in_trial = SimpleNamespace(SparkFiles=SimpleNamespace(_is_running_on_worker=False, _root_directory=None))
    monkeypatch.setitem(sys.modules, "pyspark.core.files", in_trial)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    take_over_spark_files()
    assert in_trial.SparkFiles._is_running_on_worker
    assert in_trial.SparkFiles._root_directory == os.getcwd()


def test_outside_of_spark_there_is_nothing_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    in_driver = SimpleNamespace(SparkFiles=SimpleNamespace(_is_running_on_worker=False, _root_directory=None))
    environment: dict[str, str] = {}
    for module in (None, in_driver):
        monkeypatch.setitem(sys.modules, "pyspark.core.files", module)
        pass_on_spark_files(environment)
        take_over_spark_files()
    assert environment == {}
    assert not in_driver.SparkFiles._is_running_on_worker
