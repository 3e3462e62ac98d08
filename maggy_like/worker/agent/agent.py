"""The worker itself: owns the socket to the driver, supervises the child that runs the trial.

One thread, one poll loop. While a trial runs, a standby child is made ready, so that the next trial
starts a round trip after this one ends.
"""

from __future__ import annotations

import os
import signal
import time

from maggy_like.protocol.failure_kinds import FailureKind
from maggy_like.protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    Assign,
    Beat,
    Broken,
    Checkpointed,
    Decided,
    Finished,
    Goodbye,
    Halt,
    Held,
    Hello,
    Kept,
    LogsRefused,
    Meet,
    Opened,
    Ready,
    Refused,
    Reported,
    Shutdown,
    Stop,
    ToWorker,
    Waiting,
)
from maggy_like.protocol.task import LOG_PATIENCE, WorkerContext, WorkerTask
from maggy_like.protocol.versions import own_versions
from maggy_like.rpc.client import Client
from maggy_like.rpc.poller import Poller
from maggy_like.storage.store_marks import look_for_mark
from maggy_like.worker.agent.attempt import Attempt
from maggy_like.worker.agent.children import Child, ChildLauncher, ForkServerLauncher
from maggy_like.worker.agent.exiting_children import ExitingChildren
from maggy_like.worker.agent.first_contact import FirstContact
from maggy_like.worker.agent.log_location import LogPlace
from maggy_like.worker.agent.output import TrialOutput
from maggy_like.worker.agent.standby import Standby
from maggy_like.worker.agent.waiting_assignment import WaitingAssignment

SPARE_DELAY = 0.02
"""Seconds that a starting trial is left alone: its successor is forked, its predecessor torn down only then."""

LEAVE_GRACE = 1.0
"""Seconds that a running trial gets when the worker itself is told to leave."""

LOG_POLL = 0.02
"""Seconds between two looks at whether the last logs are in the store."""


class Agent:
    """Serves one run from one slot.

    Args:
        task: What the run is.
        context: This worker's place.
        launcher: Makes the children; a warm fork server if not given.
        lifeline: A file descriptor whose end says that the launcher is gone.

    Attributes:
        was_dismissed: Whether the driver has said that the search is over.
    """

    def __init__(
        self,
        task: WorkerTask,
        context: WorkerContext,
        *,
        launcher: ChildLauncher | None = None,
        lifeline: int | None = None,
    ) -> None:
        self._task = task
        self._context = context
        self._lifeline = lifeline
        self.was_dismissed = False
        self._launcher: ChildLauncher = launcher or ForkServerLauncher(task, context)
        self._logs = LogPlace(task)
        self._client = Client(task.address, task.server_key, context.keys, ipv6=task.ipv6)
        self._first_contact = FirstContact(task, context)
        self._watch = Poller()
        self._standby = Standby()
        self._exiting = ExitingChildren(task.grace)
        self._waiting: WaitingAssignment | None = None  # not yet handed to a child
        self._attempt: Attempt | None = None
        self._leaving = False
        self._announced = False

    def run(self) -> None:
        """Serve until the driver says that it is over, or is gone."""
        try:
            for socket in self._client.sockets:
                self._watch.add(socket, self._listen)
            self._introduce()
            self._watch_nursery()
            if self._lifeline is not None:
                self._watch.add(self._lifeline, self._leave_now)
            self._spawn_spare()
            while not self._leaving or self._attempt is not None:
                self._poll_once()
            self._await_logs()
            self._client.send(Goodbye())
        finally:
            self._close()

    @property
    def silence(self) -> float:
        """Seconds since the driver said anything; from any thread."""
        return time.monotonic() - self._client.heard

    # -- the loop -----------------------------------------------------------------------------

    def _poll_once(self) -> None:
        self._watch_unsent()
        self._watch.poll(self._patience())
        self._hold_back()
        now = time.monotonic()
        if self._attempt is not None and (due := self._attempt.log_due) is not None and now >= due:
            self._forward_log(self._attempt)
        if now >= self._client.due:
            self._client.beat()
        if self._attempt is not None and self._attempt.check(now):
            self._kill(self._attempt)
        if self._waiting is not None and self._waiting.due is not None and now >= self._waiting.due:
            self._give_up(self._waiting)
        if self._standby.due is not None and now >= self._standby.due:
            self._spawn_spare()
        if self._exiting.due is not None and now >= self._exiting.due:
            self._exiting.attend(self._launcher)
        if not self._client.was_answered:
            self._first_contact.check(now)
        elif now - self._client.heard > self._task.silence:
            self._leave_now()
        self._tell_of_logs()

    def _tell_of_logs(self) -> None:
        if trouble := self._logs.take_trouble():
            self._client.send(LogsRefused(trouble))

    def _await_logs(self) -> None:
        """Give the last logs some time to reach the store; the driver is answered meanwhile."""
        self._logs.finish()
        if self._lifeline is not None:
            self._watch.remove(self._lifeline)  # it may have ended, and would end each wait
        deadline = time.monotonic() + LOG_PATIENCE
        while self._logs.is_busy and time.monotonic() < deadline:
            self._watch.poll(LOG_POLL)
            if time.monotonic() >= self._client.due:
                self._client.beat()
        if self._logs.is_busy:
            self._logs.give_up()
        self._tell_of_logs()

    def _patience(self) -> float:
        """Seconds until something is due."""
        parts = self._client, self._standby, self._exiting, self._waiting, self._attempt
        due = [part.due for part in parts if part is not None and part.due is not None]
        return max(0.0, min(due) - time.monotonic())

    def _introduce(self) -> None:
        task, place = self._task, self._context
        unseen, gpus = look_for_mark(task.store, task.run_id), list(place.accelerators)
        where = PROTOCOL_VERSION, place.index, place.incarnation, place.host, os.getpid(), gpus, unseen
        hello = Hello(*where, versions=own_versions())
        self._client.introduce(hello)

    def _watch_unsent(self) -> None:
        """Wait for no child that does not listen just now, since it may wait for us: the rest goes out when it does."""
        for child in self._children():
            channel = child.channel
            self._watch.when_writable(channel.fileno(), channel.flush if channel.has_unsent else None)

    def _hold_back(self) -> None:
        """Take nothing more from the trial while too much waits for the driver; its reports wait in its process.

        One that was told to stop has no more than those: they are taken, so that it can hear of it.
        """
        if self._attempt is not None:
            full = self._client.is_full and not self._attempt.is_told_to_stop
            self._watch.pause(self._attempt.child.channel.fileno(), full)
            if full:
                self._attempt.held_back()

    # -- what the driver says -----------------------------------------------------------------

    def _listen(self) -> None:
        for message in self._client.receive():
            self._obey(message)

    def _obey(self, message: ToWorker) -> None:
        match message:
            case Assign():
                self._waiting = WaitingAssignment(message, self._task, shares_gpu=bool(self._context.accelerators))
                self._start_if_possible()
            case Meet() | Decided() | Kept() | Halt() | Stop() | Abort():
                if isinstance(message, Abort):
                    self._look_for_end()
                if (attempt := self._attempt) is not None and attempt.is_run(message.trial, message.attempt):
                    attempt.pass_on(message)
                elif self._waiting is not None:
                    self._waiting.take(message)  # another rank was quicker, say
            case Shutdown():
                self.was_dismissed = True
                self._leave(LEAVE_GRACE)
            case Refused():
                self._leave_now()

    def _leave(self, grace: float) -> None:
        self._leaving = True
        self._waiting = None
        if (attempt := self._attempt) is not None:
            attempt.tell(Stop(attempt.assign.trial, attempt.assign.attempt))
            attempt.stop(grace)

    def _leave_now(self) -> None:
        self._leaving = True
        if self._attempt is not None:
            self._exiting.add(self._attempt.child)
            self._release()

    # -- children -----------------------------------------------------------------------------

    def _spawn_spare(self) -> None:
        """Begin to make the next child, unless there is one."""
        if self._leaving:
            self._standby.due = None
        elif (child := self._standby.spawn(self._launcher)) is not None:
            self._watch.add(child.channel.fileno(), lambda: self._hear(child))

    def _start_if_possible(self) -> None:
        """Hand the assignment to the standby child, if it is warm and the GPU is free."""
        child, pending = self._standby.child, self._waiting
        if pending is None or child is None or not child.ready:
            return
        if self._context.accelerators and self._exiting:
            return  # the last trial's process still holds the GPU's memory
        self._waiting = None
        self._standby.take()
        self._attempt = attempt = Attempt(pending.assign, child, self._task, self._logs)
        if child.output is not None and (output := attempt.output) is not None:
            self._watch.add(child.output, lambda: self._read_output(child, output))
        attempt.tell(pending.assign)
        for message in pending.told:
            attempt.pass_on(message)
        if self._task.isolation == "process":
            self._standby.due = time.monotonic() + SPARE_DELAY

    def _give_up(self, pending: WaitingAssignment) -> None:
        """Let go of an assignment that did not start in time, and of the child that does not get ready for it."""
        child, self._waiting = self._standby.child, None
        self._client.send(pending.end(child))
        if child is not None and not child.ready and self._launcher.descriptor is not None:
            self._standby.take()
            self._exiting.add(child)
            self._launcher.kill(child)
            self._spawn_spare()

    def _hear(self, child: Child) -> None:
        frames, alive = child.channel.drain()
        for frame in frames:
            self._take(child, frame)
        if alive:
            return
        self._watch.remove(child.channel.fileno())
        if self._launcher.descriptor is None:  # no process whose exit would tell
            child.status = 0
            self._exited(child)
        elif self._attempt is not None and child is self._attempt.child:
            self._attempt.hung_up()
        elif child is self._standby.child:
            self._launcher.kill(child)

    def _look_for_end(self) -> None:
        """Take in what the attempt's child says last: it may be this one that failed first."""
        if self._attempt is not None and self._attempt.child.channel.fileno() in self._watch:
            self._hear(self._attempt.child)

    def _take(self, child: Child, frame: bytes) -> None:
        attempt = self._attempt if self._attempt is not None and self._attempt.child is child else None
        match message := child.read(frame) if attempt is None else attempt.read(frame):
            case None if attempt is not None and self._launcher.descriptor is None:
                self._end_unread(attempt)
            case Ready():
                self._standby.is_ready(child)
                if not self._announced:
                    self._announced = True
                    self._client.send(Ready())
                self._start_if_possible()
            case Broken():
                self._break_down(message.message)
            case Reported() | Checkpointed() | Waiting() if attempt is not None:
                attempt.heard(message)
                self._forward(attempt, frame)
            case Opened() | Held() if attempt is not None:
                self._client.forward(frame)
            case Beat() if attempt is not None:
                attempt.heard(message)
            case Finished(trial=trial, attempt=number) if attempt is not None and attempt.is_run(trial, number):
                self._end_attempt(attempt, attempt.verdict(message))

    def _forward(self, attempt: Attempt, frame: bytes) -> None:
        """Pass on what an attempt reports; a worker that leaves waits for no room: what it cuts off runs again."""
        if self._leaving and (attempt.is_unheard or self._client.is_full):
            attempt.is_unheard = True
        else:
            self._client.forward(frame)

    def _end_unread(self, attempt: Attempt) -> None:
        """End an attempt that cannot be heard, and cannot be killed: it goes on to its next report, unheeded."""
        attempt.tell(Stop(attempt.assign.trial, attempt.assign.attempt))
        self._end_attempt(attempt, attempt.post_mortem())

    def _end_attempt(self, attempt: Attempt, finished: Finished) -> None:
        """Pass on an attempt's last output, then its end."""
        child = attempt.child
        if attempt.output is not None:
            attempt.output.read_all()
            self._forward_log(attempt, last=True)
        self._release()
        is_used_up = self._task.isolation == "process" or attempt.is_wide or child.status is not None
        if is_used_up or (child.is_spoiled and self._launcher.descriptor is not None):  # else there is but this one
            self._exiting.add(child, 0.0 if self._context.accelerators else SPARE_DELAY)
        else:
            self._standby.child = child
        self._client.send(finished)
        self._spawn_spare()

    def _release(self) -> None:
        """Let go of the attempt, and of its child's output."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None and attempt.output is not None:
            attempt.output.close()
            self._logs.end(attempt.log)
            self._watch.remove(attempt.child.output)

    def _watch_nursery(self) -> None:
        if self._launcher.descriptor is not None:
            self._watch.add(self._launcher.descriptor, self._attend_nursery)

    def _attend_nursery(self) -> None:
        if not self._launcher.attend():
            self._replace_nursery()
            return
        for child in self._children():
            if child.status is not None:
                self._exited(child)

    def _children(self) -> list[Child]:
        current = self._attempt.child if self._attempt is not None else None
        return [child for child in (current, self._standby.child, *self._exiting) if child is not None]

    def _replace_nursery(self) -> None:
        """The fork server is gone, and its children with it; a trial may have killed it."""
        self._watch.remove(self._launcher.descriptor)
        if not self._announced:
            self._break_down(self._launcher.death)
            return
        self._launcher.close()
        self._launcher = ForkServerLauncher(self._task, self._context)
        self._watch_nursery()
        if self._attempt is not None:
            self._attempt.accuse(
                FailureKind.SIGNAL, "went down with the fork server, its parent", kill_at=time.monotonic()
            )
        for child in self._children():
            child.status = -signal.SIGKILL
            self._exited(child)

    def _exited(self, child: Child) -> None:
        """A child's process is gone; what it had said before still counts."""
        if child.channel.fileno() in self._watch:
            self._watch.remove(child.channel.fileno())
            for frame in child.channel.drain()[0]:
                self._take(child, frame)
        if self._attempt is not None and child is self._attempt.child:
            self._end_attempt(self._attempt, self._attempt.post_mortem())
        self._standby.lose(child, is_idle=self._attempt is None)
        self._exiting.discard(child)
        child.close()
        if self._standby.is_hopeless:
            self._break_down(f"its child processes {child.stillbirth}")
        elif child.not_forked is None:
            self._spawn_spare()
        self._start_if_possible()

    def _kill(self, attempt: Attempt) -> None:
        attempt.kill_at = time.monotonic() + self._task.grace  # again, should that not help
        self._launcher.kill(attempt.child)

    def _break_down(self, message: str) -> None:
        if not self._leaving:
            self._client.send(Broken(message))
            self._leave_now()

    # -- output -------------------------------------------------------------------------------

    def _read_output(self, child: Child, output: TrialOutput) -> None:
        if not output.read():
            self._watch.remove(child.output)
            child.is_spoiled = True  # it has closed its stdout and stderr

    def _forward_log(self, attempt: Attempt, *, last: bool = False) -> None:
        if self._client.is_crowded and not last:
            attempt.put_off_log()  # what was printed stays there, trimmed and counted
        elif (logged := attempt.take_log()) is not None:
            self._client.send(logged)

    def _close(self) -> None:
        self._launcher.close()
        for child in self._children():
            child.close()
        self._release()
        self._logs.close()
        self._client.close()
