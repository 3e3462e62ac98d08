"""What the results of a search say about its configurations: their losses at the full budget, without the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizers.samplers.bayesian.acquisition import Axes
from optimizers.samplers.bayesian.gp import GaussianProcess, Hyperparameters, fit
from optimizers.samplers.model_based import clipped
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

Array = NDArray[np.float64]

FEWEST = 8
"""Finite results below which nothing is said."""

SIZE = 200
"""Maximum number of results in the model, since the cost of a fit grows with their cube."""

_CUT = 2.0  # losses above the median are cut at this multiple of the distance from the best to the median
_NOISE = 0.3  # variance from which the fit starts: with many parameters, little noise often fits as well, and overfits


@dataclass(frozen=True, slots=True)
class Posterior:
    """Estimated losses of configurations.

    Attributes:
        rows: Numbers of the configurations that are estimated, shape (m,).
        means: Their expected losses after the full budget, without noise, shape (m,).
        stds: Standard deviations of these, shape (m,).
        noise: Standard deviation of the loss of one training.
        spread: Standard deviation of the losses, after those of bad configurations were cut.
    """

    rows: NDArray[np.int64]
    means: Array
    stds: Array
    noise: float
    spread: float


def posterior(
    space: SearchSpace, configs: Sequence[Config], steps: Sequence[int], losses: Sequence[float]
) -> Posterior | None:
    """Estimate the losses of configurations from one result of each, by a Gaussian process.

    It is fitted at the end of a search, and whatever the optimizer was. It covers configuration and budget, as
    :class:`~optimizers.samplers.bayesian.surrogate.Surrogate` does, but it models losses and not ranks. Each
    configuration counts once, by its last result, since all results of one training share its luck.

    With more than :data:`SIZE`, half of them are those that got furthest, the best first, and the others are spread
    evenly over the rest.

    Args:
        space: The search space.
        configs: The configurations.
        steps: Number of steps that each was trained for.
        losses: Loss of each; not finite if its training failed.

    Returns:
        None with fewer than :data:`FEWEST` finite losses, if all are equal, or if nothing varies in the space.
    """
    raw, done = np.asarray(losses, dtype=float), np.maximum(np.asarray(steps), 1)
    full = done.max(initial=1)
    done = np.where(np.isfinite(raw), done, full)  # a failure says nothing about short trainings
    if np.isfinite(raw).sum() < FEWEST or not space.dimensions:
        return None
    targets = clipped(raw, _CUT)
    rows = _chosen(done, targets)
    center, spread = float(targets[rows].mean()), float(targets[rows].std())
    if spread == 0.0:
        return None
    axes = Axes(space)
    features = axes.features(np.array([space.to_unit(configs[row]) for row in rows]))
    groups = axes.groups
    if has_budgets := bool((done < full).any()):
        shares = 1.0 + np.log2(done[rows] / full) / math.log2(full)
        features, groups = np.column_stack([features, shares]), np.append(groups, axes.d)
    scores = (targets[rows] - center) / spread
    default = Hyperparameters.default(axes.d + has_budgets).values
    found = fit(features, groups, scores, Hyperparameters(np.append(default[:-1], math.log(_NOISE))))
    model = GaussianProcess(features, groups, found)
    if has_budgets:
        features[:, -1] = 1.0
    means, variances = model.predict(features, model.condition(scores))
    noise = spread * math.sqrt(found.noise)
    return Posterior(rows, center + spread * means, spread * np.sqrt(variances), noise, spread)


def _chosen(steps: NDArray[np.int64], losses: Array) -> NDArray[np.int64]:
    """Return the numbers of the results to fit to."""
    order = np.lexsort((losses, -steps))
    if len(order) <= SIZE:
        return order
    half = SIZE // 2
    return np.concatenate([order[:half], order[np.linspace(half, len(order) - 1, SIZE - half).astype(int)]])
