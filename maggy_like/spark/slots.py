"""The slots of a session: how many of its tasks run at the same time, and how long executors are awaited."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from maggy_like.engines.base import EngineStopped
from maggy_like.spark.connection import SESSION_STOPPED, is_classic, is_local_master, ping, setting
from maggy_like.spark.resources import Resources, own_executors, shared_executors
from maggy_like.spark.session import is_over

if TYPE_CHECKING:
    import pyarrow
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

ALLOCATION = "spark.dynamicAllocation.enabled"

FIRST_PATIENCE = 60.0
"""Seconds within which a session's first executor must register."""

NEXT_PATIENCE = 15.0
"""Seconds without another executor after which the number of workers counts as too large."""

SETTLING = 2.0
"""Seconds without a new executor after which their number counts as final."""


class Slots:
    """The slots of a session, for tasks of the workers' resource profile."""

    def __init__(self, session: SparkSession, resources: Resources | None = None) -> None:
        self._session = session
        self.resources = resources  # of each worker; None for those of the session's settings

    def count(self) -> int | None:
        """Return the present number of slots; None if the session cannot provide it.

        Raise EngineStopped if the session was stopped.
        """
        context = self._java_context()
        if context is None:
            return None
        profile = self.profile
        if profile is None:
            java_profile = context.resourceProfileManager().defaultResourceProfile()
        else:
            java_profile = profile._java_resource_profile
            context.resourceProfileManager().addResourceProfile(java_profile)
        return int(context.maxNumConcurrentTasks(java_profile))

    def wait(self, wanted: int | None) -> int | None:
        """Wait until executors have registered, and return the number of slots.

        ``wanted`` is a sufficient number; None to wait until the number has settled. Return None if the session cannot
        provide the number.
        """
        slots, since = self.count(), time.monotonic()
        while slots is not None and (wanted is None or slots < wanted) and not self.is_local:
            settled = SETTLING if wanted is None else NEXT_PATIENCE
            if time.monotonic() - since > (settled if slots else FIRST_PATIENCE):
                break
            time.sleep(0.1)
            before, slots = slots, self.count()
            since = since if slots == before else time.monotonic()
        return slots

    @property
    def is_local(self) -> bool:
        """Whether the tasks run in the driver's own JVM, so that all slots exist at once."""
        return is_local_master(self.conf("spark.master", ""))

    def conf(self, key: str, default: str) -> str:
        """Return a setting that is in force."""
        return setting(self._session, key, default)

    @property
    def is_elastic(self) -> bool:
        """Whether Spark adds and removes executors by itself, by its own rule."""
        return self.conf(ALLOCATION, "false").strip().lower() == "true" and not self.is_local

    @property
    def has_own_executors(self) -> bool:
        """Whether Spark starts executors only for the workers' profile; if not, the session's own are used."""
        return self.resources is not None and self.is_elastic

    @property
    def gpus_owned(self) -> int:
        """Number of GPUs of each executor of the session."""
        return int(self.conf("spark.executor.resource.gpu.amount", "0"))

    @property
    def gpus_asked(self) -> float:
        """Number of GPUs of each worker; one if executors have some and the session's tasks request none."""
        if self.resources is not None and self.resources.gpu:
            return self.resources.gpu
        return float(self.conf("spark.task.resource.gpu.amount", "0")) or float(self.gpus_owned > 0)

    @property
    def cpus_asked(self) -> int:
        """Number of cores of each worker."""
        own = None if self.resources is None else self.resources.cpu
        return own or int(self.conf("spark.task.cpus", "1"))

    @property
    def needs_profile(self) -> bool:
        """Whether the session's settings do not define the resources of a worker's task."""
        is_said = not self.gpus_owned or float(self.conf("spark.task.resource.gpu.amount", "0"))
        return self.resources is not None or not is_said

    @cached_property
    def profile(self) -> ResourceProfile | None:
        """Return the profile of a worker's task; None if the session's settings define it."""
        if self.has_own_executors:
            assert self.resources is not None
            master = self.conf("spark.master", "")
            return own_executors(
                self._session,
                self.resources,
                splits_memory=master.startswith(("yarn", "k8s")),
                task_cpus=self.cpus_asked,
            )
        if not self.needs_profile:
            return None
        return shared_executors(self._session, self.gpus_asked, self.cpus_asked)

    def check_running(self) -> None:
        """Raise EngineStopped if a classic session was stopped."""
        if is_classic(self._session) and is_over(self._session):
            raise EngineStopped(f"{SESSION_STOPPED}; create a new one with maggy_like.spark_session()")

    def _java_context(self) -> Any:
        """Return the JVM's SparkContext, or None on Spark Connect."""
        if not is_classic(self._session):
            return None
        self.check_running()
        return self._session.sparkContext._jsc.sc()


LEAST_DEFAULT = 2
"""Minimum number of default partitions of a range; otherwise it is the number of the executors' cores."""

HOLD = 0.5
"""Seconds that two tasks last, so that they overlap."""

WITHDRAWAL = 5.0
"""Seconds for which a job that is no longer wanted is repeatedly interrupted."""


def slots_of(session: SparkSession, resources: Resources | None = None) -> Slots:
    """Return the slots of a session of either kind, for workers with these resources."""
    return (Slots if is_classic(session) else ConnectSlots)(session, resources)


class ConnectSlots(Slots):
    """The slots of a Spark Connect session."""

    def count(self) -> int | None:
        """Return the present number of slots; None if settings of the session, or dedicated executors, hide it.

        The result 2 may be too large outside a local master, because Spark reports it in either case; :meth:`wait`
        tries it. Raise ServerSilent if the server does not answer at the moment, and EngineError if it no longer knows
        the session.
        """
        if self.has_own_executors:
            return None
        cores = self._cores()
        if cores is None:
            return None
        each = int(self.conf("spark.executor.cores", "0"))
        gpus = self.gpus_owned
        if self.is_local or not each:
            return None if gpus else cores // self.cpus_asked
        by_cores = each // self.cpus_asked
        return cores // each * (min(by_cores, int(gpus / self.gpus_asked + 1e-9)) if gpus else by_cores)

    def wait(self, wanted: int | None) -> int | None:
        if self.is_local or self.has_own_executors or not self._is_vague:
            return super().wait(wanted)
        # Spark says two cores: there may be no executor yet, and a job of one task ends once there is one.
        if not self._within(FIRST_PATIENCE, lambda: bool(self._session.range(0, 1, 1, 1).collect())):
            return 0
        slots = super().wait(wanted)
        if wanted == 1 or slots != LEAST_DEFAULT or not self._is_vague:
            return slots
        until = time.monotonic() + (SETTLING if wanted is None else NEXT_PATIENCE)
        while not self._within(NEXT_PATIENCE, lambda: side_by_side(self._session)):
            if time.monotonic() > until:
                return 1
        return slots

    @property
    def _is_vague(self) -> bool:
        """Whether there may be fewer cores than Spark reports."""
        return self._cores() == LEAST_DEFAULT and int(self.conf("spark.executor.cores", "0")) < LEAST_DEFAULT

    def _cores(self) -> int | None:
        """Return the cores of all executors from Spark's plans, without running a job; None if a setting hides them."""
        ping(self._session)
        for key in ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism"):
            if self._session.conf.get(key, None) is not None:
                return None
        splits = re.search(r"splits=(?:Some\()?(\d+)", self._session.range(1)._explain_string())  # type: ignore[operator]
        return int(splits[1]) if splits is not None else None

    def _within(self, patience: float, job: Callable[[], bool]) -> bool:
        """Whether a Spark job returns True in time; an abandoned one (Ctrl-C) is removed from the server."""
        tag, answers = f"maggy-{uuid.uuid4().hex}", list[bool]()

        def run() -> None:
            self._session.addTag(tag)
            try:
                answers.append(job())
            except Exception as error:  # it was cancelled, or the workers will fail for the same reason, and report it
                answers.append("OPERATION_CANCELED" not in str(error))

        thread = threading.Thread(target=run, name="slots", daemon=True)
        thread.start()
        try:
            thread.join(patience)
        finally:
            if thread.is_alive():
                self._withdraw(tag, thread)
        return answers == [True]

    def _withdraw(self, tag: str, thread: threading.Thread) -> None:
        deadline = time.monotonic() + WITHDRAWAL
        while thread.is_alive() and time.monotonic() < deadline:  # again: it may only be being submitted
            self._session.interruptTag(tag)
            thread.join(0.2)


def side_by_side(session: SparkSession) -> bool:
    """Whether two tasks of a Spark job ran at the same time, or on two hosts."""

    def stay(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import socket
        import time

        import pyarrow

        begin = time.time()
        time.sleep(HOLD)
        row = {"host": socket.gethostname(), "begin": begin, "end": time.time()}
        yield from (pyarrow.RecordBatch.from_pylist([row]) for batch in batches if batch.num_rows)

    rows = session.range(0, 2, 1, 2).mapInArrow(stay, "host string, begin double, end double").collect()
    stays = defaultdict[str, list[tuple[float, float]]](list)
    for row in rows:
        stays[row.host].append((row.begin, row.end))
    return len(stays) > 1 or any(second[0] < first[1] for first, second in map(sorted, stays.values()))
