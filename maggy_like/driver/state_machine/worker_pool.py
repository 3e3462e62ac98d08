"""The workers of a run, and which of them are idle."""

from __future__ import annotations

from collections.abc import Iterator

from maggy_like.driver.state_machine.inputs import WorkerJoined
from maggy_like.driver.state_machine.worker_groups import choose
from maggy_like.driver.state_machine.workers import Worker, WorkerGroup, WorkerState
from maggy_like.protocol.identity import WorkerId


class WorkerPool:
    """The newest incarnation of each worker, by its index.

    Attributes:
        workers: Workers by index.
    """

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self._heard_until = float("-inf")  # every live worker was heard of since then, or has joined since
        self._idle: dict[int, float] = {}  # since when workers are idle by index, in order of idling

    def __iter__(self) -> Iterator[Worker]:
        """The live workers."""
        return (worker for worker in self.workers.values() if worker.is_live)

    def find(self, known: WorkerId) -> Worker | None:
        """The live worker of that incarnation, or None for a stale one."""
        worker = self.workers.get(known.index)
        return worker if worker is not None and worker.id == known and worker.is_live else None

    def is_stale(self, newcomer: WorkerId) -> bool:
        """Whether that incarnation, or a later one, is known already."""
        before = self.workers.get(newcomer.index)
        return before is not None and before.id.incarnation >= newcomer.incarnation

    def join(self, event: WorkerJoined, now: float) -> Worker:
        """Record a new incarnation."""
        worker = self.workers[event.worker.index] = Worker(event.worker, event.host, event.accelerators, seen=now)
        return worker

    def set_idle(self, worker: Worker, now: float) -> None:
        """Record that a worker has nothing to do."""
        worker.release(WorkerState.IDLE)
        self._idle[worker.id.index] = now

    def retire(self, worker: Worker, state: WorkerState) -> None:
        """Give a worker no more work."""
        self._idle.pop(worker.id.index, None)
        worker.state = state

    def release(self, group: WorkerGroup, now: float, *, is_over: bool) -> None:
        """Remove an ended attempt from its workers.

        Args:
            is_over: Whether there is no more work.
        """
        for worker in group.members:
            if worker.state is not WorkerState.BUSY:
                worker.release(worker.state)  # it was lost
            elif is_over:
                worker.release(WorkerState.DRAINING)
            else:
                self.set_idle(worker, now)

    @property
    def has_idle(self) -> bool:
        """Whether any worker is idle."""
        return bool(self._idle)

    @property
    def idle_since(self) -> float:
        """Time since which the next worker to get work has been idle."""
        return next(iter(self._idle.values()))

    def members(self, width: int) -> list[Worker]:
        """Return the idle workers that would run the next attempt together; none while there are too few."""
        if not width or len(self._idle) < width:
            return []
        if width == 1:
            return [self.workers[next(iter(self._idle))]]
        return choose((self.workers[index] for index in self._idle), width)

    def engage(self, members: list[Worker]) -> None:
        """Record that some workers get work."""
        for worker in members:
            del self._idle[worker.id.index]

    def excuse(self, seconds: float, now: float) -> None:
        """Exclude a time in which the driver stood still from the silence of the workers."""
        for worker in self if seconds else ():
            worker.seen = min(now, worker.seen + seconds)

    def silent(self, now: float, patience: float) -> list[Worker]:
        """Return the workers that sent nothing for longer than ``patience`` seconds.

        Idle ones come first, so that the attempt of one silent worker does not go to another.
        """
        if now - self._heard_until <= patience:  # thousands need not be looked at in each tick
            return []
        silent = [worker for worker in self if now - worker.seen > patience]
        self._heard_until = min((worker.seen for worker in self), default=now)
        return sorted(silent, key=lambda worker: worker.state is not WorkerState.IDLE)
