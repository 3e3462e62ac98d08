"""Random search: configurations drawn independently."""

from __future__ import annotations

from optimizers.base import History, Optimizer
from optimizers.trial import Config


class RandomSearch(Optimizer):
    """Draws every configuration uniformly from the unit cube of the space.

    Source: Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 2012.

    Example:
        >>> lagom(train_fn, space, optimizer=RandomSearch(), n_trials=50)
    """

    adaptive = False

    def ask(self, index: int, history: History) -> Config:
        return history.problem.space.sample(history.rng(index))
