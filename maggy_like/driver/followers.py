"""The displays and functions that follow a run, each with a thread of its own.

A follower reads the run at its own pace. One that is slow, hangs or fails falls behind alone: the supervision of the
workers, Ctrl-C and the other followers never wait for it. With ``engine="inline"`` there are no such threads, since
the training function runs in the caller's thread, perhaps under a debugger. The followers run between two trials then.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from maggy_like.display import Display, PlainDisplay, SilentDisplay
from maggy_like.display.base import LogLine, Snapshot
from maggy_like.display.lines import LineBuffer
from maggy_like.trackers.backlog import MOST, Backlog
from maggy_like.train_function.code import name_of
from optimizers.core.events import Event

DISPLAY_PERIOD = 0.1
"""Seconds between two updates of a display."""

DISPLAY_PATIENCE = 5.0
"""Seconds that a display gets to show the end of a run."""

FUNCTION_PATIENCE = 30.0
"""Seconds that a callback gets after the end of a run for the events that it has not received."""

INTERRUPTED_PATIENCE = 3.0
"""Seconds that it gets after a Ctrl-C."""

_POLL = 0.1
"""Seconds between two checks whether the user still waits for a follower."""

_log = logging.getLogger(__name__)


class Source(Protocol):
    """What a display reads."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest state of the run."""

    @property
    def lines(self) -> LineBuffer:
        """The newest log lines of the run."""


def start_thread(follow: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread in the caller's context. What it prints in a notebook is shown in the caller's cell."""
    within = contextvars.copy_context().run
    thread = threading.Thread(target=within, args=[follow], name=name, daemon=True)
    thread.start()
    return thread


def join(thread: threading.Thread | None, patience: float, is_hurried: Callable[[], bool]) -> bool:
    """Wait for the end of a thread, and return whether it has ended."""
    deadline = time.monotonic() + patience
    while thread is not None and thread.is_alive():
        thread.join(_POLL)
        if thread.is_alive() and (is_hurried() or time.monotonic() > deadline):
            return False
    return True


class DisplayFollower:
    """Shows a run on a display. If the display fails, plain lines take its place.

    Args:
        display: Shows it.
        source: The run.
        in_thread: Whether the display has a thread of its own. If False, :meth:`look` updates it.
    """

    def __init__(self, display: Display, source: Source, *, in_thread: bool) -> None:
        self._display = display
        self._source = source
        self._next = 0
        self._has_failed = False
        self._is_closed = threading.Event()
        self._show(lambda: self._display.start(self._source.snapshot))
        self._thread = start_thread(self._follow, "maggy-display") if in_thread else None

    def look(self) -> None:
        """Update the display if it has no thread of its own."""
        if self._thread is None:
            self._update()

    def finish(self, is_hurried: Callable[[], bool]) -> None:
        """Show the end of the run."""
        self._is_closed.set()
        if self._thread is None:
            self._end()
        elif not join(self._thread, DISPLAY_PATIENCE, is_hurried):
            _log.warning("%s has not shown the end of the run: its output blocks", type(self._display).__name__)

    def _follow(self) -> None:
        while not self._is_closed.wait(DISPLAY_PERIOD):
            self._update()
        self._end()

    def _update(self) -> None:
        lines = self._take()
        self._show(lambda: self._display.update(self._source.snapshot, lines))

    def _end(self) -> None:
        lines = self._take()
        self._show(lambda: self._display.finish(self._source.snapshot, lines))

    def _take(self) -> list[LogLine]:
        lines, missed, self._next = self._source.lines.read(self._next)
        note = LogLine(None, f"{missed} lines came too fast to be shown; the trials' log files have them")
        return [note] * bool(missed) + lines

    def _show(self, draw: Callable[[], None]) -> None:
        try:
            draw()
        except Exception as error:
            _log.warning("the display failed: %s: %s", type(error).__name__, error, exc_info=True)
            self._replace()

    def _replace(self) -> None:
        """Continue with plain lines. If those fail too, because stdout is closed for example, show nothing more."""
        self._display = SilentDisplay() if self._has_failed else PlainDisplay()
        if not self._has_failed:
            self._has_failed = True
            self._show(lambda: self._display.start(self._source.snapshot))


class FunctionFollower:
    """Calls a function with each event.

    Args:
        function: Takes one event.
        say: Shows a line to the user.
        stop: Ends the run because the function raised a KeyboardInterrupt or a SystemExit.
        in_thread: Whether the function has a thread of its own. If False, :meth:`look` calls it.
        most: Events and measured values that may wait.
    """

    def __init__(
        self,
        function: Callable[[Event], None],
        say: Callable[[str], None],
        stop: Callable[[BaseException], None],
        *,
        in_thread: bool,
        most: int = MOST,
    ) -> None:
        self._function = function
        self._say = say
        self._stop = stop
        self._backlog = Backlog(most, merges=False)
        self._left = 0  # events that were taken from the backlog, and that the function has not received
        self._is_out = False
        self._thread = start_thread(self._follow, "maggy-callback") if in_thread else None

    def put(self, event: Event) -> None:
        """Call the function with an event, some time later. Never waits."""
        if not self._is_out:
            self._backlog.put(event)

    def look(self) -> None:
        """Call the function if it has no thread of its own."""
        if self._thread is None and len(self._backlog):
            self._call_all()

    def finish(self, directory: str, deadline: float, is_hurried: Callable[[], bool]) -> None:
        """Let the function have the remaining events, and report what it missed.

        Args:
            directory: The run's folder.
            deadline: Until when to wait, by ``time.monotonic()``.
            is_hurried: Whether the user does not want to wait.
        """
        self.look()
        self._backlog.close()
        join(self._thread, deadline - time.monotonic(), is_hurried)
        if not self._is_out and (missed := self._backlog.dropped + self._left + len(self._backlog)):
            again = f"load_run({directory!r}).watch(callbacks=[...]) passes all events again"
            self._report(f"callback {described(self._function)} is slow and has missed {missed} events; {again}")

    def _follow(self) -> None:
        while len(self._backlog) or not self._backlog.is_closed:
            self._call_all()

    def _call_all(self) -> None:
        waiting = self._backlog.take(0.0)
        self._left = len(waiting)
        for item in waiting:
            if not self._is_out:
                self._call(item.event)
            self._left -= 1

    def _call(self, event: Event) -> None:
        try:
            self._function(event)
        except (KeyboardInterrupt, SystemExit) as error:
            self._stop(error)
        except Exception as error:
            self._is_out = True
            failed = f"callback {described(self._function)} raised {type(error).__name__}: {error}"
            self._report(f"{failed}; it gets no more events, and the search continues", error)

    def _report(self, text: str, error: Exception | None = None) -> None:
        """Show a line, and log it with the traceback: the display may be silent."""
        _log.warning("%s", text, exc_info=error)
        self._say(text)


def described(function: Callable[[Event], None]) -> str:
    """Return the name of a function with its file and line."""
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    where = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code is not None else ""
    return f"{name_of(function)}{where}"
