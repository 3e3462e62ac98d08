"""Keeps the workers of a run alive on an engine whose slots come and go by themselves."""

from __future__ import annotations

import contextlib
import math
import time

from maggy_like.driver.loop import Driver
from maggy_like.driver.state_machine.inputs import StopRequested
from maggy_like.driver.supervisor import MAX_FUTILE_LAUNCHES, Supervisor
from maggy_like.engines.base import EngineRun
from maggy_like.errors import EngineError
from maggy_like.protocol.endings import Ending, Phase

GROWTH_PATIENCE = 600.0
"""Seconds for which the search waits for as many workers as a trial needs before it ends."""

IDLE_PATIENCE = 10.0
"""Seconds of idle workers after which no more are asked for."""


class GrowingSupervisor(Supervisor):
    """Launches all workers at once; those without a slot wait inside the engine, and join late.

    The search waits only for as many workers as a trial needs (``least``). While workers have nothing to do, launches
    that still wait are cancelled: the cluster would start machines for nothing.
    """

    _in_row = 0  # launches in a row of which no worker got ready
    _were_ready = 0  # how many workers had got ready before those
    _busy = math.inf  # when there was work for more workers last

    def _await(self, driver: Driver) -> None:
        if driver.has_ended:
            return
        now, there = time.monotonic(), live_workers(driver)
        self._follow_demand(driver, now)
        if there >= self._least:
            self._manned = now
        elif now - self._manned > GROWTH_PATIENCE:
            self._manned = now
            needed = f"{self._least} worker{'s' * (self._least != 1)}"
            message = (
                f"engine={self._engine.name!r} had {there} of the {needed} that a trial needs for {GROWTH_PATIENCE:g} "
                f"s, though it was asked for {len(self._futile)}; see what its cluster grants"
            )
            driver.post(StopRequested(Ending.ERROR, EngineError(message)))

    def _unusable(self, run: EngineRun, *, was_ready: bool, driver: Driver) -> str:
        for index in run.indexes:  # a worker that fails alone is launched less and less often
            self._futile[index] = 0 if was_ready else self._futile[index] + 1
        if was_ready or live_workers(driver) or len(driver.ready) > self._were_ready:
            self._in_row, self._were_ready = 0, len(driver.ready)
            return ""
        self._in_row += 1
        at_a_time = 1
        with contextlib.suppress(Exception):  # a session that was stopped, or does not answer, says so itself
            at_a_time = max(1, min(len(self._futile), self._engine.slots() or 1))
        if self._in_row < MAX_FUTILE_LAUNCHES * at_a_time:
            return ""
        return f", as {self._in_row} launches in a row, before any was ready"

    def _free(self, wanted: int) -> int:
        self._engine.slots()  # raises where the session was stopped
        return wanted

    def _follow_demand(self, driver: Driver, now: float) -> None:
        """Cancel launches that wait while workers have nothing to do; launch again once all are busy."""
        idle = sum(worker.state == "idle" for worker in driver.snapshot.workers)
        if idle < self._least or driver.snapshot.phase is not Phase.SEARCHING:
            self._busy = now
            for vacancy in self._vacancies:
                vacancy.due = min(vacancy.due, now + IDLE_PATIENCE)
        elif now - self._busy > IDLE_PATIENCE:
            for run in [run for run in self._runs if not run.has_come]:
                run.cancel()
            for vacancy in self._vacancies:
                vacancy.due = math.inf


def live_workers(driver: Driver) -> int:
    """How many workers the driver knows that have not left."""
    return sum(worker.state not in ("gone", "lost") for worker in driver.snapshot.workers)
