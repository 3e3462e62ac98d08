"""Estimates of differences that were looked at after every seed.

A comparison that stops when its difference looks large has stopped, more often than not, at a lucky moment: its mean
overstates. The *median-unbiased* estimate is the drift under which results at least as far in the observed direction
have probability one half: of all studies, half lie above the truth and half below. "Farther" is in the stage-wise
order: found by an earlier look, or at the same look with a larger mean.

Sources: Tsiatis, Rosner and Mehta, "Exact Confidence Intervals Following a Group Sequential Test", Biometrics 40, 1984
(the order, and the sub-densities by recursion); Jennison and Turnbull, "Group Sequential Methods", 2000, section 8.2
(the estimate), 19.2 (the recursion).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_POINTS = 161  # of the grid between the boundaries
_FURTHEST = 40.0  # drifts


def median_unbiased(times: Sequence[float], boundary: Sequence[float], height: float) -> float:
    """The drift of a Brownian motion that was looked at until it crossed a boundary, or until some last look.

    Args:
        times: Of the looks, the last one observed included, rising.
        boundary: Height at each look, above and below zero.
        height: Of the motion at the last look.

    Example:
        >>> median_unbiased([0.5], [2.0], 1.0)  # a single look: the plain estimate
        2.0
    """
    from scipy import optimize

    plain = height / times[-1]
    if len(times) == 1:
        return plain
    if height < 0.0:
        return -median_unbiased(times, boundary, -height)
    densities = _densities(tuple(times), tuple(boundary))

    def exceeds(drift: float) -> float:
        return farther(times, boundary, height, drift, densities) - 0.5

    if exceeds(0.0) >= 0.0:
        return 0.0
    return float(optimize.brentq(exceeds, 0.0, max(plain, 1.0) + _FURTHEST, xtol=1e-4))


def farther(
    times: Sequence[float],
    boundary: Sequence[float],
    height: float,
    drift: float,
    densities: tuple[NDArray[np.float64], ...] | None = None,
) -> float:
    """The probability of crossing the upper boundary at an earlier look, or of at least ``height`` at the last."""
    from scipy import special

    densities = _densities(tuple(times), tuple(boundary)) if densities is None else densities
    total = 0.0
    for look, time in enumerate(times):
        goal = boundary[look] if look < len(times) - 1 else height
        if look == 0:
            total += float(special.ndtr((drift * time - goal) / math.sqrt(time)))
            continue
        before, step = times[look - 1], time - times[look - 1]
        grid, weights = _grid(boundary[look - 1])
        # A density with drift is that without, times the ratio of their likelihoods.
        density = densities[look - 1] * np.exp(drift * grid - drift**2 * before / 2.0)
        total += float(weights @ (density * special.ndtr((grid + drift * step - goal) / math.sqrt(step))))
    return total


@lru_cache(maxsize=64)
def _densities(times: tuple[float, ...], boundary: tuple[float, ...]) -> tuple[NDArray[np.float64], ...]:
    """At each look but the last, the density without drift of what has not crossed, on the look's grid."""
    grid, weights = _grid(boundary[0])
    made = [_normal(grid, times[0])]
    for look in range(1, len(times) - 1):
        further, their_weights = _grid(boundary[look])
        steps = _normal(further[:, None] - grid[None, :], times[look] - times[look - 1])
        made.append(steps @ (weights * made[-1]))
        grid, weights = further, their_weights
    return tuple(made)


def _grid(height: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points between the boundaries, and the weights of Simpson's rule."""
    grid = np.linspace(-height, height, _POINTS)
    weights = np.where(np.arange(_POINTS) % 2 == 1, 4.0, 2.0)
    weights[[0, -1]] = 1.0
    return grid, weights * (grid[1] - grid[0]) / 3.0


def _normal(x: NDArray[np.float64], variance: float) -> NDArray[np.float64]:
    density: NDArray[np.float64] = np.exp(-(x**2) / (2.0 * variance)) / math.sqrt(2.0 * math.pi * variance)
    return density
