"""The unit cube as a model sees it: points that configurations have, and their features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optimizers.space.domain import Domain
from optimizers.space.domains import Choice, Integer
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
