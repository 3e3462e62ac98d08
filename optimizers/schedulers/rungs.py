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


_RUNS, _RESTS, _PROMOTED = range(3)
"""Where a trial stands that has a result at a rung."""

_Key = tuple[float, int, int]
"""A result: its loss, its place in the order of arrival, and its trial. The smallest is the best."""

_NO_KEY: _Key = (-math.inf, -1, -1)
"""Before all results: no loss is that low."""


class Rung:
    """The results at one rung, split into the best ``floor(n / eta)`` and the rest; ``eta`` is above 1.

    Two heaps face each other at the border between the two, so recording a result costs
    O(log n) however many came before.
    """

    def __init__(self, eta: float) -> None:
        self._eta = eta
        self._results: dict[int, _Key] = {}  # by trial
        self._stages = bytearray()  # by arrival
        self._top: list[_Key] = []  # with loss and arrival negated: the worst comes first
        self._rest: list[_Key] = []  # the best comes first
        self._border = _NO_KEY  # the worst of the top
        self._candidates: list[_Key] = []  # may hold stale entries, dropped when met
        self._promoted = 0

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, trial: int) -> bool:
        return trial in self._results

    @property
    def promoted(self) -> int:
        """How many trials were promoted out of this rung."""
        return self._promoted

    def record(self, trial: int, loss: float) -> bool:
        """Enter a result; True if it is among the best ``floor(n / eta)`` now (one that is not finite never is)."""
        key = (loss if math.isfinite(loss) else math.inf, len(self._results), trial)
        self._results[trial] = key
        self._stages.append(_RUNS)
        if key < self._border:  # it takes the place of the worst of the top
            worst = heapq.heapreplace(self._top, (-key[0], -key[1], trial))
            heapq.heappush(self._rest, self._results[worst[2]])
            self._border = self._results[self._top[0][2]]
        else:
            heapq.heappush(self._rest, key)
        quota = len(self._results) // self._eta
        while len(self._top) < quota:
            self._raise_best()
        return key <= self._border

    def pause(self, trial: int) -> None:
        """Take in that a recorded trial has come to rest and could be promoted."""
        key = self._results[trial]
        if self._stages[key[1]] == _RUNS:
            self._stages[key[1]] = _RESTS
            if key <= self._border:
                self._consider(key)

    def candidate(self) -> int | None:
        """The best of the quota that rests and is not yet promoted, while the quota is not used up."""
        if self._promoted >= len(self) // self._eta:
            return None
        while self._candidates:
            key = self._candidates[0]
            if self._stages[key[1]] == _RESTS and key <= self._border:
                return key[2]
            heapq.heappop(self._candidates)
        return None

    def best_at_rest(self) -> int | None:
        """The best that rests and is not yet promoted, whatever the quota; one that is not finite never is."""
        resting = (key for key in self._results.values() if self._stages[key[1]] == _RESTS)
        best = min((key for key in resting if math.isfinite(key[0])), default=None)
        return None if best is None else best[2]

    def promote(self, trial: int) -> None:
        """Mark ``trial`` as promoted; it still counts in the quota."""
        self._stages[self._results[trial][1]] = _PROMOTED
        self._promoted += 1

    def forget_failure(self, trial: int) -> bool:
        """Take out the entry of a trial that failed, as if it had never been; whether there was one."""
        if trial not in self or math.isfinite(self._results[trial][0]):
            return False
        stages = {key[2]: self._stages[key[1]] for key in self._results.values()}
        kept = sorted((key for key in self._results.values() if key[2] != trial), key=lambda key: key[1])
        Rung.__init__(self, self._eta)
        for loss, _, number in kept:
            self.record(number, loss)
        for _, _, number in kept:
            if stages[number] != _RUNS:
                self.pause(number)
            if stages[number] == _PROMOTED:
                self.promote(number)
        return True

    def _raise_best(self) -> None:
        key = loss, arrival, trial = heapq.heappop(self._rest)
        heapq.heappush(self._top, (-loss, -arrival, trial))
        self._border = self._results[self._top[0][2]]
        if self._stages[arrival] == _RESTS:
            self._consider(key)

    def _consider(self, key: _Key) -> None:
        """Take in that a result rests and is among the best."""
        if math.isfinite(key[0]):
            heapq.heappush(self._candidates, key)


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

    def take_back(self, trial: int) -> None:
        """Compare with this trial's results to come again."""
        self._left_out.discard(trial)
