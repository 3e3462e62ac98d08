"""How a trial's reports reach its agent, and how the driver's answers reach the trial."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from maggy_like.messages import Assign, Columns, Reported, ToDriver, encode
from maggy_like.worker.channel import Disconnected
from maggy_like.worker.metrics import ReportError, pick_objective


class TrialStopped(BaseException):
    """The trial was told to stop. No ``Exception``: a bare ``except Exception`` must not eat it."""


class Gate:
    """Lets the ranks of an attempt stop in the same report.

    Where one of them stopped earlier than another, the other would wait for it in a collective operation for
    ever. So they are halted first: each says how many reports it has passed, and passes no more. None can then be
    past the report after the largest of these numbers, and that is where all are told to stop.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passed = 0
        self._halted = False
        self._stop_at: int | None = None

    def halt(self) -> int:
        """Let no further report pass for now; how many have."""
        with self._changed:
            self._halted = True
            return self._passed

    def stop_at(self, report: int) -> None:
        """Let all pass up to ``report``, counted from 1, and stop there."""
        with self._changed:
            self._stop_at = report
            self._changed.notify_all()

    def passes(self) -> bool:
        """Whether the next report goes on; waits while the gate is halted."""
        with self._changed:
            while self._halted and self._stop_at is None:
                self._changed.wait()
            if self._stop_at is not None and self._passed + 1 >= self._stop_at:
                return False
            self._passed += 1
            return True


class Sender:
    """Carries a trial's reports to the agent. One per attempt; shared with the service thread.

    Attributes:
        buffer: Reports that were not sent yet. Appending and cutting a list are atomic, so
            ``report`` takes no lock.
        fault: Why the service thread could not send them; for the trial to raise.
        stopped: Whether the trial was told to stop.
        verdicts: The driver's answers; True stops.
        kept: For each state that the journal has, the URLs of those that may go now.
        gate: Through which reports go where several workers run the attempt together.
        is_main: Whether this one of them reports.
    """

    def __init__(self, assign: Assign, send: Callable[[bytes], None]) -> None:
        self.buffer: list[tuple[int, dict[str, float]]] = []
        self.fault: Exception | None = None
        self.stopped = False
        self.verdicts: SimpleQueue[bool] = SimpleQueue()
        self.kept: SimpleQueue[tuple[str, ...]] = SimpleQueue()
        self.gate = Gate() if assign.place is not None else None
        self.is_main = assign.place is None or assign.place.rank == 0
        self._assign = assign
        self._send = send
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._objective = assign.objective

    def send(self, message: ToDriver) -> None:
        """Send one message now.

        Raises:
            ReportError: By a process that the trial forked: the two would tell different things.
        """
        if os.getpid() != self._process:
            raise ReportError("a process that the trial forked cannot report or save; do so in the trial's own")
        self._send(encode(message))

    def flush(self, *, awaiting: bool = False) -> None:
        """Send what is buffered. What cannot be sent stays there."""
        with self._lock:
            while self.buffer or awaiting:
                count = max(1, 50_000 // len(self.buffer[0][1])) if self.buffer else 0  # a frame of about a megabyte
                reports = self.buffer[:count]
                if self._objective is None:  # the first report says, as it does in the trial: later ones may hold more
                    self._objective = pick_objective(reports[0][1], None)
                last = awaiting and len(self.buffer) == len(reports)
                columns = to_columns(reports)
                self.send(Reported(self._assign.trial, self._assign.attempt, self._objective, columns, last))
                del self.buffer[: len(reports)]
                if last:
                    break

    def flush_behind(self) -> None:
        """Send what is buffered, behind the trial's back; if it cannot be, the trial's next report raises why.

        Raises:
            Disconnected: The agent cannot be reached.
        """
        if self.fault is not None:
            return
        try:
            self.flush()
        except Disconnected:
            raise
        except Exception as error:
            self.fault = error

    def wait_for_verdict(self) -> bool:
        """Send all, with the last report awaiting; True if the trial must stop."""
        if self.is_main:
            self.flush(awaiting=True)
        return self.verdicts.get()


def to_columns(reports: list[tuple[int, dict[str, float]]]) -> dict[str, Columns]:
    """Reports by step, turned into steps and values by metric."""
    columns: dict[str, Columns] = {}
    for step, metrics in reports:
        for name, value in metrics.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = ([], [])
            column[0].append(step)
            column[1].append(value)
    return columns
