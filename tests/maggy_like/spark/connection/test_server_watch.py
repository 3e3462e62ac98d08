"""A Spark Connect server that stops answering, and answers again."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from maggy_like.spark import connection as module
from maggy_like.spark.connection import ServerSilent, ServerWatch


class Server:
    """What a ping finds: the test holds each ping until it wants the answer."""

    def __init__(self) -> None:
        self.is_silent = False
        self.asked, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def ping(self, _: Any) -> None:
        self.asked.release()
        self.go_on.acquire()
        if self.is_silent:
            raise ServerSilent("it does not answer", is_refused=False)

    def answer(self, times: int) -> None:
        for _ in range(times):
            assert self.asked.acquire(timeout=60)
            self.go_on.release()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()
    monkeypatch.setattr(module, "ping", found.ping)
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    monkeypatch.setattr(module, "SILENT_PATIENCE", -1.0)
    return found


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "Spark Connect server"]


def end_all(server: Server) -> None:
    server.go_on.release()  # of a ping that may be under way
    for thread in watchers():
        thread.join(60)
        assert not thread.is_alive()


def test_jobs_beside_each_other_share_a_watch_and_it_ends_with_the_last(server: Server) -> None:
    watched = ServerWatch(object())  # type: ignore[arg-type]
    first, second = watched.begin(), watched.begin()
    assert first is second
    first.end()
    server.answer(3)
    assert len(watchers()) == 1
    second.end()
    end_all(server)
    third = watched.begin()
    assert third is not first
    third.end()
    end_all(server)


def test_a_job_after_a_silent_server_is_watched_anew_though_the_one_before_waits_on(server: Server) -> None:
    watched = ServerWatch(object())  # type: ignore[arg-type]
    before = watched.begin()  # never ends: pyspark waits for its answer
    server.is_silent = True
    end_all(server)
    assert before.gone == "it does not answer"
    server.is_silent = False
    after = watched.begin()
    server.answer(3)
    assert after is not before
    assert (after.gone, before.gone) == ("", "it does not answer")
    after.end()
    end_all(server)
