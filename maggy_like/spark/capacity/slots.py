"""How many tasks a session can run side by side, and how long its executors are waited for."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from maggy_like.engines.base import EngineStopped
from maggy_like.spark.capacity.resources import Resources, own_executors, shared_executors
from maggy_like.spark.kinds import SESSION_STOPPED, is_classic, is_local_master

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

ALLOCATION = "spark.dynamicAllocation.enabled"

FIRST_PATIENCE = 60.0
"""Seconds that a session gets until its first executor has registered."""

NEXT_PATIENCE = 15.0
"""Seconds without another executor after which the gang counts as too large."""

SETTLING = 2.0
"""Seconds without a new executor after which their number counts as final."""


class Slots:
    """The slots of a session, for tasks of the resource profile that a gang needs.

    Args:
        session: Classic or Spark Connect.
        resources: What each worker asks for; None for what the session's settings say.
    """

    def __init__(self, session: SparkSession, resources: Resources | None = None) -> None:
        self._session = session
        self.resources = resources

    def count(self) -> int | None:
        """How many there are now; None where the session cannot tell.

        Raises:
            EngineStopped: The session was stopped.
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
        """The number of slots, once executors have had time to register.

        Args:
            wanted: As many are enough; None to wait until their number has settled.

        Returns:
            The slots, or None where the session cannot tell.
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
        """Whether the tasks run in the driver's own JVM: then all slots are there at once."""
        return is_local_master(self.conf("spark.master", ""))

    def conf(self, key: str, default: str) -> str:
        """A setting of the session."""
        return str(self._session.conf.get(key, default))

    @property
    def is_elastic(self) -> bool:
        """Whether Spark asks for executors and gives them back by itself, as its own rule says."""
        return self.conf(ALLOCATION, "false").strip().lower() == "true" and not self.is_local

    @property
    def has_own_executors(self) -> bool:
        """Whether Spark starts executors for the gang's profile alone; without, the session's own serve."""
        return self.resources is not None and self.is_elastic

    @property
    def gpus_owned(self) -> int:
        """GPUs of each executor of the session."""
        return int(self.conf("spark.executor.resource.gpu.amount", "0"))

    @property
    def gpus_asked(self) -> float:
        """GPUs that each worker asks for; where executors own some and the session's tasks ask for none, one."""
        if self.resources is not None and self.resources.gpu:
            return self.resources.gpu
        return float(self.conf("spark.task.resource.gpu.amount", "0")) or float(self.gpus_owned > 0)

    @property
    def cpus_asked(self) -> int:
        """Cores that each worker asks for."""
        own = None if self.resources is None else self.resources.cpu
        return own or int(self.conf("spark.task.cpus", "1"))

    @property
    def needs_profile(self) -> bool:
        """Whether the session's settings alone do not say what each worker's task asks for."""
        is_said = not self.gpus_owned or float(self.conf("spark.task.resource.gpu.amount", "0"))
        return self.resources is not None or not is_said

    @cached_property
    def profile(self) -> ResourceProfile | None:
        """What each worker's task asks for; None where the session's settings say it."""
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

    def _java_context(self) -> Any:
        """The JVM's SparkContext, or None on Spark Connect."""
        if not is_classic(self._session):
            return None
        context = self._session.sparkContext._jsc
        if context is None or context.sc().isStopped():
            raise EngineStopped(f"{SESSION_STOPPED}; make a new one with maggy_like.spark_session()")
        return context.sc()
