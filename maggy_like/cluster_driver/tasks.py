"""The tasks of a run whose driver is one of them: slots for driver and workers, the workers' keys, and errors as text.

Spark retries a failed task with the same row of data and the next attempt number. So the row of a worker has a key pair
for each of its incarnations. It does not see those of other workers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from maggy_like import errors
from maggy_like.engines.base import Capacity, Engine, EngineRun
from maggy_like.errors import EngineError, MaggyError, TrialsFailedError, WorkerError
from maggy_like.protocol.task import KeyPair, WorkerContext, WorkerTask
from maggy_like.rpc.endpoint import ANY_PORT, Endpoint, PortRange
from maggy_like.rpc.sockets import new_key_pair
from maggy_like.storage.control_files import ControlFiles, DriverRecord, ErrorRecord
from maggy_like.worker.agent.agent import Agent

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
        """Return the incarnations of one attempt of the task, each with its pair.

        Raises:
            EngineError: No pairs are left.
        """
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
        """Check that the driver and the workers can be tasks of one job.

        Raises:
            EngineError: They cannot.
        """

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


def folder_not_seen(who: str, journal: str) -> str:
    """Return the message of a task that does not find the folder in which the client began the run."""
    return (
        f"{who} on host {socket.gethostname()!r} does not see the run's folder {journal}; pass directory=URL of a "
        "place that this process and all executors share"
    )


FIRST_PATIENCE = 600.0
"""Seconds that the driver's task gets to start."""

NEXT_PATIENCE = 60.0
"""Seconds that a lost driver gets to restart elsewhere. Then the last worker leaves its slot to the driver."""

STAGGER = 15.0
"""Additional seconds for each worker before the last one, since one slot is enough."""

LOOK = 1.0
"""Seconds between two reads of the driver's address."""

SILENCE = 5.0
"""Seconds without a message from the driver after which its address is read again."""


def serve(task: WorkerTask, index: int, size: int, attempt: int, keys: Keys, journal: str, site: WorkerContext) -> None:
    """Serve the run until its end.

    Args:
        journal: Folder of the run's journal, where the driver records its address.

    Raises:
        EngineError: There is no driver, or it was lost too often.
    """
    files, address = ControlFiles(journal), ""
    if not files.has_folder():
        raise EngineError(folder_not_seen(f"worker {index}", journal))
    for incarnation, pair in keys.of_attempt(attempt):
        patience = NEXT_PATIENCE + STAGGER * (size - 1 - index) if address else FIRST_PATIENCE
        record = find_driver(files, task.run_id, address, patience)
        if record is None and address:
            return  # the driver's task may be waiting for a slot
        if record is None:
            raise EngineError(f"the driver's task has not recorded its address within {FIRST_PATIENCE:g} s")
        if record.is_over:
            return
        address = record.address
        context = WorkerContext(index, incarnation, site.host, pair, site.accelerators)
        if serve_once(msgspec.structs.replace(task, address=address, ipv6="[" in address), context, files):
            return
    raise EngineError(f"worker {index} has lost its driver too often; use resume=True to continue")


def serve_once(task: WorkerTask, context: WorkerContext, files: ControlFiles) -> bool:
    """Serve the driver at ``task.address``, and return whether the driver dismissed the worker."""
    lifeline, launcher = os.pipe()
    try:
        try:
            agent = Agent(task, context, lifeline=lifeline)
        except BaseException:
            os.close(launcher)  # else the watch closes it
            raise
        # A driver that cannot be reached may have been restarted elsewhere.
        with _ended_with_driver(agent, task, files, launcher), contextlib.suppress(WorkerError):
            agent.run()
        return agent.was_dismissed
    finally:
        os.close(lifeline)


def find_driver(files: ControlFiles, run: str, lost: str, patience: float) -> DriverRecord | None:
    """Return the driver's record. None if there is none in time.

    Args:
        lost: Address that did not answer. It counts again once it answers, since the network may have failed.
        patience: Seconds to wait at most.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) < patience:
        record = _look(files, run)
        if record is not None and (record.is_over or record.address != lost or _answers(record.address)):
            return record
        time.sleep(LOOK if waited < 30 else 5 * LOOK)
    return None


def _answers(address: str) -> bool:
    """Return whether a process listens at a ZeroMQ address."""
    where = urlsplit(address)
    with contextlib.suppress(OSError), socket.create_connection((where.hostname or "", where.port or 0), timeout=2.0):
        return True
    return False


@contextlib.contextmanager
def _ended_with_driver(agent: Agent, task: WorkerTask, files: ControlFiles, launcher: int) -> Iterator[None]:
    """End the agent as soon as the record has another driver, or the end of the run."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            record = _look(files, task.run_id) if agent.silence > SILENCE else None
            if record is not None and (record.is_over or record.address != task.address):
                break
        os.close(launcher)

    thread = threading.Thread(target=watch, name="maggy-driver-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _look(files: ControlFiles, run: str) -> DriverRecord | None:
    """Return the driver's record if it is that of this call of ``lagom`` and can be read now."""
    with contextlib.suppress(Exception):
        record = files.driver()
        if record is not None and record.run == run:
            return record
    return None
