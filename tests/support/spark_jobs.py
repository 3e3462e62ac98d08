"""How many Spark jobs a session runs; imported by the scripts that tests run in a process of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = str(Path(__file__).parent)
"""What such a script needs on its ``PYTHONPATH``."""


def active_jobs(spark: SparkSession) -> int:
    """The jobs under way now.

    Spark's status tracker reads what a listener was told, and is told of a job's end only after the caller of that
    job has gone on; so let the listeners catch up before asking it.
    """
    context = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty(30_000)
    return len(context.statusTracker().getActiveJobsIds())
