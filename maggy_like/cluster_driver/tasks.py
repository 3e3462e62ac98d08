"""The tasks of a run whose driver is one of them: slots for driver and workers, the workers' keys, and errors as text.

Spark retries a failed task with the same row of data and the next attempt number. So the row of a worker has a key pair
for each of its incarnations. It does not see those of other workers.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from maggy_like import errors
from maggy_like.engines.base import Capacity, Engine, EngineRun
from maggy_like.errors import EngineError, MaggyError, TrialsFailedError
from maggy_like.protocol.task import KeyPair, WorkerTask
from maggy_like.rpc.endpoint import ANY_PORT, Endpoint, PortRange
from maggy_like.rpc.sockets import new_key_pair
from maggy_like.storage.control_files import ErrorRecord

ROUNDS = 4
"""Incarnations of a worker within one attempt of its task. One ends if the driver is lost, or gives the worker up."""

SPARE_ATTEMPTS = 12
"""Attempts in addition to the failures that Spark allows a task, since lost executors do not count as failures."""


@dataclass(frozen=True)
class Keys:
    """The key pairs of one worker, by incarnation."""

    pairs: tuple[KeyPair, ...]

    @classmethod
    def make(cls, max_failures: int) -> Keys:
        """Make new pairs for a task that may fail ``max_failures`` times."""
        return cls(tuple(new_key_pair() for _ in range((max_failures + SPARE_ATTEMPTS) * ROUNDS)))

    @property
    def public(self) -> tuple[bytes, ...]:
        """The public keys, for the driver."""
        return tuple(public for public, _ in self.pairs)

    def of_attempt(self, attempt: int) -> Iterator[tuple[int, KeyPair]]:
        """Return the incarnations of an attempt, each with its pair. Raise EngineError if no pairs are left."""
        epochs = range(attempt * ROUNDS, (attempt + 1) * ROUNDS)
        if epochs.stop > len(self.pairs):
            raise EngineError(
                f"Spark ran this worker's task {attempt + 1} times, so its keys are used up; use resume=True"
            )
        return ((incarnation, self.pairs[incarnation]) for incarnation in epochs)


class DriverHost(Capacity):
    """An engine that can run the driver in a task, next to the workers."""

    @abstractmethod
    def check_cluster_driver(self) -> None:
        """Check that the driver and the workers can be tasks of one job."""

    def driver_ports(self) -> PortRange:
        """Return the ports of which the driver takes one."""
        return ANY_PORT

    def cluster_driver_hints(self) -> list[str]:
        """Return hints for a client that may end before the run, one per line."""
        return []

    @abstractmethod
    def max_task_failures(self) -> int:
        """Return how often a task may fail."""

    @abstractmethod
    def launch_with_driver(self, plan: bytes, task: WorkerTask, keys: Sequence[Keys], journal: str) -> EngineRun:
        """Launch the driver and the workers."""


class WorkerSlots(Capacity):
    """Counts the slots for workers, without the one of the driver."""

    def __init__(self, host: DriverHost) -> None:
        self.name = host.name
        self._host = host

    @property
    def is_elastic(self) -> bool:
        return self._host.is_elastic

    def check_workers(self, together: str) -> None:
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
    """A worker whose task Spark starts and retries."""

    def poll(self) -> str | None:
        return None

    def cancel(self) -> None:
        """Do nothing: a worker that has lost the driver notices it, and reconnects."""

    def wait(self, timeout: float) -> bool:
        return True


class SiblingEngine(Engine):
    """The engine of the driver in a task. Spark has already launched the workers."""

    def __init__(self, name: str, size: int, host: str) -> None:
        self.name = name
        self._size = size
        self._host = host

    @property
    def is_elastic(self) -> bool:
        return True  # they start when Spark has slots for them

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


def to_record(error: BaseException) -> ErrorRecord:
    """Convert an error to text."""
    kind = type(error).__name__
    parts = [str(error) if isinstance(error, MaggyError) else f"{kind}: {error}"]
    if isinstance(error, TrialsFailedError):  # a client leaves the traceback out if it has shown it
        parts = [str(part) for part in error.args]
    return ErrorRecord(kind, parts[0], tuple(getattr(error, "__notes__", ())), tuple(parts[1:]))


def from_record(record: ErrorRecord) -> MaggyError:
    """Convert text to an error, of the same class if it is a class of :mod:`maggy_like.errors`."""
    known = getattr(errors, record.kind, None) if record.kind in errors.__all__ else None
    error = (known or EngineError)(record.message, *record.details)
    for note in record.notes:
        error.add_note(note)
    assert isinstance(error, MaggyError)
    return error


def directory_not_seen(who: str, journal: str) -> str:
    """Return the message of a task that does not find the directory in which the client began the run."""
    return (
        f"{who} on host {socket.gethostname()!r} does not see the run's directory {journal}; pass directory=URL of a "
        "place that this process and all executors share"
    )
