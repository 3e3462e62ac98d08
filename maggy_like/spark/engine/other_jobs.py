"""What a search takes from other jobs of its session."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from maggy_like.spark.capacity.slots import Slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HINTED: WeakSet[SparkSession] = WeakSet()


def other_jobs_hints(session: SparkSession, slots: Slots, workers: int) -> list[str]:
    """A hint that a gang takes all slots of a session that others may use; once a session.

    A local master is its user's own, and a session that grows by dynamic allocation has room for others.

    Args:
        session: Whose slots they are.
        slots: Counts them.
        workers: How many the gang takes.
    """
    if slots.is_local or slots.is_elastic or session in _HINTED:
        return []
    count = slots.count()
    if count is None or workers < count or count < 2:
        return []
    _HINTED.add(session)
    return [
        f"all {count} slots of the Spark session are taken until the search ends, and its other jobs wait; "
        "SparkEngine(reserve=1) leaves one"
    ]
