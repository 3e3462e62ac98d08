"""How many tasks a session can run side by side, and how long its executors are waited for."""

from __future__ import annotations

import re
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from maggy_like.engines.base import EngineStopped
from maggy_like.spark.kinds import SESSION_STOPPED, is_classic

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

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
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session

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
        return re.match(r"local(\[|$)", self.conf("spark.master", "")) is not None

    def conf(self, key: str, default: str) -> str:
        """A setting of the session."""
        return str(self._session.conf.get(key, default))

    @cached_property
    def profile(self) -> ResourceProfile | None:
        """Tasks must ask for GPUs where executors own some and the session's tasks ask for none."""
        owned = int(self.conf("spark.executor.resource.gpu.amount", "0"))
        asked = float(self.conf("spark.task.resource.gpu.amount", "0"))
        if not owned or asked:
            return None
        from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

        requests = TaskResourceRequests().cpus(int(self.conf("spark.task.cpus", "1"))).resource("gpu", 1)
        return ResourceProfileBuilder().require(requests).build

    def _java_context(self) -> Any:
        """The JVM's SparkContext, or None on Spark Connect."""
        if not is_classic(self._session):
            return None
        context = self._session.sparkContext._jsc
        if context is None or context.sc().isStopped():
            raise EngineStopped(f"{SESSION_STOPPED}; make a new one with maggy_like.spark_session()")
        return context.sc()
