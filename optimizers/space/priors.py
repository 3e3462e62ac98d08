"""Priors: densities on the unit interval around the value that the user expects to be best."""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from optimizers.checks import did_you_mean
from optimizers.errors import SearchSpaceError

Array = NDArray[np.float64]
Confidence = Literal["low", "medium", "high"]


class NoPrior(enum.Enum):
    """The type of :data:`NO_PRIOR`. None would not do, because it may be a value of a choice."""

    NO_PRIOR = "no prior"

    def __repr__(self) -> str:
        return self.name


NO_PRIOR: Final = NoPrior.NO_PRIOR

WIDTHS: Mapping[Confidence, float] = {"low": 0.5, "medium": 0.25, "high": 0.125}
"""Standard deviation around a numeric prior, as a share of the axis."""

WEIGHTS: Mapping[Confidence, float] = {"low": 2.0, "medium": 4.0, "high": 8.0}
"""How many times as likely the expected choice is as each other choice."""

UNIFORM_SHARE = 0.25
"""Share of draws that ignore all priors. If all priors are wrong, one draw in four is as good as without them."""


class Prior(ABC):
    """A density on [0, 1]."""

    @abstractmethod
    def quantile(self, p: float) -> float:
        """Return the position below which the share ``p`` in [0, 1) of the density lies.

        It maps uniform draws to draws from this density.
        """

    @abstractmethod
    def log_density(self, units: Array) -> Array:
        """Return the natural logarithm of the density at ``units``, shape (n,) to (n,).

        It is 0 where the density equals the uniform one.
        """


@dataclass(frozen=True, slots=True)
class Bell(Prior):
    """A normal density around ``centre``, truncated to [0, 1]."""

    centre: float
    width: float

    def quantile(self, p: float) -> float:
        normal = NormalDist(self.centre, self.width)
        below, within = self._mass()
        return min(max(normal.inv_cdf(below + p * within), 0.0), 1.0)

    def log_density(self, units: Array) -> Array:
        z = (units - self.centre) / self.width
        return -0.5 * z * z - math.log(self.width * math.sqrt(2.0 * math.pi) * self._mass()[1])

    def _mass(self) -> tuple[float, float]:
        """Return the shares of the normal distribution that lie below 0 and within [0, 1]."""
        normal = NormalDist(self.centre, self.width)
        below = normal.cdf(0.0)
        return below, normal.cdf(1.0) - below


@dataclass(frozen=True, slots=True)
class Favourite(Prior):
    """A density in which the ``place``-th of ``n`` cells is ``weight`` times as likely as each other cell."""

    place: int
    n: int
    weight: float

    def quantile(self, p: float) -> float:
        # The favourite's cell comes first, then the others in their order.
        total = self.weight + self.n - 1
        if p * total < self.weight:
            return (self.place + 0.5) / self.n
        other = min(int(p * total - self.weight), self.n - 2)
        return (other + (other >= self.place) + 0.5) / self.n

    def log_density(self, units: Array) -> Array:
        cells = np.minimum((units * self.n).astype(int), self.n - 1)
        other = math.log(self.n / (self.weight + self.n - 1))
        return np.where(cells == self.place, other + math.log(self.weight), other)


def read_confidence(confidence: object, prior: object) -> Confidence:
    """Return a confidence in its canonical spelling.

    Raises:
        SearchSpaceError: The confidence is unknown, or there is no prior.
    """
    known = get_args(Confidence)
    if confidence not in known:
        near = did_you_mean(confidence, known) if isinstance(confidence, str) else ""
        raise SearchSpaceError(f"confidence must be one of {', '.join(map(repr, known))}, got {confidence!r}{near}")
    if prior is NO_PRIOR and confidence != "medium":
        raise SearchSpaceError(f"confidence={confidence!r} needs a prior; use prior=... as well")
    return cast(Confidence, known[known.index(confidence)])  # the same object: defaults are compared by identity
