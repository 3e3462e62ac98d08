"""The appearance of our jobs in Spark: names in its UI, and no progress bars in the terminal."""

from __future__ import annotations

import contextlib
import importlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from maggy_like.protocol.task import WorkerTask
from maggy_like.spark.kinds import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GROUP = "spark.jobGroup.id"
_CALL_SITE = "callSite.short", "callSite.long"
"""Properties for the name of a job and its stages in Spark's UI, and for its "+details"."""


def job_group(name: str) -> str:
    """Return the job group and tag of a run's jobs."""
    return "maggy_like-" + re.sub(r"[^\w.-]", "_", name)  # a tag may hold no comma


def describe(task: WorkerTask, workers: int, incarnation: int) -> str:
    """Describe a job."""
    about = f"{task.about}, {workers} worker{'s' * (workers != 1)}, incarnation {incarnation}"
    return f"maggy_like {task.name}: {about}"


def label_jobs(session: SparkSession, task: WorkerTask, workers: int, incarnation: int, own: str) -> None:
    """Label the jobs that this thread is about to start; those of the caller's thread are not changed.

    If the caller has set a group, the job keeps it: whoever cancels the group, as a notebook does for its cell, also
    means the search. A classic session's own tags do not reach barrier jobs, so those of its context are used.

    Args:
        own: Unique tag of the job.
    """
    group = job_group(task.name)
    if not is_classic(session):
        session.addTag(own)
        session.addTag(group)
        return
    context = session.sparkContext
    context.addJobTag(own)
    context.addJobTag(group)
    if context.getLocalProperty(_GROUP) is None:
        context.setLocalProperty(_GROUP, group)
    description = describe(task, workers, incarnation)
    context.setJobDescription(description)
    for key, value in zip(_CALL_SITE, (f"maggy_like {task.name}", description), strict=True):
        context.setLocalProperty(key, value)


def cancel_jobs(session: SparkSession, own: str) -> None:
    """Cancel the jobs of a classic session that have a tag, with a reason for Spark's UI."""
    session.sparkContext._jsc.sc().cancelJobsWithTag(own, f"by maggy_like, whose search no longer needs it ({own})")


_lock = threading.Lock()
_hidden = 0
_quiet = threading.local()


@contextlib.contextmanager
def hidden_progress_bar(session: SparkSession) -> Iterator[None]:
    """Hide the job of this thread from Spark's progress bar during the block."""
    hidden = _hidden_bar_of_jvm(session) if is_classic(session) else _hidden_handlers(session)
    with hidden:
        yield


@contextlib.contextmanager
def _hidden_handlers(session: SparkSession) -> Iterator[None]:
    """Hide the operations of this thread from a Connect client's progress bar and its progress handlers.

    Each operation reads them when it begins, from a list of its client and from a function, neither of which can be
    disabled by an argument. So they are replaced by ones that check the calling thread. If that fails, the bar is
    shown.
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
    """Progress handlers, hidden from a thread that hides them."""

    def __iter__(self) -> Iterator[Any]:
        return iter(()) if getattr(_quiet, "here", False) else super().__iter__()


def _asked_by_others(before: Callable[[], bool]) -> Callable[[], bool]:
    def is_enabled() -> bool:
        return not getattr(_quiet, "here", False) and before()

    is_enabled.before = before  # type: ignore[attr-defined]
    return is_enabled


@contextlib.contextmanager
def _hidden_bar_of_jvm(session: SparkSession) -> Iterator[None]:
    """Remove a classic session's progress bar during the block, in any number of threads, and restore it.

    ``spark.ui.showConsoleProgress`` is read when a session starts, and our jobs last as long as the search. Spark has
    no method for it, so the context's own field is set. If that fails, the bar is shown.
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
