"""The engine whose workers are tasks of a Spark session: one job for all workers, or one for each.

A job runs in a background thread that inherits the session, so Ctrl-C stays with the caller. It is an RDD job, or on
Spark Connect a ``mapInArrow`` job. Spark neither retries a barrier stage nor starts a second copy of a slow task in
it, and one failed task ends the whole stage. A job without a barrier has one task, which ends at once if Spark retries
it. In both cases the driver launches again what ended, with the next incarnation.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakSet

import msgspec

from maggy_like.cluster_driver.tasks import DriverHost, Keys
from maggy_like.engines.base import Engine, EngineRun, read_isolation, read_working_directory
from maggy_like.errors import ConfigError, EngineError
from maggy_like.processes.cores import OPENMP
from maggy_like.processes.imports import is_installation, module_path
from maggy_like.processes.system import current_directory
from maggy_like.protocol.messages import PYTHON
from maggy_like.protocol.task import DriverProcess, KeyPair, WorkerTask
from maggy_like.rpc.endpoint import ANY_PORT, Endpoint, PortRange, read_host, read_ports, read_reachable
from maggy_like.spark.checks import (
    ADDRESS_REFUSED,
    BARRIER_REFUSED,
    DRIVER_TASK_REFUSED,
    TOGETHER_REFUSED,
    check_driver_task_speculation,
    check_idle_timeout,
    check_resources,
    check_room,
    check_speculation,
    most_workers,
    resource_hints,
)
from maggy_like.spark.connection import (
    ServerWatch,
    check_server,
    driver_endpoint,
    host_hints,
    is_classic,
    is_stopped,
    orphan_hint,
    setting,
)
from maggy_like.spark.engine.job import ClusterDriverRun, SparkRun, check_local_workers
from maggy_like.spark.executors import Executors
from maggy_like.spark.pods import pending_pods
from maggy_like.spark.resources import read_resources
from maggy_like.spark.session import active_session, is_over
from maggy_like.spark.slots import Slots, slots_of
from maggy_like.storage.run_paths import RunPaths
from optimizers.checks import explains_init

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Ports = int | str | Sequence[int]

T = TypeVar("T")

_OF_LIBRARIES = (
    "CUBLAS_WORKSPACE_CONFIG", "HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "JAX_PLATFORMS", "KERAS_BACKEND", "NCCL_DEBUG",
    "TF_CPP_MIN_LOG_LEVEL", "TF_USE_LEGACY_KERAS", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_OFFLINE",
)  # fmt: skip
"""Variables by which a script chooses what its libraries do, often when Spark's processes run already."""


@explains_init
class SparkEngine(Engine, DriverHost):
    """Run the workers in tasks of a Spark session.

    With ``barrier=True``, all workers are one barrier stage, so they start together. Without enough slots for all of
    them, none starts. The death of one worker ends all of them, and interrupts every running trial. If a worker only
    stops responding, only that worker is replaced.

    With ``barrier=False``, each worker is a separate job. Workers start one by one, and can still train together,
    because they meet through the driver. A failure affects only that worker, and the attempt of those that train with
    it. If its executor is lost for good, the search continues with the other workers.

    By default there is a barrier, unless ``spark.dynamicAllocation.enabled`` is true, because Spark then starts no
    barrier stage. A search runs without a barrier in that case. Multi-worker trials and trainings are rejected, unless
    you pass ``barrier=False`` to accept that their workers start one by one.

    The search waits for slots that another job of the session occupies. After ten seconds it reports that job. After
    an hour without any worker it raises an error; with dynamic executors, after ten minutes with fewer workers than a
    trial needs. Ctrl-C ends the wait at any time. A worker that cannot reach this machine reports that.

    On two busy cores, a trial was retried 0.2 s after its own process was killed and 0.6 s after the fork server was,
    with or without a barrier. After a kill of the Python worker it took 2.8 s with a barrier and 1.9 s without. After
    a kill of the executor it took 12 to 19 s, which is the start of a new JVM.

    Args:
        session: Spark session. Default: the active one.
        barrier: If True, the workers start and end together. Default: ``"auto"``, which uses a barrier if Spark can.
        host: Name or address at which workers reach this machine. Default: ``spark.driver.host``. Workers resolve a
            name, so it need not resolve on this machine, unless the master is local.
        bind: Name or address of this machine at which the search listens. Default: ``host`` if that is this machine's
            own, otherwise ``spark.driver.bindAddress`` or ``spark.driver.host``. Behind NAT, in a container or in a
            Kubernetes pod it differs from ``host``. ``"0.0.0.0"`` (``"::"``) listens at all addresses.
        port: Port at which the search listens, or a range from which the first free one is taken: ``20000``,
            ``"20000-20100"`` or ``(20000, 20100)``. Default: any free port.
        rank_ports: Port or range of ports for torch's store on rank 0 of multi-worker trials. Only the operating
            system chooses the ports of gloo and NCCL (``net.ipv4.ip_local_port_range``).
        reserve: Number of slots of the session left to other jobs. Default: 0.
        resources: Resources of each worker: ``{"gpu": 1, "cpu": 4, "memory": "20g"}``. ``gpu`` may be 2 or more, or a
            fraction such as 0.5. With dynamic allocation, Spark starts executors only for these workers, one for each
            (or one for those that share a GPU), and other jobs stay on executors without GPUs. Workers then start one
            by one, also those that train together. Without dynamic allocation, the session's executors must have these
            resources. On YARN and Kubernetes, ``"discovery_script"`` is the path of a script on the nodes that prints
            their GPUs, and ``"vendor"`` is Kubernetes' vendor name (``"nvidia.com"``).
        isolation: ``"process"`` to run each trial in a new process, so that a crash costs only that trial and memory
            never leaks into the next. ``"worker"`` to keep one process per worker, for trials of milliseconds.
        working_directory: ``"trial"`` to give each trial a working directory of its own, in which relative paths find
            what the executor's has. ``"shared"`` for the executor's, in which trials may overwrite each other's files.
            Default: ``"trial"``.

    With ``driver="cluster"``, the driver listens at its executor's address. ``port`` applies there too. ``host`` and
    ``bind``, which are addresses of this machine, are rejected.

    Raises:
        ConfigError: A value is invalid.
        EngineError: There is no session.

    Example:
        >>> engine = SparkEngine(resources={"gpu": 1, "cpu": 4, "memory": "20g"})  # doctest: +SKIP
        >>> result = lagom(train_fn, space, engine=engine, workers=8)  # doctest: +SKIP
    """

    name = "spark"

    def __init__(
        self,
        session: SparkSession | None = None,
        *,
        barrier: bool | Literal["auto"] = "auto",
        host: str | None = None,
        bind: str | None = None,
        port: Ports | None = None,
        rank_ports: Ports | None = None,
        reserve: int = 0,
        resources: Mapping[str, Any] | None = None,
        isolation: Literal["process", "worker"] = "process",
        working_directory: Literal["trial", "shared"] = "trial",
    ) -> None:
        if type(session).__name__ in ("str", "Builder", "SparkConf", "SparkContext"):
            raise ConfigError(f"session must be a SparkSession, got {session!r}; use maggy_like.spark_session()")
        if barrier != "auto" and not isinstance(barrier, bool):
            raise ConfigError(f"barrier must be 'auto', True or False, got {barrier!r}")
        if isinstance(reserve, bool) or not isinstance(reserve, int) or reserve < 0:
            raise ConfigError(f"reserve must be a number of slots of at least 0, got {reserve!r}")
        self.isolation = read_isolation(isolation)
        self.working_directory = read_working_directory(working_directory)
        self._reserve = reserve
        self._host = "" if host is None else read_reachable("host", host)
        self._bind = "" if bind is None else read_host("bind", bind)
        self._ports = ANY_PORT if port is None else read_ports("port", port)
        self.rank_ports = None if rank_ports is None else read_ports("rank_ports", rank_ports)
        self._options: dict[str, Any] = {
            "barrier": barrier,
            "host": host,
            "bind": bind,
            "port": port,
            "rank_ports": rank_ports,
            "reserve": reserve,
            "resources": resources,
            "isolation": isolation,
            "working_directory": working_directory,
        }
        self._session = session if session is not None else require_session()
        self._slots = slots_of(self._session, None if resources is None else read_resources(resources))
        self._server = None
        if not is_classic(self._session):
            check_server(self._session)  # first: pyspark would ask for the settings below for ten minutes
            self._server = ServerWatch(self._session)
        self._diagnosis = Diagnosis(self._session)
        self._tags: set[str] = set()  # of the jobs that were launched
        self._address = ""
        self._barrier = barrier
        self._executors = Executors(self._session)

    def renewed(self) -> SparkEngine:
        return SparkEngine(**self._options) if is_over(self._session) else self

    @cached_property
    def is_elastic(self) -> bool:
        return self._slots.is_elastic

    def check_workers(self, together: str) -> None:
        self._slots.check_running()
        in_sql = not is_classic(self._session)
        check_resources(self._slots, in_sql=in_sql)
        check_idle_timeout(self._slots, in_sql=in_sql)
        if self.is_elastic and self._barrier is True:
            raise EngineError(BARRIER_REFUSED)
        if self.is_elastic and self._barrier == "auto" and together and not self._slots.has_own_executors:
            raise EngineError(TOGETHER_REFUSED.format(together))
        if not self._has_barrier:
            check_speculation(self._slots)

    def most_workers(self) -> int | None:
        most = most_workers(self._slots)
        return None if most is None else max(1, most - self._reserve)

    def attend(self, runs: Sequence[EngineRun]) -> None:
        if self._tells_of_executors:
            self._executors.attend(run for run in runs if isinstance(run, SparkRun) and run.has_come)

    def slots(self) -> int | None:
        return self._left(self._slots.count())

    def default_workers(self) -> int:
        self._check_session()
        slots = self._slots.wait(None)
        if slots is None:
            raise EngineError(
                "workers must be given, because this Spark Connect session hides its number of slots "
                "(spark.default.parallelism or spark.sql.leafNodeDefaultParallelism is set, or GPUs without "
                "spark.executor.cores); use workers=N"
            )
        if slots <= self._reserve and self._reserve:
            raise EngineError(
                f"reserve must be less than the {slots} slots that the Spark session has now, got {self._reserve}; use "
                f"reserve={max(0, slots - 1)} or fewer, or give the session more executors or cores"
            )
        return max(1, slots - self._reserve)

    def require(self, workers: int) -> None:
        self._check_session()
        if self.is_elastic:
            check_room(self._slots, workers, self._reserve)
            return
        slots = self._slots.wait(workers + self._reserve)
        if slots is not None and slots < workers + self._reserve:
            reserved = f", of which reserve={self._reserve} are for others" if self._reserve else ""
            fit = slots - self._reserve
            remedy = "use a smaller reserve" if fit < 1 and self._reserve else f"use workers={max(1, fit)} or fewer"
            raise EngineError(
                f"workers must fit in the {slots} slot{'s' * (slots != 1)} that the Spark session has now{reserved}, "
                f"got {workers}; {remedy}, or give the session more executors or cores" + self._pending("; ")
            )

    def _pending(self, before: str) -> str:
        """Return why pods of executors have not started, after ``before``; empty if they have."""
        return f"{before}{why}" if (why := pending_pods(self._session)) else ""

    def hints(self, workers: int) -> list[str]:
        hints = [*host_hints(self._host), *thread_hints(self._session)]
        if not self.is_elastic:
            return [*hints, *other_jobs_hints(self._session, self._slots, workers), *resource_hints(self._slots)]
        if self._slots.count() != 0:
            return hints
        tasks = "one task" if workers == 1 else f"{workers} tasks"
        if self._slots.has_own_executors:
            tasks += f" that need {self._slots.resources} each, which a machine of the cluster must have free"
        return [*hints, f"Spark has no executor yet; {tasks} are requested, and trials start when executors arrive"]

    def path_hints(self, paths: RunPaths) -> list[str]:
        return path_hints(self._session, paths)

    def endpoint(self) -> Endpoint:
        return driver_endpoint(self._session, self._host, self._bind, self._ports)

    def launch(
        self, task: WorkerTask, indexes: Sequence[int], incarnation: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        profile, count, server = self._slots.profile, self._slots.count, self._server
        task = self._for_executors(task)
        if self._has_barrier:
            runs = [
                SparkRun(self._session, task, indexes, incarnation, keys, profile, logs, count=count, server=server)
            ]
        else:
            runs = [
                SparkRun(
                    self._session,
                    task,
                    [index],
                    incarnation,
                    [pair],
                    profile,
                    logs,
                    count=count,
                    barrier=False,
                    server=server,
                )
                for index, pair in zip(indexes, keys, strict=True)
            ]
        self._address = task.address
        self._tags |= {run.tag for run in runs}
        return list(runs)

    def _for_executors(self, task: WorkerTask) -> WorkerTask:
        """Return the task with what workers on other machines must know of this process and this session."""
        own = os.environ.get(OPENMP, "") if self._slots.is_local else ""
        threads = self._slots.conf(f"spark.executorEnv.{OPENMP}", own)
        chosen = {name: os.environ[name] for name in _OF_LIBRARIES if name in os.environ}
        return msgspec.structs.replace(task, driver=driver_process(), threads=threads, environment=chosen)

    def waits_for(self, workers: int, came: int) -> str:
        slots = self.slots() if is_classic(self._session) else None  # a Connect server would be asked for nothing
        if (pending := self._pending("")) or (self.is_elastic and slots == 0):  # that there are none was said before
            return pending
        needs = str(self._slots.resources) if self._slots.has_own_executors else ""
        return self._diagnosis.why(self._tags, self._address, slots, workers, came, needs)

    @cached_property
    def _tells_of_executors(self) -> bool:
        """Whether each worker has an executor that can be asked about; known before the JVM may be gone."""
        return not self._has_barrier and is_classic(self._session) and not self._slots.is_local

    @cached_property
    def _has_barrier(self) -> bool:
        return not self.is_elastic if self._barrier == "auto" else self._barrier

    def check_cluster_driver(self) -> None:
        self._slots.check_running()
        check_resources(self._slots, in_sql=True)
        check_idle_timeout(self._slots, in_sql=True)
        if self._barrier is True:
            raise EngineError(DRIVER_TASK_REFUSED)
        for name, value in (("host", self._host), ("bind", self._bind)):
            if value:
                raise EngineError(ADDRESS_REFUSED.format(name, value))
        check_driver_task_speculation(self._slots)

    def driver_ports(self) -> PortRange:
        return self._ports

    def cluster_driver_hints(self) -> list[str]:
        if is_classic(self._session):
            return ["the search ends with this process, because it is the Spark application itself"]
        return [orphan_hint(self._session)]

    def max_task_failures(self) -> int:
        return int(self._slots.conf("spark.task.maxFailures", "4"))

    def launch_with_driver(self, plan: bytes, task: WorkerTask, keys: Sequence[Keys], journal: str) -> EngineRun:
        task = self._for_executors(task)
        return ClusterDriverRun(self._session, plan, task, keys, journal, self._slots.profile)

    def _left(self, slots: int | None) -> int | None:
        """Return the number of slots that the search may take."""
        return None if slots is None else max(0, slots - self._reserve)

    def inheriting(self, execute: Callable[[], T]) -> Callable[[], T]:
        """Wrap what executes a run in this thread's local properties: job group, tags, description, scheduler pool."""
        if is_stopped(self._session):  # it no longer has properties; the run notices and reports it
            return execute
        from pyspark import inheritable_thread_target

        inherit = inheritable_thread_target(self._session)(lambda: None)

        def inherited() -> T:
            try:
                inherit()
            except Exception:
                if not is_stopped(self._session):
                    raise
            return execute()

        return inherited

    def _check_session(self) -> None:
        """Check that a Connect server answers, and that a local master's workers run this Python."""
        if not is_classic(self._session):
            check_server(self._session)
        else:
            check_local_workers(self._session)


def require_session() -> SparkSession:
    """Return the active session. Raise EngineError if there is none."""
    session = active_session()
    if session is None:
        raise EngineError(
            "engine='spark' must have a Spark session, got none; use maggy_like.spark_session(), which finds Java (or "
            "pip install \"maggy_like[java]\"), or engine='local'"
        )
    return session


_HINTED: WeakSet[SparkSession] = WeakSet()


def other_jobs_hints(session: SparkSession, slots: Slots, workers: int) -> list[str]:
    """Return a hint, once per session, that the workers take all slots, which others may use.

    A local master belongs to its user, and a session with dynamic allocation can grow.
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


def thread_hints(session: SparkSession) -> list[str]:
    """Return a hint if the threads of this process share those of the JVM, where Spark keeps a job's description."""
    if not is_classic(session) or os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true":
        return []
    return [
        "with PYSPARK_PIN_THREAD=false, other jobs of this program may get the description and the tags of the search, "
        "and be cancelled with it; unset it before the session starts"
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
    """A Spark job that is not over."""

    number: int  # Spark's
    name: str  # description, or the call that started it
    group: str  # empty if it has none
    tags: frozenset[str]
    tasks: int  # number of its running tasks

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
    """Explains why workers have not connected."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._run_since: float | None = None  # since when the workers' tasks run

    def why(
        self, own: Collection[str], address: str, slots: int | None, workers: int, came: int, needs: str = ""
    ) -> str:
        """Return the explanation; empty if the session has none.

        ``own`` has the tags of the workers' jobs, which should reach the driver at ``address``. ``workers`` were
        launched, and ``came`` have connected. ``needs`` has the resources of each worker if it needs its own executor.
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

    ``needs`` has the resources of each worker if it needs its own executor.
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


_MOUNTS = Path("/proc/self/mounts")

_SHARED = re.compile(r"nfs|cifs|smb|fuse|lustre|ceph|gpfs|gluster|beegfs|afs|wekafs|9p")
"""Prefixes of the types of file systems that outlive a container."""

_OVERLAY = "fuse-overlayfs"
"""Type of a container's own disk, although it begins like a shared one's."""

_OF_DATABRICKS = ("/dbfs", "/Volumes", "/Workspace")


def path_hints(session: SparkSession, paths: RunPaths) -> list[str]:
    """Return hints about the location of a run, if it is on a disk that is removed with the driver's container.

    The driver of a Spark Connect session is always on this machine. A URL, also ``file://``, declares that its location
    is permanent.
    """
    where = _driver_in_cluster(session, os.environ)
    lost = [given for given, directory in _local_directories(paths) if not _stays(directory)]
    if where is None or not lost:
        return []
    return [
        f"the driver runs in the cluster ({where}), and {' and '.join(lost)} is on its own disk, which is removed with "
        "it; use directory='s3://bucket/runs' or another permanent URL, or 'file:///PATH' of a permanent volume"
    ]


def _driver_in_cluster(session: SparkSession, environment: Mapping[str, str]) -> str | None:
    """Return what shows that the driver's machine is in the cluster; None if nothing does."""
    if version := environment.get("DATABRICKS_RUNTIME_VERSION"):
        return f"Databricks {version}"
    if not is_classic(session):
        return None
    if setting(session, "spark.submit.deployMode", "client") == "cluster":
        return "spark.submit.deployMode=cluster"
    master = setting(session, "spark.master", "")
    if master.startswith("k8s://") and "KUBERNETES_SERVICE_HOST" in environment:
        return "a Kubernetes pod"
    if master == "yarn" and "CONTAINER_ID" in environment:
        return f"YARN's {environment['CONTAINER_ID']}"
    return None


def _local_directories(paths: RunPaths) -> Iterator[tuple[str, Path]]:
    """Yield the directories of the run that were given as paths: as arguments, and their locations."""
    if isinstance(paths.directory, Path):
        yield f"directory={str(paths.directory.parent)!r}", paths.directory


def _stays(directory: Path) -> bool:
    """Whether a directory is on a file system that outlives the machine that mounts it."""
    if any(directory.is_relative_to(root) for root in _OF_DATABRICKS):
        return True
    kind = _kind_of_file_system(directory)
    return _SHARED.match(kind) is not None and _OVERLAY not in kind


def _kind_of_file_system(directory: Path) -> str:
    """Return the type of the file system of a directory; empty if that is not known."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    kinds = {Path(_plain(point)): kind for _, point, kind, *_ in map(str.split, lines)}  # the last at a point counts
    return next((kinds[at] for at in (directory, *directory.parents) if at in kinds), "")


def _plain(point: str) -> str:
    """Unescape a mount point as the kernel writes it."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)


MAX_ENTRIES = 1000
"""Maximum number of entries of a directory to inspect: a home directory on a slow disk must not delay a search."""


def driver_process() -> DriverProcess:
    """Describe this process, and the modules next to its script."""
    return DriverProcess(socket.gethostname(), sys.executable, PYTHON, current_directory(), own_modules())


def own_modules() -> dict[str, str]:
    """Return the files of the modules and packages in the directories that the user's script imports from, by name."""
    found: dict[str, str] = {}
    for directory in module_path():
        if not is_installation(directory):
            for name, path in _modules_in(os.path.abspath(directory)):
                found.setdefault(name, path)  # the first directory that has it counts
    return found


def _modules_in(directory: str) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:  # archives, and what is gone, are passed over
        for entry in islice(entries, MAX_ENTRIES):
            name, extension = os.path.splitext(entry.name)
            if extension == ".py" or os.path.exists(os.path.join(entry.path, "__init__.py")):
                yield name, entry.path
