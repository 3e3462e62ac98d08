"""A handle on a running search, for other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Experiment:
    """Lets another thread end a search: make one for each, and pass it to ``lagom``.

    Example:
        >>> experiment = Experiment()
        >>> threading.Timer(3600, experiment.stop).start()
        >>> result = lagom(train_fn, space, experiment=experiment)  # ends after an hour with what it has
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come in between
        self._stop: Callable[[], None] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End the search as Ctrl-C would: running trials are cut off, and ``lagom`` returns the result so far.

        From any thread, at any time: before the search it takes effect as it begins, after it nothing happens.
        """
        with self._lock:
            self._stopped = True
            if self._stop is not None:
                self._stop()

    @property
    def is_taken(self) -> bool:
        """Whether a search has it already."""
        return self._stop is not None

    def attach(self, stop: Callable[[], None]) -> None:
        """Name what ends the search; called by the runtime."""
        with self._lock:
            self._stop = stop
            if self._stopped:
                stop()
