"""The worker itself: owns the socket to the driver, supervises the child that runs the trial.

One thread, one poll loop. While a trial runs, a spare child is made ready, so that the next trial
starts a round trip after this one ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable

import zmq

from maggy_like.messages import (
    PROTOCOL_VERSION,
    Assign,
    Beat,
    Broken,
    Checkpointed,
    Decided,
    Finished,
    Goodbye,
    Hello,
    Logged,
    Ready,
    Refused,
    Reported,
    Shutdown,
    Stop,
    ToWorker,
    decode_to_driver,
    encode,
)
from maggy_like.rpc.client import Client
from maggy_like.worker.checkpoints import is_visible
from maggy_like.worker.children import Child, ForkServerNursery, Nursery
from maggy_like.worker.output import TrialOutput
from maggy_like.worker.task import WorkerContext, WorkerTask

HEARTBEAT = 1.0
"""Seconds between two signs of life."""

MAX_STILLBORN = 3
"""Children in a row that may die before they are ready."""

SPARE_DELAY = 0.02
"""Seconds that a starting trial is left alone: its successor is forked, its predecessor torn down only then."""

LEAVE_GRACE = 1.0
"""Seconds that a running trial gets when the worker itself is told to leave."""


class Agent:
    """Serves one run from one slot.

    Args:
        task: What the run is.
        context: This worker's place.
        nursery: Makes the children; a warm fork server if not given.
        lifeline: A file descriptor whose end says that the launcher is gone.
    """

    def __init__(
        self,
        task: WorkerTask,
        context: WorkerContext,
        *,
        nursery: Nursery | None = None,
        lifeline: int | None = None,
    ) -> None:
        self._task = task
        self._context = context
        self._lifeline = lifeline
        self._nursery: Nursery = nursery or ForkServerNursery(task, context)
        self._client = Client(task.address, task.server_key)
        self._poller = zmq.Poller()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._spare: Child | None = None
        self._current: Child | None = None
        self._ending: list[Child] = []  # told their end, not yet exited
        self._assign: Assign | None = None
        self._started = False  # whether the child has been given the assignment
        self._output: TrialOutput | None = None
        self._kill_at: float | None = None
        self._spawn_at: float | None = None
        self._dismiss_at: float | None = None
        self._told_stop = False
        self._leaving = False
        self._announced = False
        self._stillborn = 0
        self._heard = self._logged = self._beat_at = time.monotonic()

    def run(self) -> None:
        """Serve until the driver says that it is over, or is gone."""
        try:
            self._say_hello()
            self._poller.register(self._client.socket, zmq.POLLIN)
            if self._nursery.descriptor is not None:
                self._watch(self._nursery.descriptor, self._attend_nursery)
            if self._lifeline is not None:
                self._watch(self._lifeline, self._leave_now)
            self._spawn_spare()
            while not self._leaving or self._current is not None:
                self._poll_once()
            self._client.send(Goodbye())
        finally:
            self._close()

    # -- the loop -----------------------------------------------------------------------------

    def _poll_once(self) -> None:
        for descriptor, _ in self._poller.poll(math.ceil(self._patience() * 1000)):
            if descriptor is self._client.socket:
                self._heard = time.monotonic()
                for message in self._client.receive():
                    self._obey(message)
            elif (handler := self._handlers.get(descriptor)) is not None:
                handler()
        now = time.monotonic()
        if self._output is not None and now - self._logged >= self._task.interval:
            self._forward_log()
        if now >= self._beat_at:  # also while the trial reports: the answer says that the driver is alive
            self._beat_at = now + HEARTBEAT
            self._client.send(Beat())
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_current()
        if self._spawn_at is not None and now >= self._spawn_at:
            self._spawn_spare()
        if self._dismiss_at is not None and now >= self._dismiss_at:
            self._dismiss_ended()
        if now - self._heard > self._task.silence:
            self._leave_now()

    def _patience(self) -> float:
        """Seconds until something is due."""
        now = time.monotonic()
        log_at = self._logged + self._task.interval if self._output is not None and self._output.has_lines else None
        due = (self._beat_at, log_at, self._kill_at, self._spawn_at, self._dismiss_at)
        return max(0.0, min(at for at in due if at is not None) - now)

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poller.register(descriptor, zmq.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def _say_hello(self) -> None:
        task, place = self._task, self._context
        visible, gpus = is_visible(task.store, task.token), list(place.accelerators)
        hello = Hello(PROTOCOL_VERSION, task.token, place.index, place.epoch, place.host, os.getpid(), gpus, visible)
        self._client.send(hello)

    # -- what the driver says -----------------------------------------------------------------

    def _obey(self, message: ToWorker) -> None:
        match message:
            case Assign():
                self._assign, self._started, self._told_stop = message, False, False
                self._start_if_possible()
            case Decided(trial=trial, attempt=attempt):
                self._pass_on(message, trial, attempt)
            case Stop(trial=trial, attempt=attempt):
                self._pass_on(message, trial, attempt)
                self._stop_current(self._task.grace)
            case Shutdown():
                self._leave(LEAVE_GRACE)
            case Refused():
                self._leave_now()

    def _pass_on(self, message: ToWorker, trial: int, attempt: int) -> None:
        assign, child = self._assign, self._current
        if child is not None and assign is not None and (assign.trial, assign.attempt) == (trial, attempt):
            with contextlib.suppress(OSError):  # it just died; its channel's end tells
                child.channel.send(encode(message))

    def _stop_current(self, grace: float) -> None:
        self._told_stop = True
        due = time.monotonic() + grace
        self._kill_at = due if self._kill_at is None else min(self._kill_at, due)

    def _leave(self, grace: float) -> None:
        self._leaving = True
        if self._assign is not None and not self._started:
            self._assign = self._current = None
        if self._assign is not None and self._current is not None:
            self._pass_on(Stop(self._assign.trial, self._assign.attempt), self._assign.trial, self._assign.attempt)
            self._stop_current(grace)

    def _leave_now(self) -> None:
        self._leaving = True
        if self._current is not None:
            self._ending.append(self._current)
            self._current = None

    # -- children -----------------------------------------------------------------------------

    def _spawn_spare(self) -> None:
        """Begin to make the next child, unless there is one."""
        self._spawn_at = None
        if self._spare is None and not self._leaving:
            self._spare = child = self._nursery.spawn()
            self._watch(child.channel.fileno(), lambda: self._hear(child))

    def _start_if_possible(self) -> None:
        """Hand the assignment to the spare child, if it is warm and the GPU is free."""
        child, assign = self._spare, self._assign
        if assign is None or self._started or child is None or not child.ready:
            return
        if self._context.accelerators and self._ending:
            return  # the last trial's process still holds the GPU's memory
        self._started, self._current, self._spare = True, child, None
        if child.output is not None:
            self._output = output = TrialOutput(child.output, self._task.logs, assign.trial)
            self._watch(child.output, lambda: self._read_output(child, output))
        with contextlib.suppress(OSError):  # it was killed just now; its exit tells
            child.channel.send(encode(assign))
        if self._task.isolation == "process":
            self._spawn_at = time.monotonic() + SPARE_DELAY

    def _dismiss_ended(self) -> None:
        """Let children that told their end exit, now that it disturbs no successor's start."""
        self._dismiss_at = None
        for child in self._ending:
            with contextlib.suppress(OSError):  # it is gone already
                child.channel.send(encode(Shutdown()))

    def _hear(self, child: Child) -> None:
        frames, alive = child.channel.drain()
        for frame in frames:
            self._take(child, frame)
        if not alive:
            self._unwatch(child.channel.fileno())
            if self._nursery.descriptor is None:  # no process whose exit would tell
                child.status = 0
                self._exited(child)

    def _take(self, child: Child, frame: bytes) -> None:
        match decode_to_driver(frame):
            case Ready():
                child.ready = True
                if not self._announced:
                    self._announced = True
                    self._client.send(Ready())
                self._start_if_possible()
            case Broken(message=message):
                self._break_down(message)
            case Reported() | Checkpointed():
                self._client.forward(frame)
            case Finished() as finished if child is self._current:
                self._end_attempt(child, finished)

    def _end_attempt(self, child: Child, finished: Finished) -> None:
        """The child told its end: pass on its last output, then the end itself."""
        if self._output is not None:
            self._output.read_all()
            self._forward_log()
        self._detach_output(child)
        self._current = self._assign = self._kill_at = None
        if self._task.isolation == "process" or child.status is not None:
            self._ending.append(child)
        else:
            self._spare = child
        self._client.send(finished)
        self._dismiss_at = time.monotonic() + (0.0 if self._context.accelerators else SPARE_DELAY)
        self._spawn_spare()

    def _detach_output(self, child: Child) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None
        if child.output is not None:
            self._unwatch(child.output)

    def _attend_nursery(self) -> None:
        if not self._nursery.attend():
            assert self._nursery.descriptor is not None
            self._unwatch(self._nursery.descriptor)
            self._break_down("the fork server died; see the worker's own log for why")
            return
        for child in (self._current, self._spare, *self._ending):
            if child is not None and child.status is not None:
                self._exited(child)

    def _exited(self, child: Child) -> None:
        """A child's process is gone; what it had said before still counts."""
        if child.channel.fileno() in self._handlers:
            self._unwatch(child.channel.fileno())
            for frame in child.channel.drain()[0]:
                self._take(child, frame)
        if child is self._current and self._assign is not None:
            self._end_attempt(child, self._post_mortem(child, self._assign))
        if child is self._spare:
            self._spare = None
        if child in self._ending:
            self._ending.remove(child)
        self._stillborn = 0 if child.ready else self._stillborn + 1
        child.close()
        if self._stillborn >= MAX_STILLBORN:
            self._break_down("its child processes die before they can load train_fn")
        else:
            self._spawn_spare()
        self._start_if_possible()

    def _post_mortem(self, child: Child, assign: Assign) -> Finished:
        if self._told_stop:
            return Finished(assign.trial, assign.attempt, "stopped")
        kind, how = child.cause_of_death
        tail = ""
        if self._output is not None:
            self._output.read_all()
            tail = self._output.tail
        how = f"the trial's process {how}"
        return Finished(assign.trial, assign.attempt, "died", kind=kind, message=how, traceback=tail)

    def _kill_current(self) -> None:
        self._kill_at = None
        if self._current is not None:
            self._nursery.kill(self._current)

    def _break_down(self, message: str) -> None:
        if not self._leaving:
            self._client.send(Broken(message))
            self._leave_now()

    # -- output -------------------------------------------------------------------------------

    def _read_output(self, child: Child, output: TrialOutput) -> None:
        if not output.read() and child.output is not None:
            self._unwatch(child.output)

    def _forward_log(self) -> None:
        self._logged = time.monotonic()
        if self._output is not None and self._assign is not None:
            lines, dropped = self._output.take()
            if lines or dropped:
                self._client.send(Logged(self._assign.trial, self._assign.attempt, lines, dropped))

    def _close(self) -> None:
        if self._output is not None:
            self._output.close()
        self._nursery.close()
        for child in (self._spare, self._current, *self._ending):
            if child is not None:
                child.close()
        self._client.close()
