"""A worker's first contact with its driver: its hello, and what it says when no answer comes."""

from __future__ import annotations

import os
import time

from maggy_like.protocol.messages import PROTOCOL_VERSION, Hello
from maggy_like.protocol.task import WorkerContext, WorkerTask
from maggy_like.protocol.versions import own_versions
from maggy_like.rpc.endpoint import CANNOT_REACH, why_unreachable
from maggy_like.storage.store_marks import look_for_mark

CONTACT_PATIENCE = 15.0
"""Seconds between two looks at why the driver does not answer."""


def make_hello(task: WorkerTask, context: WorkerContext) -> Hello:
    """How the worker introduces itself to its driver."""
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
    """Watches over a worker that the driver has not answered yet.

    A driver that can be reached and does not answer may be busy: it gets the whole of :attr:`WorkerTask.silence`.

    Args:
        task: What the run is.
        context: The worker's place.
    """

    def __init__(self, task: WorkerTask, context: WorkerContext) -> None:
        self._task = task
        self._context = context
        self._started = time.monotonic()
        self._due = self._started + min(CONTACT_PATIENCE, task.silence)

    def check(self, now: float) -> None:
        """Look again at why the driver does not answer, if it is time to.

        Raises:
            WorkerError: The driver cannot be reached.
        """
        if now < self._due:
            return
        task = self._task
        self._due = now + CONTACT_PATIENCE
        why = why_unreachable(task.address, ipv6=task.ipv6)
        if not why and now - self._started >= task.silence:
            why = "what answers there is no driver of this run"
        if why:
            # Not before: it brings the optimizers along, which a worker has no use for.
            from maggy_like.errors import WorkerError

            raise WorkerError(
                f"worker {self._context.index} on host {self._context.host!r} {CANNOT_REACH} {task.address}: {why}; "
                "open this port to the workers, or pass an address and a port that they reach: "
                "SparkEngine(host=..., port=...); where they reach none, driver='cluster'"
            )
