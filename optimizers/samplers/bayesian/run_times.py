"""How long trainings take, learned from those that have ended."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from optimizers.core.base import History
from optimizers.samplers.bayesian.axes import Axes
from optimizers.samplers.bayesian.gp import GaussianProcess, Hyperparameters, fit

Array = NDArray[np.float64]

_FEWEST = 8  # trainings before the first fit
_GROWTH = 2  # trainings between two fits of the hyperparameters, as a factor
_SIZE = 60  # trainings of the model at most, the newest
_LEAST_SPREAD = 0.1  # of the logarithms, below which no time is worth a model


class RunTimes:
    """A model of the logarithm of a full training's seconds; all of its state can be rebuilt from the history.

    Times of trials that failed say nothing of others. Where trainings are cut short, there is no model: what a
    configuration costs depends on how far it gets then.

    Args:
        history: The search; its observations only ever grow.
        axes: Those of its space.
    """

    def __init__(self, history: History, axes: Axes) -> None:
        self._history = history
        self._axes = axes
        self._seen = 0  # observations taken in
        self._are_full = True
        self._units: list[Array] = []
        self._logs: list[float] = []
        self._fits: dict[int, tuple[Hyperparameters, float]] = {}

    def update(self) -> None:
        """Take in what is new in the history."""
        problem = self._history.problem
        for seen in self._history.observations[self._seen :]:
            if math.isfinite(seen.loss):
                self._are_full &= seen.step >= problem.max_budget
                if seen.seconds > 0.0:
                    self._units.append(problem.space.to_unit(seen.config))
                    self._logs.append(math.log(seen.seconds))
        self._seen = len(self._history.observations)

    def log_seconds(self) -> Callable[[Array], Array] | None:
        """What predicts the logarithm of the seconds, up to a constant: of points of shape (m, d) to (m,).

        It is drawn towards the mean as far as the model predicts left-out trainings no better than their mean.

        Returns:
            None where there is no model, or nothing that it tells.
        """
        if not self._are_full:
            return None
        hyperparameters, trust = self._newest_fit()
        if trust <= 0.0:
            return None
        features, targets, spread = self._data(len(self._logs))
        model = GaussianProcess(features, self._axes.groups, hyperparameters)
        weights = trust * spread * model.condition(targets)
        return lambda units: model.mean(self._axes.features(units), weights)

    def _newest_fit(self) -> tuple[Hyperparameters, float]:
        """The newest hyperparameters, and how far they are to be trusted, from 0 to 1."""
        newest, size = (Hyperparameters.default(self._axes.d), 0.0), _FEWEST
        while size <= len(self._logs):
            if size not in self._fits:
                self._fits[size] = self._fit(size, newest[0])
            newest = self._fits[size]
            size *= _GROWTH
        return newest

    def _fit(self, n: int, start: Hyperparameters) -> tuple[Hyperparameters, float]:
        features, targets, spread = self._data(n)
        if spread < _LEAST_SPREAD:
            return start, 0.0
        found = fit(features, self._axes.groups, targets, start)
        model = GaussianProcess(features, self._axes.groups, found)
        missed = targets - model.leave_out(targets, np.arange(len(targets)))
        return found, max(0.0, 1.0 - float(np.mean(missed**2)))

    def _data(self, n: int) -> tuple[Array, Array, float]:
        """The newest of the first ``n`` trainings: features, standardized logarithms, and their spread."""
        logs = np.array(self._logs[:n][-_SIZE:])
        spread = max(float(logs.std()), 1e-9)
        features = self._axes.features(np.array(self._units[:n][-_SIZE:]))
        return features, (logs - logs.mean()) / spread, spread
