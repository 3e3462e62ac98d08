"""How much of the space of objectives a search has won: the volume that its results dominate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def not_dominated(losses: Array) -> Array:
    """The rows of ``losses``, shape (n, m), that no other dominates, each once, in rising order: shape (k, m)."""
    rows = np.unique(losses, axis=0)
    no_worse: NDArray[np.bool_] = np.asarray((rows[:, None] <= rows[None]).all(axis=2))
    np.fill_diagonal(no_worse, val=False)
    return np.asarray(rows[~no_worse.any(axis=0)])


def hypervolume(losses: Array, reference: Array) -> float:
    """The volume that ``losses`` dominate below ``reference``, exactly: by slices along the last objective.

    Source: While, Hingston, Barone and Huband, "A Faster Algorithm for Calculating Hypervolume", IEEE Transactions on
    Evolutionary Computation 10 (1), 2006, section III.

    Args:
        losses: Shape (n, m), m of at least 2; rows that are not below ``reference`` everywhere count nothing.
        reference: Shape (m,).

    Example:
        >>> hypervolume(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([2.0, 2.0]))
        3.0
    """
    inside = losses[(losses < reference).all(axis=1)]
    if not len(inside):
        return 0.0
    rows = not_dominated(inside)
    if rows.shape[1] == 2:
        ends = np.append(rows[1:, 0], reference[0])
        return float(np.sum((ends - rows[:, 0]) * (reference[1] - rows[:, 1])))
    rows = rows[np.argsort(rows[:, -1], kind="stable")]
    ends = np.append(rows[1:, -1], reference[-1])
    depths = ends - rows[:, -1]
    slices = (hypervolume(rows[: n + 1, :-1], reference[:-1]) * depth for n, depth in enumerate(depths) if depth > 0.0)
    return float(sum(slices))
