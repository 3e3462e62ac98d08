"""Cancelling a job never keeps the caller, whatever became of the session."""

from __future__ import annotations

import threading

import pytest

from maggy_like.spark.engine.job import SparkRun


class Deaf:
    """A Spark Connect session whose server is gone: each call is tried again for minutes."""

    def __init__(self) -> None:
        self.called, self.over = threading.Event(), threading.Event()
        self.calls = 0

    def interruptTag(self, tag: str) -> None:  # pyspark's name
        self.calls += 1
        self.called.set()
        self.over.wait()
        raise ConnectionError("the server is gone")


class Dead:
    """A classic session whose JVM is gone."""

    _sc = None

    @property
    def sparkContext(self) -> None:  # pyspark's name
        raise ConnectionRefusedError("the JVM is gone")


def running(session: object, thread: threading.Thread) -> SparkRun:
    run = SparkRun.__new__(SparkRun)
    run._session, run._thread, run.tag, run._canceller = session, thread, "tag", None  # type: ignore[assignment]
    return run


@pytest.mark.parametrize("session", [Deaf(), Dead()], ids=["connect", "classic"])
def test_it_returns_at_once(session: Deaf | Dead) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    run = running(session, thread)
    run.cancel()
    run.cancel()
    if isinstance(session, Deaf):
        assert session.called.wait(20)
        assert session.calls == 1
        session.over.set()
        assert run._canceller is not None
        run._canceller.join()
    end.set()
    thread.join()
