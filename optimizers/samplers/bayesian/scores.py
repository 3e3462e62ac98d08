"""Scores that a model is fitted to: losses on one scale over all rungs, with diverged ones cut."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from optimizers.core.base import Observation
from optimizers.samplers.clipped_losses import clipped

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_NO_LEVEL = 1 << 30
_ENOUGH = 8  # finite results above the floor, from which on those below it are left out
_WORST = 1 / 3  # the share of those below the floor that counts as failed

CUT = 2.0
"""In distances from the best to the median: losses further above the median are cut."""


class Results:
    """Observations in columns, which grow with a history.

    Args:
        max_budget: Steps of a full training.
        min_share: Observations after less than this share of it have no score while there are enough others, but
            those that failed and those of the worst third that got no further: these are ranked with the failed ones.
        cut: See :data:`CUT`.

    Attributes:
        floor: The level of ``min_share``.
        trials: The trial of each observation, shape (n,).
        levels: How far it got, in halvings of the full budget, from 0 downwards: shape (n,).
        losses: Shape (n,).
    """

    def __init__(self, max_budget: int, min_share: float = 0.0, *, cut: float = CUT) -> None:
        self._max_budget = max_budget
        self._cut = cut
        self.floor = math.floor(math.log2(min_share) + 1e-9) if min_share else -_NO_LEVEL
        self.trials: Integers = np.empty(0, dtype=np.int64)
        self.levels: Integers = np.empty(0, dtype=np.int64)
        self.losses: Array = np.empty(0)

    def __len__(self) -> int:
        return len(self.trials)

    def extend(self, observations: Sequence[Observation]) -> None:
        """Append observations; at least one."""
        steps = np.array([max(seen.step, 1) for seen in observations], dtype=float)
        halvings = np.ceil(np.log2(self._max_budget / np.minimum(steps, self._max_budget)) - 1e-9)
        self.trials = np.append(self.trials, [seen.trial for seen in observations]).astype(np.int64)
        self.levels = np.append(self.levels, -halvings).astype(np.int64)
        self.losses = np.append(self.losses, [seen.loss for seen in observations])

    def levels_for_model(self, rows: Integers) -> Integers:
        """How far a model shall take observations to have got, shape (m,).

        A training that failed, or whose loss is not finite, counts as one that did so at the full budget: a model that
        saw it where it ended would blame the short training, and propose the same configuration again.
        """
        return np.where(np.isfinite(self.losses[rows]), self.levels[rows], 0)

    def scores(self, n: int, *, floored: bool = True) -> tuple[Integers, Array]:
        """The scores of the first ``n`` observations: small is good, and the variance is near 1.

        At the lowest level a score is the standardized loss; one further above the median than twice the
        distance from the best to the median is cut there, so that a training that diverged does not make
        all others look the same. Further up there are only the trials that were best below, and their
        losses are on another scale. So the scores that those trials had are dealt out anew among them, the
        best one to the best loss: ranks, and no assumption on how losses fall with the steps.

        Args:
            floored: Whether observations below the floor are left out; else there is no floor.

        Returns:
            Which observations have a score (of several of a trial at one level the newest has), in order of
            levels, shape (m,), and their scores, shape (m,).
        """
        if n == 0:
            return np.empty(0, dtype=np.int64), np.empty(0)
        trials = self.trials[:n]
        kept, levels, losses = np.arange(n), self.levels[:n], self.losses[:n]
        if floored:
            kept, levels, losses = self._above_the_floor(losses)
        trials = trials[kept]
        levels = self._levels_of_failures_raised(levels, losses)
        score_of = np.full(trials.max(initial=-1) + 1, np.nan)
        rows, scores = [], []
        for level in np.unique(levels):
            at_level = np.flatnonzero(levels == level)
            _, newest = np.unique(trials[at_level][::-1], return_index=True)
            entries = np.sort(at_level[len(at_level) - 1 - newest])
            before = score_of[trials[entries]]
            known = np.sort(before[~np.isnan(before)])
            given = _dealt(losses[entries], known) if len(known) else _standardized(losses[entries], self._cut)
            score_of[trials[entries]] = given
            rows.append(entries)
            scores.append(given)
        return kept[np.concatenate(rows)], np.concatenate(scores)

    def _above_the_floor(self, losses: Array) -> tuple[Integers, Integers, Array]:
        """Which of the first observations are scored, shape (m,), with their levels and losses."""
        trials, levels = self.trials[: len(losses)], self.levels[: len(losses)]
        is_low = levels < self.floor
        if not is_low.any() or np.isfinite(losses[~is_low]).sum() < _ENOUGH:
            return np.arange(len(losses)), levels, losses
        low = np.flatnonzero(is_low)
        ranked = np.where(np.isfinite(losses[low]), losses[low], np.inf)
        is_worst = (ranked > np.quantile(ranked, 1.0 - _WORST, method="lower")) | np.isinf(ranked)
        worst = low[is_worst & ~np.isin(trials[low], trials[~is_low])]
        kept = np.sort(np.concatenate([np.flatnonzero(~is_low), worst]))
        failed = np.isin(kept, worst)
        return kept, np.where(failed, self.floor, levels[kept]), np.where(failed, np.inf, losses[kept])

    @staticmethod
    def _levels_of_failures_raised(levels: Integers, losses: Array) -> Integers:
        """A training that failed before the first rung is compared with what passed it."""
        finite = np.isfinite(losses)
        return np.where(finite, levels, np.maximum(levels, levels[finite].min(initial=0)))


def _standardized(losses: Array, distances: float) -> Array:
    cut = clipped(losses, distances)
    spread = cut.std()
    return np.asarray((cut - cut.mean()) / spread) if spread > 0 else np.zeros(len(losses))


def _dealt(losses: Array, scores: Array) -> Array:
    """Rising ``scores``, stretched to as many as there are losses, to each loss by its rank; equal ones share."""
    n = len(losses)
    places = (np.arange(n) + 0.5) / n
    stretched = np.interp(places, (np.arange(len(scores)) + 0.5) / len(scores), scores)
    _, ranks, counts = np.unique(np.where(np.isfinite(losses), losses, np.inf), return_inverse=True, return_counts=True)
    sums = np.add.reduceat(stretched, np.concatenate([[0], np.cumsum(counts)[:-1]]))
    return np.asarray((sums / counts)[ranks])
