"""The model of a search: a Gaussian process over configurations and the budgets that they were trained for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from optimizers.core.base import History, Observation
from optimizers.samplers.bayesian.acquisition import Axes, log_augmented_improvement
from optimizers.samplers.bayesian.gp import GaussianProcess, Hyperparameters, fit
from optimizers.samplers.model_based import clipped, dealt

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_NO_LEVEL = 1 << 30
_ENOUGH = 8  # finite results above the floor that are enough to leave out those below it
_WORST = 1 / 3  # share of those below the floor that counts as failed

CUT = 2.0
"""Losses further above the median are cut, in distances from the best loss to the median."""


class Results:
    """Observations in columns, which grow with a history.

    Observations below the share ``min_share`` of a full training have no score while there are enough others.
    Exceptions are failed ones and the worst third of those that got no further, which are ranked with the failed ones.
    """

    def __init__(self, max_budget: int, min_share: float = 0.0, *, cut: float = CUT) -> None:
        self._max_budget = max_budget
        self._cut = cut
        self.floor = math.floor(math.log2(min_share) + 1e-9) if min_share else -_NO_LEVEL  # level of ``min_share``
        self.trials: Integers = np.empty(0, dtype=np.int64)  # of each observation, shape (n,)
        # Training of each observation, in halvings of the full budget, 0 or below: shape (n,).
        self.levels: Integers = np.empty(0, dtype=np.int64)
        self.losses: Array = np.empty(0)  # shape (n,)

    def __len__(self) -> int:
        return len(self.trials)

    def extend(self, observations: Sequence[Observation]) -> None:
        """Append observations, at least one."""
        steps = np.array([max(seen.step, 1) for seen in observations], dtype=float)
        halvings = np.ceil(np.log2(self._max_budget / np.minimum(steps, self._max_budget)) - 1e-9)
        self.trials = np.append(self.trials, [seen.trial for seen in observations]).astype(np.int64)
        self.levels = np.append(self.levels, -halvings).astype(np.int64)
        self.losses = np.append(self.losses, [seen.loss for seen in observations])

    def levels_for_model(self, rows: Integers) -> Integers:
        """Return the levels that a model should use for some observations, shape (m,).

        A training that failed, or whose loss is not finite, counts as one that did so at the full budget. With the
        level where it ended, a model would blame the short training, and propose the same configuration again.
        """
        return np.where(np.isfinite(self.losses[rows]), self.levels[rows], 0)

    def scores(self, n: int, *, floored: bool = True) -> tuple[Integers, Array]:
        """Return the scores of the first ``n`` observations: small is good, and the variance is near 1.

        At the lowest level, a score is the standardized loss. It is cut above the median, at ``cut`` times the distance
        from the best to the median. So a diverged training does not make all others look the same.

        Higher levels only have the trials that were best below, and their losses are on another scale. So the scores of
        those trials are dealt out again among them, the best one to the best loss. These are ranks, which assume
        nothing about how losses fall with the steps.

        Return the indexes of the observations with a score (the newest of each trial and level), in order of levels,
        shape (m,), and their scores, shape (m,). If ``floored`` is False, there is no floor.
        """
        if n == 0:
            return np.empty(0, dtype=np.int64), np.empty(0)
        trials = self.trials[:n]
        kept, levels, losses = np.arange(n), self.levels[:n], self.losses[:n]
        if floored:
            kept, levels, losses = self._above_the_floor(losses)
        trials = trials[kept]
        levels = self._levels_of_failures_raised(levels, losses)
        score_of = np.full(trials.max(initial=-1) + 1, np.nan)
        rows, scores = [], []
        for level in np.unique(levels):
            at_level = np.flatnonzero(levels == level)
            _, newest = np.unique(trials[at_level][::-1], return_index=True)
            entries = np.sort(at_level[len(at_level) - 1 - newest])
            before = score_of[trials[entries]]
            known = np.sort(before[~np.isnan(before)])
            given = dealt(losses[entries], known) if len(known) else _standardized(losses[entries], self._cut)
            score_of[trials[entries]] = given
            rows.append(entries)
            scores.append(given)
        return kept[np.concatenate(rows)], np.concatenate(scores)

    def _above_the_floor(self, losses: Array) -> tuple[Integers, Integers, Array]:
        """Return which of the first observations have a score, shape (m,), with their levels and losses."""
        trials, levels = self.trials[: len(losses)], self.levels[: len(losses)]
        is_low = levels < self.floor
        if not is_low.any() or np.isfinite(losses[~is_low]).sum() < _ENOUGH:
            return np.arange(len(losses)), levels, losses
        low = np.flatnonzero(is_low)
        ranked = np.where(np.isfinite(losses[low]), losses[low], np.inf)
        is_worst = (ranked > np.quantile(ranked, 1.0 - _WORST, method="lower")) | np.isinf(ranked)
        worst = low[is_worst & ~np.isin(trials[low], trials[~is_low])]
        kept = np.sort(np.concatenate([np.flatnonzero(~is_low), worst]))
        failed = np.isin(kept, worst)
        return kept, np.where(failed, self.floor, levels[kept]), np.where(failed, np.inf, losses[kept])

    @staticmethod
    def _levels_of_failures_raised(levels: Integers, losses: Array) -> Integers:
        """Compare a training that failed before the first rung with those that passed it."""
        finite = np.isfinite(losses)
        return np.where(finite, levels, np.maximum(levels, levels[finite].min(initial=0)))


def _standardized(losses: Array, distances: float) -> Array:
    cut = clipped(losses, distances)
    spread = cut.std()
    return np.asarray((cut - cut.mean()) / spread) if spread > 0 else np.zeros(len(losses))


_FEWEST_TRAININGS = 8  # trainings before the first fit
_GROWTH_OF_TRAININGS = 2  # trainings between two fits of the hyperparameters, as a factor
_SIZE = 60  # newest trainings that the model uses
_LEAST_SPREAD = 0.1  # of the logarithms, below which there is no model


class RunTimes:
    """A model of the logarithm of a full training's seconds. All of its state can be rebuilt from the history.

    The durations of failed trials are not used. If trainings are cut short, there is no model, because the cost of a
    configuration then depends on how far it gets.
    """

    def __init__(self, history: History, axes: Axes) -> None:
        self._history = history  # its observations only ever grow
        self._axes = axes
        self._seen = 0  # observations taken in
        self._are_full = True
        self._units: list[Array] = []
        self._logs: list[float] = []
        self._fits: dict[int, tuple[Hyperparameters, float]] = {}

    def update(self) -> None:
        """Add what is new in the history."""
        problem = self._history.problem
        for seen in self._history.observations[self._seen :]:
            if math.isfinite(seen.loss):
                self._are_full &= seen.step >= problem.max_budget
                if seen.seconds > 0.0:
                    self._units.append(problem.space.to_unit(seen.config))
                    self._logs.append(math.log(seen.seconds))
        self._seen = len(self._history.observations)

    def log_seconds(self) -> Callable[[Array], Array] | None:
        """Return a function that predicts the logarithm of the seconds, up to a constant: shape (m, d) to (m,).

        Predictions shrink towards the mean if the model predicts left-out trainings no better than their mean. Return
        None if there is no useful model.
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
        """Return the newest hyperparameters, and the trust in them, from 0 to 1."""
        newest, size = (Hyperparameters.default(self._axes.d), 0.0), _FEWEST_TRAININGS
        while size <= len(self._logs):
            if size not in self._fits:
                self._fits[size] = self._fit(size, newest[0])
            newest = self._fits[size]
            size *= _GROWTH_OF_TRAININGS
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
        """Return the newest of the first ``n`` trainings: features, standardized logarithms, and their spread."""
        logs = np.array(self._logs[:n][-_SIZE:])
        spread = max(float(logs.std()), 1e-9)
        features = self._axes.features(np.array(self._units[:n][-_SIZE:]))
        return features, (logs - logs.mean()) / spread, spread


MODEL_SIZE = 200
"""Maximum number of points of the model, because the cost of a fit grows with their cube."""

FANTASIES = 8
"""Number of draws of the losses of running configurations."""

_STARTS = 8  # good configurations to search around
_EARLIER_SIZE = 60  # points from earlier searches
_GROWTH = 1.15  # results between two fits of the hyperparameters, as a factor
_FEWEST = 4  # fewest results of long trainings to compare two models


@dataclass(frozen=True)
class ModelData:
    """The model's points."""

    units: Array  # (n, d)
    features: Array  # (n, p)
    scores: Array  # (n,)
    levels: NDArray[np.int64]  # (n,), as in ``Results``
    trials: NDArray[np.int64]  # (n,); below 0 for earlier searches


@dataclass(frozen=True)
class Fit:
    """Hyperparameters, and the trust in a model with them."""

    hyperparameters: Hyperparameters
    trust: float  # rank correlation, from -1 to 1, of measured scores with predictions of each trial from all others
    floored: bool = True  # whether short trainings are left out of the model


class Surrogate:
    """The model of one search. All of its state can be rebuilt from the history.

    A point's features are those of its configuration and two more axes. The first is the trained share of the full
    budget, on a log scale, so that the data determine how much a short training predicts. This is the joint model of
    MOBSTER (Klein, Tiao, Lienart, Archambeau and Seeger, "Model-based Asynchronous Hyperparameter and Neural
    Architecture Search", 2020). The second tells whether it comes from an earlier search, so that its relevance is
    learned as well.

    ``n_initial`` is the number of results before the first fit, without an earlier search. ``min_share`` and ``cut``
    are those of :class:`Results`.
    """

    little = -4.0  # logarithm of an expected improvement that hardly justifies a trial, in spreads of the scores

    def __init__(self, history: History, n_initial: int, min_share: float = 0.0, *, cut: float = CUT) -> None:
        problem = history.problem
        self.axes = Axes(problem.space)
        self.units = np.empty((0, self.axes.d))
        self._history = history  # its observations only ever grow
        self._min_share, self._cut = min_share, cut
        earlier = [seen for seen in problem.earlier if seen][:_EARLIER_SIZE]  # so that each has a point
        self._earlier = [self._read(seen, problem.max_budget) for seen in earlier]
        self._has_levels = problem.max_budget > 1
        self._depth = max(int(np.ceil(np.log2(problem.max_budget))), 1)
        n_extra = int(self._has_levels) + bool(self._earlier)
        self.groups = np.concatenate([self.axes.groups, self.axes.d + np.arange(n_extra)])
        self._n_axes = self.axes.d + n_extra
        self._results = Results(problem.max_budget, min_share, cut=cut)
        self._first = 0 if self._earlier else n_initial
        self._fits: dict[int, Fit] = {}

    def update(self) -> None:
        """Add what is new in the history."""
        new = self._history.observations[len(self._results) :]
        if new:
            self._results.extend(new)
            self.units = np.concatenate([self.units, self._points(new)])

    def features(self, units: Array) -> Array:
        """Return the features of configurations that are trained to the end: shape (n, d) to (n, p)."""
        return self._features(units, np.zeros(len(units), dtype=np.int64), is_earlier=False)

    def fit(self) -> Fit:
        """Return the newest fit. Each starts from the fit to fewer results."""
        n = len(self._results)
        default = Hyperparameters.default(self._n_axes)
        newest, size = Fit(default, 1.0), self._first
        while size <= n:
            if size not in self._fits:
                self._fits[size] = self._fit(size, [newest.hyperparameters, default])
            newest = self._fits[size]
            size = max(size + 1, int(size * _GROWTH))
        return newest

    @property
    def trust(self) -> float:
        """Trust in the newest fit."""
        return self.fit().trust

    def improvement(self, rng: np.random.Generator) -> tuple[Callable[[Array], Array], Array]:
        """Return the function to maximize, and the points to search around.

        The function is the logarithm of the expected improvement, of points of shape (m, d) to (m,). The points are the
        best known configurations, the best first, shape (k, d). ``rng`` draws the losses of running configurations.
        """
        history, fit = self._history, self.fit()
        data = self.data(len(history.observations), floored=fit.floored)
        model = GaussianProcess(data.features, self.groups, fit.hyperparameters)
        weights = model.condition(data.scores)
        tried = _distinct(data)
        expected = model.predict(self.features(tried), weights)[0]
        best = np.full(1, expected.min())
        waiting = self.waiting(history)
        if len(waiting):
            features = self.features(waiting)
            draws = model.draw(features, weights, FANTASIES, rng)
            model.extend(features)
            weights = model.condition(np.concatenate([np.tile(data.scores[:, None], FANTASIES), draws]))
            best = np.minimum(best, draws.min(axis=0))
        else:
            weights = weights[:, None]

        def improvement(units: Array) -> Array:
            means, variances = model.predict(self.features(units), weights)
            return log_augmented_improvement(means, variances, best, fit.hyperparameters.noise)

        return improvement, tried[np.argsort(expected, kind="stable")[:_STARTS]]

    def waiting(self, history: History) -> Array:
        """Return the running configurations that have no result yet, shape (w, d)."""
        observed = {seen.trial for seen in history.observations}
        points = [point for trial, point in history.pending_points().items() if trial not in observed]
        return np.array(points).reshape(len(points), self.axes.d)

    def data(self, n: int, ranks: NDArray[np.int64] | None = None, *, floored: bool = True) -> ModelData:
        """Return the model's points after the first ``n`` observations.

        With more than :data:`MODEL_SIZE`, half of them are those that got furthest, the best first, and the others the
        newest. The best are those with the lowest losses, or with the lowest ``ranks``, shape (n,). With ``floored``,
        results below ``min_share`` are left out.
        """
        rows, scores = self._results.scores(n, floored=floored)
        levels = self._results.levels[rows]
        if len(rows) > MODEL_SIZE:
            best = np.lexsort((scores if ranks is None else ranks[rows], -levels))[: MODEL_SIZE // 2]
            rest = np.setdiff1d(np.arange(len(rows)), best)
            newest = rest[np.argsort(rows[rest])][len(best) - MODEL_SIZE :]
            kept = np.sort(np.concatenate([best, newest]))
            rows, scores, levels = rows[kept], scores[kept], levels[kept]
        units = [self.units[rows]]
        features = [self._features(units[0], self._results.levels_for_model(rows), is_earlier=False)]
        all_scores, all_levels, trials = [scores], [levels], [self._results.trials[rows]]
        for results, points in self._earlier:
            rows, scores = results.scores(len(results))
            size = _EARLIER_SIZE // len(self._earlier)
            best = np.lexsort((scores, -results.levels[rows]))[: max(1, size // 2)]
            kept = np.union1d(best, np.linspace(0, len(rows) - 1, size - len(best)).astype(int))
            units.append(points[rows[kept]])
            features.append(self._features(units[-1], results.levels_for_model(rows[kept]), is_earlier=True))
            all_scores.append(scores[kept])
            all_levels.append(results.levels[rows[kept]])
            trials.append(-1 - len(trials) - len(self._earlier) * results.trials[rows[kept]])
        return ModelData(
            np.concatenate(units),
            np.concatenate(features),
            np.concatenate(all_scores),
            np.concatenate(all_levels),
            np.concatenate(trials),
        )

    def _fit(self, n: int, starts: list[Hyperparameters]) -> Fit:
        """Return the fit without short trainings, or the one with them if it predicts long ones better."""
        kinds = (True, False) if self._min_share else (True,)
        fits = [self._fit_to(self.data(n, floored=kind), starts, floored=kind) for kind in kinds]
        return max(fits, key=lambda found: found[1])[0]  # of equal ones the first

    def _fit_to(self, data: ModelData, starts: list[Hyperparameters], *, floored: bool) -> tuple[Fit, float]:
        """Return a fit, and the rank correlation of its predictions with the results of long trainings."""
        if len(np.unique(data.scores)) < 2:
            return Fit(starts[0], 1.0, floored), -1.0
        found = [fit(data.features, self.groups, data.scores, start) for start in starts]
        best = min(found, key=lambda fitted: fitted.energy)
        model = GaussianProcess(data.features, self.groups, best)
        predicted = model.leave_out(data.scores, data.trials)
        is_long = (data.levels >= self._results.floor) & (data.trials >= 0)
        agreement = _rank_correlation(predicted[is_long], data.scores[is_long]) if is_long.sum() >= _FEWEST else -1.0
        return Fit(best, _rank_correlation(predicted, data.scores), floored), agreement

    def _features(self, units: Array, levels: NDArray[np.int64], *, is_earlier: bool) -> Array:
        columns = [self.axes.features(units)]
        if self._has_levels:
            columns.append(1.0 + levels[:, None] / self._depth)
        if self._earlier:
            columns.append(np.full((len(units), 1), float(is_earlier)))
        return np.concatenate(columns, axis=1)

    def _points(self, observations: Sequence[Observation]) -> Array:
        return np.array([self.axes.space.to_unit(seen.config) for seen in observations])

    def _read(self, observations: Sequence[Observation], max_budget: int) -> tuple[Results, Array]:
        results = Results(max_budget, self._min_share, cut=self._cut)
        results.extend(observations)
        return results, self._points(observations)


def _rank_correlation(a: Array, b: Array) -> float:
    """Return Spearman's rank correlation; 0 if one side does not vary."""
    first, second = rankdata(a), rankdata(b)
    spread = first.std() * second.std()
    return float(np.mean((first - first.mean()) * (second - second.mean())) / spread) if spread else 0.0


def _distinct(data: ModelData) -> Array:
    """Return the configurations with results of this search, or of earlier ones while it has none."""
    is_current = data.trials >= 0
    units = data.units[is_current] if is_current.any() else data.units
    return np.asarray(np.unique(units, axis=0))
