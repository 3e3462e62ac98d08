"""What each worker of a gang asks of Spark: GPUs, cores and memory, as a resource profile."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.resource import (
    ExecutorResourceRequests,
    ResourceProfile,
    ResourceProfileBuilder,
    TaskResourceRequests,
)
from pyspark.sql import SparkSession

from maggy_like.argument_checks import one_of, whole
from maggy_like.errors import ConfigError
from maggy_like.spark.kinds import is_classic

KEYS = ("gpu", "cpu", "memory", "discovery_script", "vendor")

VENDOR = "nvidia.com"
"""Under which name Kubernetes knows GPUs, unless another is given."""

LARGEST_HEAP_MB = 1024
"""Memory of the JVM of an executor whose tasks are all Python, where the cluster manager counts the rest apart."""

LEAST_MEMORY_MB = 512
"""Spark starts no JVM with less than 450 MB."""

_UNITS = {"": 1, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2}

_PROFILES: WeakKeyDictionary[SparkSession, dict[object, ResourceProfile]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Resources:
    """What one worker asks for.

    Attributes:
        gpu: GPUs; below 1, several workers share one.
        cpu: Cores; None for what the session's tasks take.
        memory: Memory in MB of all its processes; None for what the session's executors have.
        discovery_script: Prints the addresses of the GPUs of an executor that asks for some.
        vendor: Of the GPUs, as Kubernetes names it.
    """

    gpu: float = 0.0
    cpu: int | None = None
    memory: int | None = None
    discovery_script: str = ""
    vendor: str = VENDOR

    def __str__(self) -> str:
        several = "" if self.gpu <= 1 else "s"
        parts = [f"{self.gpu:g} GPU{several}"] if self.gpu else []
        parts += [f"{self.cpu} core{'s' * (self.cpu != 1)}"] if self.cpu else []
        parts += [f"{self.memory} MB"] if self.memory else []
        return ", ".join(parts)

    @property
    def sharing(self) -> int:
        """How many workers an executor of their own has: those that share a GPU."""
        return int(1 / self.gpu + 1e-9) if 0 < self.gpu < 1 else 1

    @property
    def whole_gpus(self) -> int:
        """GPUs of an executor of their own."""
        return max(1, int(self.gpu)) if self.gpu else 0


def read_resources(given: Mapping[str, Any]) -> Resources:
    """The resources that a caller has given.

    Raises:
        ConfigError: A name or a value is none.

    Example:
        >>> str(read_resources({"gpu": 1, "cpu": 4, "memory": "20g"}))
        '1 GPU, 4 cores, 20480 MB'
    """
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f'resources must be a dict such as {{"gpu": 1, "cpu": 4, "memory": "20g"}}, got {given!r}')
    for key in given:
        one_of("a key of resources", key, KEYS)
    texts = {}
    for key in ("discovery_script", "vendor"):
        if key in given:
            if not isinstance(given[key], str) or not given[key]:
                raise ConfigError(f"resources[{key!r}] must be a text, got {given[key]!r}")
            texts[key] = given[key]
    found = Resources(
        gpu=_gpus(given["gpu"]) if "gpu" in given else 0.0,
        cpu=whole("resources['cpu']", given["cpu"], least=1) if "cpu" in given else None,
        memory=megabytes("resources['memory']", given["memory"]) if "memory" in given else None,
        **texts,
    )
    if found.memory is not None and found.memory < LEAST_MEMORY_MB:
        raise ConfigError(
            f"resources['memory'] must be {LEAST_MEMORY_MB}m or more, got {given['memory']!r}: {found.memory} MB"
        )
    if not (found.gpu or found.cpu or found.memory):
        raise ConfigError(f"resources must name GPUs, cores or memory, got {dict(given)!r}; or leave it out")
    return found


def megabytes(name: str, text: str) -> int:
    """Memory as Spark writes it, in MB.

    Raises:
        ConfigError: It is none.

    Example:
        >>> megabytes("memory", "2g")
        2048
    """
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower()) if isinstance(text, str) else None
    if found is None:
        raise ConfigError(f"{name} must be memory as Spark writes it, such as '20g' or '512m', got {text!r}")
    return int(int(found[1]) * _UNITS[found[2]])


def _gpus(amount: Any) -> float:
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if not is_number or not (0 < amount < 1 or amount in range(1000)):
        raise ConfigError(f"resources['gpu'] must be a whole number, or a part of one such as 0.5, got {amount!r}")
    return float(amount)


def own_executors(
    session: SparkSession, resources: Resources, *, splits_memory: bool, task_cpus: int
) -> ResourceProfile:
    """The profile of workers for which executors of their own are started (dynamic allocation).

    The same session gives the same profile again: executors of an equal profile with another number would count as
    others, and those of the search before, idle by now, would keep its GPUs from the next.

    Args:
        session: Classic or Spark Connect.
        resources: Of each worker.
        splits_memory: Whether the cluster manager gives an executor memory beside that of its JVM, and bounds both
            (YARN, Kubernetes). Workers are Python processes, so most of the memory must be there.
        task_cpus: Cores of a worker that asks for none.
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
    """The profile of workers that run on the session's own executors."""
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
    """Have a Connect server make the profile: PySpark asks that of this thread's active session, which may be none."""
    local: Any = session._active_session  # type: ignore[attr-defined]
    before, local.session = getattr(local, "session", None), session
    try:
        _ = profile.id  # PySpark remembers it
    finally:
        local.session = before
