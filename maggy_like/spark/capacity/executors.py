"""The executors behind a gang's jobs: which of them are about to leave, and why one was lost.

PySpark reports neither, so a classic session's JVM is asked. A Spark Connect session has no JVM to ask.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OneTaskJob(Protocol):
    """A job of one task, whose executor is looked after.

    Attributes:
        tag: Of the job, and no other.
        executor: Which runs the task; None before that is known.
        leaving: Why the executor is about to be taken away; empty if it is not.
    """

    tag: str
    executor: str | None
    leaving: str

    def lost(self, error: str) -> None:
        """Take in that the executor is gone, and what Spark says of that."""


LOOK_INTERVAL = 1.0
"""Seconds between two looks at the executors."""

LEAVING = "its Spark executor is being decommissioned"


def is_cluster_s(error: str) -> bool:
    """Whether Spark says of a lost executor that no task brought it down.

    Example:
        >>> is_cluster_s("ExecutorLostFailure (executor 3 exited unrelated to the running tasks) Reason: worker lost")
        True
    """
    return "unrelated to the running tasks" in error


def in_words(error: str) -> str:
    """What Spark says of a lost executor, in our words; empty for another error.

    Example:
        >>> in_words("ExecutorLostFailure (executor 3 exited unrelated to the running tasks) Reason: worker lost")
        'its Spark executor is gone (worker lost)'
    """
    found = re.search(r"ExecutorLostFailure \(executor \S+ exited [^)]*\)(?: Reason: (.*))?", error)
    if found is None:
        return ""
    return "its Spark executor is gone" + (f" ({found[1].strip()})" if found[1] else "")


def first_failure(session: SparkSession, tag: str) -> str:
    """What Spark says of the first attempt of the only task of a tagged job; empty if nothing."""
    with contextlib.suppress(Exception):  # of a session that was stopped meanwhile
        task = _first_attempt(session.sparkContext._jsc.sc(), tag)
        if task is not None and task.errorMessage().isDefined():
            return str(task.errorMessage().get())
    return ""


class Executors:
    """Looks after the executors of jobs of one task each.

    Args:
        session: A classic one.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._due = 0.0

    def attend(self, runs: Iterable[OneTaskJob]) -> None:
        """Note on each job whether its executor is about to leave, or is gone; looks once a second."""
        if time.monotonic() < self._due:
            return
        with contextlib.suppress(Exception):  # of a session that was stopped: each job's own end says so
            context = self._session.sparkContext._jsc.sc()
            present = set(context.schedulerBackend().getExecutorIds().mkString(" ").split())
            for run in runs:
                with contextlib.suppress(Exception):  # what is unknown about one job must not hide the others
                    self._look(context, run, present)
        self._due = time.monotonic() + LOOK_INTERVAL

    def _look(self, context: Any, run: OneTaskJob, present: set[str]) -> None:
        if run.executor is None:
            task = _first_attempt(context, run.tag)
            run.executor = None if task is None else str(task.executorId())
        if run.executor is None:
            return
        if run.executor not in present:  # Spark's own next attempt may wait for a slot for long
            if error := first_failure(self._session, run.tag):
                run.lost(error)
        elif context.taskScheduler().getExecutorDecommissionState(run.executor).isDefined():
            run.leaving = LEAVING


def _first_attempt(context: Any, tag: str) -> Any:
    """The first attempt of the only task of a tagged job; None before it has begun."""
    store, tracker = context.statusStore(), context.statusTracker()
    for job in tracker.getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        for stage in info.get().stageIds() if info.isDefined() else ():
            tasks = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), 10)
            for number in range(tasks.size()):
                if tasks.apply(number).attempt() == 0:
                    return tasks.apply(number)
    return None
