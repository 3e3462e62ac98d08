"""One search from its first process to its last: what ``lagom`` does once all is checked."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence

from maggy_like.display import Display, SilentDisplay
from maggy_like.display.base import LogLine
from maggy_like.driver.first_workers import FirstWorkers
from maggy_like.driver.growing_supervisor import GrowingSupervisor
from maggy_like.driver.interrupts import interrupts_to, raise_interrupt
from maggy_like.driver.loop import Driver
from maggy_like.driver.state_machine.inputs import StopRequested
from maggy_like.driver.supervisor import Supervisor
from maggy_like.engines.base import Engine
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.identity import WorkerId
from maggy_like.protocol.task import LOG_PATIENCE, KeyPair, WorkerTask
from optimizers.core.events import Event

Callback = Callable[[Event], None]

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
    callbacks: Sequence[Callback],
    interrupts: contextlib.ExitStack,
) -> None:
    """Launch the gang, watch until the search is over, and leave nothing behind.

    Args:
        driver: Not yet started.
        engine: Provides the slots.
        task: What the run is.
        admit: Lets an incarnation of a worker in; gives its key pair.
        size: How many workers.
        least: How many will do (see :class:`Supervisor`).
        logs: Folder for the agents' own output.
        display: Shows the search.
        callbacks: Get each recorded event.
        interrupts: Ctrl-C or SIGTERM ends the search, and cuts nothing short, until this is left: the caller has
            things to close, and a result to return.
    """
    patience = LEAVE_PATIENCE + (LOG_PATIENCE if task.copies_logs else 0.0)
    watch = Monitor(driver, display, callbacks, patience)
    if engine.isolation != "none":
        interrupts.enter_context(interrupts_to(watch.interrupted))
    else:  # Ctrl-C belongs to the function that runs in this thread
        interrupts.enter_context(interrupts_to(raise_interrupt, [signal.SIGTERM]))
    kind = GrowingSupervisor if engine.is_elastic else Supervisor
    gang = kind(engine, task, admit, size, least, logs)
    driver.start()
    watch.begin()
    try:
        watch.until_done(gang, FirstWorkers(engine, size))
    finally:
        driver.release()
        gang.leave(set() if watch.hurried else driver.leaving, timeout=0.0 if watch.hurried else 2.0)
        driver.join()
        watch.finish()


class Monitor:
    """The caller's side of a running search: display, callbacks, Ctrl-C.

    Attributes:
        hurried: Whether the user asked a second time to stop.
    """

    def __init__(
        self, driver: Driver, display: Display, callbacks: Sequence[Callback], patience: float = LEAVE_PATIENCE
    ) -> None:
        self.hurried = False
        self._patience = patience
        self._driver = driver
        self._display = display
        self._callbacks = list(callbacks)

    def interrupted(self, count: int) -> None:
        """Ctrl-C or SIGTERM: the first stops the search, the second does not wait for the workers."""
        if count == 1:
            self._driver.post(StopRequested(Ending.INTERRUPTED))
        else:
            self.hurried = True
            self._driver.release()

    def begin(self) -> None:
        """Show that it begins."""
        self._show(lambda: self._display.start(self._driver.snapshot))

    def until_done(self, gang: Supervisor, first: FirstWorkers) -> None:
        """Monitor until the search is over and the workers have left, or were given time to.

        Args:
            gang: Attended meanwhile.
            first: Tells the reader why no worker comes, if it takes long.
        """
        try:
            while not self._driver.has_ended:
                self._look(gang)
                first.look(self._driver)
        except KeyboardInterrupt:  # of a function that runs in this thread
            self.interrupted(1)
        deadline = time.monotonic() + self._patience
        while not (self._driver.done.is_set() or self.hurried or time.monotonic() > deadline):
            self._look(gang)

    def finish(self) -> None:
        """Hand out the last events and show the last state."""
        self._call_back()
        self._show(lambda: self._display.finish(self._driver.snapshot, self._take_lines()))

    def _look(self, gang: Supervisor) -> None:
        self._driver.done.wait(POLL)
        gang.attend(self._driver)
        self._call_back()
        self._show(lambda: self._display.update(self._driver.snapshot, self._take_lines()))

    def _show(self, draw: Callable[[], None]) -> None:
        """Draw; a display that fails (a closed stdout) must not end the search."""
        try:
            draw()
        except Exception:
            self._display = SilentDisplay()

    def _take_lines(self) -> list[LogLine]:
        """The log lines since the last call."""
        left_out = self._driver.lines.left_out
        note = [LogLine(None, f"{left_out} lines came too fast to be shown; the trials' log files have them")]
        return note * bool(left_out) + self._driver.lines.take()

    def _call_back(self) -> None:
        """Hand new events to the callbacks; one that raises is told of and left out from then on."""
        while not self._driver.events.empty():
            event = self._driver.events.get()
            for callback in list(self._callbacks):
                try:
                    callback(event)
                except Exception as error:
                    self._callbacks.remove(callback)
                    self._driver.lines.append(LogLine(None, f"callback {callback!r} raised {error!r}; left out"))
