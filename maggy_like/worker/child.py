"""The process that runs the training function, one trial after another or just one.

The main thread waits for an assignment and runs it; a service thread, alive for as long as the
child, sends buffered reports and hears the driver's answers.
"""

from __future__ import annotations

import inspect
import os
import select
import threading
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from typing import Any

from maggy_like.messages import (
    Assign,
    Broken,
    Decided,
    Finished,
    Kept,
    Ready,
    Shutdown,
    Stop,
    decode_to_worker,
    encode,
)
from maggy_like.worker.channel import Channel, Disconnected
from maggy_like.worker.checkpoints import CheckpointStore
from maggy_like.worker.invoke import arguments_for
from maggy_like.worker.reporter import (
    BudgetUsed,
    Reporter,
    ReportError,
    Sender,
    TrialStopped,
    as_number,
    pick_objective,
)
from maggy_like.worker.task import WorkerTask


def serve(
    channel: Channel,
    task: WorkerTask,
    *,
    trials: int | None,
    before_end: Callable[[Callable[[], None]], None],
    on_orphaned: Callable[[], None],
) -> None:
    """Run assigned trials until told to leave.

    Args:
        channel: To the agent.
        task: What the run is.
        trials: How many trials to run before leaving; None for no bound.
        before_end: Called after each trial, before its end is told (to run exit hooks and flush output), with
            a function that tells the end, for hooks that hang.
        on_orphaned: Called by the service thread when the agent is gone.

    Raises:
        Disconnected: The agent cannot be reached.
    """
    try:
        train_fn = load_train_fn(task)
    except BaseException as error:
        reason = "".join(traceback.format_exception_only(error)).strip()
        channel.send(encode(Broken(f"train_fn cannot be loaded on the worker: {reason}")))
        return
    parameters = inspect.signature(train_fn).parameters.values()
    service = _Service(channel, task.interval, on_orphaned)
    channel.send(encode(Ready()))
    done, process = 0, os.getpid()
    while (trials is None or done < trials) and (assign := service.assignments.get()) is not None:
        sender = Sender(assign, channel.send)
        reporter = Reporter.for_trial(assign, CheckpointStore(task.store, assign.discard), sender)
        service.sender = sender
        finished = run_attempt(train_fn, parameters, reporter, assign, interruptible=task.isolation == "none")
        if os.getpid() != process:  # a fork that train_fn made and let return; the trial has one end
            os._exit(0)
        service.sender = None
        tell = partial(tell_end, channel, sender, reporter, finished)
        before_end(tell)
        tell()
        done += 1
    if done == trials:  # the agent says when to exit: tearing a process down keeps a core busy for milliseconds
        service.assignments.get()


def tell_end(channel: Channel, sender: Sender, reporter: Reporter, finished: Finished) -> None:
    """Send what an attempt still holds, then its end."""
    sender.flush()
    if finished.outcome == "returned":
        reporter.tell_checkpoint()
    channel.send(encode(finished))


def load_train_fn(task: WorkerTask) -> Callable[..., Any]:
    """Unpickle the training function; it comes from the driver that launched us, not from a socket."""
    import cloudpickle

    function: Callable[..., Any] = cloudpickle.loads(task.train_fn)
    return function


def run_attempt(
    train_fn: Callable[..., Any],
    parameters: Iterable[inspect.Parameter],
    reporter: Reporter,
    assign: Assign,
    *,
    interruptible: bool,
) -> Finished:
    """Run the training function once and say how it ended.

    Args:
        interruptible: Whether a KeyboardInterrupt is the caller's own, to be passed on to it.
    """
    trial, attempt = assign.trial, assign.attempt
    try:
        returned = train_fn(**arguments_for(parameters, assign.config, reporter))
        value, metrics = read_returned(returned, reporter.objective)
    except TrialStopped:
        return Finished(trial, attempt, "stopped")
    except BudgetUsed:
        return Finished(trial, attempt, "returned")
    except SystemExit as error:
        return Finished(trial, attempt, "raised", kind="exit", message=f"train_fn called sys.exit({error.code!r})")
    except BaseException as error:
        if interruptible and isinstance(error, KeyboardInterrupt):
            raise
        kind = "report" if isinstance(error, ReportError) else "exception"
        message = "".join(traceback.format_exception_only(error)).strip()
        return Finished(trial, attempt, "raised", kind=kind, message=message, traceback=format_traceback(error))
    return Finished(trial, attempt, "returned", value, metrics)


def read_returned(returned: object, objective: str | None) -> tuple[float | None, dict[str, float]]:
    """The objective and the other metrics in what the training function returned.

    Raises:
        ReportError: It is neither a number, nor a dict of numbers with the objective, nor None.
    """
    if returned is None:
        return None, {}
    if isinstance(returned, dict):
        metrics = {str(name): as_number(f"train_fn's {name!r}", value) for name, value in returned.items()}
        return metrics[pick_objective(metrics, objective)], metrics
    try:
        return as_number("train_fn's value", returned), {}
    except ReportError as error:
        raise ReportError(f"{error}; return a number, a dict of numbers, or None after reports") from None


def format_traceback(error: BaseException) -> str:
    """The traceback from the user's function on, without our own frames above it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("maggy_like.worker."):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


class _Service:
    """The child's second thread: sends each interval, listens always."""

    def __init__(self, channel: Channel, interval: float, on_orphaned: Callable[[], None]) -> None:
        self.assignments: SimpleQueue[Assign | None] = SimpleQueue()
        self.sender: Sender | None = None
        self._channel = channel
        self._interval = interval
        self._on_orphaned = on_orphaned
        threading.Thread(target=self._run, name="maggy-service", daemon=True).start()

    def _run(self) -> None:
        alive = True
        while alive:
            try:
                readable, _, _ = select.select([self._channel], [], [], self._interval)
            except (OSError, ValueError):  # the trial has closed what it did not open
                break
            if readable:
                frames, alive = self._channel.drain()
                for frame in frames:
                    self._heard(frame)
            sender = self.sender
            if sender is not None and sender.buffer:
                try:
                    sender.flush()
                except Disconnected:
                    alive = False
        self.assignments.put(None)
        self._on_orphaned()

    def _heard(self, frame: bytes) -> None:
        sender = self.sender
        match decode_to_worker(frame):
            case Assign() as assign:
                self.assignments.put(assign)
            case Shutdown():
                self.assignments.put(None)
            case Decided(stop=stop) if sender is not None:
                sender.verdicts.put(stop)
            case Kept(url=url) if sender is not None:
                sender.kept = url
            case Stop() if sender is not None:
                sender.stopped = True
                sender.verdicts.put(True)  # it may be waiting for a verdict just now
