"""What a display shows of a state machine."""

from __future__ import annotations

from maggy_like.display.base import Snapshot, WorkerLine
from maggy_like.display.drawing import draw
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.workers import Worker
from maggy_like.protocol.endings import Phase
from maggy_like.protocol.fields import UNBOUNDED


def draw_machine(base: Snapshot, machine: StateMachine, elapsed: float, now: float) -> Snapshot:
    """The run at this moment.

    Args:
        base: What stays the same.
        machine: What runs.
        elapsed: Seconds since the call.
        now: Unix time.
    """
    workers = sorted(machine.workers.values(), key=lambda worker: worker.id.index)
    lines = [_line(machine, worker, now) for worker in workers]
    phase = Phase.TRAINING if machine.is_training else Phase.SEARCHING
    return draw(
        base,
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
        seconds=now - worker.group.since if worker.group is not None else 0.0,
    )
