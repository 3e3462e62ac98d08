"""The process that runs the training function, for one trial or for several in a row, on the agent's messages."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from maggy_like.processes.channel import Channel
from maggy_like.processes.imports import ImportWatch
from maggy_like.processes.titles import entitle
from maggy_like.protocol.messages import (
    Assign,
    Broken,
    Finished,
    Imported,
    Ready,
    decode_to_driver,
    decode_to_worker,
    encode,
)
from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.train_function.load import NotFoundError, load_train_fn, why_not_loaded
from maggy_like.worker.advice import advice_on
from maggy_like.worker.child.attempt import join, run_attempt, send_end, wind_up
from maggy_like.worker.child.directories import restore_files, working_in
from maggy_like.worker.child.exits import POOL_HINT, flush_output, has_open_files, uses_joblib
from maggy_like.worker.child.failures import sendable
from maggy_like.worker.child.reporter import Reporter
from maggy_like.worker.child.reporter_hooks import reporter_for
from maggy_like.worker.child.returned import read_value
from maggy_like.worker.child.saves import StoreRetry
from maggy_like.worker.child.sender import Sender
from maggy_like.worker.child.service import Service

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
    known: frozenset[str] | None = None,
) -> None:
    """Run assigned trials, at most ``trials`` unless it is None, until the agent ends the run.

    ``known`` are the modules that later processes need not import; None if there will be no others. The other arguments
    are those of :class:`TrialRunner`. Raise Disconnected if the agent cannot be reached.
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
    """Load the function unless it is given, and announce it to the agent; None if it cannot be loaded.

    Raise Disconnected if the agent cannot be reached.
    """
    try:
        train_fn = train_fn or load_train_fn(task)
    except BaseException as error:
        cause = error.__cause__ if isinstance(error, NotFoundError) and error.__cause__ is not None else error
        reason = sendable(why_not_loaded(error) + advice_on(cause, task.driver))
        channel.send(encode(Broken(f"train_fn cannot be loaded on the worker: {reason}")))
        return None
    runner = TrialRunner(channel, task, train_fn, before_end, on_orphaned, imports)
    channel.send(encode(Ready()))
    return runner


class TrialRunner:
    """Runs the trials that an agent assigns to this process, in the calling thread.

    ``before_end`` is called after each trial, before its end is sent, to run exit hooks and flush output. Its argument
    is a function that sends the end, for hooks that hang. ``on_orphaned`` is called when the agent is gone, by the
    thread that notices it. ``imports`` finds what trials import, for the agent.
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
        self._sender: Sender | None = None  # of the newest attempt
        self._is_end_sent = False

    def run(self, assign: Assign, sender: Sender) -> None:
        """Call the function, and send how it ended; raise Disconnected if the agent cannot be reached.

        Raise KeyboardInterrupt, and send no end, if the user interrupted a function in the caller's process.
        """
        task, process = self._task, os.getpid()
        self._sender, self._is_end_sent = sender, False
        if task.isolation != "none":
            entitle(f"trial {assign.trial}")
        waits = task.isolation == "process" and assign.rank_info is None
        reporter = reporter_for(assign, self._store(assign, sender), sender, self._pause if waits else None)

        def enter() -> Membership | None:
            restore_files(assign, task, StoreRetry(task.files, sender))
            return join(assign, task, sender, self.service)

        with working_in(os.fsdecode(assign.working_directory)) as mirrored:
            self.is_in_function = True
            try:
                finished = run_attempt(self._train_fn, self._parameters, reporter, assign, task, enter, mirrored)
            finally:
                self.is_in_function = False
            if os.getpid() != process:  # a fork that train_fn made and let return; the trial has one end
                os._exit(0)
            if assign.trial == 0 and assign.attempt == 1 and task.isolation == "process" and uses_joblib():
                print(POOL_HINT, file=sys.stderr)
            self._end(reporter, finished)

    def cut(self, assign: Assign, sender: Sender) -> None:
        """Send that an attempt has stopped as requested, if its function is not running."""
        self._sender, self._is_end_sent = sender, False
        reporter = reporter_for(assign, self._store(assign, sender), sender)
        self._end(reporter, Finished(assign.trial, assign.attempt, "stopped"))

    def _store(self, assign: Assign, sender: Sender) -> CheckpointStore:
        retry = StoreRetry(self._task.store, sender)
        return CheckpointStore(self._task.store, assign.trial, assign.discard, retry)

    def _pause(self, reporter: Reporter) -> tuple[Assign, CheckpointStore, Sender] | None:
        """End the attempt while its function waits in a report; return the trial's next attempt if it runs here."""
        assert self._sender is not None
        paused = Finished(reporter.trial, reporter.attempt, "returned", paused=True)
        finished = wind_up(self._sender, reporter, paused)
        flush_output()
        self.service.await_continuation()
        self._channel.send(encode(finished))
        self._is_end_sent = True
        if not finished.paused or (following := self.service.continuation()) is None:
            return None
        assign, self._sender = following
        self._is_end_sent = False
        return assign, self._store(assign, self._sender), self._sender

    def _end(self, reporter: Reporter, finished: Finished) -> None:
        sender = self._sender
        assert sender is not None
        if self._is_end_sent:
            self._before_end(lambda: None)
        else:
            finished = wind_up(sender, reporter, finished)  # first: exit hooks end the threads of remote stores
            send = partial(send_end, self._channel, sender, reporter, finished)
            self._before_end(send)
            send()
        if self.service.sender is sender:  # an inline attempt may have been ended without it, and the next have begun
            self.service.sender = None
        if self._imports is not None and (modules := self._imports.new()):
            self._channel.send(encode(Imported.of(modules)))


ROUNDS = 20
"""Calls until Python has specialized the code of a trial (PEP 659), and some more."""


def rehearse(task: WorkerTask) -> None:
    """Run the code of a trial from assignment to end, without an agent and without a function.

    A fork server does this so that its children inherit the code as Python has specialized it, and the pages of memory
    as they are after that. A child copies a shared page on its first write, and a reference count is a write. The
    trial would wait for that: half a millisecond before its first line and after its last.
    """
    assign = decode_to_worker(encode(Assign(0, 1, {"x": 0.5}, 1, objective="value")))
    assert isinstance(assign, Assign)
    sender = Sender(assign, lambda frame: None)
    reporter = reporter_for(assign, CheckpointStore(None), sender)
    path, here = sys.path[:], ""
    with contextlib.suppress(OSError):  # it is gone
        here = os.getcwd()
    with working_in(here) as mirrored:
        restore_files(assign, task, StoreRetry(task.files, sender))
        finished = run_attempt(lambda: {"value": 0.5}, (), reporter, assign, task, lambda: None, mirrored)
    read_value(0.5, None)  # as most functions return
    sys.path[:] = path
    has_open_files()
    flush_output()
    decode_to_driver(encode(wind_up(sender, reporter, finished)))
