"""The gang of one search: launched by an engine, launched again where it falls."""

from __future__ import annotations

import time

from maggy_like.driver import Driver
from maggy_like.engines.base import Engine, EngineRun
from maggy_like.errors import EngineError
from maggy_like.experiment.inputs import StopRequested, WorkerId, WorkerLost
from maggy_like.worker.task import WorkerTask

MAX_FUTILE_LAUNCHES = 3
"""Launches in a row that may fail before any work is done."""


class Gang:
    """Keeps ``size`` workers running; used from the thread that called ``lagom``.

    Args:
        engine: Provides the slots.
        task: What the run is.
        size: How many workers.
        logs: Folder for the agents' own output.
    """

    def __init__(self, engine: Engine, task: WorkerTask, size: int, logs: str) -> None:
        self._engine = engine
        self._task = task
        self._logs = logs
        self._runs: list[EngineRun] = engine.launch(task, range(size), 0, logs)
        self._futile = 0
        self._progress = 0

    def attend(self, driver: Driver) -> None:
        """Replace what has fallen; tell the driver of it."""
        while not driver.replacements.empty():
            lost = driver.replacements.get()
            for run in self._runs:
                if lost.index in run.indexes and lost.epoch == run.epoch:
                    run.cancel()
        for run in list(self._runs):
            reason = run.poll()
            if reason is not None and not driver.has_ended:
                self._relaunch(run, reason, driver)

    def _relaunch(self, run: EngineRun, reason: str, driver: Driver) -> None:
        self._runs.remove(run)
        for index in run.indexes:
            driver.post(WorkerLost(WorkerId(index, run.epoch), reason or "it left before the search was over"))
        self._futile = 0 if driver.progress > self._progress else self._futile + 1
        self._progress = driver.progress
        if run.is_hopeless or self._futile >= MAX_FUTILE_LAUNCHES:
            times = "" if run.is_hopeless else f" {self._futile} times in a row"
            message = f"workers {', '.join(map(str, run.indexes))} failed{times}: {reason}"
            driver.post(StopRequested("error", EngineError(message)))
            return
        try:
            self._runs += self._engine.launch(self._task, run.indexes, run.epoch + 1, self._logs)
        except Exception as error:
            driver.post(StopRequested("error", EngineError(f"the gang cannot be launched again: {error}")))

    def leave(self, timeout: float) -> None:
        """End all workers: by themselves within ``timeout`` seconds, else by force."""
        deadline = time.monotonic() + timeout
        for run in self._runs:
            if not run.wait(max(0.0, deadline - time.monotonic())):
                run.cancel()
        for run in self._runs:
            run.wait(10.0)
