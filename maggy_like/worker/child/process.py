"""The process that runs the training function, one trial after another or just one.

The main thread waits for an assignment itself and runs it; while it does, the thread of the
:class:`~maggy_like.worker.child.service.Service` sends buffered reports and hears the driver's answers.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from maggy_like.processes.channel import Channel, Disconnected
from maggy_like.processes.imports import ImportWatch
from maggy_like.protocol.codec import encode
from maggy_like.protocol.failure_kinds import FailureKind
from maggy_like.protocol.messages import Assign, Broken, Finished, Imported, Opened, Ready
from maggy_like.protocol.task import WorkerTask
from maggy_like.protocol.torchrun import leave_ranks, on_uneven_steps
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.train_function.arguments import arguments_for
from maggy_like.train_function.load import load_train_fn
from maggy_like.train_function.names import name_of
from maggy_like.worker.child.exits import POOL_HINT, uses_joblib
from maggy_like.worker.child.failures import format_message, format_traceback, kind_of, place_of, sendable, types_of
from maggy_like.worker.child.reporter import BudgetUsed, Reporter
from maggy_like.worker.child.returned import read_returned
from maggy_like.worker.child.sender import Sender
from maggy_like.worker.child.service import Service
from maggy_like.worker.child.stop_state import TrialStopped
from maggy_like.worker.child.store_retry import StoreRetry
from maggy_like.worker.import_advice import advice_on

if TYPE_CHECKING:
    from maggy_like.distributed.rendezvous import Membership

BeforeEnd = Callable[[Callable[[], None]], None]


def serve(
    channel: Channel,
    task: WorkerTask,
    *,
    trials: int | None,
    before_end: BeforeEnd,
    on_orphaned: Callable[[], None],
    train_fn: Callable[..., Any] | None = None,
    known: Collection[str] | None = None,
) -> None:
    """Run assigned trials until the agent says that it is over.

    Args:
        channel: To the agent.
        task: What the run is.
        trials: How many trials to run before leaving; None for no bound.
        before_end: As :class:`TrialRunner` takes it.
        on_orphaned: Called when the agent is gone, by whichever thread hears of it.
        train_fn: The function, if it is loaded already.
        known: The modules that later processes need not import; None if there will be no others.

    Raises:
        Disconnected: The agent cannot be reached.
    """
    imports = None if known is None else ImportWatch(known)
    runner = make_runner(channel, task, before_end, on_orphaned, train_fn=train_fn, imports=imports)
    if runner is None:
        return
    done = 0
    while (trials is None or done < trials) and (assigned := runner.service.next_assignment()) is not None:
        runner.run(*assigned)
        done += 1
    if done == trials:  # the agent says when to exit: tearing a process down keeps a core busy for milliseconds
        runner.service.next_assignment()


def make_runner(
    channel: Channel,
    task: WorkerTask,
    before_end: BeforeEnd,
    on_orphaned: Callable[[], None],
    *,
    train_fn: Callable[..., Any] | None = None,
    imports: ImportWatch | None = None,
) -> TrialRunner | None:
    """What runs trials, once the agent knows that it is ready; None where the function cannot be loaded.

    Args:
        train_fn: The function, if it is loaded already.
        imports: Finds what trials import; the other arguments are those of :class:`TrialRunner`.

    Raises:
        Disconnected: The agent cannot be reached.
    """
    try:
        train_fn = train_fn or load_train_fn(task)
    except BaseException as error:
        reason = sendable(format_message(error) + advice_on(error, task.driver))
        channel.send(encode(Broken(f"train_fn cannot be loaded on the worker: {reason}")))
        return None
    runner = TrialRunner(channel, task, train_fn, before_end, on_orphaned, imports)
    channel.send(encode(Ready()))
    return runner


class TrialRunner:
    """Runs the trials that an agent assigns to this process, in the thread that calls it.

    Args:
        channel: To the agent.
        task: What the run is.
        train_fn: The function.
        before_end: Called after each trial, before its end is sent (to run exit hooks and flush output), with
            a function that sends the end, for hooks that hang.
        on_orphaned: Called when the agent is gone, by whichever thread hears of it.
        imports: Finds what trials import, for the agent.

    Attributes:
        service: Has the assignments.
        is_in_function: Whether the function is being called just now.
    """

    def __init__(
        self,
        channel: Channel,
        task: WorkerTask,
        train_fn: Callable[..., Any],
        before_end: BeforeEnd,
        on_orphaned: Callable[[], None],
        imports: ImportWatch | None = None,
    ) -> None:
        self.service = Service(channel, task.interval, on_orphaned, imports)
        self.is_in_function = False
        self._channel = channel
        self._task = task
        self._train_fn = train_fn
        self._parameters = inspect.signature(train_fn).parameters.values()
        self._before_end = before_end
        self._imports = imports

    def run(self, assign: Assign, sender: Sender) -> None:
        """Call the function, and send how it has ended.

        Raises:
            Disconnected: The agent cannot be reached.
            KeyboardInterrupt: The caller's own, where the function runs in the caller's process; no end was sent.
        """
        task, process = self._task, os.getpid()
        reporter = self._reporter(assign, sender)
        enter = partial(join, assign, task, sender, self.service)
        self.is_in_function = True
        try:
            finished = run_attempt(self._train_fn, self._parameters, reporter, assign, task, enter)
        finally:
            self.is_in_function = False
        if os.getpid() != process:  # a fork that train_fn made and let return; the trial has one end
            os._exit(0)
        if assign.trial == 0 and assign.attempt == 1 and task.isolation == "process" and uses_joblib():
            print(POOL_HINT, file=sys.stderr)
        self._end(sender, reporter, finished)

    def cut(self, assign: Assign, sender: Sender) -> None:
        """Send that an attempt has stopped which was told to, and whose function does not run (any more)."""
        self._end(sender, self._reporter(assign, sender), Finished(assign.trial, assign.attempt, "stopped"))

    def _reporter(self, assign: Assign, sender: Sender) -> Reporter:
        retry = StoreRetry(self._task.store, sender)
        return Reporter.for_trial(
            assign, CheckpointStore(self._task.store, assign.trial, assign.discard, retry), sender
        )

    def _end(self, sender: Sender, reporter: Reporter, finished: Finished) -> None:
        finished = wind_up(sender, reporter, finished)  # first, since exit hooks end the threads of remote stores
        send = partial(send_end, self._channel, sender, reporter, finished)
        self._before_end(send)
        send()
        if self.service.sender is sender:  # an inline attempt may have been ended without it, and the next have begun
            self.service.sender = None
        if self._imports is not None and (modules := self._imports.new()):
            self._channel.send(encode(Imported.of(modules)))


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


def join(assign: Assign, task: WorkerTask, sender: Sender, service: Service) -> Membership | None:
    """Meet the other ranks of an attempt, if it runs on several workers; a caller's own process is left as it is."""
    if task.isolation == "none":
        return None
    if assign.rank_info is None:
        leave_ranks()
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
        returned = call(train_fn, arguments_for(parameters, assign.config, reporter), reporter, task)
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
        if task.isolation == "none" and _is_callers_own(error):
            raise KeyboardInterrupt from error
        if isinstance(error, MemoryError):  # what the function holds leaves no room to say so
            traceback.clear_frames(error.__traceback__)
        return raised(trial, attempt, error, membership, at, advice_on(error, task.driver))


def call(train_fn: Callable[..., Any], arguments: dict[str, Any], reporter: Reporter, task: WorkerTask) -> Any:
    """What the training function returns; None if a report has ended it, at the end of its budget.

    A function may swallow what a report raises, or raise something else instead, as libraries do that catch whatever
    comes out of a callback. What it does after that does not count.

    Raises:
        TrialStopped: A report has told it to stop.
    """
    try:
        returned = train_fn(**arguments)
    except BaseException as error:
        is_own = task.isolation == "none" and _is_callers_own(error)
        if is_own or not (reporter.is_stopped or reporter.cut_at is not None):
            raise
        if not isinstance(error, TrialStopped | BudgetUsed):
            print(f"raised after a report had ended it:\n{format_traceback(error)}", file=sys.stderr)
        returned = None
    if reporter.is_stopped:
        raise TrialStopped
    return None if reporter.cut_at is not None else returned


def _is_callers_own(error: BaseException) -> bool:
    """Whether it is Ctrl-C, or the ``q`` of a debugger: the one who typed it wants the run to end."""
    debugger = sys.modules.get("bdb")
    return isinstance(error, KeyboardInterrupt) or (debugger is not None and isinstance(error, debugger.BdbQuit))


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
    if kind is FailureKind.COLLECTIVE and (uneven := on_uneven_steps(message)):
        message += uneven
    elif kind is FailureKind.COLLECTIVE and membership is not None and (gone := membership.gone()):
        message = (
            f"{gone} before a collective operation of all ranks (all must call prepare(), "
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
