"""The executors behind a search: those that come with dynamic allocation, those that leave, and why one was lost."""

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


UNBOUNDED = 2**31 - 1
"""Spark's own default for the most executors."""

BARRIER_REFUSED = (
    f"Spark starts no barrier stage while {ALLOCATION}=true (SPARK-24942), so SparkEngine(barrier=True) cannot start; "
    f"leave barrier out, or start the session with {ALLOCATION}=false"
)

TOGETHER_REFUSED = (
    f"{{}} needs workers that start together, and Spark starts no barrier stage while {ALLOCATION}=true (SPARK-24942); "
    f"start the session with {ALLOCATION}=false, or pass engine=SparkEngine(barrier=False), with which workers meet "
    "through the driver as they come"
)

DRIVER_TASK_REFUSED = (
    "driver='cluster' needs tasks that Spark runs again one by one, and those of SparkEngine(barrier=True) fall "
    "together; leave barrier out, or use driver='client'"
)

ADDRESS_REFUSED = (
    "{}={!r} is an address of this machine, and with driver='cluster' the driver listens at its executor's; leave it "
    "out (port= holds there too)"
)

SPECULATION_REFUSED = (
    "Spark would start second copies of workers: spark.speculation=true with "
    "spark.speculation.task.duration.threshold={}; start the session without the threshold, or pass "
    "engine=SparkEngine(barrier=True)"
)

DRIVER_TASK_SPECULATION_REFUSED = (
    "driver='cluster' runs the driver and its workers as tasks of one job, and with spark.speculation=true Spark would "
    "start second copies of them; start the session with spark.speculation=false, or use driver='client'"
)


def check_speculation(slots: Slots) -> None:
    """See to it that Spark starts no second copy of a job's only task: it does so past a time that a setting names.

    Raises:
        EngineError: It would.
    """
    threshold = slots.conf("spark.speculation.task.duration.threshold", "")
    if threshold and _is_true(slots, "spark.speculation"):
        raise EngineError(SPECULATION_REFUSED.format(threshold))


def check_driver_task_speculation(slots: Slots) -> None:
    """See to it that Spark starts no second copies of the tasks of a job that has the driver in it.

    Raises:
        EngineError: It would.
    """
    if _is_true(slots, "spark.speculation"):
        raise EngineError(DRIVER_TASK_SPECULATION_REFUSED)


def check_room(slots: Slots, workers: int, reserve: int) -> None:
    """Check that the session may grow to as many workers.

    Args:
        slots: Of the session.
        workers: How many are wanted.
        reserve: How many slots are left to other jobs.

    Raises:
        EngineError: It may not.
    """
    most = most_workers(slots)
    if most is not None and workers + reserve > most:
        bound = slots.conf("spark.dynamicAllocation.maxExecutors", "")
        reserved = f", of which reserve={reserve} are for others" if reserve else ""
        raise EngineError(
            f"workers={workers} but the Spark session grows to {most} slot{'s' * (most != 1)} at most "
            f"(spark.dynamicAllocation.maxExecutors={bound}){reserved}; "
            f"pass workers={max(1, most - reserve)} or fewer, or raise it"
        )


def most_workers(slots: Slots) -> int | None:
    """How many tasks can run side by side once all executors have come; None where nothing bounds it."""
    executors = int(slots.conf("spark.dynamicAllocation.maxExecutors", "") or UNBOUNDED)
    each = _tasks_per_executor(slots)
    return executors * each if executors < UNBOUNDED and each else None


def _tasks_per_executor(slots: Slots) -> int | None:
    """How many tasks an executor runs at a time; None where Spark gives each all cores of its machine."""
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
