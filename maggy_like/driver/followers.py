"""The displays and callbacks that follow a run, each with its own thread.

A follower reads the run at its own pace. If it is slow, hangs or fails, only it falls behind: the supervision of the
workers, Ctrl-C and the other followers never wait for it. With ``engine="inline"``, displays and callbacks have no
threads, since the training function runs in the caller's thread, perhaps under a debugger. They run between two trials
then. A tracker is a callback that follows the run itself (:class:`Recorder`).
"""

from __future__ import annotations

import contextvars
import difflib
import importlib
import inspect
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from maggy_like.argument_checks import listed
from maggy_like.display import Display, make_display
from maggy_like.display.base import LineBuffer, LogLine, Snapshot, missed_note
from maggy_like.driver.settings import FileSettings
from maggy_like.driver.stream import Backlog, Cursor, copied
from maggy_like.errors import ConfigError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.values import text_of
from maggy_like.train_function.code import name_of
from optimizers.checks import short
from optimizers.core.events import Event
from optimizers.core.study import Study

_log = logging.getLogger(__name__)

DISPLAY_PERIOD = 0.1
"""Seconds between two updates of a display."""

DISPLAY_PATIENCE = 5.0
"""Seconds that a display gets to show the end of a run."""

FUNCTION_PATIENCE = 30.0
"""Seconds that a callback gets after the end of a run for the events that it has not received."""

INTERRUPTED_PATIENCE = 3.0
"""Seconds that a callback gets after Ctrl-C."""

_POLL = 0.02
"""Seconds between two checks whether the user still waits for a follower."""


class Source(Protocol):
    """A run as its followers read it: from the memory of its driver, or from its files."""

    backlog: Backlog
    lines: LineBuffer
    snapshot: Snapshot

    @property
    def study(self) -> Study:
        """The study as it is now."""


class Say(Protocol):
    """Logs a line, with the traceback of an error, and shows it on the displays, which may be silent."""

    def __call__(self, text: str, error: BaseException | None = None) -> None: ...


@dataclass(frozen=True)
class FollowedRun:
    """A run for a callback that follows it itself."""

    source: Source
    cursor: Cursor  # the events from now on
    files: FileSettings
    optimizer: str  # the optimizer with its options
    say: Say


class RecorderThread(Protocol):
    """Follows a run for a :class:`Recorder`, in a thread of its own."""

    def look(self) -> None:
        """Report a problem, if there is one."""

    def run_ended(self, ending: Ending) -> None:
        """Take in how the run ended. After that the cursor ends."""

    def finish(self, began: float, is_hurried: Callable[[], bool]) -> None:
        """Wait until all was recorded, up to a patience since ``began``, and report what was not."""


class Recorder(Protocol):
    """A callback that follows the run itself, such as a tracker."""

    def prepare(self, directory: str) -> None:
        """Check that it can record the run in a directory."""

    def follow(self, run: FollowedRun) -> RecorderThread:
        """Start to follow a run, whose study does not change meanwhile."""


def _is_recorder(callback: object) -> TypeGuard[Recorder]:
    """Whether a callback follows the run itself; a mock or a proxy, which has any attribute, does not."""
    return hasattr(type(callback), "prepare") and hasattr(type(callback), "follow")


def _is_function(callback: Listener) -> TypeGuard[Callable[[Event], None]]:
    return not _is_recorder(callback)


Listener = Callable[[Event], None] | Recorder

Callback = Listener | str
"""What a user passes: a listener, or the name of a tracker."""

TRACKERS = {"mlflow": "MLflow", "tensorboard": "TensorBoard"}
"""Trackers by name."""


def read_callbacks(callbacks: Sequence[Callback], directory: str) -> tuple[Listener, ...]:
    """Check callbacks, and make trackers from names."""
    read: list[Listener] = []
    for callback in listed("callbacks", callbacks, "functions of one event"):
        if isinstance(callback, str):
            callback = _named(callback)
        if _is_recorder(callback):
            callback.prepare(directory)
        else:
            _check_function(callback)
        read.append(callback)
    return tuple(read)


def _named(name: str) -> Recorder:
    if name in TRACKERS:
        made: Recorder = getattr(importlib.import_module(f"maggy_like.trackers.{name}"), TRACKERS[name])()
        return made
    near = difflib.get_close_matches(name.lower(), TRACKERS, 1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    raise ConfigError(f"callbacks has no tracker named {name!r}; use {' or '.join(map(repr, TRACKERS))}{meant}")


_OF_LIBRARIES = "maggy_like.callbacks."


def _home(callback: Any) -> str:
    return str((callback if isinstance(callback, type) else type(callback)).__module__)


def _check_function(callback: Any) -> None:
    if isinstance(callback, type) and hasattr(callback, "follow"):
        raise ConfigError(f"callbacks must be objects, got the class {callback.__name__}; use {callback.__name__}()")
    if _home(callback).startswith(_OF_LIBRARIES):
        name = name_of(callback)
        raise ConfigError(f"{name} is a callback of the training library; use {name}(reporter) in train_fn")
    if not callable(callback):
        raise ConfigError(f"callbacks must be functions of one event, got {short(callback)}; use def f(event): ...")
    if any(map(_runs_nothing, (callback, type(callback).__call__))):
        name = name_of(callback)
        raise ConfigError(
            f"callbacks must be plain functions, got {name}, whose call runs nothing; leave out async and yield"
        )
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        takes = inspect.signature(callback)
        raise ConfigError(
            f"a callback must take one event, got {name_of(callback)}{takes}; use def f(event): ..."
        ) from None
    except ValueError:  # a built-in function without a signature
        return


def _runs_nothing(function: Any) -> bool:
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(function) for is_kind in kinds)


def started(follow: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread in the caller's context, so that a notebook shows its output in the caller's cell."""
    within = contextvars.copy_context().run
    thread = threading.Thread(target=within, args=[follow], name=name, daemon=True)
    thread.start()
    return thread


def has_ended(thread: threading.Thread, deadline: float, is_hurried: Callable[[], bool]) -> bool:
    """Wait for the end of a thread, and return whether it has ended."""
    while thread.is_alive():
        thread.join(_POLL)
        if thread.is_alive() and (is_hurried() or time.monotonic() > deadline):
            return False
    return True


class DisplayFollower:
    """Shows a run on a display. Without a thread, :meth:`look` updates it."""

    def __init__(self, display: Display, source: Source, *, in_thread: bool) -> None:
        self._display = display
        self._source = source
        self._next = 0  # number of the next log line
        self._has_failed = False
        self._is_closed = threading.Event()
        self._thread = started(self._follow, "maggy-display") if in_thread else None
        if not in_thread:
            self._start()

    def look(self) -> None:
        """Update the display if it has no thread."""
        if self._thread is None:
            self._update()

    def finish(self, is_hurried: Callable[[], bool]) -> None:
        """Show the end of the run."""
        self._is_closed.set()
        if self._thread is None:
            self._update(is_last=True)
        elif not has_ended(self._thread, time.monotonic() + DISPLAY_PATIENCE, is_hurried):
            _log.warning("%s has not shown the end of the run: its output blocks", type(self._display).__name__)

    def _follow(self) -> None:
        self._start()
        while not self._is_closed.wait(DISPLAY_PERIOD):
            self._update()
        self._update(is_last=True)

    def _start(self) -> None:
        self._show(lambda: self._display.start(self._source.snapshot))

    def _update(self, *, is_last: bool = False) -> None:
        lines, missed, self._next = self._source.lines.read(self._next)
        show = self._display.finish if is_last else self._display.update
        self._show(lambda: show(self._source.snapshot, missed_note(missed) + lines))

    def _show(self, show: Callable[[], None]) -> None:
        """Show something. If that fails, continue with plain lines. If those fail too, show nothing more."""
        try:
            show()
        except OSError as error:  # nobody reads the output, as after `| head`, or its disk is full
            _log.warning("nothing more is shown, and the search continues: %s", error)
            self._display = make_display("silent")
        except Exception as error:
            _log.warning("the display failed: %s: %s", type(error).__name__, error, exc_info=True)
            self._display = make_display("silent" if self._has_failed else "plain")
            if not self._has_failed:
                self._has_failed = True
                self._start()


class FunctionFollower:
    """Calls a function with each event. Without a thread, :meth:`look` calls it.

    ``stop`` ends the run because the function raised a KeyboardInterrupt or a SystemExit.
    """

    def __init__(
        self,
        function: Callable[[Event], None],
        cursor: Cursor,
        say: Say,
        stop: Callable[[BaseException], None],
        *,
        in_thread: bool,
    ) -> None:
        self._function = function
        self._cursor = cursor
        self._say = say
        self._stop = stop
        self._is_out = False
        self._thread = started(self._follow, "maggy-callback") if in_thread else None

    def look(self) -> None:
        """Call the function if it has no thread."""
        while self._thread is None and self.is_behind:
            self._call_all()

    @property
    def is_behind(self) -> bool:
        """Whether the function has events to receive."""
        return not self._is_out and bool(self._cursor.left)

    def finish(self, directory: str, deadline: float, is_hurried: Callable[[], bool]) -> None:
        """Pass the remaining events to the function, and report what it missed. No more events come."""
        self.look()
        if self._thread is not None:
            has_ended(self._thread, deadline, is_hurried)
        if not self._is_out and (missed := self._cursor.lost + self._cursor.left):
            again = f"load_run({directory!r}).watch(callbacks=[...]) passes all events again"
            self._say(f"callback {described(self._function)} is slow and has missed {missed} events; {again}")

    def _follow(self) -> None:
        while not (self._is_out or self._cursor.is_over):
            self._call_all()

    def _call_all(self) -> None:
        for entry in self._cursor.take():
            if self._is_out:
                return
            self._call(copied(entry.event))
            self._cursor.in_hand -= 1

    def _call(self, event: Event) -> None:
        try:
            self._function(event)
        except (KeyboardInterrupt, SystemExit) as error:
            self._stop(error)
        except BaseException as error:  # those of pytest, and a cancellation by asyncio, are not an Exception
            self._is_out = True
            failed = f"callback {described(self._function)} raised {type(error).__name__}: {text_of(error)}"
            self._say(f"{failed}; it gets no more events, and the search continues", error)


def described(function: Callable[[Event], None]) -> str:
    """Return the name of a function with its file and line."""
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    where = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code is not None else ""
    return f"{name_of(function)}{where}"


class Followers:
    """The displays and callbacks of a run. None of them can change the run or slow it down.

    Callbacks start at once, while the study must not change. ``stop`` ends the run because a function
    raised a KeyboardInterrupt or a SystemExit. Without threads, :meth:`look` updates the displays and callbacks.
    """

    def __init__(
        self,
        source: Source,
        callbacks: Sequence[Listener],
        stop: Callable[[BaseException], None],
        files: FileSettings,
        optimizer: str,
        *,
        in_threads: bool,
    ) -> None:
        self._source = source
        self._directory = str(files.paths.directory)
        self._in_threads = in_threads
        self._displays: list[DisplayFollower] = []
        self._keeps_lines = False
        self._functions = [
            FunctionFollower(each, Cursor(source.backlog), self._say, stop, in_thread=in_threads)
            for each in callbacks
            if _is_function(each)
        ]
        self._recorders = [
            each.follow(FollowedRun(source, Cursor(source.backlog), files, optimizer, self._say))
            for each in callbacks
            if _is_recorder(each)
        ]

    def show_on(self, displays: Sequence[Display]) -> None:
        """Start the displays."""
        self._keeps_lines = any(each.keeps_lines for each in displays)
        self._displays = [DisplayFollower(each, self._source, in_thread=self._in_threads) for each in displays]

    def look(self) -> None:
        """Update the followers without a thread, and report problems of the others."""
        followers: list[FunctionFollower | RecorderThread | DisplayFollower]
        followers = [*self._functions, *self._recorders, *self._displays]
        for follower in followers:
            follower.look()

    @property
    def are_behind(self) -> bool:
        """Whether a function has events to receive."""
        return any(function.is_behind for function in self._functions)

    def finish(self, ending: Ending, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Pass the remaining events and the end of the run on, and wait for each follower up to its patience."""
        for recorder in self._recorders:
            recorder.run_ended(ending)
        self._source.backlog.close()
        began = time.monotonic()
        patience = INTERRUPTED_PATIENCE if ending is Ending.INTERRUPTED else FUNCTION_PATIENCE
        for function in self._functions:
            function.finish(self._directory, began + patience, is_hurried)
        for recorder in self._recorders:
            recorder.finish(began, is_hurried)
        for display in self._displays:
            display.finish(is_hurried)

    def _say(self, text: str, error: BaseException | None = None) -> None:
        """Show a problem as a line, and log it, since the display may be silent; but print it only once."""
        if self._keeps_lines and _is_printed(_log):
            text = "\n".join([text, *traceback.format_exception(error)]) if error is not None else text
        else:
            _log.warning("%s", text, exc_info=error)
        self._source.lines.append(LogLine(None, text))


def _is_printed(logger: logging.Logger) -> bool:
    """Return whether warnings of a logger are printed on stdout or stderr, as they are without any handler."""
    if not logger.hasHandlers():
        return True
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)  # a live display replaces the first two
    printed = any(isinstance(each, logging.StreamHandler) and each.stream in streams for each in logger.handlers)
    return printed or (logger.propagate and logger.parent is not None and _is_printed(logger.parent))
