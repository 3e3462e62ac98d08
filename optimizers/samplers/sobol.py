"""Quasi-random search: configurations that fill the space evenly."""

from __future__ import annotations

from typing import cast

from optimizers.checks.arguments import explains_init
from optimizers.core.base import History, Optimizer
from optimizers.space.config import Config
from optimizers.space.filtered_sequence import FilteredSequence
from optimizers.space.search_space import SearchSpace


@explains_init
class Sobol(Optimizer):
    """Takes the points of a scrambled Sobol' sequence one after another.

    Covers the space more evenly than random search does, best with a power of 2 of trials. Points that a
    constraint does not allow are skipped; priors do not bend the sequence.

    Sources: Sobol', "On the distribution of points in a cube and the approximate evaluation of
    integrals", 1967; Owen, "Scrambling Sobol' and Niederreiter-Xing points", 1998.

    Example:
        >>> lagom(train_fn, space, optimizer=Sobol(), n_trials=64)
    """

    adaptive = False
    multi_objective = True

    def __init__(self) -> None:
        self._known: _Sequence | None = None

    def ask(self, index: int, history: History) -> Config:
        space, seed = history.problem.space, history.problem.seed
        if self._known is None or self._known.space is not space or self._known.seed != seed:
            self._known = _Sequence(space, seed)
        return self._known.allowed(index)


class _Sequence:
    """The sequence of a space and a seed, kept between calls: a step forward is cheap, the start is not."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        from scipy.stats import qmc  # takes a second that only this optimizer should cost

        self.space = space
        self.seed = seed
        self._points = qmc.Sobol(len(space.dimensions), rng=seed)
        self._filtered = FilteredSequence(space, self._at)

    def allowed(self, index: int) -> Config:
        """The configuration of the ``index``-th point that the space allows."""
        # The sequence has no end, so there is always another one.
        return cast(Config, self._filtered.at(index)) if self.space.has_constraint else self._at(index)

    def _at(self, index: int) -> Config:
        if self._points.num_generated > index:
            self._points.reset()
        if self._points.num_generated < index:
            self._points.fast_forward(index - self._points.num_generated)
        return self.space.from_unit(self._points.random(1)[0])
