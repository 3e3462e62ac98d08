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

from optimizers.core.base import CONTINUE, Decision, Grant, Observation
from optimizers.schedulers.brackets import RungScheduler
from optimizers.schedulers.rungs import BestSoFar, Rung


class PromotionScheduler(RungScheduler):
    """Algorithm 2 of the paper: a trial rests at each rung until it is promoted.

    Where the quotas let no trial climb to the top, as of a search of few trials, the best of the highest rung at
    which one rests is trained on before the search ends.
    """

    may_promote = True

    def __init__(self, levels: tuple[int, ...], etas: tuple[float, ...]) -> None:
        self.rungs = [Rung(eta) for eta in etas]
        self._levels = levels
        self._grants = [Grant(level) for level in levels]
        self._level: dict[int, int] = {}  # rung up to which the present or next attempt runs
        self._past: dict[int, float] = {}  # newest loss by trial, of those that reported past their rung's step

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

    def _leave_out(self, trial: int) -> None:
        for best in self._best:
            best.leave_out(trial)
