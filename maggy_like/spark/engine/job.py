"""One Spark job whose tasks are workers."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from maggy_like.engines.base import EngineRun
from maggy_like.protocol.task import KeyPair, WorkerTask
from maggy_like.rpc.endpoint import CANNOT_REACH
from maggy_like.spark.capacity.executors import first_failure, in_words, is_cluster_s
from maggy_like.spark.connection.connect import is_released, is_unknown, unknown_session
from maggy_like.spark.connection.server_watch import ServerWatch, Watch
from maggy_like.spark.engine.cancellation import INTERRUPTED, cancelled_by
from maggy_like.spark.engine.details import write_details
from maggy_like.spark.engine.entry import entry
from maggy_like.spark.engine.failures import JavaEnd, cause_of, java_end, unfit_worker
from maggy_like.spark.engine.gang_task import STARTED_AGAIN, TOO_FEW_PARTITIONS, Row, gang_task, in_arrow
from maggy_like.spark.engine.labels import cancel_jobs, label_jobs
from maggy_like.spark.engine.progress_bar import hidden_progress_bar
from maggy_like.spark.kinds import SESSION_STOPPED, is_classic, is_stopped

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

TOO_FEW_SLOTS = "SPARK-24819"
"""What Spark says where a barrier stage has more tasks than there are slots, once it has waited for them."""


class SparkRun(EngineRun):
    """Workers in one barrier stage, or one worker without a barrier.

    Args:
        session: Classic or Spark Connect.
        task: What the run is.
        indexes: The workers' indexes in the gang.
        incarnation: Their incarnation.
        keys: The key pair of each.
        profile: What each task asks for, if the session's own settings do not say it.
        logs: Folder that gets what Spark says of failures; none where empty.
        count: Says how many slots with what the tasks ask for there are now.
        barrier: Whether the workers start, and end, together.
        server: Watches the server of a Spark Connect session.

    Attributes:
        tag: Of the job, and no other.
        executor: Which runs the only task of a job without a barrier; None before that is known.
    """

    _watch: Watch | None = None  # of a session whose JVM is here

    def __init__(
        self,
        session: SparkSession,
        task: WorkerTask,
        indexes: Sequence[int],
        incarnation: int,
        keys: Sequence[KeyPair],
        profile: ResourceProfile | None,
        logs: str = "",
        *,
        count: Callable[[], int | None],
        barrier: bool = True,
        server: ServerWatch | None = None,
    ) -> None:
        from pyspark import InheritableThread

        super().__init__(indexes, incarnation)
        self._session = session
        self.tag = f"maggy-{uuid.uuid4().hex[:8]}"
        self._task = task
        self._keys = tuple(keys)
        self._profile = profile
        self._count = count
        self._barrier = barrier
        self._watch = None if server is None else server.begin()
        self._logs = logs
        self.executor: str | None = None
        self._ended: str | None = None
        self._is_cancelled = self._is_lost = False
        self._canceller: threading.Thread | None = None
        self._thread = InheritableThread(self._collect, session=session)
        self._thread.daemon = True
        self._thread.start()

    def poll(self) -> str | None:
        if gone := self._server_gone:  # its thread may wait on
            self.is_hopeless = True
            return gone
        return None if self._thread.is_alive() and not self._is_lost else self._ended or ""

    def lost(self, error: str) -> None:
        """Take in that the executor of the only task is gone; the job, which would wait for another, is cancelled."""
        self._ended = self._of_task(error)
        self._is_lost = True
        self.cancel()

    def cancel(self) -> None:
        if not self._thread.is_alive() or self._server_gone:
            return
        self._is_cancelled = True
        if is_classic(self._session):
            with contextlib.suppress(Exception):  # of a session whose JVM is gone, and the workers with it
                cancel_jobs(self._session, self.tag)
        elif self._canceller is None or not self._canceller.is_alive():
            # Where Spark Connect's server is gone, pyspark tries again for ten minutes.
            self._canceller = threading.Thread(target=self._interrupt, daemon=True)
            self._canceller.start()

    def wait(self, timeout: float) -> bool:
        if not self._server_gone:
            self._thread.join(timeout)
        return bool(self._server_gone) or not self._thread.is_alive()

    @property
    def _server_gone(self) -> str:
        """Why a Connect server counts as gone; empty while it does not."""
        return "" if self._watch is None else self._watch.gone

    def _interrupt(self) -> None:
        with contextlib.suppress(Exception):
            self._session.interruptTag(self.tag)

    def _run_tasks(self) -> list[int]:
        """Run the job; what its tasks returned."""
        return self._in_tasks(gang_task(self._task, self.incarnation))

    def _in_tasks(self, function: Callable[[Iterator[Row]], Iterator[int]]) -> list[int]:
        """Run the function in a task for each worker; what all returned.

        Each task gets its own row, and no task sees the keys of the others, as a closure would show. A classic session
        runs them beside SQL, whose first query costs the JVMs as much time as all that this job needs.
        """
        public, secret = zip(*self._keys, strict=True)
        if is_classic(self._session):
            rows = list(zip(self.indexes, public, secret, strict=True))
            context = self._session.sparkContext
            tasks: Any = context.parallelize(rows, len(rows))
            if self._profile is not None:
                tasks = tasks.withResources(self._profile)
            if self._barrier:
                tasks = tasks.barrier()
            # collect() would name the job by this thread's code, and take their names from the caller's jobs meanwhile.
            return list(context.runJob(tasks.mapPartitions(entry(function)), iter))
        import pyarrow

        table = pyarrow.table({"worker": list(self.indexes), "public": list(public), "secret": list(secret)})
        found = self._session.createDataFrame(table).mapInArrow(
            entry(in_arrow(function)), "worker bigint", barrier=self._barrier, profile=self._profile
        )
        return [row["worker"] for row in found.collect()]

    def _collect(self) -> None:
        try:
            with hidden_progress_bar(self._session):
                label_jobs(self._session, self._task, len(self.indexes), self.incarnation, self.tag)
                if STARTED_AGAIN in self._run_tasks():
                    self._ended = self._of_task(first_failure(self._session, self.tag))
        except Exception as error:  # the job failed or was cancelled; the driver decides what follows
            if self._is_lost or self._server_gone:
                return
            text = str(error)
            gone = java_end(self._session) if is_classic(self._session) else None
            self.stopped_by = self._stopped_by(text, gone)
            self._ended = self.stopped_by or self._explain(text, gone)
            if self._logs and not self._is_cancelled:
                self.details = write_details(self._logs, self._task.name, self.indexes, self.incarnation, text)
        finally:
            if self._watch is not None:
                self._watch.end()

    def _of_task(self, error: str) -> str:
        """Why the only task ended; where Spark does not say it, the trial is not blamed."""
        if not error:
            self.with_node = True
            return "its Spark task failed, or its executor was lost"
        return self._explain(error, None)

    def _stopped_by(self, text: str, gone: JavaEnd | None) -> str:
        """Who ended the job, if it was not :meth:`cancel`.

        A classic session names the tag by which a job was cancelled; Connect's error is the same for every cancel.
        """
        if gone is not None:
            return gone.text if gone.was_shut_down else ""
        by = SESSION_STOPPED if is_stopped(self._session) else cancelled_by(text)
        if self._is_cancelled and (self.tag in by or not is_classic(self._session)):
            return ""
        if by == INTERRUPTED and is_released(self._session):  # stop() interrupts first, and is not over yet
            return SESSION_STOPPED
        return by

    def _explain(self, text: str, gone: JavaEnd | None) -> str:
        """Why the job ended; notes whether another would end in the same way."""
        if gone is not None:
            self.is_hopeless = True
            return f"{gone.text}; start this Python process anew"
        self.with_node = is_cluster_s(text)
        if lost := in_words(text):
            return lost
        cause = cause_of(text)
        if (advice := unfit_worker(cause)) is not None:
            self.is_hopeless = True
            cause += advice
        if is_unknown(text):
            self.is_hopeless = True
            return unknown_session(self._session)
        if TOO_FEW_SLOTS in cause:
            return self._too_few_slots()
        self.is_hopeless = self.is_hopeless or TOO_FEW_PARTITIONS in cause
        if CANNOT_REACH in cause:
            self.is_cut_off = True
            return cause.partition(": ")[2]
        return f"the Spark job ended: {cause}"

    def _too_few_slots(self) -> str:
        slots = None
        with contextlib.suppress(Exception):  # of a session that is gone meanwhile
            slots = self._count()
        has = "fewer" if slots is None or slots >= len(self.indexes) else f"{slots}"
        return (
            f"a gang of {len(self.indexes)} workers needs {len(self.indexes)} slots at once, and the Spark session has "
            f"{has} now ({TOO_FEW_SLOTS})"
        )
