"""The worker itself, with the socket to the driver, which supervises the child that runs the trial."""

from __future__ import annotations

import enum
import os
import time

from maggy_like.protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    Assign,
    Beat,
    Broken,
    Checkpointed,
    Decided,
    FailureKind,
    Finished,
    Goodbye,
    Halt,
    Held,
    Hello,
    Imported,
    Kept,
    Meet,
    Noted,
    Opened,
    Ready,
    Refused,
    Reported,
    Shutdown,
    Stop,
    ToWorker,
    Waiting,
    awaits_answer,
    encode,
)
from maggy_like.protocol.task import LOG_PATIENCE, WorkerContext, WorkerTask
from maggy_like.protocol.versions import own_versions
from maggy_like.rpc.client import Client, Poller
from maggy_like.rpc.endpoint import CANNOT_REACH, why_unreachable
from maggy_like.storage.file_systems import look_for_mark
from maggy_like.worker.agent import fork_server
from maggy_like.worker.agent.attempt import Attempt, WaitingAssignment
from maggy_like.worker.agent.child import Child
from maggy_like.worker.agent.children import Children
from maggy_like.worker.agent.launchers import ChildLauncher, ForkServerLauncher
from maggy_like.worker.agent.logs import LogLocation
from maggy_like.worker.agent.output import TrialOutput


class Service(enum.Enum):
    """Whether a worker serves its run, or why it leaves."""

    SERVING = "serving"
    DISMISSED = "dismissed"
    """The driver has ended the run."""
    LEAVING = "leaving"
    """The driver rejects it or is silent, its launcher is gone, or it cannot run trials."""


CONTACT_PATIENCE = 15.0
"""Seconds between two checks why the driver does not answer."""


def make_hello(task: WorkerTask, context: WorkerContext) -> Hello:
    """Build the message by which the worker introduces itself to its driver."""
    return Hello(
        PROTOCOL_VERSION,
        context.index,
        context.incarnation,
        context.host,
        os.getpid(),
        list(context.accelerators),
        look_for_mark(task.store, task.run_id),
        versions=own_versions(),
    )


class FirstContact:
    """Watches a worker that the driver has not answered yet.

    A driver that can be reached and does not answer may be busy, so it has the whole of :attr:`WorkerTask.silence`.

    Args:
        task: Description of the run.
        context: The worker's place.
    """

    def __init__(self, task: WorkerTask, context: WorkerContext) -> None:
        self._task = task
        self._context = context
        self._started = time.monotonic()
        self._due = self._started + min(CONTACT_PATIENCE, task.silence)

    def check(self, now: float) -> None:
        """Check again why the driver does not answer, if it is time to.

        Raises:
            WorkerError: The driver cannot be reached.
        """
        if now < self._due:
            return
        task = self._task
        self._due = now + CONTACT_PATIENCE
        why = why_unreachable(task.address, ipv6=task.ipv6)
        if not why and now - self._started >= task.silence:
            why = "the process there is not the driver of this run"
        if why:
            # Not before: it brings the optimizers along, which a worker has no use for.
            from maggy_like.errors import WorkerError

            raise WorkerError(
                f"worker {self._context.index} on host {self._context.host!r} {CANNOT_REACH} {task.address}: {why}; "
                "open this port to the workers, use SparkEngine(host=..., port=...) with an address and a port that "
                "they reach, or driver='cluster' if they reach none"
            )


STANDBY_DELAY = 0.02
"""Seconds after a trial's start in which no other child is forked or ended, so that the trial is not slowed down."""

LEAVE_GRACE = 1.0
"""Seconds within which a running trial must stop when the driver dismisses the worker."""

WORTH_A_LINE = 0.5
"""Seconds of loading a function or its imports after which a line reports them."""

NOT_SHARED = (
    "each trial loads train_fn again, which takes about {:.0f} s, because loading it {}; do that inside train_fn so "
    "that it is loaded once per worker"
)

LOG_POLL = 0.02
"""Seconds between two checks whether the last logs are in the store."""


class Agent:
    """Serves one run from one slot.

    Args:
        task: Description of the run.
        context: This worker's slot.
        launcher: Makes the children; a warm fork server by default.
        lifeline: File descriptor that ends when the launcher is gone.
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
        self._logs = LogLocation(task)
        self._client = Client(task.address, task.server_key, context.keys, ipv6=task.ipv6)
        self._first_contact = FirstContact(task, context)
        self._poller = Poller()
        self._children = Children(task, context, launcher or ForkServerLauncher(task, context), self._poller, self)
        self._waiting: WaitingAssignment | None = None  # not yet handed to a child
        self._attempt: Attempt | None = None
        self._service = Service.SERVING

    def run(self) -> None:
        """Serve until the driver ends the run, or is gone."""
        try:
            for socket in self._client.sockets:
                self._poller.add(socket, self._listen)
            self._client.introduce(make_hello(self._task, self._context))
            self._children.watch_launcher()
            if self._lifeline is not None:
                self._poller.add(self._lifeline, self._leave_now)
            self._children.spawn()
            while self.is_serving or self._attempt is not None:
                self._poll_once()
            self._await_logs()
            self._client.send(Goodbye())
        finally:
            self._close()

    @property
    def is_serving(self) -> bool:
        """Whether the worker takes further trials."""
        return self._service is Service.SERVING

    @property
    def was_dismissed(self) -> bool:
        """Whether the driver has ended the run."""
        return self._service is Service.DISMISSED

    @property
    def silence(self) -> float:
        """Seconds since the last message of the driver; from any thread."""
        return time.monotonic() - self._client.heard

    # -- the loop -----------------------------------------------------------------------------

    def _poll_once(self) -> None:
        self._children.watch_unsent()
        self._poller.poll(self._patience())
        self._hold_back()
        now = time.monotonic()
        if self._attempt is not None and (due := self._attempt.log_due) is not None and now >= due:
            self._forward_log(self._attempt)
        if now >= self._client.due:
            self._client.beat()
        if self._attempt is not None and self._attempt.check(now):
            self._children.kill(self._attempt.child)
            self._attempt.ending.kill_again()
        if self._waiting is not None and self._waiting.due is not None and now >= self._waiting.due:
            self._give_up(self._waiting)
        self._children.attend(now)
        if not self._client.was_answered:
            self._first_contact.check(now)
        elif now - self._client.heard > self._task.silence:
            self._leave_now()
        self._tell_of_logs()

    def _tell_of_logs(self) -> None:
        if trouble := self._logs.take_trouble():
            self._client.send(Noted("logs", trouble))

    def _await_logs(self) -> None:
        """Give the last logs some time to reach the store, and answer the driver meanwhile."""
        self._logs.finish()
        if self._lifeline is not None:
            self._poller.remove(self._lifeline)  # it may have ended, and would end each wait
        deadline = time.monotonic() + LOG_PATIENCE
        while self._logs.is_busy and time.monotonic() < deadline:
            self._poller.poll(LOG_POLL)
            if time.monotonic() >= self._client.due:
                self._client.beat()
        if self._logs.is_busy:
            self._logs.give_up()
        self._tell_of_logs()

    def _patience(self) -> float:
        """Return the seconds until something is due."""
        parts = self._client, self._children, self._waiting, self._attempt
        due = [part.due for part in parts if part is not None and part.due is not None]
        return max(0.0, min(due) - time.monotonic())

    def _hold_back(self) -> None:
        """Read nothing more from the trial while too much waits for the driver; its reports wait in its process.

        A stopped trial has only these reports left, so they are read: then it receives the stop.
        """
        if self._attempt is not None:
            full = self._client.is_full and not self._attempt.ending.is_stop_requested
            self._poller.pause(self._attempt.child.channel.fileno(), full)
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
                if isinstance(message, Abort) and self._attempt is not None:  # it may be this one that failed first
                    self._children.hear_out(self._attempt.child)
                if (attempt := self._attempt) is not None and attempt.is_run(message.trial, message.attempt):
                    attempt.pass_on(message)
                elif self._waiting is not None:
                    self._waiting.take(message)  # another rank was quicker, say
            case Shutdown():
                self._dismiss()
            case Refused():
                self._leave_now()

    def _dismiss(self) -> None:
        """Leave once the running trial has ended; it is killed if it does not stop soon."""
        self._service = Service.DISMISSED
        self._waiting = None
        if self._attempt is not None:
            self._attempt.tell_stop()
            self._attempt.ending.request_stop(LEAVE_GRACE)

    def _leave_now(self) -> None:
        """Leave at once, even if a trial runs."""
        if self.is_serving:
            self._service = Service.LEAVING
        if self._attempt is not None:
            self._children.let_exit(self._attempt.child)
            self._release()

    # -- children -----------------------------------------------------------------------------

    def _start_if_possible(self) -> None:
        """Pass the assignment to the standby child, if it is warm and the GPU is free."""
        child, pending = self._children.standby.child, self._waiting
        if pending is None or child is None or not child.ready:
            return
        if self._context.accelerators and self._children.exiting:
            return  # the last trial's process still holds the GPU's memory
        self._waiting = None
        child.channel.post(encode(pending.assign))  # before all else: the trial begins with it
        self._children.run_standby()
        self._attempt = attempt = Attempt(pending.assign, child, self._task, self._logs)
        if child.output is not None and (output := attempt.output) is not None:
            self._poller.add(child.output, lambda: self._read_output(child, output))
        for message in pending.messages:
            attempt.pass_on(message)
        if self._task.isolation == "process":
            self._children.standby.due = time.monotonic() + STANDBY_DELAY

    def _give_up(self, pending: WaitingAssignment) -> None:
        """Discard an assignment that did not start in time, and the child that is not ready for it."""
        child, self._waiting = self._children.standby.child, None
        self._client.send(pending.end(child))
        if child is not None and not child.ready and self._children.are_processes:
            self._children.drop_standby()
            self._children.spawn()

    def child_said(self, child: Child, frame: bytes) -> None:
        """Do what a message of a child requests."""
        attempt = self._attempt if self._attempt is not None and self._attempt.child is child else None
        match message := child.read(frame) if attempt is None else attempt.read(frame):
            case None if attempt is not None and not self._children.are_processes:
                self._end_unread(attempt)
            case Ready():
                if self._children.is_ready(child):
                    self._client.send(Ready())
                self._start_if_possible()
            case Broken():
                self.no_child_possible(message.message)
            case Reported() | Checkpointed() | Waiting() if attempt is not None:
                attempt.heard(message)
                self._forward(attempt, frame, urgent=awaits_answer(message))
            case Opened() | Held() if attempt is not None:
                self._client.forward(frame, urgent=True)
            case Beat() if attempt is not None:
                attempt.heard(message)
            case Noted():
                self._client.send(message)
            case Imported(modules=modules):
                self._children.import_ahead(modules)
            case Finished(trial=trial, attempt=number) if attempt is not None and attempt.is_run(trial, number):
                self._end_attempt(attempt, attempt.verdict(message))

    def _forward(self, attempt: Attempt, frame: bytes, *, urgent: bool) -> None:
        """Pass on a message of an attempt; a leaving worker does not wait, because the attempt is retried."""
        if not self.is_serving and (attempt.has_lost_messages or self._client.is_full):
            attempt.has_lost_messages = True
        else:
            self._client.forward(frame, urgent=urgent)

    def _end_unread(self, attempt: Attempt) -> None:
        """End an attempt with unreadable messages in a process that cannot be killed; the function continues."""
        attempt.tell_stop()
        self._end_attempt(attempt, attempt.post_mortem())

    def _end_attempt(self, attempt: Attempt, finished: Finished) -> None:
        """Pass on an attempt's last output, then its end."""
        child = attempt.child
        if attempt.output is not None:
            attempt.output.read_all()
            self._forward_log(attempt, last=True)
        self._client.send(finished)  # the next assignment is the answer; what else is to be done has time until then
        self._release()
        is_used_up = self._task.isolation == "process" or attempt.is_wide or child.status is not None
        if is_used_up or (child.is_spoiled and self._children.are_processes):  # else there is but this one
            self._children.let_exit(child, 0.0 if self._context.accelerators else STANDBY_DELAY)
        else:
            self._children.standby.child = child
        self._children.spawn()

    def _release(self) -> None:
        """Discard the attempt, and its child's output."""
        attempt, self._attempt = self._attempt, None
        self._children.running = None
        if attempt is not None and attempt.output is not None:
            attempt.output.close()
            self._logs.end(attempt.log)
            self._poller.remove(attempt.child.output)

    def child_hung_up(self) -> None:
        """The attempt's child has closed the connection: it has just died, or is killed soon."""
        if self._attempt is not None:
            self._attempt.ending.hang_up()

    def child_exited(self, child: Child) -> None:
        """End the attempt whose child has exited without a ``Finished``."""
        if self._attempt is not None and child is self._attempt.child:
            self._end_attempt(self._attempt, self._attempt.post_mortem())

    def child_was_replaced(self) -> None:
        """Start what may have waited for a child's process to exit."""
        self._start_if_possible()

    def children_changed(self, news: fork_server.ImportedAhead | fork_server.NotShared) -> None:
        """Report what the next run should import at once to the driver, and what takes long to the user."""
        if isinstance(news, fork_server.ImportedAhead):
            self._client.send(Imported.of(news.modules))
            if news.seconds >= WORTH_A_LINE or news.refused:
                print(described(news) + "\n", end="", flush=True)  # one write, which no other process cuts in two
        elif news.why and news.seconds >= WORTH_A_LINE:
            self._client.send(Noted("loading", NOT_SHARED.format(max(1.0, news.seconds), news.why)))

    def fork_server_died(self) -> None:
        """End the attempt whose child died with the fork server; a trial may have killed it."""
        if self._attempt is not None:
            self._attempt.ending.fail(FailureKind.SIGNAL, "died with the fork server, its parent")

    def no_child_possible(self, message: str) -> None:
        """Report to the driver that this worker can run no trial, and leave."""
        if self.is_serving:
            self._client.send(Broken(message))
            self._leave_now()

    # -- output -------------------------------------------------------------------------------

    def _read_output(self, child: Child, output: TrialOutput) -> None:
        if not output.read():
            self._poller.remove(child.output)
            child.is_spoiled = True  # it has closed its stdout and stderr

    def _forward_log(self, attempt: Attempt, *, last: bool = False) -> None:
        if self._client.is_crowded and not last:
            attempt.put_off_log()  # what was printed stays there, trimmed and counted
        elif (logged := attempt.take_log()) is not None:
            self._client.send(logged)
        if attempt.output is not None and (error := attempt.output.error) is not None:
            self._logs.failed(attempt.log, error)

    def _close(self) -> None:
        self._children.close()
        self._release()
        self._logs.close()
        self._client.close()


def described(news: fork_server.ImportedAhead) -> str:
    """Describe imports for a worker's own log: which packages, their cost, and which modules were left out."""
    packages = ", ".join(dict.fromkeys(name.partition(".")[0] for name in news.modules))
    refused = "".join(f"; not {module}, since it {why}" for module, why in news.refused.items())
    cost = f"{len(news.modules)} modules, {news.seconds:.1f} s, {news.megabytes} MB"
    return f"imported once for all later trials: {packages} ({cost}){refused}"
