"""Dynamic allocation: what a gang may not do where executors come and go, and how many workers they may come to."""

from __future__ import annotations

from maggy_like.errors import EngineError
from maggy_like.spark.capacity.slots import ALLOCATION, Slots

UNBOUNDED = 2**31 - 1
"""Spark's own default for the most executors."""

BARRIER_REFUSED = (
    f"Spark starts no barrier stage while {ALLOCATION}=true (SPARK-24942), so SparkEngine(barrier=True) cannot start; "
    f"leave barrier out, or start the session with {ALLOCATION}=false"
)

TOGETHER_REFUSED = (
    f"{{}} needs workers that start together, and Spark starts no barrier stage while {ALLOCATION}=true (SPARK-24942); "
    f"start the session with {ALLOCATION}=false, or pass engine=SparkEngine(barrier=False), with which workers meet "
    "through the driver as they come"
)

DRIVER_TASK_REFUSED = (
    "driver='cluster' needs tasks that Spark runs again one by one, and those of SparkEngine(barrier=True) fall "
    "together; leave barrier out, or use driver='client'"
)

ADDRESS_REFUSED = (
    "{}={!r} is an address of this machine, and with driver='cluster' the driver listens at its executor's; leave it "
    "out (port= holds there too)"
)

SPECULATION_REFUSED = (
    "Spark would start second copies of workers: spark.speculation=true with "
    "spark.speculation.task.duration.threshold={}; start the session without the threshold, or pass "
    "engine=SparkEngine(barrier=True)"
)

DRIVER_TASK_SPECULATION_REFUSED = (
    "driver='cluster' runs the driver and its workers as tasks of one job, and with spark.speculation=true Spark would "
    "start second copies of them; start the session with spark.speculation=false, or use driver='client'"
)


def check_speculation(slots: Slots) -> None:
    """See to it that Spark starts no second copy of a job's only task: it does so past a time that a setting names.

    Raises:
        EngineError: It would.
    """
    threshold = slots.conf("spark.speculation.task.duration.threshold", "")
    if threshold and _is_true(slots, "spark.speculation"):
        raise EngineError(SPECULATION_REFUSED.format(threshold))


def check_driver_task_speculation(slots: Slots) -> None:
    """See to it that Spark starts no second copies of the tasks of a job that has the driver in it.

    Raises:
        EngineError: It would.
    """
    if _is_true(slots, "spark.speculation"):
        raise EngineError(DRIVER_TASK_SPECULATION_REFUSED)


def check_room(slots: Slots, workers: int, reserve: int) -> None:
    """Check that the session may grow to as many workers.

    Args:
        slots: Of the session.
        workers: How many are wanted.
        reserve: How many slots are left to other jobs.

    Raises:
        EngineError: It may not.
    """
    most = most_workers(slots)
    if most is not None and workers + reserve > most:
        bound = slots.conf("spark.dynamicAllocation.maxExecutors", "")
        reserved = f", of which reserve={reserve} are for others" if reserve else ""
        raise EngineError(
            f"workers={workers} but the Spark session grows to {most} slot{'s' * (most != 1)} at most "
            f"(spark.dynamicAllocation.maxExecutors={bound}){reserved}; "
            f"pass workers={max(1, most - reserve)} or fewer, or raise it"
        )


def most_workers(slots: Slots) -> int | None:
    """How many tasks can run side by side once all executors have come; None where nothing bounds it."""
    executors = int(slots.conf("spark.dynamicAllocation.maxExecutors", "") or UNBOUNDED)
    each = _tasks_per_executor(slots)
    return executors * each if executors < UNBOUNDED and each else None


def _tasks_per_executor(slots: Slots) -> int | None:
    """How many tasks an executor runs at a time; None where Spark gives each all cores of its machine."""
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
