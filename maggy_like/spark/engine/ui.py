"""What Spark shows of our jobs: their names in its UI, and no progress bars in the terminal."""

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
"""What Spark's UI names a job and its stages by, and what it shows under "+details"."""


def job_group(name: str) -> str:
    """The job group, and the job tag, of a run's jobs."""
    return "maggy_like-" + re.sub(r"[^\w.-]", "_", name)  # a tag may hold no comma


def describe(task: WorkerTask, workers: int, incarnation: int) -> str:
    """A job in words."""
    about = f"{task.about}, {workers} worker{'s' * (workers != 1)}, incarnation {incarnation}"
    return f"maggy_like {task.name}: {about}"


def label_jobs(session: SparkSession, task: WorkerTask, workers: int, incarnation: int, own: str) -> None:
    """Label the jobs that this thread is about to start; those of the caller's thread stay as they are.

    A group that the caller has set stays the job's: who cancels it, as a notebook does for its cell, means the search
    too. A classic session's own tags reach no barrier job, so those of its context are used.

    Args:
        own: A tag that no other job has.
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
    """Cancel the jobs of a classic session that have a tag; Spark's UI then says that it was us."""
    session.sparkContext._jsc.sc().cancelJobsWithTag(own, f"by maggy_like, whose search needs it no more ({own})")


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
