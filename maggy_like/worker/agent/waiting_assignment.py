"""An assignment that waits: for a child that is ready, or for a GPU that is free."""

from __future__ import annotations

import time

from maggy_like.protocol.failure_kinds import FailureKind
from maggy_like.protocol.messages import Assign, Finished
from maggy_like.protocol.task import WorkerTask
from maggy_like.worker.agent.child import Child
from maggy_like.worker.agent.ending import Ending, OfAttempt

NOT_LOADED = "the worker's process could not load train_fn within {:g} s (see report_timeout)"
NOT_FREE = "the process of the trial before still held the GPU after {:g} s (see report_timeout)"


class WaitingAssignment:
    """An assignment from its arrival until a child has it.

    A child that is not ready may wait for anything: each imports the module of ``train_fn``, and a file lock
    or a file server that is away is enough. So what limits an attempt limits this too.

    Args:
        assign: The assignment.
        task: What the run is.
        shares_gpu: Whether it must also wait for the trial before to let go of a GPU.

    Attributes:
        messages: What the driver has said of it meanwhile.
    """

    def __init__(self, assign: Assign, task: WorkerTask, *, shares_gpu: bool) -> None:
        self.assign = assign
        self.messages: list[OfAttempt] = []
        self._ending = Ending(task.grace)
        # The process of the trial before has one grace to exit, and gets another to die.
        self._limit = max(task.report_timeout or 0.0, 2 * task.grace if shares_gpu else 0.0)
        self._limit_at = None if task.report_timeout is None else time.monotonic() + self._limit

    @property
    def due(self) -> float | None:
        """When it is to be given up, if ever."""
        return min((at for at in (self._limit_at, self._ending.kill_at) if at is not None), default=None)

    def take(self, message: OfAttempt) -> None:
        """Keep what the driver says of an attempt, if it is this one."""
        if (self.assign.trial, self.assign.attempt) != (message.trial, message.attempt):
            return
        self.messages.append(message)
        self._ending.obey(message)

    def end(self, child: Child | None) -> Finished:
        """The end that the driver is told when it is given up; ``child`` would have had it next."""
        trial, attempt = self.assign.trial, self.assign.attempt
        if self._ending.is_stop_requested or self._ending.is_aborted:
            return Finished(trial, attempt, "stopped")
        words = NOT_FREE if child is not None and child.ready else NOT_LOADED
        message = words.format(self._limit)
        return Finished(trial, attempt, "died", kind=FailureKind.TIMEOUT, message=message, at=time.time())
