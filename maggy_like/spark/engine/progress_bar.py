"""Hides Spark's progress bars of stages, which would draw over the display of a search."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from maggy_like.spark.kinds import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_lock = threading.Lock()
_hidden = 0
_quiet = threading.local()


@contextlib.contextmanager
def hidden_progress_bar(session: SparkSession) -> Iterator[None]:
    """Keep Spark's progress bar from showing the job of this thread while the block runs."""
    hidden = _hidden_bar_of_jvm(session) if is_classic(session) else _hidden_handlers(session)
    with hidden:
        yield


@contextlib.contextmanager
def _hidden_handlers(session: SparkSession) -> Iterator[None]:
    """Keep the operations of this thread from a Connect client's progress bar and its progress handlers.

    Each operation takes them as it begins, from a list of its client and from a function, both without an argument
    that could say no; so they are replaced by such as look at who asks. Where that cannot be done they see them.
    """
    with contextlib.suppress(Exception):
        progress: Any = importlib.import_module("pyspark.sql.connect.shell.progress")
        with _lock:
            client: Any = session.client
            if not isinstance(client._progress_handlers, _Handlers):
                client._progress_handlers = _Handlers(client._progress_handlers)
            if not hasattr(progress.progress_bar_enabled, "before"):
                progress.progress_bar_enabled = _asked_by_others(progress.progress_bar_enabled)
    _quiet.here = True
    try:
        yield
    finally:
        _quiet.here = False


class _Handlers(list[Any]):
    """Progress handlers, of which a thread that hides them sees none."""

    def __iter__(self) -> Iterator[Any]:
        return iter(()) if getattr(_quiet, "here", False) else super().__iter__()


def _asked_by_others(before: Callable[[], bool]) -> Callable[[], bool]:
    def is_enabled() -> bool:
        return not getattr(_quiet, "here", False) and before()

    is_enabled.before = before  # type: ignore[attr-defined]
    return is_enabled


@contextlib.contextmanager
def _hidden_bar_of_jvm(session: SparkSession) -> Iterator[None]:
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
