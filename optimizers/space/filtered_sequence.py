"""Sequences of configurations, filtered by the constraints of a search space."""

from __future__ import annotations

import sys
from collections.abc import Callable

from optimizers.space.config import Config
from optimizers.space.search_space import SearchSpace


class FilteredSequence:
    """A sequence of configurations without those that a search space's constraints do not allow; each is checked once.

    Args:
        space: The search space with the constraints.
        at: Returns the configuration at an index of the unfiltered sequence, from 0; None past its end.
    """

    def __init__(self, space: SearchSpace, at: Callable[[int], Config | None]) -> None:
        self._space = space
        self._at = at
        self._n_checked = 0
        self._allowed: list[Config] = []

    def __len__(self) -> int:
        self.at(sys.maxsize)
        return len(self._allowed)

    def at(self, index: int) -> Config | None:
        """The ``index``-th allowed configuration; None past the last."""
        while len(self._allowed) <= index:
            config = self._at(self._n_checked)
            if config is None:
                return None
            self._n_checked += 1
            if self._space.allows(config):
                self._allowed.append(config)
        return dict(self._allowed[index])
