"""Snapshots of a run for displays, made by the driver's loop in a small share of its time."""

from __future__ import annotations

from maggy_like.display.base import Snapshot, WorkerLine, draw, draw_worker
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.run import Worker
from maggy_like.protocol.endings import Phase

LINES = 500
"""Workers whose lines are drawn at once, since the driver receives no messages meanwhile."""

SNAPSHOT_INTERVAL = 0.1
SNAPSHOT_SHARE = 0.01
"""Seconds between two snapshots at least, and the share of the driver's time that they may take. With many workers
there are fewer snapshots, and they are drawn in parts."""

LONGEST = 5.0
"""Seconds after which it is due in any case, since the process may have been stopped during the last time."""


class Drawing:
    """Makes snapshots of the run in parts, since many workers' lines take as long as thousands of messages."""

    def __init__(self, base: Snapshot, machine: StateMachine) -> None:
        self._base = base  # snapshot with what stays the same
        self._machine = machine
        self._left: list[int] = []  # the workers whose lines are not drawn yet; the last one is next
        self._lines: list[WorkerLine] = []

    def advance(self, elapsed: float, now: float, lines: int = LINES) -> Snapshot | None:
        """Draw at most so many workers' lines. Return the snapshot after the last part, else None."""
        workers = self._machine.workers
        if not self._lines:
            self._left = sorted(workers, reverse=True)
        for _ in range(min(lines, len(self._left))):
            self._lines.append(_line(self._machine, workers[self._left.pop()], now))
        if self._left:
            return None
        drawn, self._lines = self._lines, []
        return self._snapshot(drawn, elapsed, now)

    def at_once(self, elapsed: float, now: float) -> Snapshot:
        """Return a snapshot of the run at this moment."""
        workers = self._machine.workers
        return self._snapshot([_line(self._machine, workers[index], now) for index in sorted(workers)], elapsed, now)

    def _snapshot(self, lines: list[WorkerLine], elapsed: float, now: float) -> Snapshot:
        machine = self._machine
        phase = Phase.TRAINING if machine.is_training else Phase.SEARCHING
        if machine.is_confirming:
            phase = Phase.CONFIRMING
        return draw(
            self._base,
            machine.study,
            phase=machine.ending or (phase if lines else Phase.STARTING),
            elapsed=elapsed,
            now=now,
            objective=machine.objective,
            workers=lines,
        )


def _line(machine: StateMachine, worker: Worker, now: float) -> WorkerLine:
    trial = None if worker.trial is None else machine.study.trials[worker.trial]
    seconds = now - worker.attempt.since if worker.attempt is not None else 0.0
    return draw_worker(worker.id.index, worker.host, worker.state.value, trial, seconds)


class Pace:
    """Decides when something is due, so that it takes at most a share of the time."""

    def __init__(self, interval: float, share: float) -> None:
        self._interval = interval  # seconds between two times at least
        self._share = share
        self._due = float("-inf")

    def is_due(self, now: float) -> bool:
        """Return whether it is due."""
        return now >= self._due

    def took(self, began: float, ended: float) -> None:
        """Record when it was last done."""
        self._due = max(began + self._interval, ended + min(LONGEST, (ended - began) / self._share))
