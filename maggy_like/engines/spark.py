"""The engine whose workers are tasks of a Spark session: one job for the gang, or one for each worker.

A job runs in a background thread that inherits the session, so Ctrl-C stays with the caller. It
goes through ``mapInArrow(..., barrier=True)``, which classic sessions and Spark Connect both serve.
Spark neither retries such a job nor starts a second copy of a slow task, and a barrier stage falls as a
whole; the driver launches it again with the next epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from maggy_like.engines.base import Engine, EngineRun
from maggy_like.errors import EngineError
from maggy_like.spark.address import driver_address
from maggy_like.spark.failures import check_python
from maggy_like.spark.job import SparkRun
from maggy_like.spark.kinds import is_classic
from maggy_like.spark.place import driver_place
from maggy_like.spark.session import active_session
from maggy_like.spark.slots import Slots
from maggy_like.worker.task import KeyPair, WorkerTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkEngine(Engine):
    """Runs the gang in tasks of a Spark session.

    With ``barrier=True`` all workers are one barrier stage: they start together. Whatever ends one of them ends them
    all, so one fault costs every running trial an attempt. Without enough slots for the whole gang nothing runs.

    With ``barrier=False`` each worker is a stage of its own. They start one by one, and can train together all the
    same, since they meet through the driver. A fault costs that worker alone, and those that train with it their
    attempt; where its executor is lost for good the others go on without it.

    On two busy cores a trial ran again 0.2 s after its own process was killed and 0.6 s after the fork server
    was, either way; after the Python worker 2.8 s with a barrier and 1.9 s without, and after its executor 12 to
    19 s, which is what a new JVM takes.

    Args:
        session: The session; the active one if not given.
        barrier: Whether the gang starts, and falls, as a whole.

    Example:
        >>> lagom(train_fn, space, engine=SparkEngine(spark, barrier=False), workers=8)
    """

    name = "spark"

    def __init__(self, session: SparkSession | None = None, *, barrier: bool = True) -> None:
        self._session = session if session is not None else require_session()
        self._slots = Slots(self._session)
        self._barrier = barrier

    def slots(self) -> int | None:
        return self._slots.count()

    def default_workers(self) -> int:
        self._check_python()
        slots = self._slots.wait(None)
        if slots is None:
            raise EngineError("a Spark Connect session does not tell how many slots it has; pass workers=N")
        return max(1, slots)

    def require(self, workers: int) -> None:
        self._check_python()
        slots = self._slots.wait(workers)
        if slots is not None and slots < workers:
            raise EngineError(
                f"workers={workers} but the Spark session has {slots} slot{'s' * (slots != 1)} now; "
                f"pass workers={max(1, slots)} or fewer, or give the session more executors or cores"
            )

    def driver_host(self) -> str:
        return driver_address(self._session)

    def launch(
        self, task: WorkerTask, indexes: Sequence[int], epoch: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        profile = self._slots.profile
        task = msgspec.structs.replace(task, driver=driver_place())
        if self._barrier:
            return [SparkRun(self._session, task, indexes, epoch, keys, profile)]
        each = zip(indexes, keys, strict=True)
        return [SparkRun(self._session, task, [index], epoch, [pair], profile) for index, pair in each]

    def _check_python(self) -> None:
        """A local master's workers run here: which Python they run is known before anything starts."""
        if is_classic(self._session) and self._slots.is_local:
            program = self._session.sparkContext.pythonExec
            check_python(self._slots.conf("spark.sql.execution.pyspark.python", "") or program)


def require_session() -> SparkSession:
    """The active session.

    Raises:
        EngineError: There is none.
    """
    session = active_session()
    if session is None:
        raise EngineError(
            "engine='spark' needs a Spark session; make one with maggy_like.spark_session(), which finds Java or "
            "brings its own (pip install \"maggy_like[java]\"), and sets what long tasks need; or pass engine='local'"
        )
    return session
