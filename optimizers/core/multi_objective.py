"""Several objectives at once: a search has no best trial but a Pareto set, those that no other trial dominates."""

from __future__ import annotations

import math
from collections.abc import Iterator


def dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Whether the losses ``a`` are nowhere larger than ``b`` and somewhere smaller."""
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


class ParetoFront:
    """The entries that no other dominates, kept as they come; equal ones stand side by side.

    Example:
        >>> front = ParetoFront()
        >>> for number, losses in enumerate([(1.0, 3.0), (2.0, 2.0), (3.0, 3.0)]):
        ...     front.enter(number, losses)
        >>> list(front)
        [0, 1]
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[float, ...]] = {}
        self._front: dict[int, tuple[float, ...]] = {}

    def __len__(self) -> int:
        return len(self._front)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._front))

    def enter(self, number: int, losses: tuple[float, ...]) -> None:
        """Enter the losses of a trial, or put them in place of earlier ones; those that are not finite never count."""
        known = number in self._entries
        self._entries[number] = losses
        if known:  # what it dominated before may be back
            self._front.clear()
            for each, its in self._entries.items():
                self._place(each, its)
        else:
            self._place(number, losses)

    def _place(self, number: int, losses: tuple[float, ...]) -> None:
        if not all(map(math.isfinite, losses)) or any(dominates(other, losses) for other in self._front.values()):
            return
        self._front = {each: its for each, its in self._front.items() if not dominates(losses, its)}
        self._front[number] = losses
