"""How much a configuration is expected to improve on the best, and where that is largest."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, logsumexp, ndtr

from optimizers.samplers.bayesian.axes import Axes

Array = NDArray[np.float64]

_BROAD, _NEAR = 1024, 512  # points of the first look: anywhere, and around the best known
_CLIMBERS, _STEPS = 8, 32  # climbs side by side, and steps that each tries in a round
_CLIMB_SCALES = (0.3, 0.1, 0.03)
_PASSED_OVER = 1.02  # how much further down the next point is after a forbidden one, in the first look
_LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)


def log_augmented_improvement(means: Array, variances: Array, best: Array, noise: float) -> Array:
    """Logarithm of the augmented expected improvement, averaged over fantasies.

    The augmentation discounts what another observation cannot show: without it, a point beside the best one would be
    proposed again and again where the noise is larger than the remaining uncertainty.

    Sources: Huang, Allen, Notz and Zeng, 2006, equation 13; Ament, Daulton, Eriksson, Balandat and Bakshy, "Unexpected
    Improvements to Expected Improvement for Bayesian Optimization", 2023, equations 8 and 9.

    Args:
        means: Posterior means, shape (m, s), a column for each fantasy.
        variances: Shape (m,).
        best: The loss to improve on in each fantasy, shape (s,).
        noise: Variance of an observation's noise.

    Returns:
        Shape (m,).
    """
    std = np.sqrt(variances)[:, None]
    logs = _log_h((best - means) / std) + np.log(std)
    expected = logsumexp(logs, axis=1) - np.log(logs.shape[1])
    return np.asarray(expected + np.log1p(-np.sqrt(noise / (variances + noise))))


def _log_h(z: Array) -> Array:
    """log(phi(z) + z Phi(z)), also where it is far below what floats hold."""
    out = np.empty_like(z)
    near = z > -1.0
    a = z[near]
    out[near] = np.log(np.exp(-0.5 * a * a - _LOG_SQRT_2PI) + a * ndtr(a))
    b = z[~near]
    ratio = np.sqrt(np.pi / 2.0) * erfcx(-b / np.sqrt(2.0)) * np.abs(b)
    # 1 - ratio loses its digits far out, where it tends to 1 / b^2
    rest = np.where(b > -1e4, np.log1p(-np.minimum(ratio, 1.0 - 1e-16)), -2.0 * np.log(-b))
    out[~near] = -0.5 * b * b - _LOG_SQRT_2PI + rest
    return out


def maximize(
    score: Callable[[Array], Array],
    axes: Axes,
    starts: Array,
    rng: np.random.Generator,
    taken: set[bytes],
    effort: float = 1.0,
) -> Array:
    """The allowed points of the highest scores, best first: random points, then local search from the best of them.

    The constraints of the space are functions of a user's, which may take their time: they are asked of few points.

    Args:
        score: Of points, shape (m, d) to (m,).
        axes: The unit cube.
        starts: Points to search around, best first, shape (k, d).
        taken: Points (as bytes) that must not be proposed.
        effort: Share of the points that are looked at, above 0 and at most 1.

    Returns:
        Shape (t, d), a few; empty if every point that was looked at is taken or not allowed.
    """
    broad = axes.snap(rng.random((math.ceil(effort * _BROAD), axes.d)))
    near = _around(axes, starts, math.ceil(effort * _NEAR), rng, 0.5) if len(starts) else broad[:0]
    points = _fresh(np.concatenate([broad, near]), taken)
    if not len(points):
        return points
    scores = score(points)
    top = _best_allowed(axes, points, scores, 0)
    for scale in _CLIMB_SCALES:
        if not len(top):
            break
        points, scores = points[top], scores[top]
        known = len(points)
        steps = _fresh(_around(axes, points, math.ceil(effort * _CLIMBERS * _STEPS), rng, scale), taken)
        if len(steps):
            points, scores = np.concatenate([points, steps]), np.concatenate([scores, score(steps)])
        top = _best_allowed(axes, points, scores, known)
    return points[top]


def one_choice_away(score: Callable[[Array], Array], axes: Axes, start: Array, taken: set[bytes]) -> Array:
    """The points that differ from ``start`` in one choice and are not taken, best score first: shape (t, d).

    Constraints are not looked at.
    """
    points = _fresh(axes.other_choices(start), taken)
    return np.asarray(points[np.argsort(-score(points), kind="stable")]) if len(points) else points


def _best_allowed(axes: Axes, points: Array, scores: Array, known: int) -> list[int]:
    """The rows of the best allowed points, best first; the first ``known`` are known to be allowed.

    In the first look, where none is known, points of like scores are near each other and forbidden together: after
    a forbidden one some are passed over, the more the further down.
    """
    best: list[int] = []
    next_place = 0
    for place, row in enumerate(np.argsort(-scores, kind="stable").tolist()):
        if place < next_place:
            continue
        if row < known or axes.allows(points[row]):
            best.append(row)
            if len(best) == _CLIMBERS:
                break
        elif not known:
            next_place = int(place * _PASSED_OVER) + 1
    return best


def _around(axes: Axes, points: Array, count: int, rng: np.random.Generator, scale: float) -> Array:
    """Neighbours of each point in turn, ``count`` in all, most of them much nearer than ``scale``."""
    repeated = (
        np.resize(points, (count, axes.d))
        if len(points) == 1
        else np.repeat(points, -(-count // len(points)), axis=0)[:count]
    )
    scales = scale * 10.0 ** -(2.0 * rng.random(len(repeated)))
    return axes.mutate(repeated, rng, scales, min(1.0, 2.0 / axes.d))


def _fresh(points: Array, taken: set[bytes]) -> Array:
    """The different points that are not taken, in order."""
    seen = set(taken)
    keep = []
    for index, point in enumerate(np.ascontiguousarray(points)):
        if (name := point.tobytes()) not in seen:
            seen.add(name)
            keep.append(index)
    return points[keep]
