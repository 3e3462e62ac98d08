"""The agent's messages in the process of a trial: who listens, and what each message does there."""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from maggy_like.processes.channel import Channel, Disconnected
from maggy_like.processes.imports import ImportWatch
from maggy_like.protocol.messages import (
    Assign,
    Decided,
    Halt,
    Held,
    Imported,
    Kept,
    Meet,
    Shutdown,
    Stop,
    decode_to_worker,
    encode,
)
from maggy_like.worker.child.sender import Sender

if TYPE_CHECKING:
    from maggy_like.distributed.rendezvous import Membership


class Service:
    """Receives the agent's messages; one thread at a time listens.

    Between trials that is the main thread, so that an assignment wakes the thread that runs it, and no other first.
    During a trial it is a second thread, which also sends the reports of each interval, and reports that the trial
    waits for its store.
    """

    def __init__(
        self, channel: Channel, interval: float, on_orphaned: Callable[[], None], imports: ImportWatch | None = None
    ) -> None:
        self.meetings: SimpleQueue[Meet] = SimpleQueue()
        self.sender: Sender | None = None
        self.membership: Membership | None = None
        self._assignments: deque[tuple[Assign, Sender]] = deque()
        self._is_woken = threading.Event()
        self._is_over = False
        self._listening = threading.Lock()
        self._channel = channel
        self._interval = interval
        self._on_orphaned = on_orphaned
        self._imports = imports
        threading.Thread(target=self._run, name="maggy-service", daemon=True).start()

    def next_assignment(self) -> tuple[Assign, Sender] | None:
        """Wait for the next assignment; None if there will be no other."""
        with self._listening:
            while not (self._assignments or self._is_over):
                if (frame := self._channel.receive()) is None:
                    self._is_over = True
                    self._on_orphaned()
                else:
                    self._heard(frame)
        return self.take_assignment()

    def await_assignment(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a message, and not at all if an assignment waits."""
        if self._assignments or self._is_over:
            return
        with self._listening:
            poller = select.poll()
            poller.register(self._channel, select.POLLIN)
            if poller.poll(seconds * 1000):
                self._is_over |= not self._take_in()

    def take_assignment(self) -> tuple[Assign, Sender] | None:
        """Return the next assignment if it has arrived."""
        return self._assignments.popleft() if self._assignments else None

    def await_continuation(self) -> None:
        """Prepare for :meth:`continuation`, before the agent learns that the trial is paused."""
        self._is_woken.clear()

    def continuation(self) -> tuple[Assign, Sender] | None:
        """Wait in a paused trial for its next attempt; None if it does not run in this process."""
        self._is_woken.wait()
        return self.take_assignment()

    @property
    def is_over(self) -> bool:
        """Whether there will be no further assignment."""
        return self._is_over and not self._assignments

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
                if sender is not None:
                    sender.store.look()
                    if sender.buffer:
                        sender.flush_behind()
                if self._imports is not None and (modules := self._imports.settled()):
                    self._channel.send(encode(Imported.of(modules)))
                behind = sender is not None and sender.is_behind
                poller.poll(0 if behind else self._interval * 1000)
            except OSError:  # the agent is gone, or the trial can open no further file
                break
        if (sender := self.sender) is not None:
            sender.fault = sender.fault or Disconnected("the worker is gone")  # no report can be sent from now on
            sender.stop.request()  # the trial may wait for a verdict, which will not come
        self._is_over = True
        self._is_woken.set()
        self._on_orphaned()

    def _listen(self) -> bool:
        """Process what has arrived, unless the main thread waits for it; False if nothing more can arrive."""
        with self._listening:
            return self._take_in()

    def _take_in(self) -> bool:
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
                self._is_woken.set()
            case Meet() as meet:
                self.meetings.put(meet)
            case Shutdown():
                self._is_over = True
                self._is_woken.set()
            case Decided(stop=stop) if sender is not None:
                sender.stop.decide(stop)
            case Kept(discard=discard) if sender is not None:
                sender.kept.put(discard)
            case Halt(trial=trial, attempt=attempt) if sender is not None and sender.stop.is_multi_worker:
                self._channel.send(encode(Held(trial, attempt, sender.stop.halt())))
            case Stop(at=int(report)) if sender is not None and sender.stop.is_multi_worker:
                sender.stop.stop_at(report)
            case Stop() if sender is not None:
                sender.stop.request()
