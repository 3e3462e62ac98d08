"""Several objectives at once: which trials no other beats, and one loss made of many.

A search of several objectives has no best trial but a Pareto set: those that no other trial dominates. Optimizers
that go by one loss serve it by scalarization (ParEGO): each ask weighs the objectives anew, so that over many asks
the whole front is sought.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from optimizers.core.base import History

RHO = 0.05
"""Share of the plain weighted sum in ParEGO's loss: it tells apart what the worst objective alone does not."""


def dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Whether the losses ``a`` are nowhere larger than ``b`` and somewhere smaller."""
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


class ParetoFront:
    """The entries that no other dominates, kept as they come; equal ones stand side by side.

    Example:
        >>> front = ParetoFront()
        >>> for number, losses in enumerate([(1.0, 3.0), (2.0, 2.0), (3.0, 3.0)]):
        ...     front.enter(number, losses)
        >>> list(front)
        [0, 1]
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[float, ...]] = {}
        self._front: dict[int, tuple[float, ...]] = {}

    def __len__(self) -> int:
        return len(self._front)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._front))

    def enter(self, number: int, losses: tuple[float, ...]) -> None:
        """Enter the losses of a trial, or put them in place of earlier ones; those that are not finite never count."""
        known = number in self._entries
        self._entries[number] = losses
        if known:  # what it dominated before may be back
            self._front.clear()
            for each, its in self._entries.items():
                self._place(each, its)
        else:
            self._place(number, losses)

    def _place(self, number: int, losses: tuple[float, ...]) -> None:
        if not all(map(math.isfinite, losses)) or any(dominates(other, losses) for other in self._front.values()):
            return
        self._front = {each: its for each, its in self._front.items() if not dominates(losses, its)}
        self._front[number] = losses


def parego_losses(losses: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """One loss a row, by the augmented Chebyshev norm with weights drawn at random.

    Source: Knowles, "ParEGO: A Hybrid Algorithm With On-Line Landscape Approximation for Expensive
    Multiobjective Optimization Problems", IEEE Transactions on Evolutionary Computation 10 (1), 2006, equation 2.
    The weights are drawn from the whole simplex, not from a grid on it.

    Args:
        losses: Shape (n, m): m objectives, smaller is better. A row with a value that is not finite has failed.
        rng: Draws the weights.

    Returns:
        Shape (n,): the losses to be made small; ``inf`` for failed rows.

    Example:
        >>> parego_losses(np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), rng).argmax()
        2
    """
    weights = rng.dirichlet(np.ones(losses.shape[1]))
    finite = np.isfinite(losses).all(axis=1)
    made = np.full(len(losses), np.inf)
    if finite.any():
        halves = losses[finite] / 2.0  # the difference of two huge losses is infinite, of their halves it is not
        low = halves.min(axis=0)
        span = halves.max(axis=0) - low
        weighted = weights * (halves - low) / np.where(span > 0.0, span, 1.0)
        made[finite] = weighted.max(axis=1) + RHO * weighted.sum(axis=1)
    return made


def scalarized(history: History, index: int) -> History:
    """The history as an optimizer of one loss wants it for its ``index``-th ask.

    A search of one objective has it already. Of several, each observation's ``loss`` becomes that of
    :func:`parego_losses`, with weights that depend on the seed and ``index`` alone.

    Example:
        >>> history = scalarized(history, index)  # first line of an ask
    """
    if history.problem.n_objectives == 1:
        return history
    seen = [observation for observation in history.observations if observation.losses]  # none of running trials
    if not seen:
        return History(history.problem, [], history.pending)
    rng = np.random.default_rng([history.problem.seed, index, 2])  # apart from history.rng(index), the asker's own
    losses = parego_losses(np.array([observation.losses for observation in seen]), rng)
    made = [replace(observation, loss=float(loss)) for observation, loss in zip(seen, losses, strict=True)]
    return History(history.problem, made, history.pending)
