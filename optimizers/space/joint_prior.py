"""The priors of all parameters together, as one density on the unit cube."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from optimizers.space.domain import Dimension, Domain
from optimizers.space.priors import UNIFORM_SHARE, Array


class JointPrior:
    """A density on the unit cube of a search space.

    Each parameter has its own prior, or none; the prior of a parameter that is not active has
    no effect. The product of them is mixed with a share of the uniform density, so that a wrong prior
    excludes no region.

    Args:
        domains: Of all parameters, by name.
        dimensions: Names of the axes, in order.
    """

    def __init__(self, domains: Mapping[str, Domain], dimensions: Sequence[str]) -> None:
        self._domains = domains
        self._axes = {name: axis for axis, name in enumerate(dimensions)}
        densities = {name: domain.density for name, domain in domains.items() if isinstance(domain, Dimension)}
        self._priors = {name: prior for name, prior in densities.items() if prior is not None}

    def __bool__(self) -> bool:
        return bool(self._priors)

    @property
    def centre(self) -> Array:
        """The position of all priors, shape (d,), with 0.5 for parameters that have none."""
        centre = np.full(len(self._axes), 0.5)
        for name in self._priors:
            domain = self._domains[name]
            assert isinstance(domain, Dimension)
            centre[self._axes[name]] = domain.to_unit(domain.prior)
        return centre

    def draw(self, rng: np.random.Generator) -> Array:
        """A point of the density, shape (d,)."""
        point = rng.random(len(self._axes))
        if self._priors and rng.random() >= UNIFORM_SHARE:
            for name, prior in self._priors.items():
                axis = self._axes[name]
                point[axis] = prior.quantile(point[axis])
        return point

    def log_density(self, points: Array) -> Array:
        """Natural logarithm of the density at ``points``, shape (n, d) to (n,)."""
        total = np.zeros(len(points))
        if not self._priors:
            return total
        for name, prior in self._priors.items():
            density = prior.log_density(points[:, self._axes[name]])
            total += np.where(self._is_active(name, points), density, 0.0)
        mixed: Array = np.logaddexp(math.log(1.0 - UNIFORM_SHARE) + total, math.log(UNIFORM_SHARE))
        return mixed

    def _is_active(self, name: str, points: Array) -> NDArray[np.bool_]:
        active = np.ones(len(points), dtype=bool)
        for parent, values in self._domains[name].conditions.items():
            domain = self._domains[parent]
            column = points[:, self._axes[parent]] if parent in self._axes else np.full(len(points), 0.5)
            positions, places = np.unique(column, return_inverse=True)  # few, since a parent is discrete
            known = [domain.from_unit(position) for position in positions.tolist()]
            hits = [any(domain.equal(of_parent, value) for value in values) for of_parent in known]
            active &= np.array(hits, dtype=bool)[places] & self._is_active(parent, points)
        return active
