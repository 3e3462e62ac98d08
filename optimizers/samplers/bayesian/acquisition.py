"""The unit cube as a model sees it, the expected improvement of a configuration, and the search for its maximum."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, logsumexp, ndtr

from optimizers.space.domains import Choice, Domain, Integer
from optimizers.space.scalars import same
from optimizers.space.search_space import SearchSpace

Array = NDArray[np.float64]

_MAX_CELLS = 1024
"""A discrete domain of more values is treated as continuous."""


class Axes:
    """The axes of a search space's unit cube, for many points at once.

    Points have the shape (n, d). An inactive parameter is at 0.5, as in :meth:`SearchSpace.to_unit`.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.d = len(space.dimensions)
        domains = [space.domains[name] for name in space.dimensions]
        self._positions = [
            np.array([domain.to_unit(value) for value in domain.grid(domain.size)])
            if domain.size is not None and domain.size <= _MAX_CELLS
            else None
            for domain in domains
        ]
        self._borders = [_uneven_borders(domain) for domain in domains]
        self._is_choice = [isinstance(domain, Choice) for domain in domains]
        self._conditions = self._read_conditions()
        widths = [self._width(axis) for axis in range(self.d)]
        # Axis of each feature, shape (p,). A number has one feature, a choice one per value.
        self.groups = np.repeat(np.arange(self.d), widths)

    def allows(self, point: Array) -> bool:
        """Return whether the constraints of the space allow the configuration of a point, shape (d,)."""
        return not self.space.has_constraint or self.space.allows(self.space.from_unit(point))

    def snap(self, units: Array) -> Array:
        """Return the points of the configurations at ``units``: shape (n, d) to (n, d)."""
        snapped = units.copy()
        for axis, (positions, borders) in enumerate(zip(self._positions, self._borders, strict=True)):
            if positions is not None:
                if borders is None:
                    cells = np.minimum((units[:, axis] * len(positions)).astype(int), len(positions) - 1)
                else:
                    cells = np.searchsorted(borders, units[:, axis])
                snapped[:, axis] = positions[cells]
        for axis, active in self._activity(snapped):
            snapped[~active, axis] = 0.5
        return snapped

    def features(self, units: Array) -> Array:
        """Return the features that distances are computed from: shape (n, d) to (n, p).

        The squared distance between two values of a choice is 1, the same as the whole length of a numeric axis.
        """
        columns = []
        for axis, positions in enumerate(self._positions):
            column = units[:, axis]
            if self._is_choice[axis] and positions is not None:
                columns.append((np.abs(column[:, None] - positions) < 1e-9) * np.sqrt(0.5))
            else:
                columns.append(column[:, None])
        return np.concatenate(columns, axis=1) if columns else np.empty((len(units), 0))

    def mutate(self, units: Array, rng: np.random.Generator, scale: Array, rate: float) -> Array:
        """Return one neighbor per point: some axes move by ``scale``, or to another value of a choice.

        ``units`` has the shape (n, d). ``scale`` is the standard deviation of the moves of numbers, as a share of the
        axis, shape (n,). ``rate`` is the probability that an axis moves. At least one does.
        """
        n = len(units)
        moves = rng.random((n, self.d)) < rate
        moves[np.arange(n), rng.integers(self.d, size=n)] = True
        steps = rng.normal(size=(n, self.d)) * scale[:, None]
        jumps = rng.random((n, self.d))
        for axis, positions in enumerate(self._positions):
            if positions is not None and not self._is_choice[axis]:  # a move must leave its cell
                least = 1.0 / len(positions)
                steps[:, axis] = np.sign(steps[:, axis]) * np.maximum(np.abs(steps[:, axis]), least)
        moved = units + steps
        moved = np.where((moved < 0.0) | (moved > 1.0), np.clip(units - steps, 0.0, 1.0), moved)
        moved[:, self._is_choice] = jumps[:, self._is_choice]
        return self.snap(np.where(moves, moved, units))

    def other_choices(self, point: Array) -> Array:
        """Return the points where one choice has another value: shape (d,) to (t, d).

        An inactive choice gives the point itself.
        """
        changed = [np.empty((0, self.d))]
        for axis, positions in enumerate(self._positions):
            if self._is_choice[axis] and positions is not None:
                others = positions[np.abs(positions - point[axis]) > 1e-9]
                points = np.repeat(point[None], len(others), axis=0)
                points[:, axis] = others
                changed.append(points)
        return self.snap(np.concatenate(changed))

    def _width(self, axis: int) -> int:
        positions = self._positions[axis]
        return len(positions) if self._is_choice[axis] and positions is not None else 1

    def _read_conditions(self) -> list[tuple[int, list[tuple[int, Array]], bool]]:
        """Return each conditional axis, parents first, with its parents' positions and whether it is never active."""
        index = {name: axis for axis, name in enumerate(self.space.dimensions)}
        conditions = []
        for name in self.space.parents_first:
            domain = self.space.domains[name]
            if name not in index or not domain.conditions:
                continue
            wanted, never = [], False
            for parent, values in domain.conditions.items():
                of_parent = self.space.domains[parent]
                if parent in index:
                    wanted.append((index[parent], np.array([of_parent.to_unit(value) for value in values])))
                else:
                    never |= not any(same(of_parent.grid(1)[0], value) for value in values)
            conditions.append((index[name], wanted, never))
        return conditions

    def _activity(self, units: Array) -> list[tuple[int, NDArray[np.bool_]]]:
        known: dict[int, NDArray[np.bool_]] = {}
        for axis, wanted, never in self._conditions:
            active = np.full(len(units), not never)
            for parent, positions in wanted:
                active &= (np.abs(units[:, parent, None] - positions) < 1e-9).any(axis=1)
                if parent in known:
                    active &= known[parent]
            known[axis] = active
        return list(known.items())


def _uneven_borders(domain: Domain) -> Array | None:
    """Return the borders between the cells of a domain, shape (size - 1,), or None.

    None means that all cells have the same width, or that the domain is continuous.
    """
    if not isinstance(domain, Integer) or not domain.log or domain.size > _MAX_CELLS:
        return None
    edges = np.log(np.arange(domain.low, domain.high + 2) - 0.5)
    return np.asarray((edges[1:-1] - edges[0]) / (edges[-1] - edges[0]))


_BROAD, _NEAR = 1024, 512  # points of the first look: anywhere, and around the best known ones
_CLIMBERS, _STEPS = 8, 32  # parallel climbs, and steps that each tries per round
_CLIMB_SCALES = (0.3, 0.1, 0.03)
_PASSED_OVER = 1.02  # factor on the rank after a forbidden point, in the first look
_LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)


def log_augmented_improvement(means: Array, variances: Array, best: Array, noise: float) -> Array:
    """Return the logarithm of the augmented expected improvement, averaged over fantasies.

    The augmentation reduces the improvement by what another observation cannot show. Without it, a point next to the
    best one would be proposed repeatedly if the noise exceeds the remaining uncertainty.

    Sources: Huang, Allen, Notz and Zeng, 2006, equation 13; Ament, Daulton, Eriksson, Balandat and Bakshy, "Unexpected
    Improvements to Expected Improvement for Bayesian Optimization", 2023, equations 8 and 9.

    ``means`` has the shape (m, s), a column per fantasy, and ``variances`` and the result (m,). ``best`` is the loss to
    improve on in each fantasy, shape (s,). ``noise`` is the variance of an observation's noise.
    """
    std = np.sqrt(variances)[:, None]
    logs = _log_h((best - means) / std) + np.log(std)
    expected = logsumexp(logs, axis=1) - np.log(logs.shape[1])
    return np.asarray(expected + np.log1p(-np.sqrt(noise / (variances + noise))))


def _log_h(z: Array) -> Array:
    """Return log(phi(z) + z Phi(z)), also far below the range of floats."""
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
    score: Callable[[Array], Array],  # shape (m, d) to (m,)
    axes: Axes,
    starts: Array,  # points to search around, best first, shape (k, d)
    rng: np.random.Generator,
    taken: set[bytes],  # points that must not be proposed
    effort: float = 1.0,  # share of the usual number of points, above 0 and at most 1
) -> Array:
    """Return the allowed points with the highest scores, best first, from random points and local search.

    They are few, shape (t, d), and none if all points are taken or not allowed. Constraints are user functions, which
    may be slow, so few points are checked.
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
    """Return the points that differ from ``start`` in one choice and are not taken, best score first: shape (t, d).

    Constraints are not checked.
    """
    points = _fresh(axes.other_choices(start), taken)
    return np.asarray(points[np.argsort(-score(points), kind="stable")]) if len(points) else points


def _best_allowed(axes: Axes, points: Array, scores: Array, known: int) -> list[int]:
    """Return the rows of the best allowed points, best first. The first ``known`` rows are known to be allowed.

    In the first look, where none is known, points with similar scores are close together and forbidden together. So
    some points are skipped after a forbidden one, and more of them further down.
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
    """Return ``count`` neighbors of the points in turn, most of them much closer than ``scale``."""
    repeated = (
        np.resize(points, (count, axes.d))
        if len(points) == 1
        else np.repeat(points, -(-count // len(points)), axis=0)[:count]
    )
    scales = scale * 10.0 ** -(2.0 * rng.random(len(repeated)))
    return axes.mutate(repeated, rng, scales, min(1.0, 2.0 / axes.d))


def _fresh(points: Array, taken: set[bytes]) -> Array:
    """Return the distinct points that are not taken, in order."""
    seen = set(taken)
    keep = []
    for index, point in enumerate(np.ascontiguousarray(points)):
        if (name := point.tobytes()) not in seen:
            seen.add(name)
            keep.append(index)
    return points[keep]
