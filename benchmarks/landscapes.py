"""Training functions that are computed: every configuration has a curve of its own, unlike on a table of some."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maggy_like import SearchSpace

Array = NDArray[np.float64]
Training = Callable[[Mapping[str, Any], np.random.Generator], tuple[Array, Array]]
"""Of a configuration and a generator of its own, to the losses and the seconds of each step, shape (steps,) both."""

_DRAWN = 1000
"""Random configurations that tell the median and the mean time of a landscape."""


class Landscape:
    """A training function of known answers, called with a configuration and a step, as a simulation wants it.

    Args:
        name: What the results call it.
        space: Its parameters.
        train: The whole training of a configuration. What it draws is a matter of the configuration alone, so that the
            same one always trains alike.
        best: The least loss of any configuration at any step.
        median: Of the best losses of random configurations; measured if it is not known.
        full_seconds: Mean time of a full training; measured if it is not known.
    """

    def __init__(
        self,
        name: str,
        space: SearchSpace,
        train: Training,
        *,
        best: float,
        median: float | None = None,
        full_seconds: float | None = None,
    ) -> None:
        self.name = name
        self.space = space
        self._train = train
        self._known: dict[bytes, tuple[Array, Array]] = {}
        self._best = best
        if median is None or full_seconds is None:
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            drawn = [self._curve(space.sample(rng)) for _ in range(_DRAWN)]
            lowest = [np.nan_to_num(losses, nan=np.inf).min() for losses, _ in drawn]
            median = float(np.median(lowest)) if median is None else median
            full_seconds = float(np.mean([seconds.sum() for _, seconds in drawn]))
        self._median = median
        self.full_seconds = full_seconds
        self.max_budget = len(self._curve(space.sample(np.random.default_rng(0)))[0])

    def __call__(self, config: Mapping[str, Any], step: int) -> tuple[float, float]:
        """The loss after ``step`` steps, and the seconds that this one took."""
        losses, seconds = self._curve(config)
        return float(losses[step - 1]), float(seconds[step - 1])

    def regret(self, loss: Any) -> Any:
        """Normalised regret; 0 is the best that is known, or below it, and 1 the median of random configurations."""
        return np.maximum((loss - self._best) / (self._median - self._best), 0.0)

    def _curve(self, config: Mapping[str, Any]) -> tuple[Array, Array]:
        point = self.space.to_unit(config).tobytes()
        if point not in self._known:
            self._known[point] = self._train(config, np.random.default_rng(zlib.crc32(point)))
        return self._known[point]
