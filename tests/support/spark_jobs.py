"""How many Spark jobs a session runs; imported by the scripts that tests run in a process of their own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIRECTORY = str(Path(__file__).parent)
"""What such a script needs on its ``PYTHONPATH``."""


def active_jobs(spark: SparkSession, others: int = 0) -> int:
    """The jobs under way, once no more than the others' are, or after ten seconds.

    Spark's status tracker reads what a listener was told, and is told of a cancelled job's end only after the caller
    of that job has gone on; so it may trail for a moment.
    """
    tracker = spark.sparkContext.statusTracker()
    until = time.monotonic() + 10
    while (jobs := len(tracker.getActiveJobsIds())) > others and time.monotonic() < until:
        time.sleep(0.02)
    return jobs
