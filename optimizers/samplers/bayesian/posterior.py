"""What the results of a search say about its configurations: their losses at the full budget, without the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizers.samplers.bayesian.acquisition import Axes
from optimizers.samplers.bayesian.gp import GaussianProcess, Hyperparameters, fit
from optimizers.samplers.model_based import clipped, dealt
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

FEWEST = 8
"""Finite results below which nothing is said."""

SIZE = 200
"""Maximum number of results in the model, since the cost of a fit grows with their cube."""

_CUT = 2.0  # losses above the median are cut at this multiple of the distance from the best to the median
_FEWEST_ON_LINE = 4  # trainings that determine the line from scores to losses, if there are as many
_LEVELS = 32  # maximum number of steps at which trainings are compared
_LARGE = 1 / 3  # noise, as a share of the spread, from which the best value is worth a second look
_NEARLY_NONE = 0.01  # noise of that variance, as a share of the spread's, explains as little as none
_EVIDENCE = 2.0  # logarithm of how much more probable noise must be than none, since eight losses fit either
_NOISE = 0.3  # variance from which the fit starts: with many parameters, little noise often fits as well, and overfits


@dataclass(frozen=True, slots=True)
class Posterior:
    """Estimated losses of the configurations that got furthest."""

    rows: Integers  # numbers of the configurations, shape (m,)
    means: Array  # their expected losses, without noise, shape (m,)
    stds: Array  # standard deviations of these, shape (m,)
    noise: float  # standard deviation of the loss of one training
    is_noisy: bool  # whether the noise is large, and the losses are hard to explain without it


def posterior(
    space: SearchSpace,
    configs: Sequence[Config],
    steps: Sequence[int],  # number of steps that each was trained for
    losses: Sequence[float],  # not finite if the training failed
    loss_at: Callable[[int, int], float],  # loss of a configuration, by its number, after fewer steps
) -> Posterior | None:
    """Estimate the losses of configurations from one training of each, by a Gaussian process.

    It is fitted at the end of a search, and whatever the optimizer was. Each configuration counts once, since all
    results of one training share its luck. The configurations that got furthest were chosen for their luck, too. So
    the model has all of them, on the scale of the first comparison: at each step where trainings ended, the losses of
    those that continued are dealt out again by rank, as in
    :meth:`~optimizers.samplers.bayesian.surrogate.Results.scores`. The losses of those that got furthest map the
    estimates back, by a straight line.

    Failed trainings are left out. The noise is that of trainings which end, and with the worst loss instead of none,
    failures by chance would count as noise.

    With more than :data:`SIZE` configurations, half of the model are those that got furthest, the best first, and the
    others are spread evenly over the rest. Return None with fewer than :data:`FEWEST` finite losses, if all are equal,
    or if nothing varies in the space.
    """
    numbers = np.flatnonzero(np.isfinite(losses))
    if len(numbers) < FEWEST or not space.dimensions:
        return None
    known, ends = np.asarray(losses, dtype=float)[numbers], np.asarray(steps, dtype=np.int64)[numbers]
    scores = _scores(ends, known, lambda row, step: loss_at(int(numbers[row]), step))
    furthest = np.flatnonzero(ends == ends.max())
    kept = _kept(ends, scores)
    spread, axes = float(scores[kept].std()), Axes(space)
    if spread == 0.0:
        return None
    center = float(scores[kept].mean())
    features = axes.features(np.array([space.to_unit(configs[number]) for number in numbers[kept]]))
    default = Hyperparameters.default(axes.d).values
    targets = (scores[kept] - center) / spread
    found = fit(features, axes.groups, targets, Hyperparameters(np.append(default[:-1], math.log(_NOISE))))
    model = GaussianProcess(features, axes.groups, found)
    is_furthest = np.isin(kept, furthest)
    means, variances = model.predict(features[is_furthest], model.condition(targets))
    slope, level = _line((scores[furthest] - center) / spread, known[furthest], spread)
    noise = math.sqrt(found.noise)
    is_noisy = noise >= _LARGE
    if is_noisy:
        start = Hyperparameters(np.append(default[:-1], math.log(_NEARLY_NONE)))
        is_noisy = fit(features, axes.groups, targets, start, _NEARLY_NONE).energy - found.energy > _EVIDENCE
    return Posterior(
        numbers[kept[is_furthest]], level + slope * means, slope * np.sqrt(variances), slope * noise, is_noisy
    )


def _scores(ends: Integers, losses: Array, loss_at: Callable[[int, int], float]) -> Array:
    """Return the scores of all configurations, on the scale of the losses at the first step where trainings ended."""
    levels = np.unique(ends)
    if len(levels) > _LEVELS:
        levels = levels[np.linspace(0, len(levels) - 1, _LEVELS).astype(int)]
    scores = np.empty(len(losses))
    for number, level in enumerate(levels.tolist()):
        rows = np.flatnonzero(ends >= level)
        values = np.array([losses[row] if level >= ends[row] else loss_at(row, level) for row in rows.tolist()])
        scores[rows] = dealt(values, np.sort(scores[rows])) if number else clipped(values, _CUT)
    return scores


def _kept(ends: Integers, scores: Array) -> Integers:
    """Return the numbers of the configurations in the model."""
    order = np.lexsort((scores, -ends))
    if len(order) <= SIZE:
        return order
    half = SIZE // 2
    return np.concatenate([order[:half], order[np.linspace(half, len(order) - 1, SIZE - half).astype(int)]])


def _line(scores: Array, losses: Array, otherwise: float) -> tuple[float, float]:
    """Return slope and level of the line from scores to losses, of the better half, whose losses are not cut.

    The slope is ``otherwise`` if all of them are equal.
    """
    better = np.argsort(losses)[: max(_FEWEST_ON_LINE, len(losses) // 2)]
    x, y = scores[better], losses[better]
    slope = float(y.std() / x.std()) if x.std() > 0.0 and y.std() > 0.0 else otherwise
    return slope, float(y.mean() - slope * x.mean())
