"""What a tracker is told of a run, and what it has to offer."""

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
    """A run as it begins, or goes on.

    Attributes:
        name: The run's name.
        directory: Its folder, a path or a URL as text.
        settings: What it was given, for people: optimizer, seed, limits, and each domain of the space.
        is_resumed: Whether it was begun earlier: a tracker goes on with what it has of it.
        history: Events that tell what happened earlier.
    """

    name: str
    directory: str
    settings: Mapping[str, str]
    is_resumed: bool = False
    history: tuple[Event, ...] = ()


@dataclass(frozen=True)
class TrackedEnd:
    """A run as it ends.

    Attributes:
        ending: How it ended.
        objective: Name of the metric that is optimised.
        best: The best trial, if there is one.
        best_state: URL of the state that it saved at its best value, if it saved one.
    """

    ending: Ending
    objective: str
    best: Trial | None = None
    best_state: str | None = None


class TrackerUnavailable(Exception):
    """A tracker's service does not answer now, and may later: what it was told is to be told again."""


class Session(abc.ABC):
    """One run at a tracker; all methods are called in one thread, which is the tracker's own.

    An error other than :class:`TrackerUnavailable` refuses what it was told; that is counted, and left out.
    """

    @abc.abstractmethod
    def record(self, event: Event, now: float) -> None:
        """Record an event; it may be told again after a :class:`TrackerUnavailable`.

        Args:
            event: Measurements of one trial come together, of many reports; the value of an end is what its trial is
                worth.
            now: When it happened: Unix time.
        """

    @abc.abstractmethod
    def close(self, end: TrackedEnd, now: float) -> None:
        """Record the end of the run."""


class Tracker(abc.ABC):
    """Records a run elsewhere; one of them may serve several runs, also at the same time.

    Attributes:
        name: By which ``callbacks=[...]`` knows it.
        patience: Seconds that the end of a run waits for it.
    """

    name: str
    patience: float

    @property
    def is_remote(self) -> bool:
        """Whether it asks a server, which may be gone: then the end of a run waits less for a silent one."""
        return True

    @abc.abstractmethod
    def check(self, directory: str) -> None:
        """Check that it can be used, as far as that shows without asking anybody.

        Args:
            directory: The run's folder, a path or a URL.

        Raises:
            UserError: It cannot: a package is missing, or a setting.
        """

    @abc.abstractmethod
    def open(self, run: TrackedRun) -> Session:
        """Begin to record a run; called in the tracker's thread, and again after a :class:`TrackerUnavailable`."""


def plain(value: Any) -> str:
    """The value of a parameter as text."""
    return value if isinstance(value, str) else repr(value)
