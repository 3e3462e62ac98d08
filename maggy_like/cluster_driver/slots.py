"""Slots and workers of a run whose driver is a task: what the client counts, and what the driver sees."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from maggy_like.cluster_driver.keys import Keys
from maggy_like.engines.base import Capacity, Engine, EngineRun
from maggy_like.errors import EngineError
from maggy_like.protocol.task import KeyPair, WorkerTask
from maggy_like.rpc.endpoint import ANY_PORT, Endpoint, PortRange


class DriverHost(Capacity):
    """Runs the driver in a task beside the workers."""

    @abstractmethod
    def check_cluster_driver(self) -> None:
        """Check that the driver and the workers can be tasks of one job.

        Raises:
            EngineError: They cannot.
        """

    def driver_ports(self) -> PortRange:
        """The ports of which the driver takes one."""
        return ANY_PORT

    def cluster_driver_hints(self) -> list[str]:
        """Hints for a client that may end before the run, one a line."""
        return []

    @abstractmethod
    def max_task_failures(self) -> int:
        """How often a task may fail."""

    @abstractmethod
    def launch_with_driver(self, plan: bytes, task: WorkerTask, keys: Sequence[Keys], journal: str) -> EngineRun:
        """Launch the driver and the workers.

        Args:
            plan: The data of the driver's task, pickled.
            task: The workers' task, without the driver's address.
            keys: The key pairs of each worker.
            journal: The folder of the run's journal.
        """


class SlotsBesideDriver(Capacity):
    """Counts the slots that are left for workers once the driver has one."""

    def __init__(self, host: DriverHost) -> None:
        self.name = host.name
        self._host = host

    @property
    def is_elastic(self) -> bool:
        return self._host.is_elastic

    def check_gang(self, together: str) -> None:
        self._host.check_cluster_driver()

    def most_workers(self) -> int | None:
        most = self._host.most_workers()
        return None if most is None else most - 1

    def slots(self) -> int | None:
        slots = self._host.slots()
        return None if slots is None else max(0, slots - 1)

    def require(self, workers: int) -> None:
        try:
            self._host.require(workers + 1)
        except EngineError:
            slots = self._host.most_workers() if self.is_elastic else self._host.slots()
            if slots is None or slots > workers:
                raise
            few = f"pass workers={slots - 1} or fewer, or " if slots > 1 else ""
            raise EngineError(
                f"workers={workers} and the driver need {workers + 1} slots, and engine={self.name!r} has {slots}; "
                f"{few}give it more executors or cores"
            ) from None

    def default_workers(self) -> int:
        slots = self._host.default_workers()
        if slots < 2:
            raise EngineError(
                f"a driver and one worker need 2 slots, and engine={self.name!r} has {slots}; give it more "
                "executors or cores, or use driver='client'"
            )
        return slots - 1

    def hints(self, workers: int) -> list[str]:
        return [*self._host.hints(workers + 1), *self._host.cluster_driver_hints()]


class SiblingRun(EngineRun):
    """A worker whose task Spark starts, and starts again where it failed."""

    def poll(self) -> str | None:
        return None

    def cancel(self) -> None:
        """Does nothing: a worker that has lost the driver notices it, and connects again."""

    def wait(self, timeout: float) -> bool:
        return True


class SiblingEngine(Engine):
    """The engine that the driver in a task sees: Spark has launched the workers beside it already.

    Args:
        name: Of the engine whose tasks they are.
        size: How many workers there are.
        host: This machine's address, as the others reach it.
    """

    def __init__(self, name: str, size: int, host: str) -> None:
        self.name = name
        self._size = size
        self._host = host

    @property
    def is_elastic(self) -> bool:
        return True  # they come when Spark has slots for them

    def most_workers(self) -> int | None:
        return self._size

    def slots(self) -> int | None:
        return self._size

    def default_workers(self) -> int:
        return self._size

    def endpoint(self) -> Endpoint:
        return Endpoint(self._host)

    def launch(
        self, task: WorkerTask, indexes: Sequence[int], incarnation: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        return [SiblingRun([index], incarnation) for index in indexes]
