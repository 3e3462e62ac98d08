"""Asynchronous successive halving in its two forms: which trials go on from rung to rung.

Source: Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar: "A System for
Massively Parallel Hyperparameter Tuning", MLSys 2020, Algorithm 2 (promotion). The stopping form is
what most libraries call ASHA; it needs no checkpoints, and decides once, when a trial reaches a rung.

Where the two differ from what is often written:

- Rungs are anchored at the maximum budget ``R``: ``R, R // eta, R // eta**2, ...``, in integers, so
  the top rung is ``R`` exactly.
- The quota of a rung is ``floor(n / eta)`` of *all* ``n`` results ever recorded in it, and those
  already promoted count: a rung never promotes more than one in ``eta``, also where later results
  push earlier promotions out of the best. So the first to arrive does not pass because it is first.
- A search has a full training. Where quotas are too small for one, the promotion form trains the best at rest on before
  the search ends, and the stopping form never stops the best so far at a rung.
- A rung takes the first report at or past its step, once. A report that skips a rung is not
  entered there afterwards: it would compare a later step with earlier ones.
- Results are compared by rank, ties by arrival. A crash or a value that is not finite ranks worst
  and never goes on.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

from optimizers.core.base import CONTINUE, Decision, Grant, Observation
from optimizers.schedulers.brackets import RungScheduler
from optimizers.schedulers.rungs import BestSoFar, Rung


class PromotionScheduler(RungScheduler):
    """Algorithm 2 of the paper: a trial rests at each rung until it is promoted.

    Where the quotas let no trial climb to the top, as of a search of few trials, the best of the highest rung at
    which one rests is trained on before the search ends.

    A pause costs time: the next attempt starts, loads its data and restores its state. Where that takes longer than the
    training up to a rung, new trials leave the rung out (see :class:`PauseCosts`).

    Args:
        levels: Steps of the rungs.
        etas: One trial in how many is promoted at each.
        n_skippable: How many of the lowest rungs may be left out.
    """

    may_promote = True

    def __init__(self, levels: tuple[int, ...], etas: tuple[float, ...], n_skippable: int = 0) -> None:
        self.rungs = [Rung(eta) for eta in etas]
        self._lowest = 0
        self._pauses = PauseCosts(levels)
        self._n_skippable = n_skippable
        self._levels = levels
        self._grants = [Grant(level) for level in levels]
        self._level: dict[int, int] = {}  # rung up to which the present or next attempt runs
        self._past: dict[int, float] = {}  # newest loss by trial, of those that reported past their rung's step

    def create(self, trial: int, parent: int | None) -> None:
        if self._lowest:
            self._level[trial] = self._lowest

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

    def retry(self, trial: int) -> bool:
        self.rungs[self._level.get(trial, 0)].forget_failure(trial)
        return True

    def is_final(self, trial: int) -> bool:
        return self._level.get(trial, 0) == len(self._levels) - 1

    def pause(self, trial: int) -> None:
        level = self._level.get(trial, 0)
        rung = self.rungs[level]
        if trial not in rung:  # it had reported past this rung's step before it was promoted to it
            rung.record(trial, self._past.get(trial, math.inf))
        rung.pause(trial)
        self._level[trial] = level + 1  # what it gets when it is promoted

    def next_promotion(self) -> int | None:
        for rung in reversed(self.rungs[:-1]):
            if (trial := rung.candidate()) is not None:
                return trial
        return None

    def closing_promotion(self) -> int | None:
        if self.has_full_training:
            return None
        best = (rung.best_at_rest() for rung in reversed(self.rungs[:-1]))
        return next((trial for trial in best if trial is not None), None)

    def promote(self, trial: int) -> None:
        self.rungs[self._level[trial] - 1].promote(trial)

    def observe(self, observation: Observation) -> None:
        # A trial that a rule stops on its way to the top was given its chance: the rule has the last word.
        is_through = observation.ended and not observation.paused and self.is_final(observation.trial)
        self.has_full_training |= is_through and math.isfinite(observation.loss)
        if self._lowest < self._n_skippable and observation.ended:
            level = self._level.get(observation.trial, 0) - observation.paused
            self._pauses.enter(observation.trial, level, observation.seconds)
            self._lowest += self._pauses.exceed_training(self._lowest)


class PauseCosts:
    """Estimates what a pause at a rung costs beside the training, from the seconds of the attempts.

    An attempt that continues a trial takes ``c + s * n`` seconds for ``n`` steps. Two such attempts of one trial, with
    different ``n``, tell both its ``c`` and its ``s``.

    Args:
        levels: Steps of the rungs.

    Example:
        >>> costs = PauseCosts((1, 3, 9, 27))
        >>> for trial in range(3):  # half a second for each attempt, 0.1 s for each step
        ...     for level, seconds in enumerate([0.6, 1.3, 2.4]):
        ...         costs.enter(trial, level, seconds)
        >>> costs.exceed_training(0), costs.exceed_training(1)
        (True, False)
    """

    ENOUGH = 3
    """Trials that must have been continued twice before a rung is left out."""

    KEPT = 1000
    """Trials that are remembered at most, the newest ones."""

    def __init__(self, levels: tuple[int, ...]) -> None:
        self._levels = levels
        self._seconds: dict[int, tuple[float, ...]] = {}  # by trial: at the rungs that it has reached
        self._excess: dict[int, deque[float]] = {}  # by rung: a pause's seconds beyond those of the training up to it

    def enter(self, trial: int, level: int, seconds: float) -> None:
        """Enter how long a trial has run up to a rung, over all attempts; 0 if that is not known."""
        known = (*self._seconds.pop(trial, ()), seconds)[-3:]
        if len(self._seconds) >= self.KEPT:
            del self._seconds[next(iter(self._seconds))]
        self._seconds[trial] = known
        if len(known) == 3 and level >= 2 and 0.0 < known[0] < known[1] < known[2]:
            first, second, third = self._levels[level - 2 : level + 1]
            short, long = second - first, third - second
            brief, lengthy = known[1] - known[0], known[2] - known[1]
            if short != long:
                step = (lengthy - brief) / (long - short)
                excess = brief - step * short - step * first
                self._excess.setdefault(level - 2, deque(maxlen=20)).append(excess)

    def exceed_training(self, level: int) -> bool:
        """Return whether a pause at a rung takes longer than the training up to it, for most trials."""
        excess = self._excess.get(level, ())
        return len(excess) >= self.ENOUGH and statistics.median(excess) > 0.0


class StoppingScheduler(RungScheduler):
    """The stopping form: a trial goes on past a rung if it is in the quota as it arrives, or the best so far.

    Trials that have failed or diverged since are no longer compared with: else no trial might be trained to the end.
    """

    def __init__(self, levels: tuple[int, ...], etas: tuple[float, ...]) -> None:
        self.rungs = [Rung(eta) for eta in etas]
        self._levels = levels
        self._reached: dict[int, int] = {}  # highest rung that holds a result of the trial
        self._best = [BestSoFar() for _ in levels]
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
        return Decision.STOP

    def fail(self, trial: int) -> None:
        self._leave_out(trial)
        level = self._reached.get(trial, -1) + 1
        if level < len(self.rungs):
            self._reached[trial] = level
            self.rungs[level].record(trial, math.inf)

    def retry(self, trial: int) -> bool:
        for best in self._best:
            best.take_back(trial)
        level = self._reached.get(trial, -1)
        if level >= 0 and self.rungs[level].forget_failure(trial):
            self._reached[trial] = level - 1
        return True

    def _leave_out(self, trial: int) -> None:
        for best in self._best:
            best.leave_out(trial)
