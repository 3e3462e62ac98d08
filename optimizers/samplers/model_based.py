"""What samplers with a model share: losses that a model can fit, and proposals that are new."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optimizers.samplers.non_adaptive import Grid
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

_HUGE = 1e100  # squares of losses must stay finite


def clipped(losses: NDArray[np.float64], distances: float = 10.0) -> NDArray[np.float64]:
    """Return losses that a model can fit, shape (n,): finite, and on a scale that resolves the good ones.

    A loss that is not finite becomes the worst finite one, so that models avoid configurations that fail. It stays nan
    while there is no finite loss. Losses are cut at a distance above the median: ``distances`` times that from the best
    to the median. The order of all others is kept.
    """
    finite = np.isfinite(losses)
    if not finite.any():
        return np.full(len(losses), np.nan)
    result: NDArray[np.float64] = np.clip(np.where(finite, losses, losses[finite].max()), -_HUGE, _HUGE)
    best, median = result.min(), np.median(result)
    return np.minimum(result, median + distances * (median - best)) if best < median else result


def dealt(losses: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rising ``scores``, stretched to the number of losses, by the ranks of these.

    Equal losses share the mean.
    """
    n = len(losses)
    places = (np.arange(n) + 0.5) / n
    stretched = np.interp(places, (np.arange(len(scores)) + 0.5) / len(scores), scores)
    _, ranks, counts = np.unique(np.where(np.isfinite(losses), losses, np.inf), return_inverse=True, return_counts=True)
    sums = np.add.reduceat(stretched, np.concatenate([[0], np.cumsum(counts)[:-1]]))
    return np.asarray((sums / counts)[ranks])


_DRAWS = 50  # random draws before the configurations are enumerated
_LOOKED_THROUGH = 10_000  # combinations to enumerate at most, if each must be checked against constraints


def untried(
    space: SearchSpace, proposal: Config, running: set[bytes], ended: set[bytes], rng: np.random.Generator
) -> Config:
    """Return ``proposal`` if it is new, or else a new configuration, one that is not running, or any.

    The result satisfies the constraints of the space.
    """
    if not space.allows(proposal):
        proposal = space.sample(rng)
    for taken in (running | ended, running):
        if space.key(proposal) not in taken:
            return proposal
        for _ in range(_DRAWS):
            if space.key(drawn := space.sample(rng)) not in taken:
                return drawn
        if space.size is not None and (space.size <= _LOOKED_THROUGH or not space.has_constraint):
            everything = Grid(space.size)
            n = everything.size(space)
            start = int(rng.random() * n)
            for index in range(start, start + min(n, len(taken) + 1)):
                config = everything.at(space, index % n)
                if config is not None and space.key(config) not in taken:
                    return config
    return proposal
