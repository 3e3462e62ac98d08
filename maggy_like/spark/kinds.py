"""The kind of a session, and whether it was stopped."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SESSION_STOPPED = "the Spark session was stopped"


def is_classic(session: SparkSession) -> bool:
    """Whether a session has its own JVM here (Spark Connect's has none)."""
    return hasattr(session, "_sc")


def is_local_master(master: str) -> bool:
    """Whether tasks run in the driver's own JVM, and so on this machine."""
    return re.match(r"local(\[|$)", master) is not None


def is_stopped(session: SparkSession) -> bool:
    """Whether ``stop()`` was called on a session, in this process."""
    if is_classic(session):
        return session.sparkContext._jsc is None
    return bool(session.is_stopped)  # type: ignore[attr-defined]


def is_in_task() -> bool:
    """Whether this process runs a Spark task: a function that Spark calls for rows, batches or partitions."""
    return TaskContext.get() is not None or "pyspark.worker" in sys.modules
