"""What each cluster manager needs before a gang's workers can ask for resources of their own."""

from __future__ import annotations

from maggy_like.errors import EngineError
from maggy_like.spark.capacity.resources import Resources, megabytes
from maggy_like.spark.capacity.slots import ALLOCATION, Slots

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
