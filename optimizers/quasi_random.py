"""Quasi-random search: configurations that fill the space evenly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimizers.base import History, Optimizer
from optimizers.trial import Config

if TYPE_CHECKING:
    from scipy.stats import qmc


class Sobol(Optimizer):
    """Takes the points of a scrambled Sobol' sequence one after another.

    Covers the space more evenly than random search does, best with a power of 2 of trials.

    Sources: Sobol', "On the distribution of points in a cube and the approximate evaluation of
    integrals", 1967; Owen, "Scrambling Sobol' and Niederreiter-Xing points", 1998.

    Example:
        >>> lagom(train_fn, space, optimizer=Sobol(), n_trials=64)
    """

    adaptive = False

    def __init__(self) -> None:
        self._known: tuple[tuple[int, int], qmc.Sobol] | None = None

    def ask(self, index: int, history: History) -> Config:
        problem = history.problem
        sequence = self._sequence(len(problem.space.dimensions), problem.seed)
        if sequence.num_generated > index:
            sequence.reset()
        if sequence.num_generated < index:
            sequence.fast_forward(index - sequence.num_generated)
        return problem.space.from_unit(sequence.random(1)[0])

    def _sequence(self, d: int, seed: int) -> qmc.Sobol:
        """The sequence, kept between calls: a step forward is cheap, the start is not."""
        if self._known is None or self._known[0] != (d, seed):
            from scipy.stats import qmc  # takes a second that only this optimizer should cost

            self._known = ((d, seed), qmc.Sobol(d, rng=seed))
        return self._known[1]
