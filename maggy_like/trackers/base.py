"""The callbacks of a run: functions of one event, and trackers, with their base class and what they receive."""

from __future__ import annotations

import abc
import difflib
import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maggy_like.argument_checks import listed
from maggy_like.errors import ConfigError
from maggy_like.protocol.endings import Ending
from maggy_like.train_function.code import name_of
from optimizers.checks import short
from optimizers.core.events import Event
from optimizers.core.trial import Trial


@dataclass(frozen=True)
class TrackedRun:
    """A run that starts or resumes.

    Attributes:
        name: Name of the run.
        directory: Folder of the run, a path or a URL as text.
        settings: Settings of the run, for people: optimizer, seed, limits, and each domain of the space.
        is_resumed: Whether the run was started earlier. If so, the tracker continues its record.
        history: Events that describe what happened earlier.
    """

    name: str
    directory: str
    settings: Mapping[str, str]
    is_resumed: bool = False
    history: tuple[Event, ...] = ()


@dataclass(frozen=True)
class TrackedEnd:
    """A run that ends.

    Attributes:
        ending: How it ended.
        objective: Name of the optimised metric.
        best: Best trial, if there is one.
        best_state: URL of the state saved at the best value, if there is one.
        confirmed: Trial that its repeats with other seeds recommend, and their mean value, if there were any.
    """

    ending: Ending
    objective: str
    best: Trial | None = None
    best_state: str | None = None
    confirmed: tuple[Trial, float] | None = None


class TrackerUnavailable(Exception):
    """The tracker's service does not answer now, but may later. The same call is repeated."""


class Session(abc.ABC):
    """The record of one run at a tracker. All methods are called in one thread, which is the tracker's own.

    If a method raises an error other than :class:`TrackerUnavailable`, the event is counted as refused and left out.
    """

    @abc.abstractmethod
    def record(self, event: Event, now: float) -> None:
        """Record an event. It may be repeated after a :class:`TrackerUnavailable`.

        Args:
            event: Event of the study. The measurements of a trial come together, from many reports. The value of an
                ``AttemptEnded`` is the trial's value.
            now: Unix time of the event.
        """

    @abc.abstractmethod
    def close(self, end: TrackedEnd, now: float) -> None:
        """Record the end of the run."""


class Tracker(abc.ABC):
    """Record runs elsewhere. Subclass it to support another service.

    One tracker may record several runs, also at the same time.

    Attributes:
        name: Name of the tracker in messages.
        patience: Seconds that the end of a run waits for the tracker.

    Example:
        >>> class Lines(Tracker):
        ...     name = "lines"
        ...     patience = 5.0
        ...
        ...     def open(self, run):
        ...         return LineSession(run.name)  # a subclass of maggy_like.trackers.base.Session
    """

    name: str
    patience: float

    @property
    def is_remote(self) -> bool:
        """Whether it contacts a server. If so, the end of a run waits less for a silent one."""
        return True

    @abc.abstractmethod
    def check(self, directory: str) -> None:
        """Check that the tracker can be used, without contacting a server.

        Args:
            directory: Folder of the run, a path or a URL.

        Raises:
            UserError: A package or a setting is missing.
        """

    @abc.abstractmethod
    def open(self, run: TrackedRun) -> Session:
        """Begin to record a run. Called in the tracker's thread, and again after a :class:`TrackerUnavailable`.

        Args:
            run: Description of the run.

        Returns:
            The session that receives the run's events.
        """


def plain(value: Any) -> str:
    """Return the value of a parameter as text."""
    return value if isinstance(value, str) else repr(value)


Listener = Callable[[Event], None] | Tracker
"""A function of one event, or a tracker."""

Callback = Listener | str
"""What a user passes: a listener, or the name of a tracker."""

NAMED = {"mlflow": "MLflow", "tensorboard": "TensorBoard"}
"""Trackers by name."""


def read_callbacks(callbacks: Sequence[Callback], directory: str) -> tuple[Listener, ...]:
    """Check callbacks, and make trackers from names.

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
        made: Tracker = getattr(importlib.import_module(f"maggy_like.trackers.{name}"), NAMED[name])()
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
        raise ConfigError(f"callbacks must be functions of one event, got {short(callback)}; use def f(event): ...")
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        takes = inspect.signature(callback)
        raise ConfigError(
            f"a callback must take one event, got {name_of(callback)}{takes}; use def f(event): ..."
        ) from None
    except ValueError:  # a built-in function without a signature
        return
