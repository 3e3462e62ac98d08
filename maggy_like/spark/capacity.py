"""The capacity of a session: its slots, the resources that each worker needs, and executors that come and go."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import msgspec
from pyspark.resource import (
    ExecutorResourceRequests,
    ResourceProfile,
    ResourceProfileBuilder,
    TaskResourceRequests,
)
from pyspark.sql import SparkSession

from maggy_like.argument_checks import one_of, whole
from maggy_like.engines.base import EngineStopped
from maggy_like.errors import ConfigError, EngineError
from maggy_like.spark.connection import SESSION_STOPPED, is_classic, is_local_master, ping

if TYPE_CHECKING:
    import pyarrow
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession


KEYS = ("gpu", "cpu", "memory", "discovery_script", "vendor")

VENDOR = "nvidia.com"
"""Default vendor name of GPUs in Kubernetes."""

LARGEST_HEAP_MB = 1024
"""Memory of the JVM of an executor with only Python tasks, if the cluster manager counts the rest separately."""

LEAST_MEMORY_MB = 512
"""Spark starts no JVM with less than 450 MB."""

_UNITS = {"": 1, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2}

_PROFILES: WeakKeyDictionary[SparkSession, dict[object, ResourceProfile]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Resources:
    """Resources of one worker."""

    gpu: float = 0.0  # number of GPUs; below 1, several workers share one
    cpu: int | None = None  # number of cores; None for that of the session's tasks
    memory: int | None = None  # in MB, of all its processes; None for that of the session's executors
    discovery_script: str = ""  # prints the addresses of an executor's GPUs
    vendor: str = VENDOR  # of the GPUs, in Kubernetes

    def __str__(self) -> str:
        several = "" if self.gpu <= 1 else "s"
        parts = [f"{self.gpu:g} GPU{several}"] if self.gpu else []
        parts += [f"{self.cpu} core{'s' * (self.cpu != 1)}"] if self.cpu else []
        parts += [f"{self.memory} MB"] if self.memory else []
        return ", ".join(parts)

    @property
    def sharing(self) -> int:
        """Number of workers on a dedicated executor: those that share a GPU."""
        return int(1 / self.gpu + 1e-9) if 0 < self.gpu < 1 else 1

    @property
    def whole_gpus(self) -> int:
        """Number of GPUs of a dedicated executor."""
        return max(1, int(self.gpu)) if self.gpu else 0


def read_resources(given: Mapping[str, Any]) -> Resources:
    """Parse the resources given by a caller, such as ``{"gpu": 1, "cpu": 4, "memory": "20g"}``."""
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f'resources must be a dict such as {{"gpu": 1, "cpu": 4, "memory": "20g"}}, got {given!r}')
    for key in given:
        one_of("a key of resources", key, KEYS)
    texts = {}
    for key in ("discovery_script", "vendor"):
        if key in given:
            if not isinstance(given[key], str) or not given[key]:
                raise ConfigError(f"resources[{key!r}] must be text, got {given[key]!r}")
            texts[key] = given[key]
    found = Resources(
        gpu=_gpus(given["gpu"]) if "gpu" in given else 0.0,
        cpu=whole("resources['cpu']", given["cpu"], least=1) if "cpu" in given else None,
        memory=megabytes("resources['memory']", given["memory"]) if "memory" in given else None,
        **texts,
    )
    if found.memory is not None and found.memory < LEAST_MEMORY_MB:
        raise ConfigError(
            f"resources['memory'] must be at least {LEAST_MEMORY_MB}m, got {given['memory']!r}: {found.memory} MB"
        )
    if not (found.gpu or found.cpu or found.memory):
        raise ConfigError(f"resources must have GPUs, cores or memory, got {dict(given)!r}; omit it if none is needed")
    return found


def megabytes(name: str, text: str) -> int:
    """Convert memory in Spark's notation, such as ``2g``, to MB."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower()) if isinstance(text, str) else None
    if found is None:
        raise ConfigError(f"{name} must be memory in Spark's notation, such as '20g' or '512m', got {text!r}")
    return int(int(found[1]) * _UNITS[found[2]])


def _gpus(amount: Any) -> float:
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if not is_number or not (0 < amount < 1 or amount in range(1000)):
        raise ConfigError(f"resources['gpu'] must be an integer, or a fraction such as 0.5, got {amount!r}")
    return float(amount)


def own_executors(
    session: SparkSession, resources: Resources, *, splits_memory: bool, task_cpus: int
) -> ResourceProfile:
    """Return the profile of workers with dedicated executors (dynamic allocation).

    The same session returns the same profile again. Executors of an equal profile with another number would count as
    different, and those of the previous search, idle by now, would keep its GPUs from the next.

    With ``splits_memory``, the cluster manager gives an executor memory in addition to that of its JVM, and limits both
    (YARN, Kubernetes). Workers are Python processes, so they need most of the memory there. A worker that requests no
    cores gets ``task_cpus``.
    """

    def build() -> ResourceProfile:
        workers, cpus = resources.sharing, resources.cpu or task_cpus
        requests = ExecutorResourceRequests().cores(cpus * workers)
        if resources.memory is not None:
            memory = resources.memory * workers
            heap = min(LARGEST_HEAP_MB, memory // 2) if splits_memory else memory
            requests = requests.memory(f"{heap}m")
            if splits_memory:
                requests = requests.memoryOverhead(f"{memory - heap}m")
        if resources.gpu:
            vendor = resources.vendor
            requests = requests.resource("gpu", resources.whole_gpus, resources.discovery_script, vendor)
        return ResourceProfileBuilder().require(requests).require(_of_tasks(resources.gpu, cpus)).build

    return _once(session, (resources, splits_memory, task_cpus), build)


def shared_executors(session: SparkSession, gpu: float, cpus: int) -> ResourceProfile:
    """Return the profile of workers on the session's own executors."""
    return _once(session, (gpu, cpus), lambda: ResourceProfileBuilder().require(_of_tasks(gpu, cpus)).build)


def _of_tasks(gpu: float, cpus: int) -> TaskResourceRequests:
    requests = TaskResourceRequests().cpus(cpus)
    return requests.resource("gpu", gpu) if gpu else requests


def _once(session: SparkSession, key: object, build: Callable[[], ResourceProfile]) -> ResourceProfile:
    profiles = _PROFILES.setdefault(session, {})
    if key not in profiles:
        profiles[key] = build()
        if not is_classic(session):
            _register(session, profiles[key])
    return profiles[key]


def _register(session: SparkSession, profile: ResourceProfile) -> None:
    """Let a Connect server create the profile, because PySpark uses this thread's active session, which may be none."""
    local: Any = session._active_session  # type: ignore[attr-defined]
    before, local.session = getattr(local, "session", None), session
    try:
        _ = profile.id  # PySpark remembers it
    finally:
        local.session = before


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
        """Return a setting of the session."""
        return str(self._session.conf.get(key, default))

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

    def _java_context(self) -> Any:
        """Return the JVM's SparkContext, or None on Spark Connect."""
        if not is_classic(self._session):
            return None
        context = self._session.sparkContext._jsc
        if context is None or context.sc().isStopped():
            raise EngineStopped(f"{SESSION_STOPPED}; create a new one with maggy_like.spark_session()")
        return context.sc()


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


LOCAL_REFUSED = (
    "resources must be used on a cluster, got {}, for whose single process Spark schedules no GPUs; omit resources, "
    "use LocalEngine(gpu_fraction=...) for this machine's GPUs, or try a StandaloneCluster(2, gpus=1)"
)

SCRIPT_NEEDED = (
    "resources={{'gpu': {:g}}} on {} must have a script that prints the GPUs of an executor; use resources={{..., "
    "'discovery_script': '/path/on/the/nodes/getGpusResources.sh'}} (Spark's folder examples/src/main/scripts has one)"
)

TOO_SMALL = (
    "resources must fit in the executors of the Spark session, got {} for each worker and {} for each executor "
    f"({{}}={{}}); increase that setting, or start the session with {ALLOCATION}=true for dedicated executors"
)

SHARED = (
    f"{ALLOCATION} is not true, so the search uses the executors of all the session's jobs; set it so that only the "
    "search's executors have {}"
)

RAPIDS = "com.nvidia.spark.SQLPlugin"

MAP_IN_ARROW = "spark.rapids.sql.exec.MapInArrowExec"

RAPIDS_FORGETS = (
    f"the RAPIDS Accelerator (spark.plugins={{}}) must not replace mapInArrow, because it loses the GPUs, cores and "
    f"memory of the workers; use spark.conf.set({MAP_IN_ARROW!r}, 'false'), by which joins and aggregations stay on "
    "GPUs"
)

RAPIDS_TAKES_ONE = (
    "resources['gpu'] must be 1, got {:g}, with the RAPIDS Accelerator (spark.plugins={}), which supports only "
    "executors with one GPU; use resources={{'gpu': 1}} and more workers"
)


def check_resources(slots: Slots, *, in_sql: bool) -> None:
    """Check that the session's cluster can give the workers their resources.

    ``in_sql`` is True if the job is a query of Spark SQL, which plugins may change.
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
    """Return a hint if the search shares the executors of the session's other jobs."""
    if slots.resources is None or slots.has_own_executors:
        return []
    return [SHARED.format(slots.resources)]


def _check_rapids(slots: Slots, *, in_sql: bool) -> None:
    """Check that NVIDIA's plugin for Spark SQL, if there is one, does not change the search's tasks."""
    plugins = slots.conf("spark.plugins", "")
    if RAPIDS not in plugins:
        return
    if slots.has_own_executors and slots.resources is not None and slots.resources.whole_gpus > 1:
        raise EngineError(RAPIDS_TAKES_ONE.format(slots.resources.gpu, plugins))
    keys = ("spark.rapids.sql.enabled", MAP_IN_ARROW)
    if in_sql and all(slots.conf(key, "true").strip().lower() == "true" for key in keys):
        raise EngineError(RAPIDS_FORGETS.format(plugins))


def _check_session_executors(slots: Slots, resources: Resources) -> None:
    """Check that an executor of the session has the resources of one worker."""
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
    """Return the memory of an executor in addition to its JVM's, in MB, which Python uses."""
    if given := slots.conf("spark.executor.memoryOverhead", ""):
        return megabytes("spark.executor.memoryOverhead", given)
    return max(384, int(memory * float(slots.conf("spark.executor.memoryOverheadFactor", "0.1"))))


MOST_PENDING = 100
"""Maximum characters of Kubernetes' reason in a message."""


def pending_pods(session: SparkSession) -> str:
    """Return which pods Kubernetes has not started for a session, and why; empty if it has, or on another cluster.

    Spark's client of Kubernetes is asked, which may list the session's pods. A failure hides only the reason.
    """
    with contextlib.suppress(Exception):
        if is_classic(session) and str(session.sparkContext.master).startswith("k8s://"):
            return _pending_of(_executor_pods(session), int(session.conf.get("spark.executor.instances", "0") or 0))
    return ""


def _executor_pods(session: SparkSession) -> list[dict[str, Any]]:
    context: Any = session.sparkContext
    backend = context._jsc.sc().schedulerBackend()
    field = backend.getClass().getDeclaredField("kubernetesClient")
    field.setAccessible(True)
    namespace = session.conf.get("spark.kubernetes.namespace", "default")
    pods = field.get(backend).pods().inNamespace(namespace)
    found = pods.withLabel("spark-app-selector", context.applicationId).withLabel("spark-role", "executor").list()
    read = context._jvm.io.fabric8.kubernetes.client.utils.Serialization.asJson(found)
    return list(msgspec.json.decode(read.encode())["items"])


def _pending_of(pods: Iterable[Mapping[str, Any]], wanted: int) -> str:
    """Describe the pods of executors that have not started.

    ``wanted`` is the fixed number of executors, of which Kubernetes may have refused some; 0 if they come and go.

    Example:
        >>> refused = {"type": "PodScheduled", "status": "False", "message": "full"}
        >>> _pending_of([{"status": {"phase": "Pending", "conditions": [refused]}}], 0)
        'Kubernetes has not scheduled 1 pod: full'
    """
    reasons: dict[tuple[str, str], int] = defaultdict(int)
    count = 0
    for pod in pods:
        status = pod.get("status", {})
        count += status.get("phase") in ("Pending", "Running")
        if status.get("phase") != "Pending":
            continue
        refused = [
            it for it in status.get("conditions", ()) if it["type"] == "PodScheduled" and it["status"] == "False"
        ]
        waiting = [it["state"]["waiting"] for it in status.get("containerStatuses", ()) if "waiting" in it["state"]]
        if refused:
            reasons["scheduled", refused[0].get("message", "")] += 1
        elif waiting:
            reasons["started", ": ".join(filter(None, map(waiting[0].get, ("reason", "message"))))] += 1
        else:
            reasons["started", ""] += 1
    said = [
        f"Kubernetes has not {verb} {number} pod{'s' * (number > 1)}"
        + f": {why[:MOST_PENDING].rstrip('.')}" * bool(why)
        for (verb, why), number in reasons.items()
    ]
    if count < wanted:
        said.append(
            f"Kubernetes has {count} of {wanted} pods and may refuse others (kubectl describe quota shows a limit)"
        )
    return "; ".join(said)


class OneTaskJob(Protocol):
    """A job of one task, whose executor is watched."""

    tag: str  # unique
    executor: str | None  # of the task; None before it is known
    leaving: str  # why the executor is about to be removed; empty if it is not

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
        >>> is_cluster_s("... Reason: The executor with id 3 exited with exit code -1(unexpected).")
        True
    """
    # On Kubernetes, -1 is the exit code of a pod of a lost node: nobody has seen how its container ended.
    return "unrelated to the running tasks" in error or "exited with exit code -1(" in error


def in_words(error: str) -> str:
    """Rephrase Spark's message on a lost executor; empty for another error.

    Example:
        >>> in_words("ExecutorLostFailure (executor 3 exited unrelated to the running tasks) Reason: worker lost")
        'its Spark executor is gone (worker lost)'
    """
    found = re.search(r"ExecutorLostFailure \(executor \S+ exited [^)]*\)(?: Reason:\s*(.*))?", error)
    if found is None:
        return ""
    return "its Spark executor is gone" + (f" ({found[1].strip().rstrip('.')})" if found[1] else "")


def first_failure(session: SparkSession, tag: str) -> str:
    """Return Spark's message on the first attempt of the only task of a tagged job; empty if there is none."""
    with contextlib.suppress(Exception):  # of a session that was stopped meanwhile
        task = _first_attempt(session.sparkContext._jsc.sc(), tag)
        if task is not None and task.errorMessage().isDefined():
            return str(task.errorMessage().get())
    return ""


class Executors:
    """Watches the executors of jobs of one task each, in a classic session."""

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
    """Check that Spark starts no second copy of a job's only task, which it does after a configured time."""
    threshold = slots.conf("spark.speculation.task.duration.threshold", "")
    if threshold and _is_true(slots, "spark.speculation"):
        raise EngineError(SPECULATION_REFUSED.format(threshold))


def check_driver_task_speculation(slots: Slots) -> None:
    """Check that Spark starts no second copies of the tasks of a job with the driver."""
    if _is_true(slots, "spark.speculation"):
        raise EngineError(DRIVER_TASK_SPECULATION_REFUSED)


def check_room(slots: Slots, workers: int, reserve: int) -> None:
    """Check that the session may grow to this number of workers, with ``reserve`` slots left to other jobs."""
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
