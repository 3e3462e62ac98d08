"""ASHA: asynchronous successive halving, in its two forms.

Source: Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar: "A System for
Massively Parallel Hyperparameter Tuning", MLSys 2020, Algorithm 2 (promotion). The stopping form is
what most libraries call ASHA; it needs no checkpoints, and decides once, when a trial reaches a rung.

Where the two differ from what is often written:

- Rungs are anchored at the maximum budget ``R``: ``R, R // eta, R // eta**2, ...``, in integers, so
  the top rung is ``R`` exactly.
- The quota of a rung is ``floor(n / eta)`` of *all* ``n`` results ever recorded in it, and those
  already promoted count: a rung never promotes more than one in ``eta``, also where later results
  push earlier promotions out of the best. So the first to arrive does not pass because it is first.
- A rung takes the first report at or past its step, once. A report that skips a rung is not
  entered there afterwards: it would compare a later step with earlier ones.
- Results are compared by rank, ties by arrival. A crash or a value that is not finite ranks worst
  and never goes on.
"""

from __future__ import annotations

import heapq
import math
from typing import Literal

from optimizers.base import Answer, Decision, Grant, History, Optimizer, Problem, Scheduler
from optimizers.brackets import BracketScheduler, bracket_shares
from optimizers.errors import OptimizerError
from optimizers.options import integer
from optimizers.random_search import RandomSearch

Mode = Literal["promotion", "stopping"]


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


class PromotionScheduler(Scheduler):
    """Algorithm 2 of the paper: a trial rests at each rung until it is promoted."""

    may_promote = True

    def __init__(self, levels: tuple[int, ...], etas: tuple[float, ...]) -> None:
        self.rungs = [Rung(eta) for eta in etas]
        self._levels = levels
        self._level: dict[int, int] = {}  # rung up to which the present or next attempt runs
        self._last: dict[int, float] = {}  # newest loss by trial

    def grant(self, trial: int) -> Grant:
        return Grant(self._levels[self._level.get(trial, 0)])

    def report(self, trial: int, step: int, loss: float) -> Decision:
        level = self._level.get(trial, 0)
        self._last[trial] = loss
        if step >= self._levels[level] and trial not in self.rungs[level]:
            self.rungs[level].record(trial, loss)
        return Decision.CONTINUE

    def fail(self, trial: int) -> None:
        rung = self.rungs[self._level.get(trial, 0)]
        if trial not in rung:
            rung.record(trial, math.inf)

    def is_final(self, trial: int) -> bool:
        return self._level.get(trial, 0) == len(self._levels) - 1

    def pause(self, trial: int) -> None:
        level = self._level.get(trial, 0)
        if trial not in self.rungs[level]:  # it had reported past this rung's step before it was promoted to it
            self.rungs[level].record(trial, self._last.get(trial, math.inf))
        self.rungs[level].pause(trial)
        self._level[trial] = level + 1  # what it gets when it is promoted

    def next_promotion(self) -> int | None:
        for rung in reversed(self.rungs[:-1]):
            if (trial := rung.candidate()) is not None:
                return trial
        return None

    def promote(self, trial: int) -> None:
        self.rungs[self._level[trial] - 1].promote(trial)


class StoppingScheduler(Scheduler):
    """The stopping form: at each rung a trial goes on only if it is in the quota as it arrives."""

    def __init__(self, levels: tuple[int, ...], etas: tuple[float, ...]) -> None:
        self.rungs = [Rung(eta) for eta in etas]
        self._levels = levels
        self._reached: dict[int, int] = {}  # highest rung that holds a result of the trial
        self._grant = Grant(levels[-1], levels[:-1])

    def grant(self, trial: int) -> Grant:
        return self._grant

    def report(self, trial: int, step: int, loss: float) -> Decision:
        level = sum(step >= rung_step for rung_step in self._levels) - 1
        if level <= self._reached.get(trial, -1):
            return Decision.CONTINUE
        self._reached[trial] = level
        goes_on = self.rungs[level].record(trial, loss)
        if goes_on or level == len(self._levels) - 1:
            return Decision.CONTINUE
        return Decision.STOP

    def fail(self, trial: int) -> None:
        level = self._reached.get(trial, -1) + 1
        if level < len(self.rungs):
            self._reached[trial] = level
            self.rungs[level].record(trial, math.inf)


class ASHA(Optimizer):
    """Asynchronous successive halving over the proposals of any sampler.

    Args:
        eta: Only the best ``1 / eta`` of a rung go on; an integer of at least 2.
        min_budget: Steps of the lowest rung, or a little more (see :func:`rung_levels`).
        mode: ``promotion`` pauses every trial at its rung and runs the best on later, from their
            checkpoints (without checkpoints they start over, which costs up to ``eta / (eta - 1)``
            of the steps). ``stopping`` decides once, when a trial reaches a rung.
        sampler: Proposes the configurations; random search if not given.
        brackets: Brackets of Hyperband to run side by side (see :mod:`optimizers.brackets`), each with a rung
            less; None for all.

    Example:
        >>> lagom(train_fn, space, optimizer=ASHA(eta=4, mode="stopping"), max_budget=64)
    """

    def __init__(
        self,
        *,
        eta: int = 3,
        min_budget: int = 1,
        mode: Mode = "promotion",
        sampler: Optimizer | None = None,
        brackets: int | None = 1,
    ) -> None:
        if mode not in ("promotion", "stopping"):
            raise OptimizerError(f"mode must be 'promotion' or 'stopping', got {mode!r}")
        if sampler is not None and type(sampler).scheduler is not Optimizer.scheduler:
            name = type(sampler).__name__
            raise OptimizerError(
                f"sampler={name}() has a schedule of its own, which ASHA does not follow; pass a sampler that only "
                f"proposes, or use {name} alone"
            )
        self.eta = integer("eta", eta, least=2, hint="3 is usual")
        self.min_budget: int | None = integer("min_budget", min_budget, least=1)
        self.mode = mode
        self.brackets = None if brackets is None else integer("brackets", brackets, least=1)
        self.sampler = sampler if sampler is not None else RandomSearch()
        self.adaptive = self.sampler.adaptive

    def validate(self, problem: Problem) -> None:
        if self.min_budget is not None and self.min_budget > problem.max_budget:
            raise OptimizerError(
                f"min_budget={self.min_budget} lies above max_budget={problem.max_budget}; "
                "lower the one or raise the other"
            )
        self.sampler.validate(problem)

    def ask(self, index: int, history: History) -> Answer:
        return self.sampler.ask(index, history)

    def levels(self, max_budget: int) -> tuple[int, ...]:
        """The steps of the rungs in a search of ``max_budget`` steps."""
        return rung_levels(max_budget, self.min_budget or 1, self.eta)

    def etas(self, levels: tuple[int, ...]) -> tuple[float, ...]:
        """One in how many goes on at each of the rungs; the top one's is of no account."""
        return (float(self.eta),) * len(levels)

    def scheduler(self, problem: Problem) -> PromotionScheduler | StoppingScheduler | BracketScheduler:
        levels = self.levels(problem.max_budget)
        etas = self.etas(levels)
        form = PromotionScheduler if self.mode == "promotion" else StoppingScheduler
        count = len(levels) if self.brackets is None else min(self.brackets, len(levels))
        if count == 1:
            return form(levels, etas)
        inner = [form(levels[lowest:], etas[lowest:]) for lowest in range(count)]
        return BracketScheduler(inner, bracket_shares(len(levels), self.eta, count), problem.seed)
