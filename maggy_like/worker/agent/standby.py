"""The next child, made ready while a trial runs."""

from __future__ import annotations

import time

from maggy_like.worker.agent.child import Child
from maggy_like.worker.agent.launchers import ChildLauncher

MAX_NEVER_READY = 3
"""Children in a row that may die before they are ready."""

FORK_DELAY = 1.0
"""Seconds until another child is tried where none could be forked."""


class Standby:
    """Has one child made after the other.

    Attributes:
        child: The next one, ready or not, if there is one.
        due: When to begin with the next one, if ever.
    """

    def __init__(self) -> None:
        self.child: Child | None = None
        self.due: float | None = None
        self._never_ready = 0

    def spawn(self, launcher: ChildLauncher) -> Child | None:
        """Begin to make a child; None where there is one already."""
        self.due = None
        if self.child is not None:
            return None
        self.child = launcher.spawn()
        return self.child

    def take(self) -> None:
        """The child runs a trial, or exits, from now on."""
        self.child = None

    def is_ready(self, child: Child) -> None:
        """A child has loaded what it needs."""
        child.ready = True
        self._never_ready = 0

    def lose(self, child: Child, *, is_idle: bool) -> None:
        """A child's process is gone, or was never made; fine if it was another.

        Args:
            is_idle: Whether no trial runs. One that does goes on while no other can be made.
        """
        if child is not self.child:
            return
        self.child = None
        if child.not_forked is not None:
            self.due = time.monotonic() + FORK_DELAY
        if not child.ready and (is_idle or child.not_forked is None):
            self._never_ready += 1

    @property
    def is_hopeless(self) -> bool:
        """Whether none gets ready any more."""
        return self._never_ready >= MAX_NEVER_READY
