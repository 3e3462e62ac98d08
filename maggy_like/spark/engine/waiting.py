"""Reasons why the workers of a search do not start or connect, as far as Spark reveals them."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from maggy_like.spark.capacity.slots import Slots
from maggy_like.spark.kinds import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HINTED: WeakSet[SparkSession] = WeakSet()


def other_jobs_hints(session: SparkSession, slots: Slots, workers: int) -> list[str]:
    """Return a hint, once per session, that the workers take all slots, which others may use.

    A local master belongs to its user, and a session with dynamic allocation can grow.

    Args:
        session: Session of the slots.
        slots: Counts the slots.
        workers: Number of workers.
    """
    if slots.is_local or slots.is_elastic or session in _HINTED:
        return []
    count = slots.count()
    if count is None or workers < count or count < 2:
        return []
    _HINTED.add(session)
    return [
        f"the search takes all {count} slots of the Spark session until it ends, and other jobs wait; use "
        "SparkEngine(reserve=1) to leave one"
    ]


MUTE_PATIENCE = 10.0
"""Seconds within which a running task must connect, because its Python has imports to do first."""

MAX_JOBS = 3
"""Maximum number of jobs in a message."""

UNREACHED = (
    "check that the workers' machines reach this port of the driver (a firewall, another network, a wrong "
    "spark.driver.host); use SparkEngine(host=..., port=...) to set both, or driver='cluster' to avoid the connection"
)

_NO_CALL_SITE = " at NativeMethodAccessorImpl.java:0"  # how Spark names a call from Python


@dataclass(frozen=True)
class RunningJob:
    """A Spark job that is not over.

    Attributes:
        number: Spark's number of it.
        name: Description, or the call that started it.
        group: Job group; empty if it has none.
        tags: Tags.
        tasks: Number of its running tasks.
    """

    number: int
    name: str
    group: str
    tags: frozenset[str]
    tasks: int

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


class Diagnosis:
    """Explains why workers have not connected.

    Args:
        session: Session of their jobs.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._run_since: float | None = None  # since when the workers' tasks run

    def why(
        self, own: Collection[str], address: str, slots: int | None, workers: int, came: int, needs: str = ""
    ) -> str:
        """Return the explanation; empty if the session has none.

        Args:
            own: Tags of the workers' jobs.
            address: Address at which workers should reach the driver.
            slots: Number of slots of the session.
            workers: Number of workers that were launched.
            came: Number of workers that have connected.
            needs: Resources of each worker if it needs its own executor; empty otherwise.
        """
        if not is_classic(self._session):
            if came:
                return ""
            return f"Spark Connect hides the reason; if its tasks run, none has reached {address}: {UNREACHED}"
        jobs = running_jobs(self._session)
        running = sum(job.tasks for job in jobs if job.tags & set(own))
        if running <= came:
            self._run_since = None
            return holders([job for job in jobs if not job.tags & set(own)], slots, workers, needs)
        self._run_since = self._run_since or time.monotonic()
        if came or time.monotonic() - self._run_since < MUTE_PATIENCE:
            return ""
        tasks = f"{running} of its tasks run" if running > 1 else "a task of it runs"
        return f"{tasks}, but none has reached {address}: {UNREACHED}"


def holders(jobs: list[RunningJob], slots: int | None, workers: int, needs: str = "") -> str:
    """Describe the jobs that occupy the slots which the workers wait for; empty if there are none.

    Args:
        jobs: Other jobs.
        slots: Number of slots of the session.
        workers: Number of workers.
        needs: Resources of each worker if it needs its own executor.
    """
    holding = sorted((job for job in jobs if job.tasks), key=lambda job: -job.tasks)
    if not holding:
        if slots is None or slots >= workers:
            return ""
        if needs:
            return f"the cluster has started executors for {slots} so far; each needs {needs} free on one machine"
        return f"the session has {slots} slot{'s' * (slots != 1)} now"
    shown = [f"{job} holds {job.tasks} slot{'s' * (job.tasks > 1)}" for job in holding[:MAX_JOBS]]
    more = len(holding) - len(shown)
    return ", ".join(shown) + (f", {more} more job{'s' * (more > 1)} hold others" if more else "")
