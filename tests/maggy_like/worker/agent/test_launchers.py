"""A launcher that is closed leaves nothing behind, however its fork server ends, and touches nothing else."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import cloudpickle
import msgspec
import psutil
import pytest

from maggy_like.protocol.messages import PYTHON, Ready, decode_to_driver
from maggy_like.protocol.task import DriverProcess, WorkerContext, WorkerTask
from maggy_like.worker.agent import children
from maggy_like.worker.agent.children import Child, ForkServerLauncher, with_own_path, worker_path

pytestmark = pytest.mark.slow

PATIENCE = 300.0


@pytest.fixture
def somebody() -> Iterator[subprocess.Popen[bytes]]:
    """A child of the process in which the agent is a guest."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    "end", [None, signal.SIGKILL, signal.SIGSTOP], ids=["it leaves", "it is killed", "it must be killed"]
)
def test_what_left_its_session_dies_with_the_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, somebody: subprocess.Popen[bytes], end: signal.Signals | None
) -> None:
    monkeypatch.setattr(children, "SERVER_PATIENCE", 2.0)
    launcher = ForkServerLauncher(task_that_starts_a_daemon(tmp_path), WorkerContext(0, 0, "host", (b"", b"")))
    child = spawn(launcher)
    trial = psutil.Process(child.pid)
    server, daemon = trial.parent(), psutil.Process(int((tmp_path / "pid").read_text()))
    try:
        assert os.getsid(daemon.pid) == daemon.pid
        if end is not None:
            assert server is not None
            server.send_signal(end)
        launcher.close()
        assert not psutil.wait_procs([trial, daemon], timeout=0)[1]
        assert somebody.poll() is None
    finally:
        with suppress(psutil.NoSuchProcess):
            daemon.kill()
        child.close()


def task_that_starts_a_daemon(directory: Path) -> WorkerTask:
    """Whose function starts a process in a session of its own as it is loaded."""

    def start() -> object:
        daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        (directory / "pid").write_text(str(daemon.pid))
        return abs

    class Starter:
        def __reduce__(self) -> tuple[object, ...]:
            return start, ()

    pickled = cloudpickle.dumps(Starter())
    return WorkerTask("tcp://x:1", b"", "run", pickled, (), tuple(sys.path), (), "", "")


def spawn(launcher: ForkServerLauncher) -> Child:
    """A child that has loaded the function."""
    child = launcher.spawn()
    frame = child.channel.receive()
    assert frame is not None
    assert decode_to_driver(frame) == Ready()
    while child.pid is None:
        assert select.select([launcher.descriptor], [], [], PATIENCE)[0]
        launcher.attend()
    return child


# -- where a worker's child processes look for modules --------------------------------------------


SPARK = ["/spark/work/app/0", "/spark/work/app/0/deps.zip", "/spark/python/lib/pyspark.zip"]
WORKERS = [
    "/w/lib/python311.zip",
    "/w/lib/python3.11",
    "/w/lib/python3.11/lib-dynload",
    "/w/lib/python3.11/site-packages",
]
DRIVERS = [
    "/d/lib/python311.zip",
    "/d/lib/python3.11",
    "/d/lib/python3.11/lib-dynload",
    "/d/lib/python3.11/site-packages",
]


def everywhere(path: str) -> bool:
    return True


def nowhere(path: str) -> bool:
    return False


def test_what_the_worker_has_is_enough_where_nothing_of_the_driver_exists() -> None:
    assert worker_path([*SPARK, *WORKERS], ["/home/me", *DRIVERS], PYTHON, nowhere) == (*SPARK, *WORKERS)


def test_the_driver_s_directories_stand_as_they_do_there_but_after_what_was_shipped() -> None:
    path = worker_path([*SPARK, *WORKERS], ["/home/me", *DRIVERS, "/home/last"], PYTHON, everywhere)
    assert path == (*SPARK, "/home/me", *WORKERS, DRIVERS[-1], "/home/last")


def test_a_standard_library_is_the_interpreter_s_own() -> None:
    path = worker_path(WORKERS, [*DRIVERS, "/usr/lib/python3/dist-packages"], PYTHON, everywhere)
    assert set(path) == {*WORKERS, DRIVERS[-1], "/usr/lib/python3/dist-packages"}


def test_another_python_s_directories_are_of_no_use() -> None:
    assert worker_path(WORKERS, ["/home/me", *DRIVERS], "3.8", everywhere) == tuple(WORKERS)


def test_one_machine_and_interpreter_keep_the_driver_s_order() -> None:
    drivers = ["/home/me", "/added", *WORKERS, "/last"]
    assert worker_path(drivers, drivers, PYTHON, everywhere) == tuple(drivers)
    assert worker_path(["/home/me", *WORKERS], drivers, PYTHON, everywhere) == ("/home/me", "/added", *WORKERS, "/last")


def test_a_work_directory_inside_of_an_installation_is_no_installation() -> None:
    """Where Spark is from pip, that is where its workers' directories are."""
    work = "/w/lib/python3.11/site-packages/pyspark/work/app/0"
    assert worker_path([work, *WORKERS], ["/home/me"], PYTHON, everywhere) == (work, "/home/me", *WORKERS)


def test_spark_s_relative_entries_hold_where_a_trial_changes_its_directory() -> None:
    assert worker_path(["", ".", "deps.zip"], [], PYTHON, nowhere) == ("", os.getcwd(), os.path.abspath("deps.zip"))


@pytest.fixture
def task() -> WorkerTask:
    return WorkerTask("tcp://x:1", b"", "run", b"", (), ("", "lib", "/not/here"), (), "", "")


def test_processes_of_this_machine_have_the_driver_s_path_as_it_is(task: WorkerTask) -> None:
    assert with_own_path(task) is task


def test_elsewhere_the_driver_s_relative_entries_are_of_its_directory(task: WorkerTask, tmp_path: str) -> None:
    os.mkdir(os.path.join(tmp_path, "lib"))
    driver = DriverProcess("there", "/d/bin/python", PYTHON, str(tmp_path))
    path = with_own_path(msgspec.structs.replace(task, driver=driver)).sys_path
    assert {os.path.join(tmp_path, ""), os.path.join(tmp_path, "lib")} <= set(path)
    assert "/not/here" not in path
    assert [entry for entry in path if str(tmp_path) not in entry] == [
        os.path.abspath(p) if p else p for p in dict.fromkeys(sys.path)
    ]
