"""The unit cube as a model sees it, how much a configuration is expected to improve on the best, and where most."""

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

    Points have the shape (n, d); a parameter that is not active lies at 0.5, as
    :meth:`SearchSpace.to_unit` has it.

    Attributes:
        d: Number of axes.
        groups: Shape (p,): the axis that each feature belongs to. A number has one feature, a choice
            one for each of its values.
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
        self.groups = np.repeat(np.arange(self.d), widths)

    def allows(self, point: Array) -> bool:
        """Whether the constraints of the space allow the configuration of a point, shape (d,)."""
        return not self.space.has_constraint or self.space.allows(self.space.from_unit(point))

    def snap(self, units: Array) -> Array:
        """The points of the configurations that ``units`` stand for: shape (n, d) to (n, d)."""
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
        """What distances are taken of: shape (n, d) to (n, p).

        The squared distance of two values of a choice is 1 where they differ, so that it weighs as
        much as the whole length of a numeric axis.
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
        """Neighbours of points, one for each: some axes move by ``scale``, or to another value of a choice.

        Args:
            units: Shape (n, d).
            scale: Shape (n,): standard deviation of the moves of numbers, as a share of the axis.
            rate: Probability that an axis moves; at least one does.
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
        """The points where one choice has another value: shape (d,) to (t, d).

        A choice that is not active there gives the point itself.
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
        """For each conditional axis, parents first: the positions that each parent must have, or whether never."""
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
    """Where the cells of a domain meet, shape (size - 1,); None if all are of the same width, or it is continuous."""
    if not isinstance(domain, Integer) or not domain.log or domain.size > _MAX_CELLS:
        return None
    edges = np.log(np.arange(domain.low, domain.high + 2) - 0.5)
    return np.asarray((edges[1:-1] - edges[0]) / (edges[-1] - edges[0]))


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
