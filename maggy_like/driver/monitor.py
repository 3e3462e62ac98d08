"""The caller's side of a run: it supervises the workers and takes Ctrl-C. Whatever a user wrote runs elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from maggy_like.display import Display
from maggy_like.driver.callbacks import Callbacks
from maggy_like.driver.followers import DisplayFollower
from maggy_like.driver.interrupts import interrupts_to, waits_end
from maggy_like.driver.loop import Driver
from maggy_like.driver.state_machine.inputs import StopRequested
from maggy_like.driver.supervisor import FirstWorkers, GrowingSupervisor, Supervisor
from maggy_like.engines.base import Engine
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.task import LOG_PATIENCE, KeyPair, WorkerId, WorkerTask

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
    displays: Sequence[Display],
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
        displays: Show the search.
        callbacks: Get each recorded event; begun by the caller.
        interrupts: Until this is left, Ctrl-C and SIGTERM end the search instead of raising: the caller has
            files to close, and a result to return.
    """
    patience = LEAVE_PATIENCE + (LOG_PATIENCE if task.copies_logs else 0.0)
    monitor = Monitor(driver, callbacks, patience)
    interrupts.enter_context(interrupts_to(lambda _: monitor.signalled()))
    if engine.isolation == "none":  # the function runs in this thread, and may wait without an end
        interrupts.enter_context(waits_end())
    kind = GrowingSupervisor if engine.is_elastic else Supervisor
    supervisor = kind(engine, task, admit, size, least, logs)
    driver.start()
    monitor.show_on(displays, in_threads=engine.isolation != "none")
    try:
        monitor.until_done(supervisor, FirstWorkers(engine, size))
    finally:
        driver.release()
        supervisor.leave(set() if monitor.hurried else driver.leaving, timeout=0.0 if monitor.hurried else 2.0)
        driver.join()
        monitor.finish()


class Monitor:
    """Supervises a running search and handles Ctrl-C.

    Attributes:
        hurried: Whether the user has pressed Ctrl-C a second time.
    """

    def __init__(self, driver: Driver, callbacks: Callbacks, patience: float = LEAVE_PATIENCE) -> None:
        self.hurried = self._was_interrupted = self._is_closing = False
        self._patience = patience
        self._driver = driver
        self._displays: list[DisplayFollower] = []
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
            self._driver.post(StopRequested(Ending.INTERRUPTED))
        else:
            self.hurried = True
            self._driver.release()

    def show_on(self, displays: Sequence[Display], *, in_threads: bool) -> None:
        """Begin to show the search."""
        self._displays = [DisplayFollower(display, self._driver, in_thread=in_threads) for display in displays]

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
        """Let the callbacks have the last events, and show the last state."""
        self._is_closing = True
        self._callbacks.finish(self._driver.ending, lambda: self.hurried)
        for display in self._displays:
            display.finish(lambda: self.hurried)

    def _look(self, supervisor: Supervisor) -> None:
        supervisor.await_work(self._driver, POLL)
        self._callbacks.look()  # before the next trial, where that runs in this thread: it may be one too many
        for display in self._displays:
            display.look()
        if self._driver.is_stopping:
            supervisor.end_trials()
        try:
            supervisor.attend(self._driver)
        except KeyboardInterrupt:  # of a function that runs in this thread
            self.interrupted()
