"""Contrasts of designs in which trials failed, by least squares.

The contrasts of a design say what its answer is about: in a factorial, the effect of each component and of each two
together. Of a seed with all trials, a contrast is the weighted sum of their losses. Where a trial failed, the losses of
the others are taken for a sum of those effects alone, fitted by least squares, and the contrast is that of the fit: so
interactions of three and more components, of which no contrast asks, are taken as zero in that seed. With all trials
both are the same, since effects of a factorial are orthogonal. A design with as many effects as variants has nothing
to spare: a contrast that lacks a trial then has no value.

Source: Montgomery, "Design and Analysis of Experiments", 2017, section 6.5 (missing values in a factorial).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

_EXACT = 1e-8  # relative to weights of about 1


class LeastSquares:
    """The fit of what the contrasts of a design ask about.

    Args:
        contrasts: Weights of variants, all that are asked.

    Attributes:
        has_spare: Whether there are more variants than effects, so that a trial can be missed.

    Example:
        >>> effect = {"without A": 0.5, "without A and B": 0.5, "base": -0.5, "without B": -0.5}
        >>> LeastSquares([effect]).weights(effect, {"base", "without B", "without A"})
        {'without A': 1.0, 'base': -0.5, 'without B': -0.5}
    """

    def __init__(self, contrasts: Iterable[Mapping[str, float]]) -> None:
        contrasts = list(contrasts)
        self._places = {name: place for place, name in enumerate(dict.fromkeys(v for c in contrasts for v in c))}
        spanning = np.array([np.ones(len(self._places)), *map(self._vector, contrasts)])
        _, sizes, basis = np.linalg.svd(spanning, full_matrices=False)
        self._basis: NDArray[np.float64] = basis[sizes > _EXACT * sizes[0]].T
        self.has_spare = self._basis.shape[1] < len(self._places)
        self._inverses: dict[frozenset[str], NDArray[np.float64]] = {}

    def weights(self, contrast: Mapping[str, float], present: Iterable[str]) -> dict[str, float] | None:
        """Weights of the losses of ``present`` variants that give a contrast; None if these do not determine it."""
        names = [name for name in self._places if name in set(present)]
        asked = self._vector(contrast) @ self._basis
        rows = self._basis[[self._places[name] for name in names]]
        key = frozenset(names)
        if key not in self._inverses:
            self._inverses[key] = np.asarray(np.linalg.pinv(rows, rcond=_EXACT), dtype=np.float64)
        made = asked @ self._inverses[key]
        if not names or np.abs(made @ rows - asked).max() > _EXACT:
            return None
        return dict(zip(names, made.tolist(), strict=True))

    def _vector(self, contrast: Mapping[str, float]) -> NDArray[np.float64]:
        made = np.zeros(len(self._places))
        for name, weight in contrast.items():
            made[self._places[name]] = weight
        return made
