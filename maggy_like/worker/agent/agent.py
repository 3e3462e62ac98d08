"""The worker itself, with the socket to the driver. It supervises its child processes.

One child runs the attempt, the next is on standby, and earlier ones exit.
"""

from __future__ import annotations

import enum
import signal
import sys
import time

import msgspec

from maggy_like.processes.cores import LOOK, Overload
from maggy_like.protocol.endings import StopReason
from maggy_like.protocol.messages import (
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
    Imported,
    Kept,
    Look,
    Meet,
    Noted,
    Opened,
    Ready,
    Refused,
    Reported,
    Shutdown,
    Silent,
    Stop,
    ToWorker,
    Waiting,
    awaits_answer,
    encode,
)
from maggy_like.protocol.task import FILES_PATIENCE, LOG_PATIENCE, WorkerContext, WorkerTask
from maggy_like.rpc.client import Client, Poller
from maggy_like.worker.agent.attempt import AgentAttempt
from maggy_like.worker.agent.beginnings import LOAD_HINT, FirstContact, LoadWatch, make_hello
from maggy_like.worker.agent.children import Child, ChildLauncher, ForkServerLauncher
from maggy_like.worker.agent.fork_server import ImportedAhead
from maggy_like.worker.agent.log_copies import LogLocation
from maggy_like.worker.agent.output import TrialOutput
from maggy_like.worker.agent.trial_directories import TrialDirectories


class AgentState(enum.Enum):
    """Whether a worker serves its run, or why it leaves."""

    SERVING = "serving"
    DISMISSED = "dismissed"
    """The driver has ended the run."""
    LEAVING = "leaving"
    """The driver rejects it or is silent, its launcher is gone, or it cannot run trials."""


PAUSE_PATIENCE = 0.5
"""Seconds that the process of a paused trial waits for the trial's next attempt, if no other trial is assigned."""

STANDBY_DELAY = 0.02
"""Seconds after a trial's start in which no other child is forked or ended, so that the trial is not slowed down."""

LEAVE_GRACE = 1.0
"""Seconds within which a running trial must stop when the driver dismisses the worker."""

WORTH_A_LINE = 0.5
"""Seconds of loading a function or its imports after which a line reports them."""

MOST_PACKAGES = 5
"""Packages that this line names: those that trials import come first, and then what these import."""

NOT_SHARED = (
    "each trial loads train_fn again, which takes about {:.0f} s, because loading it {}; do that inside train_fn so "
    "that it is loaded once per worker"
)

TOO_MANY_THREADS = (
    "{:.0f} threads are busy, but the trial's share is {}, so trials slow each other down; pass n_jobs={} or the like "
    "to the library that starts them, or use fewer workers"
)

MAX_NEVER_READY = 3
"""Number of consecutive children that may die before they are ready."""

FORK_DELAY = 1.0
"""Seconds until another try if no child could be forked."""

LOG_POLL = 0.02
"""Seconds between two checks whether the last logs are in the store."""


class Agent:
    """Serves one run from one slot."""

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
        self._lifeline = lifeline  # file descriptor that ends when the launcher is gone
        self._logs = LogLocation(task)
        self._client = Client(task.address, task.server_key, context.keys, ipv6=task.ipv6)
        self._first_contact = FirstContact(task, context)
        self._poller = Poller()
        self._launcher = launcher or ForkServerLauncher(task, context)
        self._directories = TrialDirectories(task)
        self._attempt: AgentAttempt | None = None
        self._paused: AgentAttempt | None = None  # its function waits in a report
        self._resume_by: float | None = None  # when a paused function is ended
        self._standby: Child | None = None
        self._exiting: list[Child] = []
        self._spawn_at: float | None = None  # when the next child is made, if it must be made later
        self._load = LoadWatch(task.load_timeout)
        self._never_ready = 0
        self._was_one_ready = False
        self._service = AgentState.SERVING
        self._overload = Overload(context.cores)
        # When the threads of the trial are counted again; None once a note about them was sent.
        self._count_at = time.monotonic() + LOOK if context.cores else None

    def run(self) -> None:
        """Serve until the driver ends the run, or is gone."""
        try:
            for socket in self._client.sockets:
                self._poller.add(socket, self._listen)
            self._client.introduce(make_hello(self._task, self._context))
            self._watch_launcher()
            if self._lifeline is not None:
                self._poller.add(self._lifeline, self._leave_now)
            self._spawn()
            while self.is_serving or self._attempt is not None or self._is_unwinding:
                self._poll_once()
            self._await_store()
            self._client.send(Goodbye())
        finally:
            self._close()

    @property
    def is_serving(self) -> bool:
        """Whether the worker takes further trials."""
        return self._service is AgentState.SERVING

    @property
    def was_dismissed(self) -> bool:
        """Whether the driver has ended the run."""
        return self._service is AgentState.DISMISSED

    @property
    def silence(self) -> float:
        """Seconds since the last message of the driver; from any thread."""
        return time.monotonic() - self._client.heard

    # -- the loop -----------------------------------------------------------------------------

    def _poll_once(self) -> None:
        self._watch_unsent()
        self._poller.poll(self._patience())
        self._hold_back()
        now = time.monotonic()
        if self._attempt is not None and (due := self._attempt.log_due) is not None and now >= due:
            self._forward_log(self._attempt)
        if now >= self._client.due:
            self._client.beat()
        if self._attempt is not None:
            must_end = self._attempt.check(now)
            if self._attempt.is_overdue and self._attempt.look(self._launcher.stacks):
                self._client.send(Silent(self._attempt.assign.trial, self._attempt.assign.attempt))
            if must_end:
                self._kill_or_give_up(self._attempt)
        if self.is_serving and self._load.is_due(now):
            self._report_load(now)
        if self._spawn_at is not None and now >= self._spawn_at:
            self._spawn()
        if self._resume_by is not None and now >= self._resume_by:
            self._end_pause()
        if self._count_at is not None and now >= self._count_at:
            self._count_threads(now)
        self._end_exiting(now)
        if not self._client.was_answered:
            self._first_contact.check(now)
        elif now - self._client.heard > self._task.silence:
            self._leave_now()
        self._report_trouble()

    def _count_threads(self, now: float) -> None:
        """Report once if trials of this worker use more cores than it has."""
        self._count_at = now + LOOK
        attempt, cores = self._attempt, self._context.cores
        if attempt is None or attempt.child is None or attempt.child.pid is None:
            return
        if (number := self._overload.check(attempt.child.pid, now)) is not None:
            share = "1 core" if cores == 1 else f"{cores} cores"
            trial = attempt.assign.trial
            self._client.send(Noted("threads", TOO_MANY_THREADS.format(number, share, cores), trial))
            self._count_at = None

    def _report_trouble(self) -> None:
        """Report logs and files that do not arrive in the run's directory."""
        if trouble := self._logs.take_trouble():
            self._client.send(Noted("logs", trouble))
        for note in self._directories.take_notes():
            self._client.send(note)

    def _await_store(self) -> None:
        """Give the last logs and files some time to reach the store, and answer the driver meanwhile."""
        self._logs.finish()
        self._directories.finish()
        if self._lifeline is not None:
            self._poller.remove(self._lifeline)  # it may have ended, and would end each wait
        began = time.monotonic()
        for keeper, patience in ((self._logs, LOG_PATIENCE), (self._directories, self._files_patience)):
            while keeper.is_busy and time.monotonic() < began + patience:
                self._poller.poll(LOG_POLL)
                self._report_trouble()
                if time.monotonic() >= self._client.due:
                    self._client.beat()
            if keeper.is_busy:
                keeper.give_up()
        self._report_trouble()

    @property
    def _files_patience(self) -> float:
        """Seconds for the last files; a worker that was not dismissed may be killed at any moment."""
        return FILES_PATIENCE if self.was_dismissed else LOG_PATIENCE

    def _patience(self) -> float:
        """Return the seconds until something is due."""
        attempt_due = None if self._attempt is None else self._attempt.due
        exits = (child.end_at for child in self._exiting)
        times = self._client.due, self._spawn_at, self._resume_by, self._count_at, self._load.due, attempt_due, *exits
        return max(0.0, min(at for at in times if at is not None) - time.monotonic())

    def _hold_back(self) -> None:
        """Read nothing more from the trial while too much waits for the driver; its reports wait in its process.

        A stopped trial has only these reports left, so they are read: then it receives the stop.
        """
        attempt = self._attempt
        if attempt is not None and attempt.child is not None:
            full = self._client.is_full and not attempt.is_stop_requested
            self._poller.pause(attempt.child.channel.fileno(), full)
            if full:
                attempt.held_back()

    # -- messages of the driver ---------------------------------------------------------------

    def _listen(self) -> None:
        for message in self._client.receive():
            self._obey(message)

    def _obey(self, message: ToWorker) -> None:
        match message:
            case Assign() if self.is_serving:
                self._attempt = AgentAttempt(message, self._task, shares_gpu=bool(self._context.accelerators))
                if not self._continue_if_possible(self._attempt):
                    self._end_pause()
                    self._start_if_possible()
            case Meet() | Decided() | Kept() | Halt() | Stop() | Abort():
                if isinstance(message, Abort) and self._running is not None:  # it may be this one that failed first
                    self._hear_out(self._running)
                if self._attempt is not None and self._attempt.is_run(message.trial, message.attempt):
                    self._attempt.pass_on(message)
            case Look():
                if self._attempt is not None and self._attempt.is_run(message.trial, message.attempt):
                    self._attempt.look(self._launcher.stacks)
            case Shutdown():
                self._dismiss()
            case Refused():
                self._leave_now()

    def _dismiss(self) -> None:
        """Leave once the running trial has ended; it is killed if it does not stop soon."""
        self._service = AgentState.DISMISSED
        self._end_pause()
        self._end_used()
        if (child := self._running) is None:
            self._attempt = None
        elif self._attempt is not None:
            self._attempt.tell_stop(child, StopReason.RUN_ENDED)
            self._attempt.stop(StopReason.RUN_ENDED, LEAVE_GRACE)

    def _leave_now(self) -> None:
        """Leave at once, even if a trial runs."""
        if self.is_serving:
            self._service = AgentState.LEAVING
        if (child := self._running) is not None:
            self._let_exit(child)
        self._release()

    # -- the attempt --------------------------------------------------------------------------

    @property
    def _running(self) -> Child | None:
        """The child that runs the attempt."""
        return None if self._attempt is None else self._attempt.child

    @property
    def _waiting(self) -> Child | None:
        """The child whose function is paused."""
        return None if self._paused is None else self._paused.child

    def _start_if_possible(self) -> None:
        """Pass the assignment to the standby child, if it is warm and the GPU is free."""
        attempt, child = self._attempt, self._standby
        if attempt is None or attempt.child is not None or child is None or not child.ready:
            return
        if self._context.accelerators and self._exiting:
            return  # the last trial's process still holds the GPU's memory
        self._start(attempt, child)
        self._standby = None
        if self._task.isolation == "process":
            self._spawn_at = time.monotonic() + STANDBY_DELAY

    def _start(self, attempt: AgentAttempt, child: Child) -> None:
        attempt.assign = self._directories.begin(attempt.assign)
        child.channel.post(encode(attempt.assign))  # before all else: the trial begins with it
        attempt.start(child, self._logs)
        if child.output is not None and (output := attempt.output) is not None:
            self._poller.add(child.output, lambda: self._read_output(child, output))

    def _continue_if_possible(self, attempt: AgentAttempt) -> bool:
        """Pass the assignment to the paused function, if that is its trial's next attempt."""
        paused = self._paused
        if paused is None or paused.child is None or not paused.is_continued_by(attempt.assign):
            return False
        self._paused = self._resume_by = None
        self._start(attempt, paused.child)
        return True

    @property
    def _is_unwinding(self) -> bool:
        """Whether the run is over, and a paused function or a process of trials still cleans up."""
        return self.was_dismissed and any(child.unwinds and not child.killed for child in self._exiting)

    def _end_pause(self) -> None:
        """End the paused function, if there is one."""
        paused, self._paused, self._resume_by = self._paused, None, None
        if paused is not None and paused.child is not None:
            self._directories.discard(paused.assign.trial, paused.child)
            paused.child.unwinds = True
            self._let_exit(paused.child, 0.0 if self._context.accelerators or not self.is_serving else STANDBY_DELAY)

    def _end_used(self) -> None:
        """Let the process that has run trials, and waits for the next one, exit once the run is over."""
        child = self._standby
        if self.was_dismissed and child is not None and child.unwinds:
            self._standby = None
            self._let_exit(child)

    def _kill_or_give_up(self, attempt: AgentAttempt) -> None:
        """Kill the child of an attempt that must end now, or the child that is not ready for it in time."""
        if attempt.child is not None:
            self._launcher.kill(attempt.child)
            attempt.kill_again()
            return
        child, self._attempt = self._standby, None
        self._client.send(attempt.not_started(is_child_ready=child is not None and child.ready))
        if child is not None and not child.ready and self._are_processes:
            self._standby = None
            self._let_exit(child)
            self._launcher.kill(child)
            self._spawn()

    def _forward(self, attempt: AgentAttempt, frame: bytes, *, urgent: bool) -> None:
        """Pass on a message of an attempt; a leaving worker does not wait, because the attempt is retried."""
        if not self.is_serving and (attempt.has_lost_messages or self._client.is_full):
            attempt.has_lost_messages = True
        else:
            self._client.forward(frame, urgent=urgent)

    def _end_attempt(self, attempt: AgentAttempt, child: Child, finished: Finished) -> None:
        """Pass on an attempt's last output, then its end."""
        if attempt.output is not None:
            attempt.output.read_all()
            self._forward_log(attempt, last=True)
        if self._directories.end(attempt.assign.trial, child, paused=finished.paused):
            finished = msgspec.structs.replace(finished, files=True)
        self._client.send(finished)  # the next assignment is the answer; what else is to be done has time until then
        self._directories.work()
        self._release()
        is_used_up = self._task.isolation == "process" or attempt.is_multi_worker or child.status is not None
        if finished.paused and child.status is None and not child.is_spoiled:
            self._paused, self._resume_by = attempt, time.monotonic() + PAUSE_PATIENCE
        elif is_used_up or (child.is_spoiled and self._are_processes):  # else there is but this one
            self._let_exit(child, 0.0 if self._context.accelerators else STANDBY_DELAY)
        else:
            self._directories.exited(child)
            self._standby, child.unwinds = child, self._are_processes
        self._end_used()
        self._spawn()

    def _release(self) -> None:
        """Discard the attempt, and its child's output."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None and attempt.child is not None and attempt.output is not None:
            attempt.output.close()
            self._logs.end(attempt.log)
            self._poller.remove(attempt.child.output)

    def _read_output(self, child: Child, output: TrialOutput) -> None:
        if not output.read():
            self._poller.remove(child.output)
            child.is_spoiled = True  # it has closed its stdout and stderr

    def _forward_log(self, attempt: AgentAttempt, *, last: bool = False) -> None:
        if self._client.is_crowded and not last:
            attempt.put_off_log()  # what was printed stays there, trimmed and counted
        elif (logged := attempt.take_log()) is not None:
            self._client.send(logged)
        if attempt.output is not None and (error := attempt.output.error) is not None:
            self._logs.failed(attempt.log, error)

    # -- messages of children -----------------------------------------------------------------

    def _hear(self, child: Child) -> None:
        frames, alive = child.channel.drain()
        for frame in frames:
            self._child_said(child, frame)
        if alive:
            return
        self._poller.remove(child.channel.fileno())
        if not self._are_processes:  # there is no exit that would tell
            child.status = 0
            self._take_exit(child)
        elif self._attempt is not None and child is self._attempt.child:
            self._attempt.hang_up()
        elif child in (self._standby, self._waiting):
            self._launcher.kill(child)

    def _hear_out(self, child: Child) -> None:
        """Process all messages of a child up to now."""
        if child.channel.fileno() in self._poller:
            self._hear(child)

    def _watch_unsent(self) -> None:
        """Send the rest when a child reads again, without waiting, because it may wait for us."""
        for child in self._children:
            channel = child.channel
            self._poller.when_writable(channel.fileno(), channel.flush if channel.has_unsent else None)

    def _child_said(self, child: Child, frame: bytes) -> None:
        """Do what a message of a child requests."""
        attempt = self._attempt if self._running is child else None
        match message := child.read(frame) if attempt is None else attempt.read(child, frame):
            case None if attempt is not None and not self._are_processes:  # the function continues
                attempt.tell_stop(child, StopReason.FAULT)
                self._end_attempt(attempt, child, attempt.post_mortem(child))
            case Ready():
                child.ready, self._never_ready = True, 0
                if not self._was_one_ready:
                    self._was_one_ready = True
                    self._load.end()
                    self._client.send(Ready())
                self._start_if_possible()
            case Broken():
                self._leave_broken(message.message)
            case Reported() | Checkpointed() | Waiting() if attempt is not None:
                attempt.heard(message)
                if isinstance(message, Checkpointed):
                    self._directories.checkpointed(message.trial)
                self._forward(attempt, frame, urgent=awaits_answer(message))
            case Opened() | Held() if attempt is not None:
                self._client.forward(frame, urgent=True)
            case Beat() if attempt is not None:
                attempt.heard(message)
            case Noted():
                self._client.send(message)
            case Imported(modules=modules):
                self._launcher.import_ahead(modules)
            case Finished(trial=trial, attempt=number) if attempt is not None and attempt.is_run(trial, number):
                self._end_attempt(attempt, child, attempt.verdict(child, message))

    # -- children -----------------------------------------------------------------------------

    @property
    def _children(self) -> list[Child]:
        ours = (self._running, self._waiting, self._standby, *self._exiting)
        return [child for child in ours if child is not None]

    @property
    def _are_processes(self) -> bool:
        """Whether children can be killed, and their exit is noticed; an inline child is this very process."""
        return self._launcher.descriptor is not None

    def _spawn(self) -> None:
        """Begin to make the next child, unless there is one or none is needed."""
        self._spawn_at = None
        if self.is_serving and self._standby is None:
            self._standby = child = self._launcher.spawn()
            self._poller.add(child.channel.fileno(), lambda: self._hear(child))

    def _let_exit(self, child: Child, delay: float = 0.0) -> None:
        """End a child in ``delay`` seconds, which is a quiet moment."""
        self._exiting.append(child)
        child.end_at = time.monotonic() + delay

    def _end_exiting(self, now: float) -> None:
        """Ask children to exit whose time has come, and kill those that were asked before."""
        for child in self._exiting:
            if child.end_at is None or now < child.end_at:
                continue
            if child.is_dismissed:
                self._launcher.kill(child)
            child.channel.post(encode(Shutdown()))
            child.is_dismissed = True
            child.end_at = now + self._task.grace

    def _take_exit(self, child: Child) -> None:
        """Record that a child's process is gone, or was never made; its earlier messages still count."""
        if child.channel.fileno() in self._poller:
            self._poller.remove(child.channel.fileno())
            for frame in child.channel.drain()[0]:
                self._child_said(child, frame)
        if self._attempt is not None and child is self._attempt.child:
            self._end_attempt(self._attempt, child, self._attempt.post_mortem(child))
        if child is self._waiting and self._paused is not None:
            self._directories.discard(self._paused.assign.trial, child)
            self._paused = self._resume_by = None
        if child is self._standby:
            self._lose_standby(child)
        if child in self._exiting:
            self._exiting.remove(child)
        self._directories.exited(child)
        child.close()
        if self._never_ready >= MAX_NEVER_READY:
            self._leave_broken(f"its child processes {child.why_never_ready}")
        elif child.not_forked is None:
            self._spawn()
        self._start_if_possible()

    def _lose_standby(self, child: Child) -> None:
        """Record that the standby child is gone. A running trial continues while no other child can be made."""
        self._standby = None
        if child.not_forked is not None:
            self._spawn_at = time.monotonic() + FORK_DELAY
        if not child.ready and (self._running is None or child.not_forked is None):
            self._never_ready += 1

    def _report_load(self, now: float) -> None:
        """Show where the processes stand that have not loaded the function yet; leave if it takes too long."""
        found = [stack for stack in self._launcher.stacks(None) if stack.text]
        places = [place for stack in found if (place := stack.place())]
        at = f"; it is at {places[-1]}" if places else ""
        if self._load.is_over(now):
            for stack in found:
                print(f"the stacks of process {stack.pid}, each with its last call first:\n{stack.text}", flush=True)
            limit = self._task.load_timeout
            remedy = "load less when its modules are imported, or raise failures=FailurePolicy(load_timeout=...)"
            self._leave_broken(f"train_fn was not loaded within load_timeout={limit:g} s{at}; {remedy}")
        else:
            self._client.send(Noted("slow", f"has been loading train_fn for {LOAD_HINT:g} s{at}"))

    def _leave_broken(self, why: str) -> None:
        """Report to the driver that this worker can run no trial, and leave."""
        if self.is_serving:
            self._client.send(Broken(why))
            self._leave_now()

    # -- what makes the children --------------------------------------------------------------

    def _watch_launcher(self) -> None:
        if self._launcher.descriptor is not None:
            self._poller.add(self._launcher.descriptor, self._attend_launcher)

    def _attend_launcher(self) -> None:
        if not self._launcher.attend():
            self._replace_launcher()
            return
        for child in self._children:
            if child.status is not None:
                self._take_exit(child)
        for news in self._launcher.news():
            if isinstance(news, ImportedAhead):
                self._take_imports(news)
            elif news.why and news.seconds >= WORTH_A_LINE:
                self._client.send(Noted("loading", NOT_SHARED.format(max(1.0, news.seconds), news.why)))

    def _take_imports(self, news: ImportedAhead) -> None:
        """Let the next child begin with what was imported since it was forked; the next run imports it at once."""
        if (child := self._standby) is not None and self._task.isolation == "process":
            self._standby = None
            self._let_exit(child)
            self._spawn()
        self._client.send(Imported.of(news.modules))
        if news.seconds >= WORTH_A_LINE or news.refused:
            print(described(news) + "\n", end="", flush=True)  # one write, which no other process cuts in two

    def _replace_launcher(self) -> None:
        """Start another fork server; a trial may have killed this one, and its children with it."""
        self._poller.remove(self._launcher.descriptor)
        if not self._was_one_ready:
            self._leave_broken(self._launcher.why_ended)
            return
        self._launcher.close()
        self._launcher = ForkServerLauncher(self._task, self._context)
        self._watch_launcher()
        if self._attempt is not None and self._attempt.child is not None:
            self._attempt.fail(FailureKind.SIGNAL, "died with the fork server, its parent")
        for child in self._children:
            child.status = -signal.SIGKILL
            self._take_exit(child)

    def _close(self) -> None:
        self._launcher.close()
        for child in self._children:
            child.close()
        self._release()
        self._logs.close()
        self._directories.close()
        self._client.close()


def described(news: ImportedAhead) -> str:
    """Describe imports for a worker's own log: the first packages, their cost, and which modules were left out."""
    packages = list(dict.fromkeys(name.partition(".")[0] for name in news.modules))
    packages = [name for name in packages if name not in sys.stdlib_module_names and not name.startswith("_")]
    shown = packages[:MOST_PACKAGES] or ["the standard library"]
    more = f" and {left} more" if (left := len(packages) - len(shown)) > 0 else ""
    refused = "".join(f"; not {module}, since it {why}" for module, why in news.refused.items())
    cost = f"{len(news.modules)} modules, {news.seconds:.1f} s, {news.megabytes} MB"
    return f"imported once for all later trials: {', '.join(shown)}{more} ({cost}){refused}"
