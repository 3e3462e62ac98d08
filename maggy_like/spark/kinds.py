"""Which kind a session is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_classic(session: SparkSession) -> bool:
    """Whether a session has its own JVM here (Spark Connect's has none)."""
    return hasattr(session, "_sc")
