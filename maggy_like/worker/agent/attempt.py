"""The state of an attempt in an agent: the waiting assignment, the child that runs it, and why it must end."""

from __future__ import annotations

import time

from maggy_like.protocol.messages import (
    Abort,
    Assign,
    Beat,
    Checkpointed,
    Decided,
    FailureKind,
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
    encode,
)
from maggy_like.protocol.task import WorkerTask
from maggy_like.protocol.torchrun import on_uneven_steps
from maggy_like.rpc.limits import MAX_FRAME
from maggy_like.worker.agent.child import DISCONNECTED, Child
from maggy_like.worker.agent.logs import LogLocation
from maggy_like.worker.agent.output import TrialOutput

OfAttempt = Meet | Decided | Kept | Halt | Stop | Abort
"""Messages of the driver about a running attempt."""

HANGUP_PATIENCE = 1.0
"""Seconds after which a child whose connection has ended is killed if it has not exited."""


ABORT_PATIENCE = 0.3
"""Seconds after which the process of an attempt that another rank has ended is killed if it has not exited.

The kernel closes a dying process's connections one after the other. Those to the other ranks may be closed, and the
attempt be aborted for it, before ours is. Then this process is the cause, and its own end must be reported.
"""


class Ending:
    """The end of an attempt before its function returns. Each transition sets a time at which its process is killed.

    ==================  =============================================  ======================================
    transition          made when                                      what the driver receives
    ==================  =============================================  ======================================
    ``request_stop``    the driver, or the leaving worker, stops it    ``stopped``, whatever else has happened
    ``abort``           another rank has ended the attempt             ``stopped``, if it has to be killed ``fail``
    the agent ends it for its fault                ``died`` of the first fault ``hang_up``         its child has closed
    the connection            ``died`` of what the process died of
    ==================  =============================================  ======================================

    Args:
        grace: Seconds between the driver's stop and the kill.

    Attributes:
        kill_at: Time at which the process is killed; None while the attempt may run.
        is_stop_requested: Whether its end was requested.
        is_aborted: Whether another rank has ended the attempt.
        has_hung_up: Whether its child has closed the connection.
        fault: Kind and description of the fault for which the agent ends it, if there is one.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self.kill_at: float | None = None
        self.is_stop_requested = False
        self.is_aborted = False
        self.has_hung_up = False
        self.fault: tuple[FailureKind, str] | None = None

    def obey(self, message: OfAttempt) -> None:
        """Process a message of the driver, if it stops the attempt."""
        if isinstance(message, Halt | Stop):
            self.request_stop(self._grace)
        elif isinstance(message, Abort) and not self.has_hung_up:  # else it died before, and its own end tells how
            self.abort()

    def request_stop(self, grace: float) -> None:
        """Stop it, and kill it if it has not stopped in ``grace`` seconds."""
        self.is_stop_requested = True
        self._kill_by(time.monotonic() + grace)

    def abort(self) -> None:
        """Kill it if it does not end by itself soon."""
        self.is_aborted = True
        self._kill_by(time.monotonic() + ABORT_PATIENCE)

    def fail(self, kind: FailureKind, how: str, *, kill_in: float = 0.0) -> None:
        """End it for a fault; the first fault counts."""
        self.fault = self.fault or (kind, how)
        self._kill_by(time.monotonic() + kill_in)

    def hang_up(self) -> None:
        """Record that the child's end of the channel is closed, usually because the process has died."""
        self.has_hung_up = True
        self._kill_by(time.monotonic() + HANGUP_PATIENCE)

    def kill_again(self) -> None:
        """Schedule another kill, in case the last one fails."""
        self.kill_at = time.monotonic() + self._grace

    def _kill_by(self, due: float) -> None:
        self.kill_at = due if self.kill_at is None else min(self.kill_at, due)


TOO_LARGE = f"sent a message of {{}} bytes, and the limit is {MAX_FRAME}; report fewer metrics at once, or return less"

REDRAW_INTERVAL = 0.5
"""Seconds between two states of a redrawn line, if nothing else is printed."""


class Attempt:
    """One attempt, from the moment its child has the assignment to its end.

    Args:
        assign: Assignment.
        child: Child that runs it.
        task: Description of the run.
        logs: Location of its log file.

    Attributes:
        rank: Rank of the child in a multi-worker attempt.
        log: Name of its log file.
        output: Output of the child, if it is captured.
        ending: Why it must end before its function returns, if so, and when it is killed.
        has_lost_messages: Whether a message of the child could not be passed on; if so, its own end is ignored.
    """

    def __init__(self, assign: Assign, child: Child, task: WorkerTask, logs: LogLocation) -> None:
        self.assign = assign
        self.child = child
        self.rank = assign.rank_info.rank if assign.rank_info is not None and assign.rank_info.world_size > 1 else None
        self.log = logs.begin(assign.trial, assign.attempt, self.rank or 0) if child.output else ""
        self.output = TrialOutput(child.output, logs.folder, self.log) if child.output else None
        self.ending = Ending(task.grace)
        self.has_lost_messages = False
        self._limit = None if self.rank else task.report_timeout  # only rank 0 reports
        self._grace = min(task.grace, task.report_timeout or task.grace)  # silent for long, it is not about to report
        self._quiet_since: float | None = time.monotonic()  # None: it waits for the driver's verdict, or for the store
        self._interval = task.interval
        self._log_at = self._redraw_at = time.monotonic()

    @property
    def is_wide(self) -> bool:
        """Whether other workers run the attempt too."""
        return self.rank is not None

    @property
    def due(self) -> float | None:
        """Return when the next check or message is due, if ever."""
        return min((at for at in (self._check_at, self.log_due) if at is not None), default=None)

    @property
    def log_due(self) -> float | None:
        """Return when new output is to be passed on, if there is any."""
        if self.output is None:
            return None
        if self.output.has_lines:
            return self._log_at
        return self._redraw_at if self.output.is_redrawn else None

    @property
    def _check_at(self) -> float | None:
        if self.ending.kill_at is not None or self._limit is None or self._quiet_since is None:
            return self.ending.kill_at
        return self._quiet_since + self._limit

    def check(self, now: float) -> bool:
        """End an attempt that is silent for too long; whether it must be killed now."""
        if self.ending.kill_at is not None:
            return now >= self.ending.kill_at
        if (due := self._check_at) is not None and now >= due:
            self.ending.fail(
                FailureKind.TIMEOUT, f"reported nothing for report_timeout={self._limit:g} s", kill_in=self._grace
            )
            self.tell_stop()
        return False

    def is_run(self, trial: int, number: int) -> bool:
        """Whether this is that attempt of that trial."""
        return (self.assign.trial, self.assign.attempt) == (trial, number)

    def read(self, frame: bytes) -> ToDriver | None:
        """Decode a message of the child; None, and the attempt's end, if it cannot be decoded or passed on."""
        if len(frame) > MAX_FRAME:
            self.has_lost_messages = True
            self.ending.fail(FailureKind.TOO_LARGE, TOO_LARGE.format(len(frame)))
            return None
        message = self.child.read(frame)
        if message is None:
            self.ending.fail(*DISCONNECTED)
        return message

    def heard(self, message: Reported | Checkpointed | Waiting | Beat) -> None:
        """Restart ``report_timeout``, unless the function waits for the driver or the store."""
        waits = isinstance(message, Waiting) and not message.is_over
        is_kept = message.awaiting if isinstance(message, Reported) else waits
        self._quiet_since = None if is_kept else time.monotonic()

    def held_back(self) -> None:
        """Record that its reports are not read now, so that its silence does not count."""
        if self._quiet_since is not None:
            self._quiet_since = time.monotonic()

    def tell(self, message: ToWorker) -> None:
        """Pass a message to the child."""
        if isinstance(message, Decided):
            self._quiet_since = time.monotonic()
        self.child.channel.post(encode(message))

    def pass_on(self, message: OfAttempt) -> None:
        """Do what the driver requests for this attempt."""
        if not isinstance(message, Abort):  # which the child need not hear: it is killed
            self.tell(message)
        self.ending.obey(message)

    def tell_stop(self) -> None:
        """Stop the trial at its next report."""
        self.tell(Stop(self.assign.trial, self.assign.attempt))

    def put_off_log(self) -> None:
        """Pass on no output for an interval."""
        now = time.monotonic()
        self._log_at, self._redraw_at = now + self._interval, now + max(self._interval, REDRAW_INTERVAL)

    def take_log(self) -> Logged | None:
        """Return the output since the last call, if there is any."""
        self.put_off_log()
        if self.output is None or not (self.output.has_lines or self.output.is_redrawn):
            return None
        lines, dropped, live = self.output.take()
        return Logged(self.assign.trial, self.assign.attempt, lines, dropped, self.rank, live)

    def verdict(self, finished: Finished) -> Finished:
        """Return the end for the driver if the child has reported one."""
        ending = self.ending
        stopped_for_fault = finished.outcome == "stopped" and ending.fault is not None and not ending.is_stop_requested
        return self.post_mortem() if self.has_lost_messages or stopped_for_fault else finished

    def post_mortem(self) -> Finished:
        """Return the end for the driver if the child has reported none."""
        tail = ""
        if self.output is not None:
            self.output.read_all()
            tail = self.output.tail
        trial, attempt = self.assign.trial, self.assign.attempt
        if self.ending.is_stop_requested or (self.ending.is_aborted and self.child.killed):
            return Finished(trial, attempt, "stopped", traceback=tail)
        # An exit may be noticed late: only a child that had to be killed had hung up and continued.
        hung_up = DISCONNECTED if self.ending.has_hung_up and self.child.killed else None
        kind, how = self.ending.fault or hung_up or self.child.how_it_ended
        uneven = "" if self.assign.rank_info is None else on_uneven_steps(tail)
        message = f"the trial's process {how}{uneven}"
        return Finished(trial, attempt, "died", kind=kind, message=message, traceback=tail, at=time.time())


NOT_LOADED = "the worker's process could not load train_fn within {:g} s (see report_timeout)"
NOT_FREE = "the previous trial's process still used the GPU after {:g} s (see report_timeout)"


class WaitingAssignment:
    """An assignment from its arrival until a child has it.

    A child that is not ready may wait for anything: each imports the module of ``train_fn``, which may wait for a file
    lock or an unreachable file server. So the limits of an attempt apply here too.

    Args:
        assign: Assignment.
        task: Description of the run.
        shares_gpu: Whether it must also wait until the previous trial releases the GPU.

    Attributes:
        messages: Messages of the driver about it meanwhile.
    """

    def __init__(self, assign: Assign, task: WorkerTask, *, shares_gpu: bool) -> None:
        self.assign = assign
        self.messages: list[OfAttempt] = []
        self._ending = Ending(task.grace)
        # The process of the trial before has one grace to exit, and gets another to die.
        self._limit = max(task.report_timeout or 0.0, 2 * task.grace if shares_gpu else 0.0)
        self._limit_at = None if task.report_timeout is None else time.monotonic() + self._limit

    @property
    def due(self) -> float | None:
        """Return when it is to be given up, if ever."""
        return min((at for at in (self._limit_at, self._ending.kill_at) if at is not None), default=None)

    def take(self, message: OfAttempt) -> None:
        """Keep a message of the driver if it is about this attempt."""
        if (self.assign.trial, self.assign.attempt) != (message.trial, message.attempt):
            return
        self.messages.append(message)
        self._ending.obey(message)

    def end(self, child: Child | None) -> Finished:
        """Return the end for the driver when it is given up; ``child`` would have had it next."""
        trial, attempt = self.assign.trial, self.assign.attempt
        if self._ending.is_stop_requested or self._ending.is_aborted:
            return Finished(trial, attempt, "stopped")
        words = NOT_FREE if child is not None and child.ready else NOT_LOADED
        message = words.format(self._limit)
        return Finished(trial, attempt, "died", kind=FailureKind.TIMEOUT, message=message, at=time.time())
