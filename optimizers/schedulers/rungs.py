"""The rungs of successive halving: their steps, and which trials are among the best at each."""

from __future__ import annotations

import heapq
import math


def rung_levels(max_budget: int, min_budget: int = 1, eta: int = 3) -> tuple[int, ...]:
    """The steps of the rungs, rising, the last one ``max_budget`` exactly.

    Example:
        >>> rung_levels(1000, 1, 10)
        (1, 10, 100, 1000)
    """
    levels = [max_budget]
    while (below := levels[-1] // eta) >= min_budget:
        levels.append(below)
    return tuple(reversed(levels))


class Rung:
    """The results at one rung, split into the best ``floor(n / eta)`` and the rest; ``eta`` is above 1.

    Two heaps face each other at the border between the two, so recording a result costs
    O(log n) however many came before.
    """

    def __init__(self, eta: float) -> None:
        self._eta = eta
        self._size = 0
        self._recorded: set[int] = set()
        self._top: list[tuple[float, int, int]] = []  # (-loss, -arrival, trial): the worst comes first
        self._rest: list[tuple[float, int, int]] = []  # (loss, arrival, trial): the best comes first
        self._in_top: set[int] = set()
        self._paused: set[int] = set()
        self._promoted: set[int] = set()
        self._candidates: list[tuple[float, int, int]] = []  # may hold stale entries, dropped when met
        self._keys: dict[int, tuple[float, int, int]] = {}

    def __len__(self) -> int:
        return self._size

    def __contains__(self, trial: int) -> bool:
        return trial in self._recorded

    @property
    def promoted(self) -> int:
        """How many trials were promoted out of this rung."""
        return len(self._promoted)

    def record(self, trial: int, loss: float) -> bool:
        """Enter a result; True if it is among the best ``floor(n / eta)`` now (one that is not finite never is)."""
        key = (loss if math.isfinite(loss) else math.inf, self._size, trial)
        self._keys[trial] = key
        self._recorded.add(trial)
        self._size += 1
        heapq.heappush(self._rest, key)
        if self._top and self._rest[0] < self._worst_of_top():
            self._raise_best()
            self._lower_worst()
        while len(self._top) < self._size // self._eta:
            self._raise_best()
        return trial in self._in_top

    def pause(self, trial: int) -> None:
        """Take in that a recorded trial has come to rest and could be promoted."""
        self._paused.add(trial)
        self._consider(trial)

    def candidate(self) -> int | None:
        """The best of the quota that rests and is not yet promoted, while the quota is not used up."""
        if len(self._promoted) >= self._size // self._eta:
            return None
        while self._candidates:
            trial = self._candidates[0][2]
            if trial in self._in_top and trial not in self._promoted:
                return trial
            heapq.heappop(self._candidates)
        return None

    def best_at_rest(self) -> int | None:
        """The best that rests and is not yet promoted, whatever the quota; one that is not finite never is."""
        resting = [key for trial in self._paused - self._promoted if math.isfinite((key := self._keys[trial])[0])]
        return min(resting)[2] if resting else None

    def promote(self, trial: int) -> None:
        """Mark ``trial`` as promoted; it still counts in the quota."""
        self._promoted.add(trial)

    def _worst_of_top(self) -> tuple[float, int, int]:
        loss, arrival, trial = self._top[0]
        return (-loss, -arrival, trial)

    def _raise_best(self) -> None:
        loss, arrival, trial = heapq.heappop(self._rest)
        heapq.heappush(self._top, (-loss, -arrival, trial))
        self._in_top.add(trial)
        self._consider(trial)

    def _lower_worst(self) -> None:
        loss, arrival, trial = heapq.heappop(self._top)
        heapq.heappush(self._rest, (-loss, -arrival, trial))
        self._in_top.discard(trial)

    def _consider(self, trial: int) -> None:
        if trial in self._in_top and trial in self._paused and math.isfinite(self._keys[trial][0]):
            heapq.heappush(self._candidates, self._keys[trial])


class BestSoFar:
    """The best loss at a rung, of those trials that neither failed nor diverged since."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int]] = []  # a heap
        self._left_out: set[int] = set()

    def enter(self, trial: int, loss: float) -> bool:
        """Enter a result; True if it is better than all before it."""
        while self._entries and self._entries[0][1] in self._left_out:
            heapq.heappop(self._entries)
        is_best = not self._entries or loss < self._entries[0][0]
        heapq.heappush(self._entries, (loss, trial))
        return is_best

    def leave_out(self, trial: int) -> None:
        """Compare with this trial's result no more."""
        self._left_out.add(trial)
