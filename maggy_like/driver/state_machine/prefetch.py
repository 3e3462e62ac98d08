"""The number of proposals of an adaptive optimizer that are kept ready, so that no worker waits for one."""

from __future__ import annotations

import math
from collections import deque

_ASKS = 8
"""Number of asks of which the slowest counts as the time of an ask, because only some of them fit a model."""


class Prefetch:
    """Finds the smallest sufficient number, because a proposal that was made earlier knows fewer results.

    Each trial that takes a proposal orders another, and the optimizer serves one order at a time: a queue with one
    server, whose open orders follow Lindley's recursion (Proc. Camb. Phil. Soc. 48, 1952). The longest recent queue is
    the number of proposals that had to be ready.

    Args:
        workers: Number of workers, which is the maximum that is ever useful.

    Example:
        >>> prefetch = Prefetch(workers=4)
        >>> prefetch.asked(0.5)
        >>> for wanted in (0.0, 0.1, 10.0, 10.1):
        ...     prefetch.taken(wanted)
        >>> prefetch.depth
        2
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._asks: deque[float] = deque(maxlen=_ASKS)
        self._lengths: deque[int] = deque(maxlen=max(16, 2 * workers))
        self._longest: int | None = None  # of the lengths, once it was asked for: they may be thousands
        self._orders = 0.0  # how many asks are in store
        self._last = -math.inf

    def resize(self, workers: int) -> None:
        """Set the number of workers."""
        self._workers = workers

    def asked(self, seconds: float) -> None:
        """Record the duration of an ask."""
        self._asks.append(seconds)

    def taken(self, wanted: float) -> None:
        """Record that a trial took a proposal.

        Args:
            wanted: Time at which its worker became free, in seconds. The start of the trial would hide the wait: when
                workers wait for the optimizer, trials start no faster than it answers.
        """
        ask = max(self._asks, default=0.0)
        served = max(0.0, wanted - self._last) / ask if ask else math.inf
        self._orders = min(max(0.0, self._orders - served) + 1.0, self._workers)
        self._last = max(wanted, self._last)
        self._lengths.append(math.ceil(self._orders))
        self._longest = None

    @property
    def depth(self) -> int:
        """Number of proposals that should be ready; 1 if asks take no time."""
        if not any(self._asks):
            return 1
        # All workers will want their first trial at about the same time, and no result comes before that.
        if self._longest is None and self._lengths:
            self._longest = max(self._lengths)
        return self._workers if self._longest is None else min(self._longest, self._workers)
