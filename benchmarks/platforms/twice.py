"""A session in which the search runs twice, and what it must leave as it was."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.platforms.outcome import Outcome
from benchmarks.platforms.search import lost, search, wrong
from maggy_like import StandaloneCluster, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 10.0
"""Seconds that Spark gets to note that a job has ended."""


@contextlib.contextmanager
def session(master: str | None, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session of the process, stopped afterwards."""
    made = spark_session(master, conf=conf)
    try:
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def standalone(
    conf: Mapping[str, str] | None = None, *, workers: int = 2, cores: int = 1, gpus: int = 0
) -> Iterator[SparkSession]:
    """A session on a standalone cluster of its own."""
    with (
        StandaloneCluster(workers, cores=cores, memory="1g", gpus=gpus) as cluster,
        session(cluster.master_url, cluster.conf | dict(conf or {})) as made,
    ):
        yield made


def twice(spark: SparkSession | None = None, folder: str = "runs", **settings: Any) -> Outcome:
    """Search twice; ``settings`` are those of :func:`~benchmarks.platforms.search.search`."""
    outcome = Outcome()
    ports = listening()
    for call in ("first", "second"):
        found = search(folder, **settings)
        setattr(outcome, call, found.first)
        outcome.best = found.result.best_value if found.result.best_value is not None else outcome.best
        outcome.wrong += [f"{call} call: {what}" for what in wrong(found.result)]
        if attempts := lost(found.result):
            outcome.wrong.append(f"{call} call: {attempts} attempts lost")
    outcome.leftovers += left(spark, ports)
    return outcome


def left(spark: SparkSession | None, ports: set[int]) -> list[str]:
    """What a search has left in this process: jobs under way, and ports beside those of before."""
    found = [f"port {port}" for port in sorted(listening() - ports)]
    return found + [f"Spark job {job}" for job in (active_jobs(spark) if spark is not None else ())]


def active_jobs(spark: SparkSession) -> list[int]:
    """The jobs under way; Spark is given a moment to note the end of the last one."""
    if not hasattr(spark, "_sc"):  # Spark Connect does not tell
        return []
    until = time.monotonic() + PATIENCE
    while (jobs := spark.sparkContext.statusTracker().getActiveJobsIds()) and time.monotonic() < until:
        time.sleep(0.1)
    return list(jobs)


def listening() -> set[int]:
    """The ports at which this process listens."""
    connections = psutil.Process().net_connections("inet")
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
