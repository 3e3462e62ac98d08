"""The process that runs the training function, one trial after another or just one.

The main thread waits for an assignment itself and runs it; while it does, a service thread sends
buffered reports and hears the driver's answers.
"""

from __future__ import annotations

import inspect
import os
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from maggy_like.processes.channel import Channel, Disconnected
from maggy_like.protocol.codec import decode_to_worker, encode
from maggy_like.protocol.failure_kinds import FailureKind
from maggy_like.protocol.messages import (
    Assign,
    Broken,
    Decided,
    Finished,
    Halt,
    Held,
    Kept,
    Meet,
    Opened,
    Ready,
    Shutdown,
    Stop,
)
from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.train_function.arguments import arguments_for
from maggy_like.train_function.load import load_train_fn
from maggy_like.train_function.names import name_of
from maggy_like.worker.child.exits import POOL_HINT, uses_joblib
from maggy_like.worker.child.failures import format_message, format_traceback, kind_of, place_of, sendable, types_of
from maggy_like.worker.child.reporter import BudgetUsed, Reporter
from maggy_like.worker.child.returned import read_returned
from maggy_like.worker.child.sender import Sender
from maggy_like.worker.child.stop_state import TrialStopped
from maggy_like.worker.child.store_retry import StoreRetry
from maggy_like.worker.import_advice import advice_on

if TYPE_CHECKING:
    from maggy_like.distributed.rendezvous import Membership


def serve(
    channel: Channel,
    task: WorkerTask,
    *,
    trials: int | None,
    before_end: Callable[[Callable[[], None]], None],
    on_orphaned: Callable[[], None],
) -> None:
    """Run assigned trials until the agent says that it is over.

    Args:
        channel: To the agent.
        task: What the run is.
        trials: How many trials to run before leaving; None for no bound.
        before_end: Called after each trial, before its end is sent (to run exit hooks and flush output), with
            a function that sends the end, for hooks that hang.
        on_orphaned: Called when the agent is gone, by whichever thread hears of it.

    Raises:
        Disconnected: The agent cannot be reached.
    """
    try:
        train_fn = load_train_fn(task)
    except BaseException as error:
        reason = sendable(format_message(error) + advice_on(error, task.driver))
        channel.send(encode(Broken(f"train_fn cannot be loaded on the worker: {reason}")))
        return
    parameters = inspect.signature(train_fn).parameters.values()
    service = _Service(channel, task.interval, on_orphaned)
    channel.send(encode(Ready()))
    done, process = 0, os.getpid()
    while (trials is None or done < trials) and (assigned := service.next_assignment()) is not None:
        assign, sender = assigned
        retry = StoreRetry(task.store, sender, assign.trial, assign.attempt)
        store = CheckpointStore(task.store, assign.trial, assign.discard, retry)
        reporter = Reporter.for_trial(assign, store, sender)
        enter = partial(join, assign, task, sender, service)
        finished = run_attempt(train_fn, parameters, reporter, assign, task, enter)
        if os.getpid() != process:  # a fork that train_fn made and let return; the trial has one end
            os._exit(0)
        if assign.trial == 0 and assign.attempt == 1 and task.isolation == "process" and uses_joblib():
            print(POOL_HINT, file=sys.stderr)
        finished = wind_up(sender, reporter, finished)  # first, since exit hooks end the threads of remote stores
        send = partial(send_end, channel, sender, reporter, finished)
        before_end(send)
        send()
        if service.sender is sender:  # an inline attempt may have been ended without it, and the next have begun
            service.sender = None
        done += 1
    if done == trials:  # the agent says when to exit: tearing a process down keeps a core busy for milliseconds
        service.next_assignment()


def send_end(channel: Channel, sender: Sender, reporter: Reporter, finished: Finished) -> None:
    """Send what an attempt still holds, then its end."""
    channel.send(encode(wind_up(sender, reporter, finished)))


def wind_up(sender: Sender, reporter: Reporter, finished: Finished) -> Finished:
    """Send what an attempt still holds, and remove what is of no use; how it has ended then.

    An attempt whose reports cannot be sent has failed.
    """
    try:
        sender.flush()
        if finished.outcome == "returned":
            reporter.finish()
        if finished.outcome != "raised":
            reporter.tidy()
    except Disconnected:
        raise
    except Exception as error:
        if finished.outcome != "raised":
            return raised(finished.trial, finished.attempt, error)
    return finished


def join(assign: Assign, task: WorkerTask, sender: Sender, service: _Service) -> Membership | None:
    """Meet the other ranks of an attempt, if it runs on several workers; a caller's own process is left as it is."""
    if assign.rank_info is None or task.isolation == "none":
        return None
    from maggy_like.distributed.rendezvous import Membership

    def opened(host: str, port: int) -> None:
        sender.send(Opened(assign.trial, assign.attempt, host, port))

    membership = Membership(assign.rank_info, task, opened, partial(service.meeting, assign))
    service.membership = membership
    return membership


def run_attempt(
    train_fn: Callable[..., Any],
    parameters: Iterable[inspect.Parameter],
    reporter: Reporter,
    assign: Assign,
    task: WorkerTask,
    enter: Callable[[], Membership | None],
) -> Finished:
    """Run the training function once and say how it ended.

    Args:
        enter: Meets the other ranks.
    """
    trial, attempt = assign.trial, assign.attempt
    membership: Membership | None = None
    try:
        membership = enter()
        try:
            returned = train_fn(**arguments_for(parameters, assign.config, reporter))
        except BudgetUsed:
            returned = None
        reporter.settle()
        finished = read_returned(returned, reporter, assign, task)
        if membership is not None:
            membership.leave()
        return finished
    except TrialStopped:
        return Finished(trial, attempt, "stopped")
    except SystemExit as error:
        message = sendable(f"{name_of(train_fn)} called sys.exit({error.code!r})")
        place = place_of(error)
        return Finished(trial, attempt, "raised", kind=FailureKind.EXIT, message=message, place=place, at=time.time())
    except BaseException as error:
        at = time.time()
        if task.isolation == "none" and isinstance(error, KeyboardInterrupt):
            raise  # the caller's own
        if isinstance(error, MemoryError):  # what the function holds leaves no room to say so
            traceback.clear_frames(error.__traceback__)
        return raised(trial, attempt, error, membership, at, advice_on(error, task.driver))


def raised(
    trial: int,
    attempt: int,
    error: BaseException,
    membership: Membership | None = None,
    at: float | None = None,
    advice: str = "",
) -> Finished:
    """The end of an attempt by an exception.

    Args:
        membership: Of the ranks; knows whether one had returned before the others.
        at: When it was raised, if not just now.
        advice: What to append to its message.
    """
    at = time.time() if at is None else at
    kind, message = kind_of(error), format_message(error)
    if kind is FailureKind.COLLECTIVE and membership is not None and (returned_ranks := membership.returned()):
        ranks = ", ".join(map(str, returned_ranks))
        message = (
            f"rank {ranks} had returned before a collective operation of all ranks (all must call prepare(), "
            f"average() and a prepared model equally often): {message}"
        )
    trace = sendable(format_traceback(error))
    return Finished(
        trial,
        attempt,
        "raised",
        kind=kind,
        message=sendable(message + advice),
        traceback=trace,
        types=types_of(error),
        place=place_of(error),
        at=at,
    )


class _Service:
    """What the agent says to the child; one thread at a time listens.

    Between trials that is the main thread, so that an assignment wakes the thread that runs it, and no other before.
    While a trial runs, it is a second thread, which also sends the reports of each interval.
    """

    def __init__(self, channel: Channel, interval: float, on_orphaned: Callable[[], None]) -> None:
        self.meetings: SimpleQueue[Meet] = SimpleQueue()
        self.sender: Sender | None = None
        self.membership: Membership | None = None
        self._assignments: deque[tuple[Assign, Sender]] = deque()
        self._is_over = False
        self._listening = threading.Lock()
        self._channel = channel
        self._interval = interval
        self._on_orphaned = on_orphaned
        threading.Thread(target=self._run, name="maggy-service", daemon=True).start()

    def next_assignment(self) -> tuple[Assign, Sender] | None:
        """Wait for the next assignment; None once there will be no other."""
        with self._listening:
            while not (self._assignments or self._is_over):
                if (frame := self._channel.receive()) is None:
                    self._is_over = True
                    self._on_orphaned()
                else:
                    self._heard(frame)
        return self._assignments.popleft() if self._assignments else None

    def meeting(self, assign: Assign) -> tuple[str, int]:
        """Wait for the host and port at which the ranks of an attempt meet."""
        while True:
            meet = self.meetings.get()
            if (meet.trial, meet.attempt) == (assign.trial, assign.attempt):
                return meet.host, meet.port

    def _run(self) -> None:
        poller = select.poll()  # select.select() takes no descriptor past 1024
        poller.register(self._channel, select.POLLIN)
        while self._listen():
            if self.membership is not None:
                self.membership.hold()
            sender = self.sender
            try:
                if sender is not None and sender.buffer:
                    sender.flush_behind()
                behind = sender is not None and sender.is_behind
                poller.poll(0 if behind else self._interval * 1000)
            except OSError:  # the agent is gone, or the trial may open no file at all any more
                break
        if self.sender is not None and self.sender.fault is None:
            self.sender.fault = Disconnected("the worker is gone")  # no report can be sent from now on
        self._is_over = True
        self._on_orphaned()

    def _listen(self) -> bool:
        """Take in what has arrived, once the main thread does not wait for it; False where nothing more can."""
        with self._listening:
            frames, alive = self._channel.drain()
            for frame in frames:
                self._heard(frame)
        return alive

    def _heard(self, frame: bytes) -> None:
        sender = self.sender
        match decode_to_worker(frame):
            case Assign() as assign:
                self.sender = Sender(assign, self._channel.send)
                self._assignments.append((assign, self.sender))
            case Meet() as meet:
                self.meetings.put(meet)
            case Shutdown():
                self._is_over = True
            case Decided(stop=stop) if sender is not None:
                sender.stop.decide(stop)
            case Kept(discard=discard) if sender is not None:
                sender.kept.put(discard)
            case Halt(trial=trial, attempt=attempt) if sender is not None and sender.stop.is_wide:
                self._channel.send(encode(Held(trial, attempt, sender.stop.halt())))
            case Stop(at=int(report)) if sender is not None and sender.stop.is_wide:
                sender.stop.stop_at(report)
            case Stop() if sender is not None:
                sender.stop.request()
