"""What a search tries before its optimizer is asked for anything."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optimizers.core.base import Observation, Problem
from optimizers.space.config import Config


def initial_points(problem: Problem, points: Iterable[Mapping[str, Any]]) -> tuple[Config, ...]:
    """The configurations to try first, whatever the optimizer.

    The given ones come as they are; then, where they are not among those before, the configuration of all
    priors, and the best one of each earlier search: so a new search is seldom worse than the old ones
    (Feurer, Springenberg and Hutter, "Initializing Bayesian Hyperparameter Optimization via
    Meta-Learning", AAAI 2015).

    Raises:
        SearchSpaceError: A given point is not valid.
    """
    space = problem.space
    starts = [space.validate(point) for point in points]
    seen = {space.key(config) for config in starts}
    for config in (space.prior_config, *map(_best, problem.earlier)):
        if config is not None and space.key(config) not in seen:
            seen.add(space.key(config))
            starts.append(config)
    return tuple(starts)


def _best(observations: Sequence[Observation]) -> Config | None:
    """The configuration of the trial whose newest result is the best; None if there is no finite one."""
    newest = {seen.trial: seen for seen in observations}
    best = min(newest.values(), key=lambda seen: seen.loss, default=None)
    return best.config if best is not None and math.isfinite(best.loss) else None
