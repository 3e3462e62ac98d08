"""Resources of a worker: how a caller gives them, and the resource profile by which Spark provides them."""

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
from maggy_like.spark.connection import is_classic

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
