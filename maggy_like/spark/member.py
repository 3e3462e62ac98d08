"""What each task of a gang's job runs: an agent, until the search is over."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from maggy_like.errors import EngineError
from maggy_like.worker.task import WorkerContext, WorkerTask

if TYPE_CHECKING:
    import pyarrow

TOO_FEW_PARTITIONS = (
    "Spark made fewer partitions than there are workers: spark.sql.leafNodeDefaultParallelism, or else "
    "spark.default.parallelism, is smaller than workers; leave them out, or set one to the number of workers at least"
)


def gang_member(
    task: WorkerTask, epoch: int
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """The function that each barrier task runs: an agent, until the search is over."""

    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        from pyspark import BarrierTaskContext

        from maggy_like.worker.agent import Agent

        rows = [row for batch in batches for row in batch.to_pylist()]
        if len(rows) != 1:
            raise EngineError(TOO_FEW_PARTITIONS)
        index, keys = rows[0]["worker"], (rows[0]["public"], rows[0]["secret"])
        context = BarrierTaskContext.get()
        gpu = context.resources().get("gpu")
        accelerators = tuple(gpu.addresses) if gpu is not None else ()
        Agent(task, WorkerContext(index, epoch, socket.gethostname(), keys, accelerators)).run()
        yield pyarrow.RecordBatch.from_pydict({"worker": [index]})

    return run
