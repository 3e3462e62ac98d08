"""Checks, before anything starts, that a session can run the workers: their resources, their number, its settings."""

from __future__ import annotations

from maggy_like.errors import EngineError
from maggy_like.spark.resources import Resources, megabytes
from maggy_like.spark.slots import ALLOCATION, Slots

LOCAL_REFUSED = (
    "resources must be used on a cluster, got {}, for whose single process Spark schedules no GPUs; omit resources, "
    "use LocalEngine(gpu_fraction=...) for this machine's GPUs, or try a StandaloneCluster(2, gpus=1)"
)

SCRIPT_NEEDED = (
    "resources={{'gpu': {:g}}} on {} must have a script that prints the GPUs of an executor; use resources={{..., "
    "'discovery_script': '/path/on/the/nodes/getGpusResources.sh'}} (Spark's examples/src/main/scripts has one)"
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


_WORKER, _UDF = "spark.python.worker.", "spark.sql.execution.pyspark.udf."
"""Prefixes of settings for the Python workers of RDD jobs, and of queries, which default to the former."""

KILLS_IDLE = (
    "{}killOnIdleTimeout must be false while {}idleTimeoutSeconds={}, because Spark would kill each worker, which "
    "returns no rows until the search is over; {}"
)


def check_idle_timeout(slots: Slots, *, in_sql: bool) -> None:
    """Check that Spark does not kill the Python process of a task that returns nothing for a configured time."""
    prefixes = (_UDF, _WORKER) if in_sql else (_WORKER,)

    def conf(name: str) -> str:
        given = (slots.conf(prefix + name, "") for prefix in prefixes)
        return next(filter(None, given), "").strip().lower()

    timeout = conf("idleTimeoutSeconds")
    if conf("killOnIdleTimeout") == "true" and timeout.strip("0s"):
        first = prefixes[0]
        key = f"{first}killOnIdleTimeout"
        remedy = f"use spark.conf.set({key!r}, 'false')" if in_sql else f"start the session with {key}=false"
        raise EngineError(KILLS_IDLE.format(first, first, timeout, remedy))


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
