"""The caller's side of a run while it goes on: display, callbacks, Ctrl-C, and the workers' supervision."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from maggy_like.display import Display
from maggy_like.display.base import LogLine
from maggy_like.display.steady import SteadyDisplay
from maggy_like.driver.callbacks import Callbacks
from maggy_like.driver.first_workers import FirstWorkers
from maggy_like.driver.growing_supervisor import GrowingSupervisor
from maggy_like.driver.interrupts import interrupts_to, waits_end
from maggy_like.driver.loop import Driver
from maggy_like.driver.state_machine.inputs import StopRequested
from maggy_like.driver.supervisor import Supervisor
from maggy_like.engines.base import Engine
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.identity import WorkerId
from maggy_like.protocol.task import LOG_PATIENCE, KeyPair, WorkerTask

POLL = 0.05
LEAVE_PATIENCE = 3.0
"""Seconds that workers get to leave by themselves once the search is over."""


def run_search(
    driver: Driver,
    engine: Engine,
    task: WorkerTask,
    admit: Callable[[WorkerId], KeyPair],
    size: int,
    *,
    least: int,
    logs: str,
    display: Display,
    callbacks: Callbacks,
    interrupts: contextlib.ExitStack,
) -> None:
    """Launch the gang, follow the search to its end, and leave no process behind.

    Args:
        driver: Not yet started.
        engine: Provides the slots.
        task: What all workers of the run are given.
        admit: Lets an incarnation of a worker in; gives its key pair.
        size: How many workers.
        least: How many are enough (see :class:`Supervisor`).
        logs: Folder for the agents' own output.
        display: Shows the search.
        callbacks: Get each recorded event; begun, and finished by the caller.
        interrupts: Until this is left, Ctrl-C and SIGTERM end the search instead of raising: the caller has
            files to close, and a result to return.

    Raises:
        BaseException: A callback raised it to leave the program, as ``sys.exit`` does; the run has ended.
    """
    patience = LEAVE_PATIENCE + (LOG_PATIENCE if task.copies_logs else 0.0)
    monitor = Monitor(driver, display, callbacks, patience)
    interrupts.enter_context(interrupts_to(lambda _: monitor.signalled()))
    if engine.isolation == "none":  # the function runs in this thread, and may wait without an end
        interrupts.enter_context(waits_end())
    kind = GrowingSupervisor if engine.is_elastic else Supervisor
    supervisor = kind(engine, task, admit, size, least, logs)
    driver.start()
    monitor.begin()
    try:
        monitor.until_done(supervisor, FirstWorkers(engine, size))
    finally:
        driver.release()
        supervisor.leave(set() if monitor.hurried else driver.leaving, timeout=0.0 if monitor.hurried else 2.0)
        driver.join()
        monitor.finish()
    if monitor.left_by is not None:
        raise monitor.left_by


class Monitor:
    """Shows a running search, calls the callbacks, and handles Ctrl-C.

    Attributes:
        hurried: Whether the user has pressed Ctrl-C a second time.
        left_by: What a callback raised to leave the program, once the run has ended.
    """

    def __init__(
        self, driver: Driver, display: Display, callbacks: Callbacks, patience: float = LEAVE_PATIENCE
    ) -> None:
        self.hurried = self._was_interrupted = self._is_closing = False
        self.left_by: BaseException | None = None
        self._patience = patience
        self._driver = driver
        self._display = SteadyDisplay(display)
        self._callbacks = callbacks
        self._supervisor: Supervisor | None = None

    def signalled(self) -> None:
        """Ctrl-C or SIGTERM: it belongs to a function that runs in this thread, and else to the search.

        Raises:
            KeyboardInterrupt: In the function.
        """
        if self._supervisor is not None and self._supervisor.is_in_function:
            raise KeyboardInterrupt
        self.interrupted()

    def interrupted(self) -> None:
        """The first interruption stops the search, the second waits neither for workers nor for trackers."""
        if not (self._was_interrupted or self._is_closing):
            self._was_interrupted = True
            self._stop()
        else:
            self.hurried = True
            self._driver.release()

    def _stop(self) -> None:
        self._driver.post(StopRequested(Ending.INTERRUPTED))

    def begin(self) -> None:
        """Show that the search begins."""
        self._display.start(self._driver.snapshot)

    def until_done(self, supervisor: Supervisor, first: FirstWorkers) -> None:
        """Follow the search until it is over and the workers have left, or had time to.

        Args:
            supervisor: Keeps the workers running.
            first: Says why no worker comes, if it takes long.
        """
        self._supervisor = supervisor
        while not self._driver.has_ended:
            self._look(supervisor)
            first.look(self._driver)
        deadline = time.monotonic() + self._patience
        while not (self._driver.done.is_set() or self.hurried or time.monotonic() > deadline):
            self._look(supervisor)

    def finish(self) -> None:
        """Hand out the last events and show the last state."""
        self._call_back()
        self._is_closing = True
        self._callbacks.finish(self._driver.ending, lambda: self.hurried)
        self._display.finish(self._driver.snapshot, self._take_lines())

    def _look(self, supervisor: Supervisor) -> None:
        supervisor.await_work(self._driver, POLL)
        self._call_back()  # before the next trial, where that runs in this thread: it may be one too many
        self._display.update(self._driver.snapshot, self._take_lines())
        if self._driver.is_stopping:
            supervisor.end_trials()
        try:
            supervisor.attend(self._driver)
        except KeyboardInterrupt:  # of a function that runs in this thread
            self.interrupted()

    def _take_lines(self) -> list[LogLine]:
        """The log lines since the last call."""
        left_out = self._driver.lines.left_out
        note = [LogLine(None, f"{left_out} lines came too fast to be shown; the trials' log files have them")]
        return note * bool(left_out) + self._driver.lines.take()

    def _call_back(self) -> None:
        """Hand each new event to the callbacks."""
        while not self._driver.events.empty():
            try:
                self._callbacks.call(self._driver.events.get())
            except KeyboardInterrupt:  # which a callback raised
                self._stop()
            except BaseException as error:  # of sys.exit(), say
                self.left_by = self.left_by or error
                self._driver.post(StopRequested(Ending.ERROR))
        self._callbacks.look()
