"""Adapts settings to the number of workers, which may change during the search."""

from __future__ import annotations

from collections.abc import Callable

from maggy_like.driver.state_machine.commands import Show
from maggy_like.driver.state_machine.common_failures import CommonFailures
from maggy_like.driver.state_machine.proposals import Proposals

SETTLING = 3.0
"""Seconds for which joining workers are collected for one line."""


class Growth:
    """Adapts the number of proposals kept ready, and of failures that end the search, to the live workers.

    Args:
        proposals: Kept ready for as many trials as can run at a time.
        alike: Ends a search once as many trials have failed identically as can run at a time.
        enough: That number, by the number of trials that can run at a time.
        width: Number of workers per trial.
    """

    def __init__(self, proposals: Proposals, alike: CommonFailures, enough: Callable[[int], int], width: int) -> None:
        self._proposals = proposals
        self._alike = alike
        self._enough = enough
        self._width = width
        self._joined: list[str] = []
        self._since = 0.0
        self.follow(0)

    def follow(self, live: int) -> None:
        """Adapt to the number of live workers."""
        at_a_time = max(1, live // self._width)
        self._proposals.resize(at_a_time)
        self._alike.enough = self._enough(at_a_time)

    def joined(self, who: str, now: float) -> None:
        """Record a worker that has joined during the run."""
        self._since = self._since if self._joined else now
        self._joined.append(who)

    def tick(self, live: int, now: float) -> list[Show]:
        """Return the line about workers that have joined recently, if any."""
        if not self._joined or now - self._since < SETTLING:
            return []
        count = len(self._joined)
        who = self._joined[0] if count == 1 else f"{count} workers"
        self._joined.clear()
        return [Show(f"{who} joined: {live} worker{'s' * (live != 1)} now")]
