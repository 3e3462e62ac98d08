"""One attempt of a trial, from the call of the training function to the message about its end."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from maggy_like.processes.channel import Channel, Disconnected
from maggy_like.protocol.endings import on_uneven_steps
from maggy_like.protocol.messages import Assign, FailureKind, Finished, Opened, encode
from maggy_like.protocol.task import WorkerTask
from maggy_like.protocol.torchrun import leave_ranks
from maggy_like.protocol.values import as_attributes
from maggy_like.train_function.code import name_of
from maggy_like.train_function.load import arguments_for
from maggy_like.worker.advice import advice_on
from maggy_like.worker.child.failures import format_message, format_traceback, kind_of, place_of, sendable, types_of
from maggy_like.worker.child.reporter import BudgetUsed, Reporter
from maggy_like.worker.child.reporter_hooks import ReporterHooks
from maggy_like.worker.child.returned import read_returned
from maggy_like.worker.child.sender import Sender
from maggy_like.worker.child.service import Service
from maggy_like.worker.child.stop_state import TrialStopped

if TYPE_CHECKING:
    from maggy_like.distributed.rendezvous import Membership


def send_end(channel: Channel, sender: Sender, reporter: Reporter, finished: Finished) -> None:
    """Send the rest of an attempt, then its end."""
    channel.send(encode(wind_up(sender, reporter, finished)))


def wind_up(sender: Sender, reporter: Reporter, finished: Finished) -> Finished:
    """Send the rest of an attempt, remove what is no longer needed, and return its end.

    An attempt whose reports cannot be sent has failed.
    """
    hooks = ReporterHooks(reporter)
    if reporter.attributes:
        attributes = as_attributes({**reporter.attributes, **finished.attributes})
        finished = replace(finished, attributes=attributes)
    try:
        sender.flush()
        if finished.outcome == "returned":
            hooks.finish()
        if finished.outcome != "raised":
            hooks.tidy()
    except Disconnected:
        raise
    except Exception as error:
        if finished.outcome != "raised":
            return raised(finished.trial, finished.attempt, error)
    return finished


def join(assign: Assign, task: WorkerTask, sender: Sender, service: Service) -> Membership | None:
    """Meet the other ranks of a multi-worker attempt; the caller's own process is not changed.

    A rank without others has torchrun's environment, too, but without torch it needs none.
    """
    if task.isolation == "none":
        return None
    info = assign.rank_info
    if info is None or (info.world_size == 1 and importlib.util.find_spec("torch") is None):
        leave_ranks()
        return None
    from maggy_like.distributed.rendezvous import Membership

    def opened(host: str, port: int) -> None:
        sender.send(Opened(assign.trial, assign.attempt, host, port))

    membership = Membership(info, task, opened, partial(service.meeting, assign))
    service.membership = membership
    return membership


def run_attempt(
    train_fn: Callable[..., Any],
    parameters: Iterable[inspect.Parameter],
    reporter: Reporter,
    assign: Assign,
    task: WorkerTask,
    enter: Callable[[], Membership | None],
    mirrored: Mapping[str, str],
) -> Finished:
    """Run the training function once and return how it ended; ``enter`` meets the other ranks.

    ``mirrored`` is the directory whose names the trial's working directory has, by its path.
    """
    membership: Membership | None = None
    hooks = ReporterHooks(reporter)
    try:
        membership = enter()
        returned = call(train_fn, arguments_for(parameters, assign.config, reporter), reporter, task)
        hooks.settle()
        finished = read_returned(returned, reporter, assign, task)
        if membership is not None:
            membership.leave()
        return finished
    except TrialStopped:
        if membership is not None:
            membership.leave_stopped()
        return Finished(assign.trial, reporter.attempt, "stopped")
    except SystemExit as error:
        remedy = "; use return, which keeps the trial's reports" if error.code in (None, 0) else ""
        message = sendable(f"{name_of(train_fn)} called sys.exit({error.code!r}){remedy}")
        place = place_of(error)
        kind, at = FailureKind.EXIT, time.time()
        return Finished(assign.trial, reporter.attempt, "raised", kind=kind, message=message, place=place, at=at)
    except BaseException as error:
        at = time.time()
        if task.isolation == "none" and _is_callers_own(error):
            raise KeyboardInterrupt from error
        if isinstance(error, MemoryError):  # the function's objects leave too little memory for the message
            traceback.clear_frames(error.__traceback__)
        advice = advice_on(error, task.driver, mirrored) or hooks.advice_on(error)
        return raised(assign.trial, reporter.attempt, error, membership, at, advice)


def call(train_fn: Callable[..., Any], arguments: dict[str, Any], reporter: Reporter, task: WorkerTask) -> Any:
    """Call the training function; return None if a report ended it because the trial is paused, or past its budget.

    A function may catch what a report raises, or raise something else instead, as libraries do that catch every
    exception of a callback. Later actions of the function do not count.

    Raise TrialStopped if a report has stopped it.
    """
    hooks = ReporterHooks(reporter)
    try:
        returned = train_fn(**arguments)
    except BaseException as error:
        is_own = task.isolation == "none" and _is_callers_own(error)
        if is_own or not hooks.has_ended:
            raise
        if not isinstance(error, TrialStopped | BudgetUsed):
            print(f"raised after a report had ended it:\n{format_traceback(error)}", file=sys.stderr)
        returned = None
    if hooks.is_stopped:
        raise TrialStopped
    return None if hooks.has_ended else returned


def _is_callers_own(error: BaseException) -> bool:
    """Whether it is Ctrl-C or the ``q`` of a debugger, by which the user ends the run."""
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
    """Build the end of an attempt by an exception; append ``advice`` to its message.

    ``membership`` knows whether one of the ranks returned before the others. ``at`` is the time of the exception; now
    by default.
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
