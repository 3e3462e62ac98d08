"""Hyperband's brackets, run asynchronously side by side.

How well a short training predicts a long one is not known beforehand. So each bracket leaves one more of the
lowest rungs out, and every new trial is put into a random one of them, in proportion to the bracket's size.

Sources: Li, Jamieson, DeSalvo, Rostamizadeh and Talwalkar, "Hyperband: A Novel Bandit-Based Approach to
Hyperparameter Optimization", JMLR 2018, Algorithm 1 (sizes); Klein et al., "Model-based Asynchronous
Hyperparameter and Neural Architecture Search", 2020, section 3.1 (drawing the bracket of each trial).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optimizers.core.base import Decision, Grant, Observation, Scheduler

_STREAM = 3  # of the random numbers of a seed; an ask's own have another form


def bracket_shares(n_levels: int, eta: int, brackets: int) -> list[float]:
    """The share of the trials that each bracket gets, the one with all rungs first; they sum to 1.

    Hyperband gives a bracket of ``s + 1`` rungs ``ceil(n_levels / (s + 1) * eta**s)`` configurations.

    Example:
        >>> bracket_shares(3, 3, 2)
        [0.6666666666666666, 0.3333333333333333]
    """
    sizes = [-(-n_levels * eta**s // (s + 1)) for s in range(n_levels - 1, n_levels - 1 - brackets, -1)]
    return [size / sum(sizes) for size in sizes]


class RungScheduler(Scheduler):
    """The schedule of one bracket.

    Attributes:
        has_full_training: Whether a trial of it was trained to the top rung, and neither failed nor diverged.
    """

    has_full_training: bool = False


class BracketScheduler(Scheduler):
    """Puts each trial into one of several schedulers, drawn from the seed and the trial's number.

    Args:
        inner: A scheduler for each bracket, all of one form.
        shares: The share of the trials that each gets.
        seed: Source of the draws.
    """

    def __init__(self, inner: Sequence[RungScheduler], shares: Sequence[float], seed: int) -> None:
        self.may_promote = inner[0].may_promote
        self._inner = list(inner)
        self._borders = np.cumsum(shares)[:-1]
        self._seed = seed
        self._bracket: dict[int, RungScheduler] = {}

    def bracket(self, trial: int) -> RungScheduler:
        """The scheduler that ``trial`` belongs to."""
        if trial not in self._bracket:
            drawn = np.random.default_rng([self._seed, trial, _STREAM]).random()
            self._bracket[trial] = self._inner[int(np.searchsorted(self._borders, drawn, side="right"))]
        return self._bracket[trial]

    def grant(self, trial: int) -> Grant:
        return self.bracket(trial).grant(trial)

    def report(self, trial: int, step: int, loss: float) -> Decision:
        return self.bracket(trial).report(trial, step, loss)

    def fail(self, trial: int) -> None:
        self.bracket(trial).fail(trial)

    def retry(self, trial: int) -> bool:
        return self.bracket(trial).retry(trial)

    def is_final(self, trial: int) -> bool:
        return self.bracket(trial).is_final(trial)

    def pause(self, trial: int) -> None:
        self.bracket(trial).pause(trial)

    def next_promotion(self) -> int | None:
        due = (scheduler.next_promotion() for scheduler in self._inner)
        return next((trial for trial in due if trial is not None), None)

    def closing_promotion(self) -> int | None:
        """That of the bracket whose trial has come furthest; none once a bracket has a full training."""
        if any(scheduler.has_full_training for scheduler in self._inner):
            return None
        last = [trial for scheduler in self._inner if (trial := scheduler.closing_promotion()) is not None]
        return max(last, key=lambda trial: self.grant(trial).budget, default=None)

    def promote(self, trial: int) -> None:
        self.bracket(trial).promote(trial)

    def observe(self, observation: Observation) -> None:
        self.bracket(observation.trial).observe(observation)
