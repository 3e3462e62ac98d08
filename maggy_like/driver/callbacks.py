"""The callbacks of a run: functions of one event, and trackers."""

from __future__ import annotations

import difflib
import inspect
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from maggy_like import trackers
from maggy_like.argument_checks import listed
from maggy_like.driver.followers import FUNCTION_PATIENCE, INTERRUPTED_PATIENCE, FunctionFollower
from maggy_like.errors import ConfigError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.state_names import state_url
from maggy_like.storage.run_paths import RunPaths
from maggy_like.trackers.base import TrackedEnd, TrackedRun, Tracker
from maggy_like.train_function.code import name_of
from optimizers.core.events import AttemptEnded, Event, Measured
from optimizers.core.study import Study

if TYPE_CHECKING:
    from maggy_like.trackers.thread import TrackerThread

_log = logging.getLogger(__name__)

Listener = Callable[[Event], None] | Tracker
"""A function of one event, or a tracker."""

Callback = Listener | str
"""What a user gives: a listener, or the name of a tracker."""

NAMED = {"mlflow": "MLflow", "tensorboard": "TensorBoard"}
"""The trackers that a name stands for."""


def read_callbacks(callbacks: Sequence[Callback], directory: str) -> tuple[Listener, ...]:
    """Check callbacks, and make trackers of names.

    Args:
        directory: The run's folder, a path or a URL.

    Raises:
        ConfigError: One is neither a function of one event nor a tracker.
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
        raise ConfigError(f"{type(tracker).__name__}(patience={given!r}) is no number of seconds; pass one from 0 on")


_OF_LIBRARIES = "maggy_like.callbacks."


def _home(callback: Any) -> str:
    return str((callback if isinstance(callback, type) else type(callback)).__module__)


def _check_function(callback: Any) -> None:
    if isinstance(callback, type) and issubclass(callback, Tracker):
        raise ConfigError(f"callbacks has the class {callback.__name__}; use {callback.__name__}()")
    if _home(callback).startswith(_OF_LIBRARIES):
        name = name_of(callback)
        raise ConfigError(f"{name} is a callback of the library that trains; make it in train_fn: {name}(reporter)")
    if not callable(callback):
        raise ConfigError(f"callbacks must be functions of one event, got {callback!r}")
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        takes = inspect.signature(callback)
        raise ConfigError(
            f"a callback takes one event, and {name_of(callback)}{takes} takes others; use def f(event): ..."
        ) from None
    except ValueError:  # a built-in function that says nothing of its arguments
        return


def _copied(event: Event) -> Event:
    """An event that shares nothing with the ledger: whoever changes it changes nothing else."""
    own = {name: _own(value) for name, value in msgspec.structs.asdict(event).items()}
    return msgspec.structs.replace(event, **own)


def _own(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _own(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_own(each) for each in value]
    return tuple(map(_own, value)) if type(value) is tuple else value


class Callbacks:
    """Passes events to the callbacks of a run. None of them can change the run or slow it down.

    Args:
        callbacks: Those of the run.
        study: Returns the study as it is now.
        say: Shows a line to the user.
        stop: Ends the run because a function raised a KeyboardInterrupt or a SystemExit.
        in_threads: Whether each function has a thread of its own. If False, :meth:`look` calls them.
    """

    def __init__(
        self,
        callbacks: Sequence[Listener],
        study: Callable[[], Study],
        say: Callable[[str], None],
        stop: Callable[[BaseException], None],
        *,
        in_threads: bool,
    ) -> None:
        functions = [callback for callback in callbacks if not isinstance(callback, Tracker)]
        self._functions = [FunctionFollower(each, say, stop, in_thread=in_threads) for each in functions]
        self._trackers = [callback for callback in callbacks if isinstance(callback, Tracker)]
        self._threads: list[TrackerThread] = []
        self._study = study
        self._say = say
        self._store = self._directory = ""

    def begin(self, name: str, optimizer: str, paths: RunPaths, *, is_resumed: bool, knows_all: bool = False) -> None:
        """Start the trackers; nothing may change the study meanwhile.

        Args:
            name: The run's name.
            optimizer: Its optimizer, for people.
            paths: Where it is kept.
            is_resumed: Whether it was begun earlier.
            knows_all: Whether the events of the trials that there are follow, from the first on.
        """
        self._store, self._directory = paths.store, str(paths.directory)
        if not self._trackers:
            return
        from maggy_like.trackers.history import history_of
        from maggy_like.trackers.thread import TrackerThread

        problem = self._study().problem
        limits = {"optimizer": optimizer, "seed": problem.seed, "max_budget": problem.max_budget}
        settings = {key: str(value) for key, value in limits.items()}
        if problem.n_trials is not None:
            settings["n_trials"] = str(problem.n_trials)
        settings |= {f"space.{key}": repr(domain) for key, domain in problem.space.domains.items()}
        history = () if knows_all else tuple(map(_copied, history_of(self._study().trials)))
        run = TrackedRun(name, self._directory, settings, is_resumed, history)
        self._threads = [TrackerThread(tracker, run) for tracker in self._trackers]

    def call(self, event: Event, worth: float | None) -> None:
        """Pass an event to all callbacks, a copy to each. Never waits.

        Args:
            event: What has happened.
            worth: The value of the trial as of an :class:`AttemptEnded`.
        """
        if not (self._functions or self._threads):
            return
        tracked = event
        if isinstance(event, AttemptEnded):
            event = msgspec.structs.replace(event, config=self._study().trials[event.trial].config)
            tracked = msgspec.structs.replace(event, value=worth)  # of one that was stopped too
        is_result = isinstance(event, Measured) and event.returned
        if not (is_result and self._study().trials[event.trial].reported is not None):  # it is no point of the curve
            for thread in self._threads:
                thread.put(_copied(tracked))
        for function in self._functions:
            function.put(_copied(event))

    def look(self) -> None:
        """Call the functions that have no thread of their own, and show what trackers have to say."""
        for function in self._functions:
            function.look()
        for thread in self._threads:
            for note in thread.take_notes():
                _log.warning("%s", note)  # the display may be silent
                self._say(note)

    def finish(self, ending: Ending, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Let the callbacks have the remaining events and the end of the run, for as long as each has patience.

        Args:
            ending: How it ended.
            is_hurried: Whether the user does not want to wait.
        """
        began = time.monotonic()
        patience = INTERRUPTED_PATIENCE if ending is Ending.INTERRUPTED else FUNCTION_PATIENCE
        for function in self._functions:
            function.finish(self._directory, began + patience, is_hurried)
        if not self._threads:
            return
        study = self._study()
        best = study.best
        saved = None if best is None else best.saved(newest=study.value_rule == "last")
        url = None if saved is None else state_url(self._store, saved.name)
        objective = (best.objective if best is not None else None) or "value"
        for thread in self._threads:
            thread.finish(TrackedEnd(ending, objective, best, url))
        for thread, tracker in zip(self._threads, self._trackers, strict=True):
            thread.wait(began + tracker.patience, is_hurried)
        self.look()
        self._threads = []
