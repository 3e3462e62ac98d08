"""Barrier stages of Spark: tasks that start together and stay; one for the gang, or one for each worker.

A job runs in a background thread that inherits the session, so Ctrl-C stays with the caller. It
goes through ``mapInArrow(..., barrier=True)``, which classic sessions and Spark Connect both serve.
Spark neither retries such a job nor starts a second copy of a slow task, and a barrier stage falls as a
whole; the driver launches it again with the next epoch.
"""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from maggy_like.engines.base import Engine, EngineRun
from maggy_like.errors import EngineError
from maggy_like.worker.task import KeyPair, WorkerContext, WorkerTask

if TYPE_CHECKING:
    import pyarrow
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame, SparkSession

FIRST_PATIENCE = 60.0
"""Seconds that a session gets until its first executor has registered."""

NEXT_PATIENCE = 15.0
"""Seconds without another executor after which the gang counts as too large."""

TOO_FEW_PARTITIONS = (
    "Spark made fewer partitions than there are workers: spark.sql.leafNodeDefaultParallelism, or else "
    "spark.default.parallelism, is smaller than workers; leave them out, or set one to the number of workers at least"
)

SETTLING = 2.0
"""Seconds without a new executor after which their number counts as final."""


class SparkRun(EngineRun):
    """Workers in one barrier stage."""

    def __init__(
        self,
        session: SparkSession,
        task: WorkerTask,
        indexes: Sequence[int],
        epoch: int,
        keys: Sequence[KeyPair],
        profile: ResourceProfile | None,
    ) -> None:
        from pyspark import InheritableThread

        super().__init__(indexes, epoch)
        self._session = session
        self._tag = f"maggy-{uuid.uuid4().hex}"
        self._task = task
        self._keys = tuple(keys)
        self._profile = profile
        self._ended: str | None = None
        self._canceller: threading.Thread | None = None
        self._thread = InheritableThread(self._collect, session=session)
        self._thread.daemon = True
        self._thread.start()

    def poll(self) -> str | None:
        return None if self._thread.is_alive() else self._ended or ""

    def cancel(self) -> None:
        if not self._thread.is_alive():
            return
        if is_classic(self._session):
            with contextlib.suppress(Exception):  # of a session whose JVM is gone, and the workers with it
                self._session.sparkContext.cancelJobsWithTag(self._tag)
        elif self._canceller is None or not self._canceller.is_alive():
            # Where Spark Connect's server is gone, pyspark tries again for ten minutes.
            self._canceller = threading.Thread(target=self._interrupt, daemon=True)
            self._canceller.start()

    def wait(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _interrupt(self) -> None:
        with contextlib.suppress(Exception):
            self._session.interruptTag(self._tag)

    def _tag_job(self) -> None:
        """Make the jobs of this thread cancellable; a classic session's own tags reach no barrier job."""
        if is_classic(self._session):
            self._session.sparkContext.addJobTag(self._tag)
        else:
            self._session.addTag(self._tag)

    def _places(self) -> DataFrame:
        """A row a worker: each task gets its own, and no task sees the keys of the others, as a closure would show."""
        import pyarrow

        public, secret = zip(*self._keys, strict=True)
        rows = {"worker": list(self.indexes), "public": list(public), "secret": list(secret)}
        return self._session.createDataFrame(pyarrow.table(rows))

    def _collect(self) -> None:
        from maggy_like.spark.progress_bar import hidden_progress_bar

        quiet = hidden_progress_bar(self._session) if is_classic(self._session) else contextlib.nullcontext()
        try:
            with quiet:
                self._tag_job()
                member = gang_member(self._task, self.epoch)
                self._places().mapInArrow(member, "worker bigint", barrier=True, profile=self._profile).collect()
        except Exception as error:  # the job failed or was cancelled; the driver decides what follows
            self._ended = self._explain(error)

    def _explain(self, error: Exception) -> str:
        """Why the job ended; notes whether another would end in the same way."""
        from maggy_like.spark.failures import ANOTHER_PYTHON, cause_of, java_end

        if is_classic(self._session) and (gone := java_end(self._session)) is not None:
            self.is_hopeless = True
            return f"{gone}; start this Python process anew"
        cause = cause_of(str(error))
        if cause.startswith(("ModuleNotFoundError", "ImportError")) or "PYTHON_VERSION_MISMATCH" in cause:
            self.is_hopeless = True
            cause += f"; the Spark workers run another Python: {ANOTHER_PYTHON.format(sys.executable)}"
        self.is_hopeless = self.is_hopeless or TOO_FEW_PARTITIONS in cause
        return f"the Spark job ended: {cause}"


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
        self._barrier = barrier

    def slots(self) -> int | None:
        context = self._java_context()
        if context is None:
            return None
        profile = self._profile
        if profile is None:
            java_profile = context.resourceProfileManager().defaultResourceProfile()
        else:
            java_profile = profile._java_resource_profile
            context.resourceProfileManager().addResourceProfile(java_profile)
        return int(context.maxNumConcurrentTasks(java_profile))

    def default_workers(self) -> int:
        self._check_python()
        slots = self.wait_for_slots(None)
        if slots is None:
            raise EngineError("a Spark Connect session does not tell how many slots it has; pass workers=N")
        return max(1, slots)

    def wait_for_slots(self, wanted: int | None) -> int | None:
        """The number of slots, once executors have had time to register.

        Args:
            wanted: As many are enough; None to wait until their number has settled.

        Returns:
            The slots, or None where the session cannot tell.
        """
        slots, since = self.slots(), time.monotonic()
        while slots is not None and (wanted is None or slots < wanted) and not self._is_local:
            settled = SETTLING if wanted is None else NEXT_PATIENCE
            if time.monotonic() - since > (settled if slots else FIRST_PATIENCE):
                break
            time.sleep(0.1)
            before, slots = slots, self.slots()
            since = since if slots == before else time.monotonic()
        return slots

    def require(self, workers: int) -> None:
        self._check_python()
        slots = self.wait_for_slots(workers)
        if slots is not None and slots < workers:
            raise EngineError(
                f"workers={workers} but the Spark session has {slots} slot{'s' * (slots != 1)} now; "
                f"pass workers={max(1, slots)} or fewer, or give the session more executors or cores"
            )

    def driver_host(self) -> str:
        if self._java_context() is not None:
            return socket.gethostbyname(self._conf("spark.driver.host", "127.0.0.1"))
        remote = urlsplit(str(self._session.conf.get("spark.remote", "sc://localhost")))
        return local_address_towards(remote.hostname or "localhost", remote.port or 15002)

    def launch(
        self, task: WorkerTask, indexes: Sequence[int], epoch: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        if self._barrier:
            return [SparkRun(self._session, task, indexes, epoch, keys, self._profile)]
        each = zip(indexes, keys, strict=True)
        return [SparkRun(self._session, task, [index], epoch, [pair], self._profile) for index, pair in each]

    def _java_context(self) -> Any:
        """The JVM's SparkContext, or None on Spark Connect.

        Raises:
            EngineError: The session was stopped.
        """
        if not is_classic(self._session):
            return None
        context = self._session.sparkContext._jsc
        if context is None or context.sc().isStopped():
            raise EngineError("the Spark session was stopped; make a new one with maggy_like.spark_session()")
        return context.sc()

    def _check_python(self) -> None:
        """A local master's workers run here: which Python they run is known before anything starts."""
        if is_classic(self._session) and self._is_local:
            from maggy_like.spark.failures import check_python

            program = self._session.sparkContext.pythonExec
            check_python(self._conf("spark.sql.execution.pyspark.python", "") or program)

    @property
    def _is_local(self) -> bool:
        """Whether the tasks run in the driver's own JVM: then all slots are there at once."""
        return re.match(r"local(\[|$)", self._conf("spark.master", "")) is not None

    def _conf(self, key: str, default: str) -> str:
        return str(self._session.conf.get(key, default))

    @cached_property
    def _profile(self) -> ResourceProfile | None:
        """Tasks must ask for GPUs where executors own some and the session's tasks ask for none."""
        owned = int(self._conf("spark.executor.resource.gpu.amount", "0"))
        asked = float(self._conf("spark.task.resource.gpu.amount", "0"))
        if not owned or asked:
            return None
        from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

        requests = TaskResourceRequests().cpus(int(self._conf("spark.task.cpus", "1"))).resource("gpu", 1)
        return ResourceProfileBuilder().require(requests).build


def gang_member(
    task: WorkerTask, epoch: int
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """The function that each barrier task runs: an agent, until the search is over."""

    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        from pyspark import BarrierTaskContext

        from maggy_like.worker.agent import Agent

        rows = [row for batch in batches for row in batch.to_pylist()]
        if len(rows) != 1:
            raise EngineError(TOO_FEW_PARTITIONS)
        index, keys = rows[0]["worker"], (rows[0]["public"], rows[0]["secret"])
        context = BarrierTaskContext.get()
        gpu = context.resources().get("gpu")
        accelerators = tuple(gpu.addresses) if gpu is not None else ()
        Agent(task, WorkerContext(index, epoch, socket.gethostname(), keys, accelerators)).run()
        yield pyarrow.RecordBatch.from_pydict({"worker": [index]})

    return run


def is_classic(session: SparkSession) -> bool:
    """Whether a session has its own JVM here (Spark Connect's has none)."""
    return hasattr(session, "_sc")


def active_session() -> SparkSession | None:
    """The session of this process, if pyspark is in use at all."""
    if "pyspark" not in sys.modules:
        return None
    from maggy_like.spark.session import active_session

    return active_session()


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


def local_address_towards(host: str, port: int) -> str:
    """The address of this machine from which ``host`` is reached (no packet is sent)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
