"""One search from its first process to its last: what ``lagom`` does once all is checked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from maggy_like.display.base import Display, LogLine
from maggy_like.driver import Driver
from maggy_like.experiment.inputs import StopRequested
from maggy_like.gang import Gang
from optimizers.events import Event

Callback = Callable[[Event], None]

POLL = 0.05
LEAVE_PATIENCE = 3.0
"""Seconds that workers get to leave by themselves once the search is over."""


@dataclass
class Watch:
    """The caller's side of a running search: display, callbacks, time limit, interrupt."""

    driver: Driver
    display: Display
    callbacks: Sequence[Callback]
    timeout: float | None

    def until_done(self, gang: Gang) -> None:
        """Watch until the search is over; the first Ctrl-C stops it, the second does not wait."""
        try:
            self._watch(gang, until=lambda: self.driver.has_ended)
        except KeyboardInterrupt:
            self.driver.post(StopRequested("interrupted"))
        with contextlib.suppress(KeyboardInterrupt):
            deadline = time.monotonic() + LEAVE_PATIENCE
            self._watch(gang, until=lambda: self.driver.done.is_set() or time.monotonic() > deadline)
        self.driver.release()

    def _watch(self, gang: Gang, until: Callable[[], bool]) -> None:
        while not until():
            self.driver.done.wait(POLL)
            gang.attend(self.driver)
            self.call_back()
            self.display.update(self.driver.snapshot, self.take_lines())
            if self.timeout is not None and self.driver.elapsed() > self.timeout and not self.driver.has_ended:
                self.driver.post(StopRequested("timeout"))

    def take_lines(self) -> list[LogLine]:
        """The log lines since the last call."""
        lines = []
        with contextlib.suppress(IndexError):
            while True:
                lines.append(self.driver.lines.popleft())
        return lines

    def call_back(self) -> None:
        """Hand new events to the callbacks; one that raises is told of and left out from then on."""
        while not self.driver.events.empty():
            event = self.driver.events.get()
            for callback in list(self.callbacks):
                try:
                    callback(event)
                except Exception as error:
                    self.callbacks = [other for other in self.callbacks if other is not callback]
                    self.driver.lines.append(LogLine(None, f"callback {callback!r} raised {error!r}; left out"))


@contextlib.contextmanager
def shown(driver: Driver, display: Display, watch: Watch) -> Iterator[None]:
    """Show the search while it runs, and its last state however it ends."""
    display.start(driver.snapshot)
    try:
        yield
    finally:
        watch.call_back()
        display.finish(driver.snapshot, watch.take_lines())
