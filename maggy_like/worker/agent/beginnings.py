"""The beginning of a worker: it introduces itself, reaches its driver, and loads the training function."""

from __future__ import annotations

import os
import time

from maggy_like.protocol.messages import (
    PROTOCOL_VERSION,
    Hello,
    own_versions,
)
from maggy_like.protocol.task import WorkerContext, WorkerTask
from maggy_like.rpc.endpoint import CANNOT_REACH, why_unreachable
from maggy_like.storage.file_systems import look_for_mark

CONTACT_PATIENCE = 15.0
"""Seconds between two checks why the driver does not answer."""


def make_hello(task: WorkerTask, context: WorkerContext) -> Hello:
    """Build the message by which the worker introduces itself to its driver."""
    return Hello(
        PROTOCOL_VERSION,
        context.index,
        context.incarnation,
        context.host,
        os.getpid(),
        list(context.accelerators),
        look_for_mark(task.store, task.run_id),
        versions=own_versions(),
    )


class FirstContact:
    """Watches a worker that the driver has not answered yet.

    A driver that can be reached and does not answer may be busy, so it has the whole of :attr:`WorkerTask.silence`.
    """

    def __init__(self, task: WorkerTask, context: WorkerContext) -> None:
        self._task = task
        self._context = context
        self._started = time.monotonic()
        self._due = self._started + min(CONTACT_PATIENCE, task.silence)

    def check(self, now: float) -> None:
        """Check again why the driver does not answer, if it is time to; raise WorkerError if it cannot be reached."""
        if now < self._due:
            return
        task = self._task
        self._due = now + CONTACT_PATIENCE
        why = why_unreachable(task.address, ipv6=task.ipv6)
        if not why and now - self._started >= task.silence:
            why = "the process there is not the driver of this run"
        if why:
            # Not before: it brings the optimizers along, which a worker has no use for.
            from maggy_like.errors import WorkerError

            raise WorkerError(
                f"worker {self._context.index} on host {self._context.host!r} {CANNOT_REACH} {task.address}: {why}; "
                "open this port to the workers, use SparkEngine(host=..., port=...) with an address and a port that "
                "they reach, or driver='cluster' if they reach none"
            )


LOAD_HINT = 20.0
"""Seconds of loading the function after which a line shows where the worker stands."""


class LoadWatch:
    """When to look at a worker that has not loaded the function: after :data:`LOAD_HINT`, and at the limit."""

    def __init__(self, limit: float | None) -> None:
        began = time.monotonic()
        self._end = None if limit is None else began + limit
        hint = began + LOAD_HINT
        self.due: float | None = hint if self._end is None else min(hint, self._end)

    def is_due(self, now: float) -> bool:
        """Return whether to look now; the next time is the limit."""
        if self.due is None or now < self.due:
            return False
        self.due = None if self.is_over(now) else self._end
        return True

    def is_over(self, now: float) -> bool:
        """Return whether the limit is reached."""
        return self._end is not None and now >= self._end

    def end(self) -> None:
        """Take in that the function is loaded."""
        self.due = None
