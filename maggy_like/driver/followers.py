"""The displays, callbacks and trackers that follow a run, each with its own thread.

A follower reads the run at its own pace. If it is slow, hangs or fails, only it falls behind: the supervision of the
workers, Ctrl-C and the other followers never wait for it. With ``engine="inline"`` there are no such threads, since the
training function runs in the caller's thread, perhaps under a debugger. The followers run between two trials then.
"""

from __future__ import annotations

import contextvars
import difflib
import inspect
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from maggy_like import trackers
from maggy_like.argument_checks import listed
from maggy_like.display import Display, PlainDisplay, SilentDisplay
from maggy_like.display.base import LogLine, Snapshot
from maggy_like.display.lines import LineBuffer
from maggy_like.errors import ConfigError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.state_names import state_url
from maggy_like.storage.run_paths import RunPaths
from maggy_like.trackers.backlog import Backlog, Cursor, copied
from maggy_like.trackers.base import TrackedEnd, TrackedRun, Tracker
from maggy_like.train_function.code import name_of
from optimizers.core.events import Event
from optimizers.core.study import Study

if TYPE_CHECKING:
    from maggy_like.trackers.thread import TrackerThread

_log = logging.getLogger(__name__)

DISPLAY_PERIOD = 0.1
"""Seconds between two updates of a display."""

DISPLAY_PATIENCE = 5.0
"""Seconds that a display gets to show the end of a run."""

FUNCTION_PATIENCE = 30.0
"""Seconds that a callback gets after the end of a run for the events that it has not received."""

INTERRUPTED_PATIENCE = 3.0
"""Seconds that a callback gets after Ctrl-C."""

_POLL = 0.1
"""Seconds between two checks whether the user still waits for a follower."""


class Source(Protocol):
    """A run as its followers read it: from the memory of its driver, or from its files."""

    @property
    def backlog(self) -> Backlog:
        """The newest events of the run."""

    @property
    def study(self) -> Study:
        """The study as it is now."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot of the run."""

    @property
    def lines(self) -> LineBuffer:
        """The newest log lines of the run."""


def start_thread(follow: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread in the caller's context, so that a notebook shows its output in the caller's cell."""
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
        in_thread: Whether the display has its own thread. If False, :meth:`look` updates it.
    """

    def __init__(self, display: Display, source: Source, *, in_thread: bool) -> None:
        self._display = display
        self._source = source
        self._next = 0
        self._has_failed = False
        self._is_closed = threading.Event()
        self._thread = start_thread(self._follow, "maggy-display") if in_thread else None
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
            self._end()
        elif not join(self._thread, DISPLAY_PATIENCE, is_hurried):
            _log.warning("%s has not shown the end of the run: its output blocks", type(self._display).__name__)

    def _follow(self) -> None:
        self._start()
        while not self._is_closed.wait(DISPLAY_PERIOD):
            self._update()
        self._end()

    def _start(self) -> None:
        self._show(lambda: self._display.start(self._source.snapshot))

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
            self._start()


class FunctionFollower:
    """Calls a function with each event.

    Args:
        function: Function of one event.
        cursor: Its place in the events.
        report: Tells the user of a problem, with the exception if the function raised one.
        stop: Ends the run because the function raised a KeyboardInterrupt or a SystemExit.
        in_thread: Whether the function has its own thread. If False, :meth:`look` calls it.
    """

    def __init__(
        self,
        function: Callable[[Event], None],
        cursor: Cursor,
        report: Callable[[str, Exception | None], None],
        stop: Callable[[BaseException], None],
        *,
        in_thread: bool,
    ) -> None:
        self._function = function
        self._cursor = cursor
        self._report = report
        self._stop = stop
        self._left = 0  # events that were taken, and that the function has not received
        self._is_out = False
        self._thread = start_thread(self._follow, "maggy-callback") if in_thread else None

    def look(self) -> None:
        """Call the function if it has no thread."""
        while self._thread is None and self._cursor.waiting and not self._is_out:
            self._call_all()

    @property
    def is_behind(self) -> bool:
        """Whether the function has events to receive."""
        return not self._is_out and bool(self._left or self._cursor.waiting)

    def finish(self, directory: str, deadline: float, is_hurried: Callable[[], bool]) -> None:
        """Pass the remaining events to the function, and report what it missed. No more events come.

        Args:
            directory: The run's folder.
            deadline: Until when to wait, by ``time.monotonic()``.
            is_hurried: Returns whether the user does not want to wait.
        """
        self.look()
        join(self._thread, deadline - time.monotonic(), is_hurried)
        if not self._is_out and (missed := self._cursor.lost + self._left + self._cursor.waiting):
            again = f"load_run({directory!r}).watch(callbacks=[...]) passes all events again"
            self._report(f"callback {described(self._function)} is slow and has missed {missed} events; {again}", None)

    def _follow(self) -> None:
        while not (self._is_out or self._cursor.is_over):
            self._call_all()

    def _call_all(self) -> None:
        entries = self._cursor.take()
        self._left = len(entries)
        for entry in entries:
            if self._is_out:
                return
            self._call(copied(entry.event))
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


def described(function: Callable[[Event], None]) -> str:
    """Return the name of a function with its file and line."""
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    where = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code is not None else ""
    return f"{name_of(function)}{where}"


Listener = Callable[[Event], None] | Tracker
"""A function of one event, or a tracker."""

Callback = Listener | str
"""What a user passes: a listener, or the name of a tracker."""

NAMED = {"mlflow": "MLflow", "tensorboard": "TensorBoard"}
"""Trackers by name."""


def read_callbacks(callbacks: Sequence[Callback], directory: str) -> tuple[Listener, ...]:
    """Check callbacks, and make trackers from names.

    Args:
        callbacks: The callbacks.
        directory: Path or URL of the run's folder.

    Raises:
        ConfigError: A callback is not a function of one event or a tracker.
        UserError: A tracker cannot be used.
    """
    read: list[Listener] = []
    for callback in listed("callbacks", callbacks, "functions of one event"):
        if isinstance(callback, str):
            callback = _named(callback)
        if isinstance(callback, Tracker):
            callback.check(directory)
            _check_patience(callback)
        else:
            _check_function(callback)
        read.append(callback)
    return tuple(read)


def _named(name: str) -> Tracker:
    if name in NAMED:
        made: Tracker = getattr(trackers, NAMED[name])()
        return made
    near = difflib.get_close_matches(name.lower(), NAMED, 1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    raise ConfigError(f"callbacks has no tracker named {name!r}; use {' or '.join(map(repr, NAMED))}{meant}")


def _check_patience(tracker: Tracker) -> None:
    given: Any = tracker.patience
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
        name = type(tracker).__name__
        raise ConfigError(f"patience must be seconds from 0 on, got {name}(patience={given!r}); use 30.0")


_OF_LIBRARIES = "maggy_like.callbacks."


def _home(callback: Any) -> str:
    return str((callback if isinstance(callback, type) else type(callback)).__module__)


def _check_function(callback: Any) -> None:
    if isinstance(callback, type) and issubclass(callback, Tracker):
        raise ConfigError(f"callbacks must be objects, got the class {callback.__name__}; use {callback.__name__}()")
    if _home(callback).startswith(_OF_LIBRARIES):
        name = name_of(callback)
        raise ConfigError(f"{name} is a callback of the training library; use {name}(reporter) in train_fn")
    if not callable(callback):
        raise ConfigError(f"callbacks must be functions of one event, got {callback!r}")
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        takes = inspect.signature(callback)
        raise ConfigError(
            f"a callback must take one event, got {name_of(callback)}{takes}; use def f(event): ..."
        ) from None
    except ValueError:  # a built-in function without a signature
        return


class Followers:
    """The displays, callbacks and trackers of a run. None of them can change the run or slow it down.

    Args:
        source: The run.
        callbacks: Functions of one event, and trackers.
        stop: Ends the run because a function raised a KeyboardInterrupt or a SystemExit.
        in_threads: Whether each follower has its own thread. If False, :meth:`look` updates them.
    """

    def __init__(
        self,
        source: Source,
        callbacks: Sequence[Listener],
        stop: Callable[[BaseException], None],
        *,
        in_threads: bool,
    ) -> None:
        self._source = source
        self._listeners = [callback for callback in callbacks if not isinstance(callback, Tracker)]
        self._trackers = [callback for callback in callbacks if isinstance(callback, Tracker)]
        self._stop = stop
        self._in_threads = in_threads
        self._functions: list[FunctionFollower] = []
        self._threads: list[TrackerThread] = []
        self._displays: list[DisplayFollower] = []
        self._keeps_lines = False
        self._store = self._directory = ""

    def begin(self, name: str, optimizer: str, paths: RunPaths, *, is_resumed: bool, knows_all: bool = False) -> None:
        """Start the callbacks and trackers. The study must not change meanwhile.

        Args:
            name: Name of the run.
            optimizer: Its optimizer as text.
            paths: Its paths.
            is_resumed: Whether the run was begun earlier.
            knows_all: Whether the events of all existing trials follow.
        """
        self._store, self._directory, backlog = paths.store, str(paths.directory), self._source.backlog
        self._functions = [
            FunctionFollower(each, Cursor(backlog), self._report, self._stop, in_thread=self._in_threads)
            for each in self._listeners
        ]
        if not self._trackers:
            return
        from maggy_like.trackers.history import history_of
        from maggy_like.trackers.thread import TrackerThread

        study = self._source.study
        limits = {"optimizer": optimizer, "seed": study.problem.seed, "max_budget": study.problem.max_budget}
        settings = {key: str(value) for key, value in limits.items()}
        if study.problem.n_trials is not None:
            settings["n_trials"] = str(study.problem.n_trials)
        settings |= {f"space.{key}": repr(domain) for key, domain in study.problem.space.domains.items()}
        history = () if knows_all else tuple(map(copied, history_of(study.trials)))
        run = TrackedRun(name, self._directory, settings, is_resumed, history)
        self._threads = [TrackerThread(tracker, run, Cursor(backlog)) for tracker in self._trackers]

    def show_on(self, displays: Sequence[Display]) -> None:
        """Start the displays."""
        self._keeps_lines = any(each.keeps_lines for each in displays)
        self._displays = [DisplayFollower(each, self._source, in_thread=self._in_threads) for each in displays]

    def look(self) -> None:
        """Update the followers without a thread, and show the notes of trackers."""
        for function in self._functions:
            function.look()
        self._show_notes()
        for display in self._displays:
            display.look()

    @property
    def are_behind(self) -> bool:
        """Whether a function has events to receive."""
        return any(function.is_behind for function in self._functions)

    def finish(self, ending: Ending, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Pass the remaining events and the end of the run on, and wait for each follower up to its patience.

        Args:
            ending: How the run ended.
            is_hurried: Returns whether the user does not want to wait.
        """
        study = self._source.study
        best = study.best
        saved = None if best is None else best.saved(newest=study.value_rule == "last")
        url = None if saved is None else state_url(self._store, saved.name)
        objective = (best.objective if best is not None else None) or "value"
        confirmed = None
        if study.repeats:
            from optimizers.comparisons.confirmation import recommended  # for confirmations only

            confirmed = recommended(study)
        for thread in self._threads:
            thread.finish(TrackedEnd(ending, objective, best, url, confirmed))
        self._source.backlog.close()
        began = time.monotonic()
        patience = INTERRUPTED_PATIENCE if ending is Ending.INTERRUPTED else FUNCTION_PATIENCE
        for function in self._functions:
            function.finish(self._directory, began + patience, is_hurried)
        for thread, tracker in zip(self._threads, self._trackers, strict=True):
            thread.wait(began + tracker.patience, is_hurried)
        self._show_notes()
        for display in self._displays:
            display.finish(is_hurried)

    def _show_notes(self) -> None:
        for thread in self._threads:
            for note in thread.take_notes():
                self._report(note)

    def _report(self, text: str, error: Exception | None = None) -> None:
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
