"""Logs of trials arrive in the run's directory, however its store behaves."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest

from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.file_systems import mark_store
from maggy_like.worker.agent import log_copies
from maggy_like.worker.agent.log_copies import LogLocation, LogShipper

PATIENCE = 300.0


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def url() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield f"memory://{name}/run/logs"
    memory = fsspec.filesystem("memory")
    if memory.exists(f"/{name}"):
        memory.rm(f"/{name}", recursive=True)


class Store:
    """What a shipper writes to: told of each try, and refuses while it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuses = False
        self.tries: list[str] = []
        self.changed = threading.Condition()
        self._put = log_copies.put
        monkeypatch.setattr(log_copies, "put", self.put)

    def put(self, url: str, data: bytes) -> None:
        self.tries.append(url.rpartition("/")[2])
        try:
            if self.refuses:
                raise PermissionError(13, "the key was withdrawn")
            self._put(url, data)
        finally:
            with self.changed:
                self.changed.notify_all()

    def until(self, reached: Callable[[], Any]) -> None:
        with self.changed:
            assert self.changed.wait_for(reached, PATIENCE)


def end(shipped: LogShipper) -> None:
    shipped.finish()
    shipped._thread.join(PATIENCE)
    assert not shipped.is_busy
    shipped.close()


def content(url: str, name: str) -> bytes | None:
    fs, path = fsspec.core.url_to_fs(f"{url}/{name}")
    return fs.cat_file(path) if fs.exists(path) else None


def test_each_file_is_in_the_store_once_its_attempt_has_ended_and_here_no_more(url: str) -> None:
    shipped = LogShipper(url)
    for name, text in (("00000.log", b"one\n"), ("00001.log", b""), ("00000.2.log", b"two\n")):
        shipped.begin(name)
        if text:
            Path(shipped.directory, name).write_bytes(text)
        shipped.end(name)
    shipped.begin("00002.log")  # it runs when the worker leaves, and its file was closed
    Path(shipped.directory, "00002.log").write_bytes(b"cut off")
    shipped.end("00002.log")
    end(shipped)
    assert [content(url, f"{name}.log") for name in ("00000", "00000.2", "00001", "00002")] == [
        b"one\n", b"two\n", None, b"cut off",
    ]  # fmt: skip
    assert not Path(shipped.directory).exists()
    assert not shipped.trouble


def test_the_log_of_a_long_trial_is_copied_as_it_grows(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copies, "INTERVAL", 0.01)
    monkeypatch.setattr(log_copies, "SHARE", 0)
    store, shipped = Store(monkeypatch), LogShipper(url)
    path = Path(shipped.directory, "00000.log")
    shipped.begin("00000.log")
    for lines in (b"one\n", b"one\ntwo\n"):
        path.write_bytes(lines)
        store.until(partial(lambda lines: content(url, "00000.log") == lines, lines))
    tries = len(store.tries)
    shipped.end("00000.log")
    end(shipped)
    assert len(store.tries) == tries  # it had not grown since
    assert content(url, "00000.log") == b"one\ntwo\n"


def test_what_a_store_refuses_is_kept_and_tried_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copies, "FIRST_PAUSE", 0.01)
    store = Store(monkeypatch)
    store.refuses = True
    shipped = LogShipper(url)
    for name in ("00000.log", "00001.log"):
        shipped.begin(name)
        Path(shipped.directory, name).write_bytes(name.encode())
        shipped.end(name)
    store.until(lambda: len(store.tries) >= 3)
    assert set(store.tries) == {"00000.log"}
    assert (
        "cannot be written (the key was withdrawn); the copy is tried again; files that are not copied stay"
        in shipped.trouble
    )
    assert shipped.directory in shipped.trouble
    store.refuses = False
    end(shipped)
    assert [content(url, name) for name in ("00000.log", "00001.log")] == [b"00000.log", b"00001.log"]
    assert not Path(shipped.directory).exists()


def test_what_never_arrives_stays_on_the_worker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch)
    store.refuses = True
    shipped = LogShipper(url)
    Path(shipped.directory, "00000.log").write_bytes(b"kept")
    shipped.end("00000.log")
    end(shipped)
    assert Path(shipped.directory, "00000.log").read_bytes() == b"kept"


def test_a_store_that_does_not_answer_in_time_is_told_of(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(log_copies, "put", lambda *_: answers.wait(PATIENCE))
    monkeypatch.setattr(log_copies, "CLOSE_PATIENCE", 0.1)
    shipped = LogShipper(url)
    Path(shipped.directory, "00000.log").write_bytes(b"kept")
    shipped.end("00000.log")
    shipped.finish()
    assert shipped.is_busy
    shipped.give_up()
    assert f"does not answer in time; files that are not copied stay in {shipped.directory}" in shipped.trouble
    shipped.close()
    assert Path(shipped.directory, "00000.log").exists()
    answers.set()
    shipped._thread.join(PATIENCE)
    shipped.close()
    assert not Path(shipped.directory).exists()


def task(logs: str, copies: str = "") -> WorkerTask:
    return WorkerTask("tcp://x:1", b"", "run", b"", (), (), (), store="", logs=logs, log_copies=copies)


def test_logs_are_written_where_the_reader_looks_for_them_if_the_worker_sees_it(tmp_path: Path, url: str) -> None:
    logs = tmp_path / "run" / "logs"
    for written in (str(logs), f"file://{logs}"):
        place = LogLocation(task(written))
        assert (place.directory, place.begin(3, 2, 0), place.is_busy) == (str(logs), "00003.log", False)
    mark_store(f"file://{logs}", "run")
    assert LogLocation(task(str(logs), url)).directory == str(logs)
    mark_store(f"file://{logs}", "another")  # a directory of that name on another machine
    for written, copies in ((str(logs), url), (url, "")):
        place = LogLocation(task(written, copies))
        assert place.directory != str(logs)
        assert [place.begin(3, 1, 0), place.begin(3, 2, 0), place.begin(3, 2, 1)] == [
            "00003.log", "00003.2.log", "00003-1.2.log",
        ]  # fmt: skip
        Path(place.directory, "00003.2.log").write_bytes(b"hello")
        place.end("00003.2.log")
        place.finish()
        assert place._shipper is not None
        place._shipper._thread.join(PATIENCE)
        place.close()
        assert content(url, "00003.2.log") == b"hello"
        assert not Path(place.directory).exists()
