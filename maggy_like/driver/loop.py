"""The driver's thread: feeds the state machine from the wire and executes its commands.

A second thread asks the optimizer.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import msgspec

from maggy_like.display.base import LineBuffer, LogLine, Snapshot
from maggy_like.driver.drawing import SNAPSHOT_INTERVAL, SNAPSHOT_SHARE, Drawing, Pace
from maggy_like.driver.proposers import Proposer
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.interface import (
    Append,
    AskOptimizer,
    Command,
    Input,
    Replace,
    Send,
    Show,
    StopRequested,
    SuggestionReady,
    Tick,
    TrialSaid,
    WorkerBroken,
    WorkerGone,
    WorkerJoined,
    WorkerReady,
    WorkerSeen,
)
from maggy_like.driver.stream import Backlog, entry_of, read_after
from maggy_like.driver.write_ahead import WriteAhead
from maggy_like.errors import OptimizerError, WorkerError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.messages import (
    Beat,
    Broken,
    Checkpointed,
    Finished,
    Goodbye,
    Held,
    Hello,
    Imported,
    Logged,
    Noted,
    Opened,
    Ready,
    Reported,
    Shutdown,
    Silent,
    Waiting,
)
from maggy_like.protocol.task import WorkerId
from maggy_like.rpc.server import ROUND_SECONDS, Received, Server, Unfit
from maggy_like.storage.journal import Journal
from optimizers.core.base import Pending, Proposal, Update
from optimizers.core.study import Study

_log = logging.getLogger(__name__)

TICK = 0.25
STALL = 1.0
"""Seconds between two polls from which no message could be received: this process, the machine or the journal's file
system stood still."""

STANDSTILL = 10.0
"""Seconds in one call after which a line says so, and a second Ctrl-C, or ``stop()`` of a handle, leaves the driver."""

MAX_LINES = 10_000
MAX_LINE_BYTES = 8 << 20
"""Log lines that are kept for a slow display, and their bytes. The trials' files have older ones."""


class Driver:
    """Runs one search. A message that depends on an event is sent only after the event is in the journal."""

    def __init__(
        self,
        machine: StateMachine,
        proposer: Proposer,
        server: Server,
        journal: Journal,
        base: Snapshot,  # what stays the same in all snapshots
        workers: int,  # number of workers that must connect and leave before the driver is done; 0 if it may grow
        *,
        # Stores the value of a function that may return anything; None for a training function.
        keep: Callable[[Any], None] | None,
        timeout: float | None,
        began: float,  # time of the call, by the monotonic clock; the timeout and the displayed time count from there
    ) -> None:
        self.done = threading.Event()  # set when the search has ended and all workers have left, or the driver failed
        self.error: BaseException | None = None  # the error of the driver itself, if it failed
        self.was_left = False  # whether the end came while its thread was in a call that does not return
        self.met: set[WorkerId] = set()  # workers that have connected, including lost ones
        self.ready: set[WorkerId] = set()  # workers that were ready for trials
        self.leaving: set[WorkerId] = set()  # workers that have sent their last message
        # Modules that trials have imported; the next run of this process should import them at once.
        self.imported: dict[str, None] = {}
        self.lines = LineBuffer(MAX_LINES, MAX_LINE_BYTES)  # log lines for the displays
        # The newest events, for callbacks and trackers.
        self.backlog = Backlog(partial(read_after, journal.directory), journal.last)
        self._last = journal.last  # number of the last event's record
        self.replacements: SimpleQueue[WorkerId] = SimpleQueue()  # lost workers that the engine must replace
        self._drawing = Drawing(base, machine)
        self._machine = machine  # the state machine. Once the driver runs, only its thread uses it
        self._proposer = proposer
        self._server = server
        self._directory = journal.directory
        self._write_ahead = WriteAhead(journal, keep, self._show)
        self._posted: deque[Input] = deque()
        self._asks: SimpleQueue[AskOptimizer | None] = SimpleQueue()
        self._workers = workers
        self._timeout = timeout
        self._began = began
        self._wall = time.time() - time.monotonic()
        self.snapshot = self._drawing.at_once(self.elapsed(), self._now())  # with the trials of a resumed run's journal
        self._has_ended = self._is_stopped = self._released = self._is_hurried = False
        self._turned = math.inf  # when the driver's thread last began a round
        self._noted: set[tuple[str, int | None]] = set()
        self._threads = [
            threading.Thread(target=self._run, name="maggy-driver", daemon=True),
            threading.Thread(target=self._propose, name="maggy-optimizer", daemon=True),
        ]

    @property
    def study(self) -> Study:
        """The study. Only the driver's thread changes it."""
        return self._machine.study

    @property
    def has_ended(self) -> bool:
        """Whether the search has ended and the journal has the end. Workers may still be leaving."""
        return self._has_ended or self.done.is_set()

    @property
    def is_stopping(self) -> bool:
        """Whether the run has ended, or a stop was requested."""
        return self._is_stopped or self.has_ended

    @property
    def keeps_files(self) -> bool:
        """Whether trials have left files, which workers may still be copying. For any thread."""
        return self._machine.keeps_files

    @property
    def came(self) -> int:
        """Number of workers that have ever connected, replaced ones not counted. For any thread."""
        return len(self._machine.workers)

    def start(self) -> None:
        """Start the threads."""
        self._turned = time.monotonic()
        for thread in self._threads:
            thread.start()

    def post(self, event: Input) -> None:
        """Pass an input to the state machine. For any thread."""
        if isinstance(event, StopRequested):
            self._is_stopped = True
        self._posted.append(event)
        self._server.wake()

    def stop(self) -> None:
        """Stop the run, without waiting for a call that has not returned for long. For any thread."""
        self.post(StopRequested(Ending.STOPPED))
        if self.stands_still:
            self.release(at_once=True)

    def expect_no_more(self) -> None:
        """Wait for no more workers, since none will connect."""
        self._workers = 0
        self._server.wake()

    def release(self, *, at_once: bool = False) -> None:
        """End without waiting for workers that have not left, and ``at_once``, not for a call that does not return."""
        self._released = True
        self._is_hurried = self._is_hurried or at_once
        self._server.wake()

    @property
    def stands_still(self) -> bool:
        """Whether the driver's thread has been in one call for long, such as a write that does not return."""
        return not self.done.is_set() and time.monotonic() - self._turned > STANDSTILL

    @property
    def is_abandoned(self) -> bool:
        """Whether the driver's thread stands still, and the user wants to leave at once."""
        return self._is_hurried and self.stands_still

    def standstill(self) -> str:
        """Return in words in which call the driver's thread is, and for how long."""
        seconds = time.monotonic() - self._turned
        frame = sys._current_frames().get(self._threads[0].ident or 0)
        if frame is None or self._write_ahead.is_writing:
            return f"a write to {self._directory} has not returned for {seconds:.0f} s"
        while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == os.path.dirname(os.__file__):
            frame = frame.f_back  # Python's own threading or socket says little
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
        return f"the search has stood still for {seconds:.0f} s at {place}"

    def join(self) -> None:
        """Wait for the end of the threads. Call it after :attr:`done` is set or :meth:`release`.

        A running proposal is cut off. If that is impossible, this waits a second at most.
        """
        while self._threads[0].is_alive() and not self.is_abandoned:
            self._threads[0].join(TICK)
        self.was_left = self._threads[0].is_alive()
        self._proposer.interrupt()
        self._threads[1].join(self._proposer.patience)

    def when_ended(self, close: Callable[[], None]) -> None:
        """Call ``close`` now, or for a driver that was left, in the background once its thread has ended."""

        def wait_and_close() -> None:
            self._threads[0].join()
            close()

        if self.was_left:
            threading.Thread(target=wait_and_close, name="maggy-closing", daemon=True).start()
        else:
            close()

    def elapsed(self) -> float:
        """Return the seconds since the call that began the run."""
        return time.monotonic() - self._began

    # -- the driver's thread ------------------------------------------------------------------

    def _run(self) -> None:
        """Run the driver until the end of the search, and keep any error for the caller."""
        try:
            self._serve()
        except BaseException as error:
            self._failed(error)
        finally:
            self._asks.put(None)
            self.done.set()
        try:
            self.snapshot = self._draw()
        except BaseException as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Keep the first error of the driver, and dismiss the workers."""
        self.error = self.error or error
        with contextlib.suppress(Exception):  # perhaps the server has failed
            for worker in self._machine.workers.values():
                self._server.send(worker.id, Shutdown())

    def _serve(self) -> None:
        """Receive inputs and execute the resulting commands until the end of the search."""
        self._execute(self._machine.start(self._now()))
        tick = stalled = held = 0.0
        pace = Pace(SNAPSHOT_INTERVAL, SNAPSHOT_SHARE)
        heard = time.monotonic()
        while not (self._released or (self._all_left() and not self._write_ahead.is_stuck)):
            self._turned = time.monotonic()
            commands: list[Command] = []
            for received in self._server.poll(0.0 if self._posted else min(TICK, SNAPSHOT_INTERVAL)):
                commands += self._handle(self._take(received))
            before, heard = heard, time.monotonic()
            if heard - before > STALL:
                stalled += heard - before
            if self._write_ahead.is_stuck:
                held += heard - before
            until = time.monotonic() + ROUND_SECONDS
            while self._posted and time.monotonic() < until:
                event = self._posted.popleft()
                commands += self._handle(event)
            now = time.monotonic()
            if now - tick >= TICK:
                commands += self._handle(Tick(stalled, held))  # right after the poll, whose messages it needs
                tick, stalled, held = now, 0.0, 0.0
            if self._timeout is not None and self.elapsed() > self._timeout:
                self._timeout = None  # only once, since a training may follow
                commands += self._handle(StopRequested(Ending.TIMEOUT))
            self._execute(commands)
            if pace.is_due(began := time.monotonic()):
                self.snapshot = self._drawing.advance(self.elapsed(), self._now()) or self.snapshot
                pace.took(began, time.monotonic())
        if self._write_ahead.is_stuck:
            self._execute([])

    def _all_left(self) -> bool:
        """Return whether the search has ended and all workers know, including late ones."""
        return self._machine.is_over and len(self._machine.workers) >= self._workers

    def _now(self) -> float:
        """Return a Unix time that never decreases."""
        return self._wall + time.monotonic()

    def _handle(self, event: Input) -> list[Command]:
        return self._machine.handle(event, self._now())

    def _take(self, received: Received) -> Input:
        """Convert a worker's message to an input of the state machine."""
        worker = received.worker
        match received.message:
            case (Reported() | Checkpointed() | Waiting() | Opened() | Held() | Silent() | Finished()) as message:
                return TrialSaid(worker, message)
            case Beat():
                self._server.send(worker, Beat())
                return WorkerSeen(worker)
            case Logged(trial=trial, rank=rank) if not self._machine.runs(worker, trial, rank):
                return WorkerSeen(worker)
            case Logged(trial=trial, lines=lines, dropped=dropped, rank=rank, live=live):
                self.lines.extend(LogLine(trial, line, rank) for line in lines)
                if dropped:
                    self.lines.append(LogLine(trial, f"... {dropped} more lines are in the trial's log file", rank))
                if live or not (lines or dropped):
                    self.lines.append(LogLine(trial, live, rank, live=True))
                return WorkerSeen(worker)
            case Noted() as note:
                self._note(worker, note)
                return WorkerSeen(worker)
            case Imported(modules=modules):
                self.imported.update(dict.fromkeys(modules))
                return WorkerSeen(worker)
            case Hello(host=host, accelerators=accelerators, store_unseen=unseen):
                self.met.add(worker)
                return WorkerJoined(worker, host, tuple(accelerators), unseen)
            case Ready():
                self.ready.add(worker)
                return WorkerReady(worker)
            case Broken(message=reason):
                return WorkerBroken(worker, reason)
            case Goodbye():
                self.leaving.add(worker)
                return WorkerGone(worker)
            case Unfit(host=host, why=why):
                return self._turn_away(worker, f"worker {worker.index} on {host} cannot serve this search: {why}")

    def _note(self, worker: WorkerId, note: Noted) -> None:
        """Show the first note about a subject, since many workers send the same one."""
        trial = note.trial
        # of the function, which is that of all trials
        is_mistake = note.subject in ("late", "restart", "threads", "files", "waiting", "shared")
        if note.subject in ("files", "waiting", "shared"):  # which are looked at once an attempt has ended
            is_its_own = trial is None or trial < len(self.study.trials)
        else:
            is_its_own = trial is None or any(self._machine.runs(worker, trial, rank) for rank in (None, 0))
        about = (note.subject, None if is_mistake else trial)
        if is_its_own and about not in self._noted:
            self._noted.add(about)
            whose = f"worker {worker.index}" if trial is None else f"trial {trial}"
            text = f"{whose}: {note.message}" if trial is None else note.message
            self.lines.append(LogLine(trial, text, is_warning=is_mistake))
            if note.subject in ("logs", "states", "files", "waiting"):
                _log.warning("%s: %s", whose, note.message)

    def _turn_away(self, worker: WorkerId, why: str) -> Input:
        """Reject a worker of another version. A search that has ready workers continues, any other one fails."""
        if not self.ready:
            return StopRequested(Ending.ERROR, WorkerError(why))
        self.lines.append(LogLine(None, f"{why}; the search continues without it"))
        return WorkerSeen(worker)

    def _execute(self, commands: list[Command]) -> None:
        """Execute the commands of a round. All events are appended before the first message is sent."""
        ending = self._machine.ending
        is_last = self._released or self._is_stopped or (ending is not None and not ending.is_planned)
        ready = self._write_ahead.carry(commands, is_last=is_last)
        if not self._write_ahead.is_stuck:  # else the messages wait in the workers, and not in this process
            self._server.acknowledge()
            self._has_ended = ending is not None
        for command in ready:
            match command:
                case Append(event=event, value=value):
                    self._last += 1
                    if self.backlog.is_read:
                        self.backlog.put([entry_of(self._last, event, value, self.study, self._now())])
                case Send(worker=worker, message=message):
                    self._server.send(worker, message)
                case AskOptimizer():
                    self._asks.put(command)
                case Show():
                    self._show(command)
                case Replace(worker=worker):
                    self.replacements.put(worker)

    def _show(self, command: Show) -> None:
        self.lines.extend(
            LogLine(command.trial, line, is_warning=command.is_warning) for line in command.text.splitlines()
        )

    def _draw(self) -> Snapshot:
        drawn = self._drawing.at_once(self.elapsed(), self._now())
        return drawn if self.error is None else replace(drawn, phase=Ending.ERROR)

    @property
    def ending(self) -> Ending:
        """How the search ended. ``stopped`` if it has not ended."""
        failed = self._machine.error or self.error
        return Ending.ERROR if failed is not None else self._machine.ending or Ending.STOPPED

    # -- the optimizer's thread ---------------------------------------------------------------

    def _propose(self) -> None:
        """Get proposals. If the proposer itself fails, the search ends."""
        try:
            self._proposer.start(lambda line: self.lines.append(LogLine(None, line)))
            while (ask := self._asks.get()) is not None:
                for answer in answers(self._proposer, self._machine.study, ask, lambda: self.has_ended):
                    self.post(answer)
            self._proposer.close()
        except BaseException as error:
            self.post(StopRequested(Ending.ERROR, as_exception(error)))


def answers(
    proposer: Proposer, study: Study, question: AskOptimizer, is_over: Callable[[], bool]
) -> Iterator[SuggestionReady]:
    """Yield each answer of the optimizer. The next question has it as pending."""
    updates: Sequence[Update] = question.updates
    for number in range(question.most):
        answer = _ask(proposer, study, question.index + number, updates)
        proposal = answer.answer
        if number == question.most - 1 or not isinstance(proposal, Proposal) or is_over():
            yield answer
            return
        yield msgspec.structs.replace(answer, more=True)
        updates = [Pending(question.trial + number, proposal.config)]


def _ask(proposer: Proposer, study: Study, index: int, updates: Sequence[Update]) -> SuggestionReady:
    try:
        return SuggestionReady(index, study.checked(proposer.ask(index, updates)))
    except BaseException as error:
        return SuggestionReady(index, None, as_exception(error))


def as_exception(error: BaseException) -> Exception:
    """Return an exception for the caller: ``sys.exit()`` in an optimizer is an error, too."""
    return error if isinstance(error, Exception) else OptimizerError(f"the optimizer raised {error!r}")
