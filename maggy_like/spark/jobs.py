"""The running jobs of a classic session, and Ctrl-C, which cancels them except those of searches."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_CALL_SITE = " at NativeMethodAccessorImpl.java:0"  # how Spark names a call from Python


@dataclass(frozen=True)
class RunningJob:
    """A Spark job that is not over."""

    number: int  # Spark's
    name: str  # description, or the call that started it
    group: str  # empty if it has none
    tags: frozenset[str]
    tasks: int  # number of its running tasks

    def __str__(self) -> str:
        group = f" of group {self.group!r}" if self.group else ""
        return f"job {self.number} {self.name!r}{group}"


def running_jobs(session: SparkSession) -> list[RunningJob]:
    """Return the jobs of a classic session that are not over, oldest first."""
    context = session.sparkContext
    assert context._jvm is not None
    wanted = context._jvm.java.util.ArrayList()
    wanted.add(context._jvm.org.apache.spark.JobExecutionStatus.RUNNING)
    found = context._jsc.sc().statusStore().jobsList(wanted)
    jobs = [found.apply(index) for index in range(found.size())]
    return sorted(
        (
            RunningJob(
                number=job.jobId(),
                name=_text(job.description()) or str(job.name()).removesuffix(_NO_CALL_SITE),
                group=_text(job.jobGroup()),
                tags=frozenset(job.jobTags().mkString("\n").split("\n")),
                tasks=job.numActiveTasks(),
            )
            for job in jobs
        ),
        key=lambda job: job.number,
    )


def _text(option: Any) -> str:
    """Return the value of a Scala Option."""
    return str(option.get()) if option.isDefined() else ""


SEARCHES: set[str] = set()
"""The unique tags of the running jobs of searches."""


def spare_searches(session: SparkSession) -> None:
    """Let Ctrl-C cancel no job of a search.

    PySpark's own handler, which each SparkContext installs, cancels all jobs of the application. It would end searches
    in the background, from whatever line of the program Ctrl-C interrupts.
    """
    handler: Any = signal.getsignal(signal.SIGINT)
    is_pyspark_s = str(getattr(handler, "__module__", "")).startswith("pyspark.")
    if is_pyspark_s and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, partial(_interrupted, session, handler))


def _interrupted(session: SparkSession, pyspark_s: Callable[[int, Any], None], number: int, frame: Any) -> None:
    """Cancel the jobs of others and raise KeyboardInterrupt, as PySpark's handler does for all jobs."""
    if not SEARCHES:
        pyspark_s(number, frame)
    # This thread may be waiting for Java's answer to another call.
    threading.Thread(target=_cancel_others, args=[session], name="Ctrl-C", daemon=True).start()
    raise KeyboardInterrupt


def _cancel_others(session: SparkSession) -> None:
    with contextlib.suppress(Exception):  # of a session that was stopped, or whose JVM is gone
        for job in running_jobs(session):
            if not job.tags & SEARCHES:
                session.sparkContext._jsc.sc().cancelJob(job.number)
