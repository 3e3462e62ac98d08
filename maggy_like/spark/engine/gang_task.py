"""What each task of a gang's job runs: an agent, until the search is over."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from maggy_like.errors import EngineError
from maggy_like.protocol.task import WorkerContext, WorkerTask
from maggy_like.spark.engine.gpus import gpus_of

if TYPE_CHECKING:
    import pyarrow

TOO_FEW_PARTITIONS = (
    "Spark made fewer partitions than there are workers: spark.sql.leafNodeDefaultParallelism, or else "
    "spark.default.parallelism, is smaller than workers; leave them out, or set one to the number of workers at least"
)


STARTED_AGAIN = -1
"""What a task returns instead of its worker's index if Spark started it again: the key in its row is used up."""


Row = tuple[int, bytes, bytes]
"""What one task gets: the worker's index, and its key pair."""


def gang_task(task: WorkerTask, incarnation: int) -> Callable[[Iterator[Row]], Iterator[int]]:
    """The function that each task runs: an agent, until the search is over.

    Spark runs a task outside of a barrier stage again by itself. Such a task ends at once and without an error, so
    that its job ends too, and the driver puts the next incarnation, with a key of its own, in the worker's place.
    """

    def run(given: Iterator[Row]) -> Iterator[int]:
        from pyspark import TaskContext

        from maggy_like.worker.agent.agent import Agent

        rows = list(given)
        if len(rows) != 1:
            raise EngineError(TOO_FEW_PARTITIONS)
        index, public, secret = rows[0]
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() > 0:
            yield STARTED_AGAIN
            return
        Agent(task, WorkerContext(index, incarnation, socket.gethostname(), (public, secret), gpus_of(context))).run()
        yield index

    return run


def in_arrow(
    function: Callable[[Iterator[Row]], Iterator[int]],
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """The same function for ``mapInArrow``."""

    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        rows = (tuple(row.values()) for batch in batches for row in batch.to_pylist())
        for index in function(rows):
            yield pyarrow.RecordBatch.from_pydict({"worker": [index]})

    return run
