"""Replaces a proposal that was tried before, or that runs at the moment, with another one."""

from __future__ import annotations

import numpy as np

from optimizers.samplers.grid import Grid
from optimizers.space.config import Config
from optimizers.space.search_space import SearchSpace

_DRAWS = 50  # random draws, before the configurations are enumerated
_LOOKED_THROUGH = 10_000  # the most combinations that are enumerated where each must be checked against constraints


def untried(
    space: SearchSpace, proposal: Config, running: set[bytes], ended: set[bytes], rng: np.random.Generator
) -> Config:
    """``proposal`` if it was not tried; else one that was not, else one that does not run now, else any.

    What it returns satisfies the constraints of the space.
    """
    if not space.allows(proposal):
        proposal = space.sample(rng)
    for taken in (running | ended, running):
        if space.key(proposal) not in taken:
            return proposal
        for _ in range(_DRAWS):
            if space.key(drawn := space.sample(rng)) not in taken:
                return drawn
        if space.size is not None and (space.size <= _LOOKED_THROUGH or not space.has_constraint):
            everything = Grid(space.size)
            n = everything.size(space)
            start = int(rng.random() * n)
            for index in range(start, start + min(n, len(taken) + 1)):
                config = everything.at(space, index % n)
                if config is not None and space.key(config) not in taken:
                    return config
    return proposal
