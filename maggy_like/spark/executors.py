"""The executors of running jobs: which are about to leave, which are lost, and what Spark says of it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OneTaskJob(Protocol):
    """A job of one task, whose executor is watched."""

    tag: str  # unique
    executor: str | None  # of the task; None before it is known
    leaving: str  # why the executor is about to be removed; empty if it is not

    def lost(self, error: str) -> None:
        """Record that the executor is lost, with Spark's message."""


LOOK_INTERVAL = 1.0
"""Seconds between two looks at the executors."""

LEAVING = "its Spark executor is being decommissioned"


def is_cluster_s(error: str) -> bool:
    """Whether Spark's message on a lost executor excludes that a task brought it down.

    Example:
        >>> is_cluster_s("ExecutorLostFailure (executor 3 exited unrelated to the running tasks) Reason: worker lost")
        True
        >>> is_cluster_s("... Reason: The executor with id 3 exited with exit code -1(unexpected).")
        True
    """
    # On Kubernetes, -1 is the exit code of a pod of a lost node: nobody has seen how its container ended.
    return "unrelated to the running tasks" in error or "exited with exit code -1(" in error


def in_words(error: str) -> str:
    """Rephrase Spark's message on a lost executor; empty for another error.

    Example:
        >>> in_words("ExecutorLostFailure (executor 3 exited unrelated to the running tasks) Reason: worker lost")
        'its Spark executor is gone (worker lost)'
    """
    found = re.search(r"ExecutorLostFailure \(executor \S+ exited [^)]*\)(?: Reason:\s*(.*))?", error)
    if found is None:
        return ""
    return "its Spark executor is gone" + (f" ({found[1].strip().rstrip('.')})" if found[1] else "")


def first_failure(session: SparkSession, tag: str) -> str:
    """Return Spark's message on the first attempt of the only task of a tagged job; empty if there is none."""
    with contextlib.suppress(Exception):  # of a session that was stopped meanwhile
        task = _first_attempt(session.sparkContext._jsc.sc(), tag)
        if task is not None and task.errorMessage().isDefined():
            return str(task.errorMessage().get())
    return ""


class Executors:
    """Watches the executors of jobs of one task each, in a classic session."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._due = 0.0

    def attend(self, runs: Iterable[OneTaskJob]) -> None:
        """Record on each job whether its executor is about to leave, or is lost; checks once a second."""
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
    """Return the first attempt of the only task of a tagged job; None before it has started."""
    store, tracker = context.statusStore(), context.statusTracker()
    for job in tracker.getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        for stage in info.get().stageIds() if info.isDefined() else ():
            tasks = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), 10)
            for number in range(tasks.size()):
                if tasks.apply(number).attempt() == 0:
                    return tasks.apply(number)
    return None
