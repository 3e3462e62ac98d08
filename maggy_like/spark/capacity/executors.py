"""The executors of a search: those of dynamic allocation, those that leave, and why one was lost."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from maggy_like.errors import EngineError
from maggy_like.spark.capacity.slots import ALLOCATION, Slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OneTaskJob(Protocol):
    """A job of one task, whose executor is watched.

    Attributes:
        tag: Unique tag of the job.
        executor: Executor of the task; None before it is known.
        leaving: Why the executor is about to be removed; empty if it is not.
    """

    tag: str
    executor: str | None
    leaving: str

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
    """
    return "unrelated to the running tasks" in error


def in_words(error: str) -> str:
    """Rephrase Spark's message on a lost executor; empty for another error.

    Example:
        >>> in_words("ExecutorLostFailure (executor 3 exited unrelated to the running tasks) Reason: worker lost")
        'its Spark executor is gone (worker lost)'
    """
    found = re.search(r"ExecutorLostFailure \(executor \S+ exited [^)]*\)(?: Reason: (.*))?", error)
    if found is None:
        return ""
    return "its Spark executor is gone" + (f" ({found[1].strip()})" if found[1] else "")


def first_failure(session: SparkSession, tag: str) -> str:
    """Return Spark's message on the first attempt of the only task of a tagged job; empty if there is none."""
    with contextlib.suppress(Exception):  # of a session that was stopped meanwhile
        task = _first_attempt(session.sparkContext._jsc.sc(), tag)
        if task is not None and task.errorMessage().isDefined():
            return str(task.errorMessage().get())
    return ""


class Executors:
    """Watches the executors of jobs of one task each.

    Args:
        session: Classic session.
    """

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


UNBOUNDED = 2**31 - 1
"""Spark's default for the maximum number of executors."""

BARRIER_REFUSED = (
    f"barrier must not be True while {ALLOCATION}=true, because Spark then starts no barrier stage (SPARK-24942); omit "
    f"barrier, or start the session with {ALLOCATION}=false"
)

TOGETHER_REFUSED = (
    f"{{}} needs workers that start together, and Spark starts no barrier stage while {ALLOCATION}=true (SPARK-24942); "
    f"start the session with {ALLOCATION}=false, or use engine=SparkEngine(barrier=False), whose workers start one by "
    "one"
)

DRIVER_TASK_REFUSED = (
    "barrier must not be True with driver='cluster', which needs tasks that Spark retries one by one; omit barrier, or "
    "use driver='client'"
)

ADDRESS_REFUSED = (
    "{} must not be given with driver='cluster', got {!r}, because the driver listens at its executor's address; omit "
    "it (port= applies there too)"
)

SPECULATION_REFUSED = (
    "spark.speculation.task.duration.threshold must not be set with spark.speculation=true, got {}, because Spark "
    "would start second copies of workers; start the session without it, or use engine=SparkEngine(barrier=True)"
)

DRIVER_TASK_SPECULATION_REFUSED = (
    "spark.speculation must be false with driver='cluster', got true, because Spark would start second copies of the "
    "driver and its workers; start the session with spark.speculation=false, or use driver='client'"
)


def check_speculation(slots: Slots) -> None:
    """Check that Spark starts no second copy of a job's only task, which it does after a configured time.

    Raises:
        EngineError: It would.
    """
    threshold = slots.conf("spark.speculation.task.duration.threshold", "")
    if threshold and _is_true(slots, "spark.speculation"):
        raise EngineError(SPECULATION_REFUSED.format(threshold))


def check_driver_task_speculation(slots: Slots) -> None:
    """Check that Spark starts no second copies of the tasks of a job with the driver.

    Raises:
        EngineError: It would.
    """
    if _is_true(slots, "spark.speculation"):
        raise EngineError(DRIVER_TASK_SPECULATION_REFUSED)


def check_room(slots: Slots, workers: int, reserve: int) -> None:
    """Check that the session may grow to this number of workers.

    Args:
        slots: Slots of the session.
        workers: Number of workers.
        reserve: Number of slots left to other jobs.

    Raises:
        EngineError: It may not.
    """
    most = most_workers(slots)
    if most is not None and workers + reserve > most:
        bound = slots.conf("spark.dynamicAllocation.maxExecutors", "")
        reserved = f", of which reserve={reserve} are for others" if reserve else ""
        raise EngineError(
            f"workers must fit in the {most} slot{'s' * (most != 1)} to which the Spark session can grow "
            f"(spark.dynamicAllocation.maxExecutors={bound}){reserved}, got {workers}; "
            f"use workers={max(1, most - reserve)} or fewer, or increase that setting"
        )


def most_workers(slots: Slots) -> int | None:
    """Return the number of tasks that can run at the same time once all executors have started; None if unlimited."""
    executors = int(slots.conf("spark.dynamicAllocation.maxExecutors", "") or UNBOUNDED)
    each = _tasks_per_executor(slots)
    return executors * each if executors < UNBOUNDED and each else None


def _tasks_per_executor(slots: Slots) -> int | None:
    """Return the number of concurrent tasks of an executor; None if Spark gives it all cores of its machine."""
    if slots.resources is not None:
        return slots.resources.sharing
    cores = slots.conf("spark.executor.cores", "")
    if not cores and slots.conf("spark.master", "").startswith(("yarn", "k8s")):
        cores = "1"
    if not cores:
        return None
    each = int(cores) // slots.cpus_asked
    if slots.gpus_owned:
        each = min(each, int(slots.gpus_owned / slots.gpus_asked + 1e-9))
    return max(1, each)


def _is_true(slots: Slots, key: str) -> bool:
    return slots.conf(key, "false").strip().lower() == "true"
