"""How many tasks a session can run at the same time, and what workers with own resources need."""

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
from maggy_like.errors import EngineError
from maggy_like.spark.capacity.resources import Resources, megabytes, own_executors, shared_executors
from maggy_like.spark.connection import ping
from maggy_like.spark.kinds import SESSION_STOPPED, is_classic, is_local_master

if TYPE_CHECKING:
    import pyarrow
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


LEAST_DEFAULT = 2
"""The fewest parts into which Spark splits a range by default; else there are as many as its executors have cores."""

HOLD = 0.5
"""Seconds that two tasks stay, to be seen side by side."""

WITHDRAWAL = 5.0
"""Seconds within which a job that is not wanted any more is interrupted, again and again."""


def slots_of(session: SparkSession, resources: Resources | None = None) -> Slots:
    """The slots of a session of either kind, for workers that ask for these resources."""
    return (Slots if is_classic(session) else ConnectSlots)(session, resources)


class ConnectSlots(Slots):
    """The slots of a Spark Connect session."""

    def count(self) -> int | None:
        """How many there are now; None where settings of the session, or executors of the gang's own, hide it.

        Two may be fewer outside a local master, where Spark itself makes no difference: :meth:`wait` tries it out.

        Raises:
            ServerSilent: The server does not answer just now.
            EngineError: It does not know the session any more.
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
        """Whether there may be fewer cores than Spark says."""
        return self._cores() == LEAST_DEFAULT and int(self.conf("spark.executor.cores", "0")) < LEAST_DEFAULT

    def _cores(self) -> int | None:
        """The cores of all executors, as Spark plans with them; no job runs for it. None where a setting hides them."""
        ping(self._session)
        for key in ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism"):
            if self._session.conf.get(key, None) is not None:
                return None
        splits = re.search(r"splits=(?:Some\()?(\d+)", self._session.range(1)._explain_string())  # type: ignore[operator]
        return int(splits[1]) if splits is not None else None

    def _within(self, patience: float, job: Callable[[], bool]) -> bool:
        """Whether a Spark job says yes in time; one that is not waited for any more (Ctrl-C) leaves the server."""
        tag, answers = f"maggy-{uuid.uuid4().hex}", list[bool]()

        def run() -> None:
            self._session.addTag(tag)
            try:
                answers.append(job())
            except Exception as error:  # it was withdrawn, or the gang will fail of the same, and say why
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


LOCAL_REFUSED = (
    "resources= needs a cluster: {} runs all tasks in one process, for which Spark schedules no GPUs; leave resources "
    "out, use LocalEngine(gpu_fraction=...) for this machine's GPUs, or try it on a StandaloneCluster(2, gpus=1)"
)

SCRIPT_NEEDED = (
    "resources={{'gpu': {:g}}} on {} needs a script that prints the GPUs of an executor; pass resources={{..., "
    "'discovery_script': '/path/on/the/nodes/getGpusResources.sh'}} (Spark's folder examples/src/main/scripts has one)"
)

TOO_SMALL = (
    "resources ask for {} a worker, and the executors of the Spark session have {} each ({}={}). Spark starts others "
    f"for the gang alone where the session has {ALLOCATION}=true; start it so, or raise that setting"
)

SHARED = (
    f"{ALLOCATION} is not true, so the gang takes the executors that the session has for all its jobs; with it, only "
    "the gang's executors have {}"
)

RAPIDS = "com.nvidia.spark.SQLPlugin"

MAP_IN_ARROW = "spark.rapids.sql.exec.MapInArrowExec"

RAPIDS_FORGETS = (
    f"the RAPIDS Accelerator (spark.plugins={{}}) replaces mapInArrow, as which the gang runs, and forgets the GPUs, "
    f"cores and memory that each worker asks for; leave it to Spark: spark.conf.set({MAP_IN_ARROW!r}, 'false'). Joins "
    "and aggregations stay on GPUs"
)

RAPIDS_TAKES_ONE = (
    "resources={{'gpu': {:g}}} with the RAPIDS Accelerator (spark.plugins={}), which takes executors of one GPU alone; "
    "pass resources={{'gpu': 1}} and more workers"
)


def check_resources(slots: Slots, *, in_sql: bool) -> None:
    """Check that the session's cluster can give the workers what they ask for.

    Args:
        in_sql: Whether the gang is a query of Spark SQL, which plugins may change.

    Raises:
        EngineError: It cannot; the message has the remedy.
    """
    if slots.needs_profile:
        _check_rapids(slots, in_sql=in_sql)
    resources = slots.resources
    if resources is None:
        return
    master = slots.conf("spark.master", "")
    if slots.is_local:
        raise EngineError(LOCAL_REFUSED.format(f"master {master!r}"))
    if not slots.has_own_executors:
        _check_session_executors(slots, resources)
    elif resources.gpu and not resources.discovery_script and master.startswith(("yarn", "k8s")):
        raise EngineError(SCRIPT_NEEDED.format(resources.gpu, "YARN" if master == "yarn" else "Kubernetes"))


def resource_hints(slots: Slots) -> list[str]:
    """A hint where the gang's executors are those of the session's other jobs."""
    if slots.resources is None or slots.has_own_executors:
        return []
    return [SHARED.format(slots.resources)]


def _check_rapids(slots: Slots, *, in_sql: bool) -> None:
    """Check that NVIDIA's plugin for Spark SQL, if there is one, leaves the gang's tasks as they are."""
    plugins = slots.conf("spark.plugins", "")
    if RAPIDS not in plugins:
        return
    if slots.has_own_executors and slots.resources is not None and slots.resources.whole_gpus > 1:
        raise EngineError(RAPIDS_TAKES_ONE.format(slots.resources.gpu, plugins))
    keys = ("spark.rapids.sql.enabled", MAP_IN_ARROW)
    if in_sql and all(slots.conf(key, "true").strip().lower() == "true" for key in keys):
        raise EngineError(RAPIDS_FORGETS.format(plugins))


def _check_session_executors(slots: Slots, resources: Resources) -> None:
    """Check that an executor of the session has what one worker asks for."""
    key = "spark.executor.resource.gpu.amount"
    if resources.whole_gpus > slots.gpus_owned:
        has = f"{slots.gpus_owned} GPU{'s' * (slots.gpus_owned != 1)}"
        asked = str(Resources(gpu=resources.gpu))
        raise EngineError(TOO_SMALL.format(asked, has, key, slots.conf(key, "unset")))
    on_yarn_or_kubernetes = slots.conf("spark.master", "").startswith(("yarn", "k8s"))
    key = "spark.executor.cores"
    cores = slots.conf(key, "1" if on_yarn_or_kubernetes else "")  # a standalone executor takes all of its Worker
    if cores and slots.cpus_asked > int(cores):
        raise EngineError(
            TOO_SMALL.format(f"{slots.cpus_asked} cores", f"{cores} core{'s' * (cores != '1')}", key, cores)
        )
    key = "spark.executor.memory"
    memory = megabytes(key, slots.conf(key, "1g"))
    total = memory + (_overhead(slots, memory) if on_yarn_or_kubernetes else 0)
    if resources.memory is not None and resources.memory > total:
        raise EngineError(TOO_SMALL.format(f"{resources.memory} MB", f"{total} MB", key, slots.conf(key, "1g")))


def _overhead(slots: Slots, memory: int) -> int:
    """Memory of an executor beside its JVM's, in MB; Python has it."""
    if given := slots.conf("spark.executor.memoryOverhead", ""):
        return megabytes("spark.executor.memoryOverhead", given)
    return max(384, int(memory * float(slots.conf("spark.executor.memoryOverheadFactor", "0.1"))))
