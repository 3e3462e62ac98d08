"""Asynchronous successive halving in its two forms, with its rungs and brackets.

Hyperband runs several brackets, which differ in their lowest rung.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from optimizers.core.base import CONTINUE, Decision, Grant, Observation, Scheduler


def rung_levels(max_budget: int, min_budget: int = 1, eta: int = 3) -> tuple[int, ...]:
    """Return the steps of the rungs in rising order. The last one is exactly ``max_budget``."""
    levels = [max_budget]
    while (below := levels[-1] // eta) >= min_budget:
        levels.append(below)
    return tuple(reversed(levels))


_RUNS, _PAUSED, _PROMOTED = range(3)
"""States of a trial that has a result at a rung."""

_Key = tuple[float, int, int]
"""A result: its loss, its place in the order of arrival, and its trial. The smallest is the best."""

_NO_KEY: _Key = (-math.inf, -1, -1)
"""Smaller than all results, because no loss is that low."""


class Rung:
    """The results at one rung, split into the best ``floor(n / eta)`` and the rest; ``eta`` is above 1.

    Two heaps meet at the border between the two parts, so recording a result costs O(log n).
    """

    def __init__(self, eta: float) -> None:
        self._eta = eta
        self._results: dict[int, _Key] = {}  # by trial
        self._stages = bytearray()  # by arrival
        self._top: list[_Key] = []  # loss and arrival are negated: the worst comes first
        self._rest: list[_Key] = []  # the best comes first
        self._border = _NO_KEY  # the worst of the top
        self._candidates: list[_Key] = []  # may hold stale entries, dropped when met
        self._promoted = 0

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, trial: int) -> bool:
        return trial in self._results

    def quota(self, count: int) -> int:
        """Return how many of ``count`` results continue."""
        return int(count // self._eta)

    @property
    def promoted(self) -> int:
        """Number of trials that were promoted from this rung."""
        return self._promoted

    def record(self, trial: int, loss: float) -> bool:
        """Add a result. Return whether it is now among the best ``floor(n / eta)``, which requires a finite loss."""
        key = (loss if math.isfinite(loss) else math.inf, len(self._results), trial)
        self._results[trial] = key
        self._stages.append(_RUNS)
        if key < self._border:  # it replaces the worst of the top
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
        """Record that a trial with a result is paused and may be promoted."""
        key = self._results[trial]
        if self._stages[key[1]] == _RUNS:
            self._stages[key[1]] = _PAUSED
            if key <= self._border:
                self._consider(key)

    def candidate(self) -> int | None:
        """Return the best paused trial within the quota, while the quota is not used up."""
        if self._promoted >= len(self) // self._eta:
            return None
        while self._candidates:
            key = self._candidates[0]
            if self._stages[key[1]] == _PAUSED and key <= self._border:
                return key[2]
            heapq.heappop(self._candidates)
        return None

    def best_paused(self) -> int | None:
        """Return the best paused trial with a finite loss, whatever the quota."""
        paused = (key for key in self._results.values() if self._stages[key[1]] == _PAUSED)
        best = min((key for key in paused if math.isfinite(key[0])), default=None)
        return None if best is None else best[2]

    def promote(self, trial: int) -> None:
        """Mark ``trial`` as promoted. It still counts in the quota."""
        self._stages[self._results[trial][1]] = _PROMOTED
        self._promoted += 1

    def forget_failure(self, trial: int) -> bool:
        """Remove the result of a failed trial. Return whether there was one."""
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
        if self._stages[arrival] == _PAUSED:
            self._consider(key)

    def _consider(self, key: _Key) -> None:
        """Add a paused trial that is among the best to the candidates."""
        if math.isfinite(key[0]):
            heapq.heappush(self._candidates, key)


class BestSoFar:
    """The best loss at a rung, among trials that have neither failed nor diverged since."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int]] = []  # a heap
        self._left_out: set[int] = set()

    def enter(self, trial: int, loss: float) -> bool:
        """Add a result. Return whether it is better than all earlier ones."""
        while self._entries and self._entries[0][1] in self._left_out:
            heapq.heappop(self._entries)
        is_best = not self._entries or loss < self._entries[0][0]
        heapq.heappush(self._entries, (loss, trial))
        return is_best

    def leave_out(self, trial: int) -> None:
        """Ignore this trial's results from now on."""
        self._left_out.add(trial)

    def take_back(self, trial: int) -> None:
        """Use this trial's future results again."""
        self._left_out.discard(trial)


_STREAM = 3  # random numbers of a seed; those of an ask have another form


def bracket_shares(n_levels: int, eta: int, brackets: int) -> list[float]:
    """Return the share of the trials in each bracket, starting with the one that has all rungs. They sum to 1.

    Hyperband gives a bracket of ``s + 1`` rungs ``ceil(n_levels / (s + 1) * eta**s)`` configurations.
    """
    sizes = [-(-n_levels * eta**s // (s + 1)) for s in range(n_levels - 1, n_levels - 1 - brackets, -1)]
    return [size / sum(sizes) for size in sizes]


class RungScheduler(Scheduler):
    """The schedule of one bracket."""

    has_full_training: bool = False  # whether a trial was trained to the top rung without failing or diverging
    can_retry = True


class BracketScheduler(Scheduler):
    """Assign each trial to one of several schedulers, drawn from the seed and the trial's number.

    ``inner`` has a scheduler per bracket, all of the same form, and ``shares`` the share of the trials in each.
    """

    can_retry = True

    def __init__(self, inner: Sequence[RungScheduler], shares: Sequence[float], seed: int) -> None:
        self.may_promote = inner[0].may_promote
        self._inner = list(inner)
        self._borders = np.cumsum(shares)[:-1]
        self._seed = seed
        self._bracket: dict[int, RungScheduler] = {}

    def bracket(self, trial: int) -> RungScheduler:
        """Return the scheduler of ``trial``."""
        if trial not in self._bracket:
            drawn = np.random.default_rng([self._seed, trial, _STREAM]).random()
            self._bracket[trial] = self._inner[int(np.searchsorted(self._borders, drawn, side="right"))]
        return self._bracket[trial]

    def grant(self, trial: int) -> Grant:
        return self.bracket(trial).grant(trial)

    def report(self, trial: int, step: int, loss: float) -> Decision:
        return self.bracket(trial).report(trial, step, loss)

    def why_stopped(self, trial: int) -> str:
        return self.bracket(trial).why_stopped(trial)

    def fail(self, trial: int) -> None:
        self.bracket(trial).fail(trial)

    def retry(self, trial: int) -> None:
        self.bracket(trial).retry(trial)

    def is_final(self, trial: int) -> bool:
        return self.bracket(trial).is_final(trial)

    def pause(self, trial: int) -> None:
        self.bracket(trial).pause(trial)

    def next_promotion(self) -> int | None:
        due = (scheduler.next_promotion() for scheduler in self._inner)
        return next((trial for trial in due if trial is not None), None)

    def closing_promotion(self) -> int | None:
        """Return the candidate of the bracket whose trial got furthest, until a bracket has a full training."""
        if any(scheduler.has_full_training for scheduler in self._inner):
            return None
        last = [trial for scheduler in self._inner if (trial := scheduler.closing_promotion()) is not None]
        return max(last, key=lambda trial: self.grant(trial).budget, default=None)

    def promote(self, trial: int) -> None:
        self.bracket(trial).promote(trial)

    def observe(self, observation: Observation) -> None:
        self.bracket(observation.trial).observe(observation)


class PromotionScheduler(RungScheduler):
    """Algorithm 2 of the paper: a trial is paused at each rung until it is promoted.

    In a search of few trials, the quotas may let no trial reach the top. Then the best paused trial of the highest rung
    is promoted before the search ends.
    """

    may_promote = True

    def __init__(self, levels: tuple[int, ...], etas: tuple[float, ...]) -> None:
        self.rungs = [Rung(eta) for eta in etas]
        self._levels = levels  # steps of the rungs
        self._grants = [Grant(level) for level in levels]
        self._level: dict[int, int] = {}  # rung up to which the current or next attempt runs
        self._past: dict[int, float] = {}  # newest loss by trial, if it reported past its rung's step

    def grant(self, trial: int) -> Grant:
        return self._grants[self._level.get(trial, 0)]

    def report(self, trial: int, step: int, loss: float) -> Decision:
        level = self._level.get(trial, 0)
        due = self._levels[level]
        if step > due:
            self._past[trial] = loss
        if step >= due and trial not in (rung := self.rungs[level]):
            rung.record(trial, loss)
        return CONTINUE

    def fail(self, trial: int) -> None:
        rung = self.rungs[self._level.get(trial, 0)]
        if trial not in rung:
            rung.record(trial, math.inf)

    def retry(self, trial: int) -> None:
        self.rungs[self._level.get(trial, 0)].forget_failure(trial)

    def is_final(self, trial: int) -> bool:
        return self._level.get(trial, 0) == len(self._levels) - 1

    def pause(self, trial: int) -> None:
        level = self._level.get(trial, 0)
        rung = self.rungs[level]
        if trial not in rung:  # it had reported past this rung's step before its promotion
            rung.record(trial, self._past.get(trial, math.inf))
        rung.pause(trial)
        self._level[trial] = level + 1  # its level after a promotion

    def next_promotion(self) -> int | None:
        for rung in reversed(self.rungs[:-1]):
            if (trial := rung.candidate()) is not None:
                return trial
        return None

    def closing_promotion(self) -> int | None:
        if self.has_full_training:
            return None
        best = (rung.best_paused() for rung in reversed(self.rungs[:-1]))
        return next((trial for trial in best if trial is not None), None)

    def promote(self, trial: int) -> None:
        self.rungs[self._level[trial] - 1].promote(trial)

    def observe(self, observation: Observation) -> None:
        # A trial that a rule stops on its way to the top counts as well: the rule decides.
        is_through = observation.ended and not observation.paused and self.is_final(observation.trial)
        self.has_full_training |= is_through and math.isfinite(observation.loss)


class StoppingScheduler(RungScheduler):
    """The stopping form: a trial continues past a rung if it is within the quota on arrival, or the best so far.

    Trials that have failed or diverged since are ignored. Otherwise no trial might be trained to the end.
    """

    def __init__(self, levels: tuple[int, ...], etas: tuple[float, ...]) -> None:
        self.rungs = [Rung(eta) for eta in etas]
        self._levels = levels
        self._reached: dict[int, int] = {}  # highest rung that holds a result of the trial
        self._best = [BestSoFar() for _ in levels]
        self._counts: dict[int, int] = {}  # by stopped trial: results at its rung, its own included
        self._grant = Grant(levels[-1], levels[:-1])

    def grant(self, trial: int) -> Grant:
        return self._grant

    def report(self, trial: int, step: int, loss: float) -> Decision:
        level = sum(step >= rung_step for rung_step in self._levels) - 1
        if level <= self._reached.get(trial, -1):
            return CONTINUE
        self._reached[trial] = level
        in_quota = self.rungs[level].record(trial, loss)
        is_best = math.isfinite(loss) and self._best[level].enter(trial, loss)
        if not math.isfinite(loss):
            self._leave_out(trial)
        if in_quota or is_best or level == len(self._levels) - 1:
            return CONTINUE
        self._counts[trial] = len(self.rungs[level])
        return Decision.STOP

    def why_stopped(self, trial: int) -> str:
        if trial not in self._counts:
            return ""
        count, level = self._counts[trial], self._reached[trial]
        quota = self.rungs[level].quota(count)
        best = "the best" if quota == 1 else f"the best {quota}"
        return f"not among {best} of {count} trials at the rung of step {self._levels[level]}"

    def fail(self, trial: int) -> None:
        self._leave_out(trial)
        level = self._reached.get(trial, -1) + 1
        if level < len(self.rungs):
            self._reached[trial] = level
            self.rungs[level].record(trial, math.inf)

    def retry(self, trial: int) -> None:
        for best in self._best:
            best.take_back(trial)
        level = self._reached.get(trial, -1)
        if level >= 0 and self.rungs[level].forget_failure(trial):
            self._reached[trial] = level - 1

    def _leave_out(self, trial: int) -> None:
        for best in self._best:
            best.leave_out(trial)
