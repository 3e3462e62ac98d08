"""A Spark job whose first task is the driver and whose other tasks are its workers.

It is not a barrier job: Spark retries a failed task by itself, with the same row and the next attempt number.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from maggy_like.cluster_driver.tasks import Keys
from maggy_like.errors import EngineError
from maggy_like.protocol.task import WorkerContext, WorkerTask
from maggy_like.spark.connection import address_towards
from maggy_like.spark.engine.job import SparkRun
from maggy_like.spark.engine.task import entry, gpus_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark import TaskContext
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession


class ClusterDriverRun(SparkRun):
    """The job of the driver and its workers.

    Args:
        plan: Data of the driver's task, pickled.
        task: The workers' task, without the driver's address.
        keys: Key pairs of each worker.
        journal: Folder of the run's journal.
    """

    def __init__(
        self,
        session: SparkSession,
        plan: bytes,
        task: WorkerTask,
        keys: Sequence[Keys],
        journal: str,
        profile: ResourceProfile | None,
    ) -> None:
        self._rows = [plan, *(msgspec.msgpack.encode(pairs.pairs) for pairs in keys)]
        self._journal = journal
        super().__init__(session, task, range(len(keys)), 0, (), profile, count=lambda: None, barrier=False)

    def _run_tasks(self) -> list[int]:
        """Give each task its own row, which no other receives; ``range`` always makes as many partitions as rows."""
        import pyarrow
        from pyspark.sql.functions import broadcast

        table = pyarrow.table({"id": list(range(len(self._rows))), "data": self._rows})
        size = len(self._rows)
        each = self._session.range(0, size, 1, size)
        rows = each.join(broadcast(self._session.createDataFrame(table)), "id")
        towards = str(self._session.conf.get("spark.driver.host", "") or "")
        function = entry(cluster_driver_task(self._task, size - 1, self._journal, towards))
        found = rows.mapInArrow(function, "worker bigint", profile=self._profile)
        return [row["worker"] for row in found.collect()]


def cluster_driver_task(
    task: WorkerTask, size: int, journal: str, towards: str
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Return the function that each task runs.

    Args:
        task: The workers' task.
        size: Number of workers.
        journal: Folder of the run's journal.
        towards: Host of Spark's own driver, which all executors reach.
    """

    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            for row in batch.to_pylist():
                run_task(row["id"], row["data"], task, size, journal, towards, context)
                yield pyarrow.RecordBatch.from_pydict({"worker": [row["id"]]})

    return run


def run_task(
    number: int, data: bytes, task: WorkerTask, size: int, journal: str, towards: str, context: TaskContext
) -> None:
    """Run the driver, or one of the workers."""
    attempt = context.attemptNumber()
    if number == 0:
        import cloudpickle

        from maggy_like.cluster_driver.driver import drive

        drive(cloudpickle.loads(data), task, attempt, host_towards(towards))
        return
    from maggy_like.cluster_driver.worker import serve

    keys = Keys(msgspec.msgpack.decode(data, type=tuple[tuple[bytes, bytes], ...]))
    where = WorkerContext(number - 1, 0, socket.gethostname(), (b"", b""), gpus_of(context))
    serve(task, number - 1, size, attempt, keys, journal, where)


def host_towards(host: str) -> str:
    """Return this machine's address in the executors' network, from which it reaches Spark's own driver."""
    try:
        return address_towards(host, 1)
    except EngineError:
        return socket.gethostbyname(socket.gethostname())
