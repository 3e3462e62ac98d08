"""One worker in the calling process and thread, for a debugger."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Sequence

from maggy_like.engines.base import Engine, EngineRun
from maggy_like.protocol.task import Isolation, KeyPair, WorkerContext, WorkerTask
from maggy_like.rpc.endpoint import Endpoint
from maggy_like.worker.agent.agent import Agent
from maggy_like.worker.agent.launchers import InlineLauncher


class InlineRun(EngineRun):
    """The agent in a thread; its trials in whichever thread calls :meth:`poll`."""

    def __init__(self, task: WorkerTask, index: int, incarnation: int, keys: KeyPair) -> None:
        super().__init__([index], incarnation)
        self._launcher = InlineLauncher(task)
        self._task = task
        self._context = WorkerContext(index, incarnation, socket.gethostname(), keys)
        self._thread = threading.Thread(target=self._serve, name="maggy-agent", daemon=True)
        self._thread.start()
        self._served = False

    def poll(self) -> str | None:
        """Run all trials here; returns when the search is over."""
        if not self._served:
            self._served = True
            self._launcher.serve_here(flush=sys.stdout.flush)
        return None if self._thread.is_alive() else ""

    def cancel(self) -> None:
        """The agent leaves when the driver says so; a thread cannot be forced."""

    def wait(self, timeout: float) -> bool:
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if not self._served:  # the search was over before there was anything to serve
            self._served = True
            self._launcher.abandon()
        return True

    def _serve(self) -> None:
        Agent(self._task, self._context, launcher=self._launcher).run()


class InlineEngine(Engine):
    """Runs one worker in this process: breakpoints, ``pdb`` and profilers work as usual.

    Example:
        >>> lagom(train_fn, space, engine="inline", n_trials=1)
    """

    name = "inline"
    isolation: Isolation = "none"

    def slots(self) -> int | None:
        return 1

    def default_workers(self) -> int:
        return 1

    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1")

    def launch(
        self, task: WorkerTask, indexes: Sequence[int], incarnation: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        return [InlineRun(task, index, incarnation, pair) for index, pair in zip(indexes, keys, strict=True)]
