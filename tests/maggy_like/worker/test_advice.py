"""What is said of an error that the function does not explain, and where a worker finds Spark's files."""

from __future__ import annotations

import bdb
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest

from maggy_like.protocol.messages import PYTHON
from maggy_like.protocol.task import DriverProcess
from maggy_like.worker import advice
from maggy_like.worker.advice import advice_on, shown_path
from maggy_like.worker.launch import pass_on_spark_files, take_over_spark_files

DRIVER = DriverProcess(
    "far", "/d/bin/python", PYTHON, "/home/me", {"mine": "/home/me/mine.py", "pack": "/home/me/pack"}
)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/spark/work/app/0", "/w/lib/python3.11", "/w/lib/python3.11/site-packages"])


def missing_module(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_package_that_is_missing_on_a_node(path: None) -> None:
    said = advice_on(missing_module("nowhere.sub"), DRIVER)
    assert f"{sys.executable} on {socket.gethostname()} looks for modules in /spark/work/app/0, " in said
    assert "/w/lib/python3.11/site-packages;" in said
    assert f"({sys.executable} -m pip install ...)" in said
    assert "spark.archives" in said
    assert "the driver's Python (/d/bin/python)" in said
    assert "\n" not in said


def test_a_module_that_lies_beside_the_driver_s_script(path: None) -> None:
    said = advice_on(missing_module("mine"), DRIVER)
    assert "on the driver's machine it is /home/me/mine.py, which the worker lacks" in said
    assert "spark-submit --py-files, spark.sparkContext.addPyFile('/home/me/mine.py')" in said
    assert "pip install" not in said
    assert "addPyFile('a zip of /home/me/pack')" in advice_on(missing_module("pack.inner"), DRIVER)


def test_on_this_machine_the_interpreter_is_named_and_no_more() -> None:
    said = advice_on(missing_module("nowhere"), None)
    assert said == f"; {sys.executable} has no such module; install its package"
    assert advice_on(ImportError("cannot import name 'x'"), None) == ""


def test_what_is_no_import_needs_no_advice() -> None:
    assert advice_on(ValueError("failed to map segment"), DRIVER) == ""
    assert advice_on(MemoryError(), DRIVER) == ""


@pytest.mark.parametrize("driver", [None, DRIVER])
def test_what_a_trial_lacks_is_said(driver: DriverProcess | None, tmp_path: Path) -> None:
    lacking = FileNotFoundError(2, "No such file or directory", "data.csv")
    assert f"; relative paths start at {os.getcwd()!r} on {socket.gethostname()}, so" in advice_on(lacking, driver)
    assert "; relative paths start at '/home/me' on" in advice_on(lacking, driver, {os.getcwd(): "/home/me"})
    for error in (FileNotFoundError(2, "No such file", str(tmp_path / "data.csv")), FileNotFoundError("data.csv")):
        assert advice_on(error, driver) == ""
    assert "; a trial has no standard input, so make" in advice_on(EOFError("EOF when reading a line"), driver)
    assert advice_on(EOFError("Ran out of input"), driver) == ""  # of pickle
    assert advice_on(optuna.TrialPruned(), driver).startswith("; leave it out, since report() ends a trial that is to")
    assert advice_on(optuna.TrialPruned(), driver).endswith("it can return float('nan'), the worst value")
    assert advice_on(bdb.BdbQuit(), driver) == "; a debugger has no terminal in a trial, so use engine='inline'"


def test_a_working_directory_that_the_trial_has_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    (tmp_path / "home").rmdir()
    said = advice_on(FileNotFoundError(2, "No such file or directory", "data.csv"), None)
    assert said.startswith("; relative paths start at the working directory, which was removed, on ")


def test_a_library_that_does_not_fit_into_the_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ImportError("libtorch.so: failed to map segment from shared object")
    assert "address space" not in advice_on(error, DRIVER)  # it is not bounded: something else is wrong
    monkeypatch.setattr(advice, "address_space", lambda: 600 << 20)
    said = advice_on(error, DRIVER)
    assert "may have 600 MB of address space" in said
    assert "spark.executor.pyspark.memory" in said
    assert "torch 666m" in said


IMPORTS_UNDER_A_LIMIT = """
import resource, sys
from maggy_like.worker.advice import advice_on
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]) << 20,) * 2)
try:
    import pyarrow
except BaseException as error:
    print(type(error).__name__, advice_on(error, None))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="macOS bounds no address space")
def test_an_import_that_fails_for_want_of_memory_is_called_that() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORTS_UNDER_A_LIMIT, "90"], capture_output=True, text=True)
    assert "may have 90 MB of address space" in ran.stdout, ran.stdout + ran.stderr


def test_a_long_path_is_cut() -> None:
    packages = ["/w/lib/python3.11/lib-dynload", "/w/lib/python3.11/site-packages"]
    shown = shown_path([*(f"/f{i}" for i in range(9)), *packages])
    assert shown == "/f0, /f1, /f2, /f3, /f4, /f5, 3 more, /w/lib/python3.11/site-packages"
    sparks = ["/s/python/lib/pyspark.zip", "/s/lib/py4j-1-src.zip", "/s/spark-core_2.jar"]
    assert shown_path(["/a.zip", *sparks]) == "/a.zip"
    assert shown_path([]) == "no directory but Python's own"


# -- where Spark's files are is known in the processes of trials ------------------------------------


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
