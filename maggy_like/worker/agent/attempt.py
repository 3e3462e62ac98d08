"""What the agent knows of the attempt that one of its children runs."""

from __future__ import annotations

import time

from maggy_like.protocol.codec import encode
from maggy_like.protocol.failure_kinds import FailureKind
from maggy_like.protocol.messages import (
    Abort,
    Assign,
    Beat,
    Checkpointed,
    Decided,
    Finished,
    Halt,
    Kept,
    Logged,
    Meet,
    Reported,
    Stop,
    ToDriver,
    ToWorker,
    Waiting,
)
from maggy_like.protocol.task import WorkerTask
from maggy_like.rpc.limits import MAX_FRAME
from maggy_like.worker.agent.children import DISCONNECTED, Child
from maggy_like.worker.agent.log_location import LogPlace
from maggy_like.worker.agent.output import TrialOutput

OfAttempt = Meet | Decided | Kept | Halt | Stop | Abort
"""What the driver says of an attempt that runs."""

TOO_LARGE = f"sent a message of {{}} bytes, past the limit of {MAX_FRAME}; report fewer metrics at once, return less"

HANGUP_PATIENCE = 1.0
"""Seconds in which a child whose connection has ended must have exited, else it is killed."""

REDRAW_INTERVAL = 0.5
"""Seconds between two states of a line that is redrawn, where nothing else is printed."""


class Attempt:
    """One attempt, from the moment its child has the assignment to its end.

    Args:
        assign: The assignment.
        child: Runs it.
        task: What the run is.
        logs: Where its log file goes.

    Attributes:
        rank: The child's, where several workers run the attempt together.
        log: The name of its log file.
        output: What the child prints, if it is captured.
        kill_at: When it is to be killed, if so.
        is_told_to_stop: Whether the driver has said that it is to end.
        is_unheard: Whether something that it said could not be passed on; then no end that it tells counts.
    """

    def __init__(self, assign: Assign, child: Child, task: WorkerTask, logs: LogPlace) -> None:
        self.assign = assign
        self.child = child
        self.rank = assign.place.rank if assign.place is not None and assign.place.world_size > 1 else None
        self.log = logs.begin(assign.trial, assign.attempt, self.rank or 0) if child.output else ""
        self.output = TrialOutput(child.output, logs.folder, self.log) if child.output else None
        self.kill_at: float | None = None
        self.is_unheard = False
        self._patience = task.grace
        self._limit = None if self.rank else task.report_timeout  # rank 0 alone reports
        self._grace = min(task.grace, task.report_timeout or task.grace)  # silent for long, it is not about to report
        self._quiet_since: float | None = time.monotonic()  # None: it waits for the driver's verdict, or for the store
        self.is_told_to_stop = False
        self._fault: tuple[FailureKind, str] | None = None  # what we end it for
        self._hung_up = False
        self._interval = task.interval
        self._log_at = self._redraw_at = time.monotonic()

    @property
    def is_wide(self) -> bool:
        """Whether other workers run the attempt too."""
        return self.rank is not None

    @property
    def due(self) -> float | None:
        """When there is something to check or to pass on, if ever."""
        return min((at for at in (self._check_at, self.log_due) if at is not None), default=None)

    @property
    def log_due(self) -> float | None:
        """When what was printed is to be passed on, if anything was."""
        if self.output is None:
            return None
        if self.output.has_lines:
            return self._log_at
        return self._redraw_at if self.output.is_redrawn else None

    @property
    def _check_at(self) -> float | None:
        if self.kill_at is not None or self._limit is None or self._quiet_since is None:
            return self.kill_at
        return self._quiet_since + self._limit

    def check(self, now: float) -> bool:
        """End an attempt that is silent for too long; whether it must be killed now."""
        if self.kill_at is not None:
            return now >= self.kill_at
        if (due := self._check_at) is not None and now >= due:
            silent = f"reported nothing for report_timeout={self._limit:g} s"
            self.accuse(FailureKind.TIMEOUT, silent, kill_at=now + self._grace)
            self.tell(Stop(self.assign.trial, self.assign.attempt))
        return False

    def is_run(self, trial: int, number: int) -> bool:
        """Whether this is that attempt of that trial."""
        return (self.assign.trial, self.assign.attempt) == (trial, number)

    def read(self, frame: bytes) -> ToDriver | None:
        """What the child sent; None, and the attempt's end, for what is no message or cannot be passed on."""
        if len(frame) > MAX_FRAME:
            self.is_unheard = True
            self.accuse(FailureKind.TOO_LARGE, TOO_LARGE.format(len(frame)), kill_at=time.monotonic())
            return None
        message = self.child.read(frame)
        if message is None:
            self.accuse(*DISCONNECTED, kill_at=time.monotonic())
        return message

    def heard(self, message: Reported | Checkpointed | Waiting | Beat) -> None:
        """The function has shown that it goes on; silence counts from now, unless it waits for others."""
        is_kept = message.awaiting if isinstance(message, Reported) else isinstance(message, Waiting) and message.reason
        self._quiet_since = None if is_kept else time.monotonic()

    def held_back(self) -> None:
        """Its reports are not read just now: silence is not its fault."""
        if self._quiet_since is not None:
            self._quiet_since = time.monotonic()

    def tell(self, message: ToWorker) -> None:
        """Pass something on to the child."""
        if isinstance(message, Decided):
            self._quiet_since = time.monotonic()
        self.child.channel.post(encode(message))

    def pass_on(self, message: OfAttempt) -> None:
        """Do what the driver says of this attempt."""
        if isinstance(message, Abort):
            if not self._hung_up:  # else it died before, and its own end tells how
                self.stop(0.0)
            return
        self.tell(message)
        if isinstance(message, Halt | Stop):
            self.stop(self._patience)

    def stop(self, grace: float) -> None:
        """It was told to stop: kill it after ``grace`` seconds if it does not."""
        self.is_told_to_stop = True
        self._kill_by(time.monotonic() + grace)

    def accuse(self, kind: FailureKind, message: str, *, kill_at: float) -> None:
        """End it for a fault of its own; the first word stands."""
        self._fault = self._fault or (kind, message)
        self._kill_by(kill_at)

    def hung_up(self) -> None:
        """The child's end of the channel is closed; most often since it has just died."""
        self._hung_up = True
        self._kill_by(time.monotonic() + HANGUP_PATIENCE)

    def put_off_log(self) -> None:
        """Pass on nothing of what is printed for an interval."""
        now = time.monotonic()
        self._log_at, self._redraw_at = now + self._interval, now + max(self._interval, REDRAW_INTERVAL)

    def take_log(self) -> Logged | None:
        """What was printed since the last call, if anything."""
        self.put_off_log()
        if self.output is None or not (self.output.has_lines or self.output.is_redrawn):
            return None
        lines, dropped, live = self.output.take()
        return Logged(self.assign.trial, self.assign.attempt, lines, dropped, self.rank, live)

    def verdict(self, finished: Finished) -> Finished:
        """What the driver hears of an end that the child told."""
        if self.is_unheard or (finished.outcome == "stopped" and self._fault is not None and not self.is_told_to_stop):
            return self.post_mortem()
        return finished

    def post_mortem(self) -> Finished:
        """What the driver hears of an attempt that ended without a word."""
        tail = ""
        if self.output is not None:
            self.output.read_all()
            tail = self.output.tail
        trial, attempt = self.assign.trial, self.assign.attempt
        if self.is_told_to_stop:
            return Finished(trial, attempt, "stopped", traceback=tail)
        # A slow machine may tell late of an exit: only a child that had to be killed had hung up and gone on.
        hung_up = DISCONNECTED if self._hung_up and self.child.killed else None
        kind, how = self._fault or hung_up or self.child.cause_of_death
        message = f"the trial's process {how}"
        return Finished(trial, attempt, "died", kind=kind, message=message, traceback=tail, at=time.time())

    def _kill_by(self, due: float) -> None:
        self.kill_at = due if self.kill_at is None else min(self.kill_at, due)
