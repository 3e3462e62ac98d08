"""What an optimizer of ours does, as a short hash: finished runs stay valid as long as it stays the same.

A short search in virtual time, on a table that is made here: noisy curves, as real ones are, of a mixed space. The hash
is of the order in which configurations train, of their values and of their steps. So it changes with what an optimizer
proposes, stops, pauses and runs on, and not with how its sources are written. A change that shows only in longer
searches is not seen: ``python -m benchmarks.quality --fresh`` searches anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from benchmarks.drive import search
from benchmarks.tables import Table
from optimizers import Choice, Float, Integer, Optimizer, SearchSpace

DIGITS = 6
"""Of each value in the unit interval: processors differ in the last ones."""
ROWS, STEPS = 400, 27


class _Watched(Table):
    """A table that notes what is asked of it."""

    def watch(self) -> list[tuple[Any, ...]]:
        """What is noted from now on."""
        self.seen: list[tuple[Any, ...]] = []
        return self.seen

    def __call__(self, config: Mapping[str, Any], step: int) -> tuple[float, float]:
        self.seen.append((step, *(round(float(unit), DIGITS) for unit in self.space.to_unit(config))))
        return super().__call__(config, step)


def behaviour(
    make: Callable[[], Optimizer], *, workers: int, n_trials: int | None = None, trainings: float | None = None
) -> str:
    """A hash of what an optimizer does in a short search.

    Args:
        make: A new optimizer.
        workers: Number of simulated workers.
        n_trials: Full trainings, after which only their last step is reported; or None for early stopping.
        trainings: The time that the search may take, in mean full trainings, if ``n_trials`` is None.

    Example:
        >>> behaviour(RandomSearch, workers=4, n_trials=60)
        'd67c42d9bd3d'
    """
    table = _noisy(last_only=n_trials is not None)
    seen = table.watch()
    horizon = None if trainings is None else trainings * table.full_seconds
    search(make(), table, seed=1, workers=workers, n_trials=n_trials, horizon=horizon)
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:12]


@cache
def _noisy(*, last_only: bool) -> _Watched:
    """Curves over 27 steps as noisy as near configurations differ."""
    rng = np.random.default_rng(7)
    space = SearchSpace(
        lr=Float(1e-4, 1.0, log=True), units=Integer(4, 64), activation=Choice(["relu", "tanh", "gelu"])
    )
    units = np.array([space.to_unit(space.sample(rng)) for _ in range(ROWS)])
    final = 0.1 + np.abs(units[:, 0] - 0.6) + 0.3 * np.abs(units[:, 1] - 0.3) + 0.1 * (units[:, 2] > 0.5)
    epoch = np.arange(1, STEPS + 1)
    losses = final[:, None] + epoch**-0.5 + 0.1 * rng.standard_normal((ROWS, STEPS))
    seconds = np.cumsum(np.outer(1.0 + units[:, 1], np.ones(STEPS)), axis=1)
    steps = slice(-1, None) if last_only else slice(None)
    return _Watched("noisy", space, losses[:, steps], seconds[:, steps], units=units)
