"""A trial ends like a script, also in a process that runs several."""

from __future__ import annotations

import atexit
import csv
import gzip
import logging
import logging.handlers
import os
import subprocess
import sys
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest

from maggy_like import LocalEngine, Reporter, lagom

KEPT: list[Any] = []


def write(path: str) -> None:
    Path(path).write_text("x", encoding="utf-8")


def handler(path: str) -> None:
    atexit.register(write, path)


def finalizer(path: str) -> None:
    weakref.finalize(KEPT.append, write, path)


def open_file(path: str) -> None:
    KEPT.append(open(path, "w", encoding="utf-8"))  # noqa: SIM115
    KEPT[-1].write("x")


def table(path: str) -> None:
    KEPT.append(open(path, "w", encoding="utf-8", newline=""))  # noqa: SIM115
    csv.writer(KEPT[-1]).writerow(["x"])


def binary(path: str) -> None:
    KEPT.append(open(path, "wb"))  # noqa: SIM115
    KEPT[-1].write(b"x")


def log(path: str) -> None:
    logger = logging.getLogger("of a trial")
    logger.addHandler(logging.FileHandler(path))
    logger.warning("x")


def thread(path: str) -> None:
    released = threading.Event()
    threading.Thread(target=lambda: (released.wait(), write(path))).start()
    threading.Timer(0.05, released.set).start()


def pool(path: str) -> None:
    ThreadPoolExecutor(1).submit(write, path)


def failing_handler(path: str) -> None:
    atexit.register(write, path)
    atexit.register(write, os.path.join(path, "missing", "directory"))


def temporary_directory(path: str) -> None:
    KEPT.append(tempfile.TemporaryDirectory())
    Path(path).write_text(KEPT[-1].name, encoding="utf-8")


def held_back(path: str) -> None:
    logger = logging.getLogger("held back")
    logger.addHandler(logging.handlers.MemoryHandler(100, target=logging.FileHandler(path)))
    logger.warning("x")


def named_file(path: str) -> None:
    KEPT.append(tempfile.NamedTemporaryFile())  # noqa: SIM115
    Path(path).write_text(KEPT[-1].name, encoding="utf-8")


def zip_file(path: str) -> None:
    KEPT.append(zipfile.ZipFile(path, "w"))
    KEPT[-1].writestr("x", "x")


WAYS: dict[str, Callable[[str], None]] = {
    it.__name__: it
    for it in (
        handler,
        finalizer,
        open_file,
        table,
        binary,
        log,
        thread,
        pool,
        failing_handler,
        temporary_directory,
        held_back,
    )
}


def train(directory: str, way: str, reporter: Reporter) -> None:
    reporter.report(v=1.0, step=1)
    WAYS[way](os.path.join(directory, way))


def compressed(path: str) -> None:
    KEPT.append(gzip.open(path, "wt"))  # noqa: SIM115
    KEPT[-1].write("x")


@pytest.mark.e2e
@pytest.mark.parametrize("isolation", ["process", "worker"])
def test_what_a_trial_registers_and_opens_is_done_at_its_end(
    isolation: Literal["process", "worker"], tmp_path: Path
) -> None:
    result = lagom(
        train,
        {"directory": str(tmp_path), "way": list(WAYS)},
        optimizer="grid",
        metric="v",
        direction="max",
        max_budget=1,
        workers=2,
        engine=LocalEngine(isolation=isolation),
        directory=tmp_path / "runs",
        progress=False,
    )
    assert result.counts == {"completed": len(WAYS)}
    texts = {way: (tmp_path / way).read_text() for way in WAYS}
    assert not Path(texts.pop("temporary_directory")).exists()
    assert [way for way, text in texts.items() if text.strip() != "x"] == []


def hold(directory: str, x: int) -> float:
    named_file(os.path.join(directory, f"name {x}"))
    zip_file(os.path.join(directory, f"zip {x}"))
    return x


@pytest.mark.e2e
@pytest.mark.parametrize("isolation", ["process", "worker"])
def test_what_is_complete_only_once_closed_is_closed_when_the_process_ends(
    isolation: Literal["process", "worker"], tmp_path: Path
) -> None:
    lagom(
        hold,
        {"directory": str(tmp_path), "x": [1, 2]},
        optimizer="grid",
        direction="max",
        workers=1,
        engine=LocalEngine(isolation=isolation),
        directory=tmp_path / "runs",
        progress=False,
    )
    for x in (1, 2):
        assert not Path((tmp_path / f"name {x}").read_text()).exists()
        with zipfile.ZipFile(tmp_path / f"zip {x}") as archive:
            assert archive.read("x") == b"x"


def of_library(directory: str, x: int) -> float:
    """Register as a library does, once for the process, and return how many trials have ended before."""
    if "registered" not in KEPT:
        KEPT.append("registered")
        written = Path(directory, "at_exit")
        exec("import atexit; atexit.register(touch)", {"__name__": "json", "touch": written.touch})
    assert not Path(directory, "at_exit").exists()
    return x


@pytest.mark.e2e
def test_what_a_library_registers_is_done_at_the_end_of_a_search_whose_trials_share_processes(tmp_path: Path) -> None:
    result = lagom(
        of_library,
        {"directory": str(tmp_path), "x": [1, 2, 3]},
        optimizer="grid",
        direction="max",
        workers=1,
        engine=LocalEngine(isolation="worker"),
        directory=tmp_path / "runs",
        progress=False,
    )
    assert result.counts == {"completed": 3}
    assert Path(tmp_path, "at_exit").exists()


POOLS: list[ThreadPoolExecutor] = []
WRITTEN: list[str] = []


def keep_pool(directory: str, x: int) -> float:
    """Use a pool that later trials use too, and return before its work is done."""
    if not POOLS:
        POOLS.append(ThreadPoolExecutor(1))
    assert sorted(os.listdir(directory)) == WRITTEN
    WRITTEN.append(str(x))
    released = threading.Event()
    POOLS[0].submit(lambda: (released.wait(), write(os.path.join(directory, str(x)))))
    timer = threading.Timer(0.05, released.set)
    timer.daemon = True
    timer.start()
    return x


@pytest.mark.e2e
def test_the_work_of_a_pool_that_serves_later_trials_is_waited_for_and_its_threads_are_not(tmp_path: Path) -> None:
    (tmp_path / "written").mkdir()
    result = lagom(
        keep_pool,
        {"directory": str(tmp_path / "written"), "x": [1, 2, 3]},
        optimizer="grid",
        direction="max",
        workers=1,
        engine=LocalEngine(isolation="worker"),
        directory=tmp_path / "runs",
        progress=False,
    )
    assert result.counts == {"completed": 3}
    assert [result.log(trial) for trial in range(3)] == ["", "", ""]


ENDLESS = """
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from maggy_like.worker.child.exits import TrialEnds

ends = TrialEnds(grace=0.1)
pool = ThreadPoolExecutor(1)
pool.submit(threading.Event().wait)
ends.end(lambda: None)
threading.Thread(target=threading.Event().wait, name="endless").start()
for _ in range(2):
    ends.end(lambda: None)
os._exit(0)
"""


def test_work_that_has_no_end_is_waited_for_once(tmp_path: Path) -> None:
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300)
    assert run.stderr.splitlines() == [
        "the work of a pool still runs 0.1 s after its trial, and is left",
        "the thread 'endless' still runs 0.1 s after its trial, and is left",
    ]


def compress(directory: str, x: int) -> float:
    compressed(os.path.join(directory, "archive.gz"))
    threading.Thread(target=threading.Event().wait, name="endless").start()
    return x


@pytest.mark.e2e
def test_a_thread_without_an_end_is_left_after_the_grace_and_files_are_complete(tmp_path: Path) -> None:
    result = lagom(
        compress,
        {"directory": str(tmp_path), "x": [1]},
        optimizer="grid",
        direction="max",
        workers=1,
        engine="local",
        directory=tmp_path / "runs",
        progress=False,
    )
    with gzip.open(tmp_path / "archive.gz", "rt") as archive:
        assert archive.read() == "x"
    assert "the thread 'endless' still runs 5 s after its trial" in result.log(0)
