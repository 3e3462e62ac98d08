"""Several objectives: a model of each, and the volume that a configuration is expected to dominate with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

from optimizers.core.base import History, Observation
from optimizers.core.objectives import ParetoFront
from optimizers.samplers.bayesian.gp import GaussianProcess
from optimizers.samplers.bayesian.surrogate import FANTASIES, MODEL_SIZE, Surrogate

Array = NDArray[np.float64]

_CUT = 10.0  # the ends of a front may lie far above the median of a loss; see scores.CUT
_STARTS = 16  # configurations of the front around which to look
_DIRECTIONS = 32  # from the reference point, over all fantasies
_DISTANCES = 5  # beyond the front, in each direction
_NEAREST = 1e-3  # nearest of them, relative to the box from the reference point to the best of each objective
_BEYOND = 0.1  # smallest distance of the reference point from the front's worst, as a share of its extent


class Front:
    """The models of a search of several objectives. All of their state can be rebuilt from the history.

    Each objective has a separate model, because losses are smoother than a combination of them. ``n_initial`` and
    ``min_share`` are those of each :class:`~optimizers.samplers.bayesian.surrogate.Surrogate`.
    """

    # Logarithm of an expected improvement that hardly justifies a trial, relative to the box from the reference point
    # to the best of each objective.
    little = -7.5

    def __init__(self, history: History, n_initial: int, min_share: float = 0.0) -> None:
        objectives = range(history.problem.n_objectives)
        self._history = history  # its observations only ever grow
        self._seen = 0  # observations taken in
        self._best = ParetoFront()
        self._parts = [_part(history, number) for number in objectives]
        self._surrogates = [Surrogate(part, n_initial, min_share, cut=_CUT) for part in self._parts]
        self.axes = self._surrogates[0].axes

    @property
    def units(self) -> Array:
        """All configurations with results, shape (n, d)."""
        return self._surrogates[0].units

    @property
    def trust(self) -> float:
        """Mean trust in the models; see :class:`~optimizers.samplers.bayesian.surrogate.Fit`."""
        return float(np.mean([surrogate.trust for surrogate in self._surrogates]))

    def update(self) -> None:
        """Add what is new in the history."""
        new = self._history.observations[self._seen :]
        self._seen += len(new)
        before = len(self.units)
        for number, (part, surrogate) in enumerate(zip(self._parts, self._surrogates, strict=True)):
            part.observations.extend(_of_objective(new, number))
            surrogate.update()
        for row in range(before, len(self.units)):
            self._best.enter(row, tuple(part.observations[row].loss for part in self._parts))

    def improvement(self, rng: np.random.Generator) -> tuple[Callable[[Array], Array], Array]:
        """Return the function to maximize, and the points to search around.

        The function is the logarithm of the expected improvement of the hypervolume, of points of shape (k, d) to (k,).
        The points are configurations of the front, in any order, shape (s, d). ``rng`` draws the losses of running
        configurations, and where improvements are measured.
        """
        ranks, fits = self._ranks(), [surrogate.fit() for surrogate in self._surrogates]
        parts = [
            surrogate.data(len(self.units), ranks, floored=fit.floored)
            for surrogate, fit in zip(self._surrogates, fits, strict=True)
        ]
        tried = np.unique(np.concatenate([data.units[data.trials >= 0] for data in parts]), axis=0)
        tried = tried if len(tried) else np.unique(parts[0].units, axis=0)  # of earlier searches
        waiting = self._surrogates[0].waiting(self._history)
        expected = np.empty((len(tried), len(parts)))
        drawn = np.empty((FANTASIES if len(waiting) else 1, len(waiting), len(parts)))
        models = []
        for number, (surrogate, data) in enumerate(zip(self._surrogates, parts, strict=True)):
            model = GaussianProcess(data.features, surrogate.groups, fits[number].hyperparameters)
            weights = model.condition(data.scores)
            expected[:, number] = model.predict(surrogate.features(tried), weights)[0]
            targets = np.tile(data.scores[:, None], len(drawn))
            if len(waiting):
                features = surrogate.features(waiting)
                draws = model.draw(features, weights, FANTASIES, rng)
                model.extend(features)
                targets = np.concatenate([targets, draws])
                drawn[:, :, number] = draws.T
            models.append((surrogate, model, model.condition(targets)))
        points, volumes = probes(expected, drawn, rng)

        def improvement(units: Array) -> Array:
            found = [model.predict(surrogate.features(units), weights) for surrogate, model, weights in models]
            means, variances = (np.stack(each, axis=-1) for each in zip(*found, strict=True))
            return log_hypervolume_improvement(means, variances, points, volumes)

        return improvement, rng.permutation(tried[_dominators(expected, expected) == 0])[:_STARTS]

    def _ranks(self) -> NDArray[np.int64] | None:
        """Return how many of the front dominate each result, shape (n,), if there are too many results for a model."""
        if len(self.units) <= MODEL_SIZE:
            return None
        losses = np.array([[seen.loss for seen in part.observations] for part in self._parts]).T
        return _dominators(losses, losses[list(self._best)])


def probes(known: Array, drawn: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return points that nothing dominates yet, and how much volume each represents.

    They are on rays from a reference point in the direction of better losses, from the end of the front outwards, at
    distances that grow geometrically. So the thin layer next to the front, which matters late in a search, has as many
    points as the space far beyond. The reference point is worse than the front, and at a random quantile of the known
    losses: the median prefers the middle of a front, the worst its ends.

    Source of the coordinates: Zhang and Golovin, "Random Hypervolume Scalarizations for Provable Multi-Objective Black
    Box Optimization", 2020, lemma 5.

    ``known`` has losses, shape (n, m). ``drawn`` has those of running configurations, once per fantasy, shape
    (s, w, m). The points have the shape (s, q, m), and the logarithms of their volumes (s, q). ``rng`` draws the
    directions and the reference point.
    """
    m = known.shape[1]
    front = known[_dominators(known, known) == 0]
    best, worst = front.min(axis=0), front.max(axis=0)
    usual = np.quantile(known, rng.uniform(0.5, 1.0), axis=0)
    reference = np.maximum(worst + _BEYOND * (worst - best), usual) + _NEAREST
    box = reference - best
    directions = np.abs(rng.normal(size=(len(drawn), max(_DIRECTIONS // len(drawn), 1), m))) + 1e-9
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    steps = _NEAREST ** (1.0 - (np.arange(_DISTANCES) + rng.random()) / _DISTANCES)
    points, volumes = [], []
    for running, rays in zip(drawn, directions, strict=True):
        won = (reference - np.concatenate([front, running])) / box
        ends = np.maximum((won / rays[:, None]).min(axis=2).max(axis=1), 0.0)
        radii = ends[:, None] + steps
        points.append((reference - box * radii[..., None] * rays[:, None]).reshape(-1, m))
        volumes.append(((m - 1) * np.log(radii) + np.log(steps)).ravel())
    return np.array(points), np.array(volumes) - np.log(directions.shape[0] * directions.shape[1])


def log_hypervolume_improvement(means: Array, variances: Array, points: Array, volumes: Array) -> Array:
    """Return the logarithm of the expected improvement of the hypervolume, up to a constant, averaged over fantasies.

    That is the integral of the probability that a configuration dominates a point, over all points that nothing
    dominates.

    Source: Emmerich, Deutz and Klinkenberg, "Hypervolume-Based Expected Improvement: Monotonicity Properties and Exact
    Computation", 2011, section III; here by quadrature, and as a logarithm.

    ``means`` has the shape (k, s, m), of s fantasies and m objectives, ``variances`` (k, m), and the result (k,).
    ``points`` and ``volumes`` are those of :func:`probes`, shapes (s, q, m) and (s, q).
    """
    logs = np.tile(volumes, (len(means), 1, 1))
    for number in range(means.shape[2]):
        gaps = points[None, :, :, number] - means[:, :, None, number]
        logs += log_ndtr(gaps / np.sqrt(variances[:, number])[:, None, None])
    return np.asarray(logsumexp(logs.reshape(len(means), -1), axis=1))


def _dominators(losses: Array, by: Array) -> NDArray[np.int64]:
    """Return how many rows of ``by`` dominate each row of ``losses``, shape (n,)."""
    no_worse = (by[None] <= losses[:, None]).all(axis=2)
    better = (by[None] < losses[:, None]).any(axis=2)
    return np.asarray((no_worse & better).sum(axis=1))


def _part(history: History, number: int) -> History:
    """Return the search as one of its objectives sees it, without the search's observations."""
    problem = history.problem
    earlier = tuple(tuple(_of_objective(run, number)) for run in problem.earlier)
    return History(replace(problem, n_objectives=1, earlier=earlier))


def _of_objective(observations: Sequence[Observation], number: int) -> Iterator[Observation]:
    """Yield the results of one objective. A trial that lacks any of its losses has failed in all."""
    for seen in observations:
        if seen.losses:  # none while it runs
            loss = seen.losses[number] if all(map(math.isfinite, seen.losses)) else math.inf
            yield msgspec.structs.replace(seen, loss=loss, losses=())
