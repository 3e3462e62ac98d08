"""How often something is done that costs more the larger a run is."""

from __future__ import annotations

LONGEST = 5.0
"""Seconds after which it is due in any case: the process may have been stopped while it was done."""


class Pace:
    """Says when it is due again: after an interval, and after so long that it takes a share of the time at most.

    Args:
        interval: Seconds between two times, at least.
        share: Of the time, that it may take.

    Example:
        >>> pace = Pace(interval=0.1, share=0.02)
        >>> pace.is_due(5.0)
        True
        >>> pace.took(5.0, 5.05)
        >>> pace.is_due(7.0), pace.is_due(7.6)
        (False, True)
    """

    def __init__(self, interval: float, share: float) -> None:
        self._interval = interval
        self._share = share
        self._due = float("-inf")

    def is_due(self, now: float) -> bool:
        """Whether it is due."""
        return now >= self._due

    def took(self, began: float, ended: float) -> None:
        """Take in when it was last done."""
        self._due = max(began + self._interval, ended + min(LONGEST, (ended - began) / self._share))
