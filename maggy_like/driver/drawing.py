"""What a display shows of a state machine."""

from __future__ import annotations

from maggy_like.display.base import Snapshot, WorkerLine
from maggy_like.display.drawing import draw
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.run import Worker
from maggy_like.protocol.endings import Phase
from maggy_like.protocol.messages import UNBOUNDED

LINES = 500
"""Workers whose lines are drawn at once, at most: the driver hears nobody meanwhile."""


class Drawing:
    """Draws the run again and again, a part at a time: the lines of a large gang take as long as thousands of messages.

    Args:
        base: What stays the same.
        machine: What runs.
    """

    def __init__(self, base: Snapshot, machine: StateMachine) -> None:
        self._base = base
        self._machine = machine
        self._left: list[int] = []  # the workers whose lines are still to be drawn; the next one stands last
        self._lines: list[WorkerLine] = []

    def advance(self, elapsed: float, now: float, lines: int = LINES) -> Snapshot | None:
        """Draw the next part; the run at this moment with the last one, else None.

        Args:
            elapsed: Seconds since the call.
            now: Unix time.
            lines: How many workers' lines to draw at most.
        """
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
        """The whole run at this moment."""
        workers = self._machine.workers
        return self._snapshot([_line(self._machine, workers[index], now) for index in sorted(workers)], elapsed, now)

    def _snapshot(self, lines: list[WorkerLine], elapsed: float, now: float) -> Snapshot:
        machine = self._machine
        phase = Phase.TRAINING if machine.is_training else Phase.SEARCHING
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
    return WorkerLine(
        worker.id.index,
        worker.host,
        worker.state.value,
        trial=worker.trial,
        step=trial.step if trial is not None else 0,
        budget=trial.budget if trial is not None and trial.budget < UNBOUNDED else 0,
        value=trial.last_value if trial is not None else None,
        seconds=now - worker.attempt.since if worker.attempt is not None else 0.0,
    )
