"""An attempt in an agent: the assignment that waits for a child, the child that runs it, and why it must end early."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from maggy_like.processes.stacks import Stacks
from maggy_like.protocol.endings import StopReason, on_uneven_steps
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
    OutcomeKind,
    Reported,
    Stop,
    ToDriver,
    Waiting,
    encode,
)
from maggy_like.protocol.task import WorkerTask
from maggy_like.rpc.sockets import MAX_FRAME
from maggy_like.worker.agent.children import DISCONNECTED, Child
from maggy_like.worker.agent.log_copies import LogLocation
from maggy_like.worker.agent.output import MAX_LINE, TrialOutput

OfAttempt = Meet | Decided | Kept | Halt | Stop | Abort
"""Messages of the driver about an attempt."""

HANGUP_PATIENCE = 1.0
"""Seconds after which a child whose connection has ended is killed if it has not exited."""


ABORT_PATIENCE = 0.3
"""Seconds after which the process of an attempt that another rank has ended is killed if it has not exited.

The kernel closes a dying process's connections one after the other. Those to the other ranks may be closed, and the
attempt be aborted for it, before ours is. Then this process is the cause, and its own end must be reported.
"""

TOO_LARGE = f"sent a message of {{}} bytes, and the limit is {MAX_FRAME}; report fewer metrics at once, or return less"

NOT_LOADED = "the worker's process could not load train_fn within {:g} s (see report_timeout)"
NOT_FREE = "the previous trial's process still used the GPU after {:g} s (see report_timeout)"

REDRAW_INTERVAL = 0.5
"""Seconds between two states of a redrawn line, if nothing else is printed."""


class AgentAttempt:
    """One attempt, from the arrival of its assignment to its end.

    It waits for a child first, and with ``shares_gpu`` until the previous trial has released the GPU. A child that is
    not ready may wait for anything: each imports the module of ``train_fn``, which may wait for a file lock or an
    unreachable file server. So there are limits from the start.

    Why it ends before its function returns decides what the driver receives:

    =========================================  ======================================
    ``stop_reason`` of the driver              ``stopped``, whatever else has happened
    ``RANK_FAILED``: another rank has failed   ``stopped``, if it has to be killed
    ``fault``: the agent has found a fault     ``died`` of the first fault
    its child has closed the connection        ``died`` of what the process died of
    =========================================  ======================================
    """

    def __init__(self, assign: Assign, task: WorkerTask, *, shares_gpu: bool = False) -> None:
        self.assign = assign
        self.rank = assign.rank_info.rank if assign.rank_info is not None and assign.rank_info.world_size > 1 else None
        self.child: Child | None = None  # None while it waits for one
        self.log = ""  # name of its log file
        self.output: TrialOutput | None = None  # None if the child's output is not captured
        self.stop_reason = StopReason.NONE  # why the driver has ended it, if it has
        # Kind and description of the fault for which the agent ends it.
        self.fault: tuple[FailureKind, str] | None = None
        self.kill_at: float | None = None  # time at which its process is killed; None while it may run
        # Whether a message of the child could not be passed on; if so, its own end is ignored.
        self.has_lost_messages = False
        self.newest_state = assign.checkpoint  # name of the newest state that the child has saved, or began from
        self._stood, self._is_in_collective = "", False  # where its process was before it was killed
        self._has_looked = False
        self._task = task
        self._early: list[OfAttempt] = []  # came before its child was ready
        # The process of the trial before has one grace to exit, and gets another to die.
        self._wait_limit = max(task.report_timeout or 0.0, 2 * task.grace if shares_gpu else 0.0)
        self._limit = None if task.report_timeout is None else self._wait_limit
        self._quiet_since: float | None = time.monotonic()  # None: it waits for the driver's verdict, or for the store
        self._log_at = self._redraw_at = time.monotonic()

    def start(self, child: Child, logs: LogLocation) -> None:
        """Take in that a child has the assignment."""
        self.child = child
        if child.output is not None:
            self.log = logs.begin(self.assign.trial, self.assign.attempt, self.rank or 0)
            self.output = TrialOutput(child.output, logs.directory, self.log)
        self._limit = None if self.rank else self._task.report_timeout  # only rank 0 reports
        self._quiet_since = self._log_at = self._redraw_at = time.monotonic()
        self.kill_at = None  # a stop that came before is passed on now, and has its whole grace
        early, self._early = self._early, []
        for message in early:
            self.pass_on(message)

    @property
    def is_multi_worker(self) -> bool:
        """Whether other workers run the attempt too."""
        return self.rank is not None

    @property
    def is_stop_requested(self) -> bool:
        """Whether the driver, or the leaving worker, has asked it to stop."""
        return self.stop_reason > StopReason.RANK_FAILED

    @property
    def is_overdue(self) -> bool:
        """Whether it is to be killed because it takes too long, or has reported nothing for too long."""
        is_silent = self.fault is not None and self.fault[0] is FailureKind.TIMEOUT
        is_killed = self.kill_at is not None and time.monotonic() >= self.kill_at
        return is_silent or (is_killed and self.stop_reason is StopReason.FAULT)

    def is_run(self, trial: int, number: int) -> bool:
        """Whether this is that attempt of that trial."""
        return (self.assign.trial, self.assign.attempt) == (trial, number)

    def is_continued_by(self, following: Assign) -> bool:
        """Whether an assignment continues this attempt from the point at which its function waits."""
        mine = self.assign
        return (
            following.trial == mine.trial
            and following.config == mine.config
            and following.checkpoint == self.newest_state is not None
            and following.rank_info is None
        )

    # -- its limits ---------------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """Return when the next check or message is due, if ever."""
        return min((at for at in (self._check_at, self.log_due) if at is not None), default=None)

    @property
    def _check_at(self) -> float | None:
        if self.kill_at is not None or self._limit is None or self._quiet_since is None:
            return self.kill_at
        return self._quiet_since + self._limit

    def check(self, now: float) -> bool:
        """Stop an attempt that is silent for too long; whether it must be killed, or given up, now."""
        if (due := self._check_at) is None or now < due:
            return False
        if self.kill_at is not None or self.child is None or self._limit is None:
            return True
        grace = min(self._task.grace, self._limit)  # silent for long, it is not about to report
        self.fail(FailureKind.TIMEOUT, f"reported nothing for report_timeout={self._limit:g} s", kill_in=grace)
        self.tell_stop(self.child, StopReason.FAULT)
        return False

    def heard(self, message: Reported | Checkpointed | Waiting | Beat) -> None:
        """Restart ``report_timeout``, unless the function waits for the driver or the store."""
        if isinstance(message, Checkpointed):
            self.newest_state = message.name
        waits = isinstance(message, Waiting) and not message.is_over
        is_kept = message.awaiting if isinstance(message, Reported) else waits
        self._quiet_since = None if is_kept else time.monotonic()

    def held_back(self) -> None:
        """Record that its reports are not read now, so that its silence does not count."""
        if self._quiet_since is not None:
            self._quiet_since = time.monotonic()

    # -- its end, before its function returns -------------------------------------------------

    def stop(self, reason: StopReason, grace: float) -> None:
        """Record that it is to stop, and kill it if it has not stopped in ``grace`` seconds."""
        self.stop_reason = max(self.stop_reason, reason)
        self._kill_by(time.monotonic() + grace)

    def fail(self, kind: FailureKind, how: str, *, kill_in: float = 0.0) -> None:
        """End it for a fault; the first fault counts."""
        self.fault = self.fault or (kind, how)
        self._kill_by(time.monotonic() + kill_in)

    def hang_up(self) -> None:
        """Record that its child has closed the connection, usually because the process has died."""
        if self.child is not None:
            self.child.has_hung_up = True
        self._kill_by(time.monotonic() + HANGUP_PATIENCE)

    def kill_again(self) -> None:
        """Schedule another kill, in case the last one fails."""
        self.kill_at = time.monotonic() + self._task.grace

    def _kill_by(self, due: float) -> None:
        self.kill_at = due if self.kill_at is None else min(self.kill_at, due)

    # -- messages -----------------------------------------------------------------------------

    def pass_on(self, message: OfAttempt) -> None:
        """Do what the driver requests for this attempt, and pass the message to its child, once there is one."""
        if self.child is None:
            self._early.append(message)
        elif not isinstance(message, Abort):  # which the child need not receive: it is killed
            self._tell(self.child, message)
        if isinstance(message, Halt | Stop):
            self.stop(message.reason, self._task.grace)
        elif isinstance(message, Abort) and not (self.child is not None and self.child.has_hung_up):
            self.stop(StopReason.RANK_FAILED, ABORT_PATIENCE)  # else it died before, and its own end tells how

    def tell_stop(self, child: Child, reason: StopReason) -> None:
        """Stop the trial at its next report."""
        self._tell(child, Stop(self.assign.trial, self.assign.attempt, reason=reason))

    def _tell(self, child: Child, message: OfAttempt) -> None:
        if isinstance(message, Decided):
            self._quiet_since = time.monotonic()
        child.channel.post(encode(message))

    def read(self, child: Child, frame: bytes) -> ToDriver | None:
        """Decode a message of its child; None, and the attempt's end, if it cannot be decoded or passed on."""
        if len(frame) > MAX_FRAME:
            self.has_lost_messages = True
            self.fail(FailureKind.TOO_LARGE, TOO_LARGE.format(len(frame)))
            return None
        message = child.read(frame)
        if message is None:
            self.fail(*DISCONNECTED)
        return message

    def look(self, stacks: Callable[[Child], list[Stacks]]) -> bool:
        """Find out where its processes are, once, before they are killed. The log gets all their stacks.

        Return whether the other ranks must be looked at, too.
        """
        if self.child is None or self._has_looked or self.child.has_hung_up:
            return False
        self._has_looked = True
        found = [stack for stack in stacks(self.child) if stack.text]
        for stack in found:
            if self.output is not None:
                self.output.add(f"the stacks of process {stack.pid}, each with its last call first:\n{stack.text}\n")
        if found and found[0].pid == self.child.pid:
            self._stood, self._is_in_collective = found[0].place()[:MAX_LINE], found[0].is_in_collective()
        return self.is_multi_worker

    # -- its output ---------------------------------------------------------------------------

    @property
    def log_due(self) -> float | None:
        """Return when new output is to be passed on, if there is any."""
        if self.output is None:
            return None
        if self.output.has_lines:
            return self._log_at
        return self._redraw_at if self.output.is_redrawn else None

    def put_off_log(self) -> None:
        """Pass on no output for an interval."""
        now, interval = time.monotonic(), self._task.interval
        self._log_at, self._redraw_at = now + interval, now + max(interval, REDRAW_INTERVAL)

    def take_log(self) -> Logged | None:
        """Return the output since the last call, if there is any."""
        self.put_off_log()
        if self.output is None or not (self.output.has_lines or self.output.is_redrawn):
            return None
        lines, dropped, live = self.output.take()
        return Logged(self.assign.trial, self.assign.attempt, lines, dropped, self.rank, live)

    # -- how it ended -------------------------------------------------------------------------

    def verdict(self, child: Child, finished: Finished) -> Finished:
        """Return the end for the driver if its child has reported one."""
        stopped_for_fault = finished.outcome == "stopped" and self.fault is not None and not self.is_stop_requested
        if self.has_lost_messages or stopped_for_fault:
            return self.post_mortem(child)
        return msgspec.structs.replace(finished, stood=self._stood, is_in_collective=self._is_in_collective)

    def post_mortem(self, child: Child) -> Finished:
        """Return the end for the driver if its child has reported none."""
        tail = ""
        if self.output is not None:
            self.output.read_all()
            tail = self.output.tail
        if self.is_stop_requested or (self.stop_reason is StopReason.RANK_FAILED and child.killed):
            return self._stopped(tail)
        # An exit may be noticed late: only a child that had to be killed had hung up and continued.
        hung_up = DISCONNECTED if child.has_hung_up and child.killed else None
        kind, how = self.fault or hung_up or child.how_it_ended
        uneven = "" if self.assign.rank_info is None else on_uneven_steps(tail)
        return self._died(kind, f"the trial's process {how}{uneven}", tail)

    def not_started(self, *, is_child_ready: bool) -> Finished:
        """Return the end for the driver if it is given up before a child has it."""
        if self.stop_reason is not StopReason.NONE:
            return self._stopped()
        words = NOT_FREE if is_child_ready else NOT_LOADED
        return self._died(FailureKind.TIMEOUT, words.format(self._wait_limit))

    def _stopped(self, tail: str = "") -> Finished:
        return self._finished("stopped", traceback=tail)

    def _died(self, kind: FailureKind, message: str, tail: str = "") -> Finished:
        return self._finished("died", kind=kind, message=message, traceback=tail, at=time.time())

    def _finished(self, outcome: OutcomeKind, **fields: Any) -> Finished:
        place: dict[str, Any] = {"stood": self._stood, "is_in_collective": self._is_in_collective}
        return Finished(self.assign.trial, self.assign.attempt, outcome, **place, **fields)
