"""How many tasks a Spark Connect session can run side by side, which its server does not say in so many words."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from maggy_like.spark.capacity.resources import Resources
from maggy_like.spark.capacity.slots import FIRST_PATIENCE, NEXT_PATIENCE, SETTLING, Slots
from maggy_like.spark.connection.connect import ping
from maggy_like.spark.kinds import is_classic

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

LEAST_DEFAULT = 2
"""The fewest parts into which Spark splits a range by default; else there are as many as its executors have cores."""

HOLD = 0.5
"""Seconds that two tasks stay, to be seen side by side."""

WITHDRAWAL = 5.0
"""Seconds within which a job that is not wanted any more is interrupted, again and again."""


def slots_of(session: SparkSession, resources: Resources | None = None) -> Slots:
    """The slots of a session of either kind, for workers that ask for these resources."""
    return (Slots if is_classic(session) else ConnectSlots)(session, resources)


class ConnectSlots(Slots):
    """The slots of a Spark Connect session."""

    def count(self) -> int | None:
        """How many there are now; None where settings of the session, or executors of the gang's own, hide it.

        Two may be fewer outside a local master, where Spark itself makes no difference: :meth:`wait` tries it out.

        Raises:
            ServerSilent: The server does not answer just now.
            EngineError: It does not know the session any more.
        """
        if self.has_own_executors:
            return None
        cores = self._cores()
        if cores is None:
            return None
        each = int(self.conf("spark.executor.cores", "0"))
        gpus = self.gpus_owned
        if self.is_local or not each:
            return None if gpus else cores // self.cpus_asked
        by_cores = each // self.cpus_asked
        return cores // each * (min(by_cores, int(gpus / self.gpus_asked + 1e-9)) if gpus else by_cores)

    def wait(self, wanted: int | None) -> int | None:
        if self.is_local or self.has_own_executors or not self._is_vague:
            return super().wait(wanted)
        # Spark says two cores: there may be no executor yet, and a job of one task ends once there is one.
        if not self._within(FIRST_PATIENCE, lambda: bool(self._session.range(0, 1, 1, 1).collect())):
            return 0
        slots = super().wait(wanted)
        if wanted == 1 or slots != LEAST_DEFAULT or not self._is_vague:
            return slots
        until = time.monotonic() + (SETTLING if wanted is None else NEXT_PATIENCE)
        while not self._within(NEXT_PATIENCE, lambda: side_by_side(self._session)):
            if time.monotonic() > until:
                return 1
        return slots

    @property
    def _is_vague(self) -> bool:
        """Whether there may be fewer cores than Spark says."""
        return self._cores() == LEAST_DEFAULT and int(self.conf("spark.executor.cores", "0")) < LEAST_DEFAULT

    def _cores(self) -> int | None:
        """The cores of all executors, as Spark plans with them; no job runs for it. None where a setting hides them."""
        ping(self._session)
        for key in ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism"):
            if self._session.conf.get(key, None) is not None:
                return None
        splits = re.search(r"splits=(?:Some\()?(\d+)", self._session.range(1)._explain_string())  # type: ignore[operator]
        return int(splits[1]) if splits is not None else None

    def _within(self, patience: float, job: Callable[[], bool]) -> bool:
        """Whether a Spark job says yes in time; one that is not waited for any more (Ctrl-C) leaves the server."""
        tag, answers = f"maggy-{uuid.uuid4().hex}", list[bool]()

        def run() -> None:
            self._session.addTag(tag)
            try:
                answers.append(job())
            except Exception as error:  # it was withdrawn, or the gang will fail of the same, and say why
                answers.append("OPERATION_CANCELED" not in str(error))

        thread = threading.Thread(target=run, name="slots", daemon=True)
        thread.start()
        try:
            thread.join(patience)
        finally:
            if thread.is_alive():
                self._withdraw(tag, thread)
        return answers == [True]

    def _withdraw(self, tag: str, thread: threading.Thread) -> None:
        deadline = time.monotonic() + WITHDRAWAL
        while thread.is_alive() and time.monotonic() < deadline:  # again: it may only be being submitted
            self._session.interruptTag(tag)
            thread.join(0.2)


def side_by_side(session: SparkSession) -> bool:
    """Whether two tasks of a Spark job ran at the same time, or on two hosts."""

    def stay(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import socket
        import time

        import pyarrow

        begin = time.time()
        time.sleep(HOLD)
        row = {"host": socket.gethostname(), "begin": begin, "end": time.time()}
        yield from (pyarrow.RecordBatch.from_pylist([row]) for batch in batches if batch.num_rows)

    rows = session.range(0, 2, 1, 2).mapInArrow(stay, "host string, begin double, end double").collect()
    stays = defaultdict[str, list[tuple[float, float]]](list)
    for row in rows:
        stays[row.host].append((row.begin, row.end))
    return len(stays) > 1 or any(second[0] < first[1] for first, second in map(sorted, stays.values()))
