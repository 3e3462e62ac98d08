"""Random search: configurations drawn independently."""

from __future__ import annotations

from optimizers.core.base import History, Optimizer
from optimizers.space.config import Config


class RandomSearch(Optimizer):
    """Draws every configuration from the space: uniformly, and more often near priors.

    Source: Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 2012.

    Example:
        >>> lagom(train_fn, space, optimizer=RandomSearch(), n_trials=50)
    """

    adaptive = False
    multi_objective = True

    def ask(self, index: int, history: History) -> Config:
        return history.problem.space.sample(history.rng(index))
