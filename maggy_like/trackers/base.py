"""The base class of trackers, and what a tracker receives of a run."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from maggy_like.protocol.endings import Ending
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
