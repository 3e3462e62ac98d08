"""Hides Spark's progress bar of stages, which would draw over the display of a search."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_lock = threading.Lock()
_hidden = 0


@contextlib.contextmanager
def hidden_progress_bar(session: SparkSession) -> Iterator[None]:
    """Take a classic session's progress bar away while the block runs, in any number of threads; it is put back.

    ``spark.ui.showConsoleProgress`` is read as a session starts, and our jobs last for as long as the search. Spark has
    no call for it, so its context's own field is set. Where that cannot be done the bar stays.
    """
    global _hidden
    with _lock:
        _hidden += 1
        if _hidden == 1:
            with contextlib.suppress(Exception):
                _take_away(session)
    try:
        yield
    finally:
        with _lock:
            _hidden -= 1
            if _hidden == 0:
                with contextlib.suppress(Exception):  # of a session that was stopped, or whose JVM is gone
                    _put_back(session)


def _take_away(session: SparkSession) -> None:
    context = session.sparkContext._jsc.sc()
    bar = context.progressBar()
    if bar.isDefined():
        _field(context).set(context, _java(session).scala.Option.empty())
        bar.get().stop()


def _put_back(session: SparkSession) -> None:
    context = session.sparkContext._jsc.sc()
    wanted = context.getConf().getBoolean("spark.ui.showConsoleProgress", False)
    if wanted and context.progressBar().isEmpty():
        java = _java(session)
        _field(context).set(context, java.scala.Option.apply(java.org.apache.spark.ui.ConsoleProgressBar(context)))


def _java(session: SparkSession) -> Any:
    return session.sparkContext._jvm


def _field(context: Any) -> Any:
    field = context.getClass().getDeclaredField("_progressBar")
    field.setAccessible(True)
    return field
