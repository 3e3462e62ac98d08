"""An engine whose tasks are threads of this process: a driver and its workers, as Spark would run them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

import cloudpickle

from maggy_like.cluster_driver.driver import drive
from maggy_like.cluster_driver.tasks import DriverHost, Keys
from maggy_like.cluster_driver.worker import serve
from maggy_like.engines.base import EngineRun
from maggy_like.engines.local import LocalEngine
from maggy_like.protocol.task import WorkerContext, WorkerTask


class ThreadRun(EngineRun):
    """One job: each task runs again where it raised, as often as it may."""

    def __init__(self, tasks: Sequence[Callable[[int], None]], attempts: int) -> None:
        super().__init__(range(len(tasks) - 1), 0)
        self.errors: list[Exception] = []
        self.cancelled = threading.Event()
        self._attempts = attempts
        self._threads = [threading.Thread(target=self._run, args=(task,), daemon=True) for task in tasks]
        for thread in self._threads:
            thread.start()

    def poll(self) -> str | None:
        if self.cancelled.is_set():
            return "cancelled"
        if any(thread.is_alive() for thread in self._threads):
            return None
        return str(self.errors[-1]) if self.errors else ""

    def cancel(self) -> None:
        self.cancelled.set()

    def wait(self, timeout: float) -> bool:
        for thread in self._threads:
            thread.join(timeout)
        return self.poll() is not None

    def _run(self, task: Callable[[int], None]) -> None:
        for attempt in range(self._attempts):
            try:
                return task(attempt)
            except Exception as error:
                self.errors.append(error)


class ThreadHost(LocalEngine, DriverHost):
    """Runs the driver and its workers in threads of this process.

    Args:
        slots: How many tasks run side by side.
        begin: Called before each attempt of the driver, with its number.
    """

    name = "threads"

    def __init__(self, slots: int = 3, begin: Callable[[int], None] = lambda attempt: None) -> None:
        super().__init__([])
        self._room = slots
        self._begin = begin
        self.run: ThreadRun | None = None

    def slots(self) -> int | None:
        return self._room

    def default_workers(self) -> int:
        return self._room

    def check_cluster_driver(self) -> None:
        pass

    def max_task_failures(self) -> int:
        return 2

    def launch_with_driver(self, plan: bytes, task: WorkerTask, keys: Sequence[Keys], journal: str) -> EngineRun:
        def lead(attempt: int) -> None:
            self._begin(attempt)
            drive(cloudpickle.loads(plan), task, attempt, "127.0.0.1")

        def follow(index: int) -> Callable[[int], None]:
            place = WorkerContext(index, 0, socket.gethostname(), (b"", b""))
            return lambda attempt: serve(task, index, len(keys), attempt, keys[index], journal, place)

        self.run = ThreadRun([lead, *map(follow, range(len(keys)))], self.max_task_failures())
        return self.run
