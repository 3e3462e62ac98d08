"""Proposes a given list of configurations."""

from __future__ import annotations

from collections.abc import Sequence

from optimizers.core.base import History, Optimizer, Problem
from optimizers.errors import OptimizerError, SearchSpaceError
from optimizers.space.config import Config


class Enumeration(Optimizer):
    """Proposes the given configurations, in order; every trial runs to the end.

    Args:
        configs: What to try. With none, nothing is searched: what runs then are trainings alone
            (see :attr:`optimizers.core.trial.Trial.training`).

    Example:
        >>> Enumeration([{"lr": 0.1}, {"lr": 0.01}])
    """

    adaptive = False
    multi_objective = True

    def __init__(self, configs: Sequence[Config] = ()) -> None:
        self.configs = tuple(configs)

    def ask(self, index: int, history: History) -> Config | None:
        return self.configs[index] if index < len(self.configs) else None

    def validate(self, problem: Problem) -> None:
        for config in self.configs:
            try:
                problem.space.validate(config)
            except SearchSpaceError as error:
                raise OptimizerError(f"{config!r} is to be tried, but is not in the search space: {error}") from error
