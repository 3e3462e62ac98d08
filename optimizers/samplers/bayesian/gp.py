"""A Gaussian process with one length scale per axis.

Sources: Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006 (GPML, with its numbers of equations);
Hvarfner, Hellsten and Nardi, "Vanilla Bayesian Optimization Performs Great in High Dimensions", 2024 (the prior of the
length scales).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

Array = NDArray[np.float64]

_SQRT5 = np.sqrt(5.0)
_MEAN_VARIANCE = 1.0  # of the constant mean, marginalised as a constant kernel
_JITTER = 1e-8
_MAX_ITERATIONS = 30
_FANTASY_NOISE = 1e-6  # two pending points may be one
_SCALE_SHIFT = 0.4142
_SCALE_STD = 1.0
_NOISE_MEAN, _NOISE_STD = np.log(1e-3), 2.0
_BOUNDS_SCALE, _BOUNDS_SIGNAL, _LEAST_NOISE = (-2.0, 5.0), (-4.0, 4.0), -9.0


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters of a Gaussian process."""

    values: Array  # logarithms of the length scales, shape (d,), the signal's variance, and the noise's
    energy: float = 0.0  # negative logarithm of their posterior density, up to a constant, if they were fitted

    @classmethod
    def default(cls, d: int) -> Hyperparameters:
        """Return the mode of the priors."""
        return cls(np.concatenate([np.full(d, _scale_mean(d)), [0.0, _NOISE_MEAN]]))

    @property
    def scales(self) -> Array:
        """Length scales, shape (d,)."""
        return np.exp(self.values[:-2])

    @property
    def signal(self) -> float:
        """Variance of the function."""
        return float(np.exp(self.values[-2]))

    @property
    def noise(self) -> float:
        """Variance of an observation's noise."""
        return float(np.exp(self.values[-1]))


class GaussianProcess:
    """The posterior distribution of functions, given observations.

    ``features`` has the shape (n, p), and ``groups`` has the axis of each feature, shape (p,). Features of one axis
    share a length scale.
    """

    def __init__(self, features: Array, groups: NDArray[np.int64], hyperparameters: Hyperparameters) -> None:
        self._weights = 1.0 / hyperparameters.scales[groups]
        self._signal = hyperparameters.signal
        self._points = features * self._weights
        covariance = self._covariance(self._points, self._points)
        covariance[np.diag_indices(len(features))] += hyperparameters.noise + _JITTER
        self._factor = cholesky(covariance, lower=True, check_finite=False)

    def condition(self, targets: Array) -> Array:
        """Return the weights of the posterior mean (GPML 2.25): shape (n,) or (n, s) to the same."""
        return np.asarray(cho_solve((self._factor, True), targets, check_finite=False))

    def leave_out(self, targets: Array, labels: NDArray[np.int64]) -> Array:
        """Predict each target without all targets of the same label (GPML 5.12, for blocks). All shapes are (n,)."""
        lower = dpotri(self._factor, lower=1)[0]
        inverse = np.tril(lower) + np.tril(lower, -1).T
        weights = self.condition(targets)
        predicted = np.empty_like(targets)
        for label in np.unique(labels):
            block = np.flatnonzero(labels == label)
            predicted[block] = targets[block] - np.linalg.solve(inverse[np.ix_(block, block)], weights[block])
        return predicted

    def extend(self, features: Array) -> None:
        """Add points (features of shape (m, p)) without noise and without their targets, by extending the factor."""
        points = features * self._weights
        cross = self._covariance(self._points, points)
        corner = self._covariance(points, points)
        corner[np.diag_indices(len(points))] += _FANTASY_NOISE
        side = solve_triangular(self._factor, cross, lower=True, check_finite=False)
        lower = cholesky(corner - side.T @ side, lower=True, check_finite=False)
        n = len(self._points)
        factor = np.zeros((n + len(points), n + len(points)))
        factor[:n, :n], factor[n:, :n], factor[n:, n:] = self._factor, side.T, lower
        self._factor = factor
        self._points = np.concatenate([self._points, points])

    def predict(self, features: Array, weights: Array) -> tuple[Array, Array]:
        """Return the mean and variance of the function (GPML 2.25 and 2.26) at features of shape (m, p).

        ``weights`` is a result of :meth:`condition`, shape (n,) or (n, s). The means have the shape (m,) or (m, s), and
        the variances (m,).
        """
        cross = self._covariance(self._points, features * self._weights)
        side = solve_triangular(self._factor, cross, lower=True, check_finite=False)
        variance = self._signal + _MEAN_VARIANCE - np.einsum("ij,ij->j", side, side)
        return cross.T @ weights, np.maximum(variance, 1e-12)

    def mean(self, features: Array, weights: Array) -> Array:
        """Return only the means of :meth:`predict`, at a fraction of its cost."""
        return np.asarray(self._covariance(self._points, features * self._weights).T @ weights)

    def draw(self, features: Array, weights: Array, count: int, rng: np.random.Generator) -> Array:
        """Draw the function jointly at some points: features of shape (m, p) to values of shape (m, count).

        ``weights`` is a result of :meth:`condition`, shape (n,).
        """
        points = features * self._weights
        cross = self._covariance(self._points, points)
        side = solve_triangular(self._factor, cross, lower=True, check_finite=False)
        values, vectors = np.linalg.eigh(self._covariance(points, points) - side.T @ side)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray((cross.T @ weights)[:, None] + root @ rng.normal(size=(len(points), count)))

    def _covariance(self, a: Array, b: Array) -> Array:
        return self._signal * _matern(_squared_distances(a, b)) + _MEAN_VARIANCE


def fit(
    features: Array,  # (n, p)
    groups: NDArray[np.int64],  # (p,)
    targets: Array,  # (n,), with a variance near 1
    start: Hyperparameters,  # the fit to fewer data
    most_noise: float = math.e,  # limit of the noise's variance
) -> Hyperparameters:
    """Return the most probable hyperparameters, given the data (GPML 5.8 and 5.9, with priors)."""
    n, d = len(targets), len(start.values) - 2
    parts = np.zeros((d, n, n))
    for column, axis in zip(features.T, groups, strict=True):
        parts[axis] += (column[:, None] - column) ** 2
    flat = parts.reshape(d, n * n)
    prior_mean = Hyperparameters.default(d).values
    prior_std = np.concatenate([np.full(d, _SCALE_STD), [1.0, _NOISE_STD]])
    diagonal = np.diag_indices(n)

    def negative(values: Array) -> tuple[float, Array]:
        inverse_squares = np.exp(-2.0 * values[:d])
        signal, noise = np.exp(values[d:])
        distances = np.sqrt(inverse_squares @ flat)
        decay = np.exp(-_SQRT5 * distances)
        shape = ((1.0 + _SQRT5 * distances + 5.0 / 3.0 * distances**2) * decay).reshape(n, n)
        covariance = signal * shape + _MEAN_VARIANCE
        covariance[diagonal] += noise + _JITTER
        try:
            factor = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(values)
        weights = cho_solve((factor, True), targets, check_finite=False)
        inverse = dpotri(factor, lower=1)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        outer = np.outer(weights, weights) - inverse  # GPML 5.9
        gradient = np.empty_like(values)
        slope = (outer.ravel() * (5.0 / 3.0 * signal)) * ((1.0 + _SQRT5 * distances) * decay)
        gradient[:d] = 0.5 * (flat @ slope) * inverse_squares
        gradient[d] = 0.5 * signal * np.sum(outer * shape)
        gradient[d + 1] = 0.5 * noise * np.sum(outer[diagonal])
        likelihood = -0.5 * targets @ weights - np.log(np.diag(factor)).sum()
        residual = (values - prior_mean) / prior_std
        return -(likelihood - 0.5 * residual @ residual), -(gradient - residual / prior_std)

    bounds = [_BOUNDS_SCALE] * d + [_BOUNDS_SIGNAL, (_LEAST_NOISE, math.log(most_noise))]
    found = minimize(
        negative, start.values, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _MAX_ITERATIONS}
    )
    return Hyperparameters(found.x if np.isfinite(found.fun) and found.fun < 1e9 else start.values, float(found.fun))


def _scale_mean(d: int) -> float:
    return float(_SCALE_SHIFT + 0.5 * np.log(max(d, 1)))


def _squared_distances(a: Array, b: Array) -> Array:
    squares = np.einsum("ij,ij->i", a, a)[:, None] + np.einsum("ij,ij->i", b, b) - 2.0 * (a @ b.T)
    return np.asarray(np.maximum(squares, 0.0))


def _matern(squared: Array) -> Array:
    """Return the Matern covariance with smoothness 5/2 (GPML 4.17) of squared scaled distances."""
    scaled = np.sqrt(5.0 * squared, out=squared)
    decay = np.exp(-scaled)
    return np.asarray((1.0 + scaled + scaled * scaled / 3.0) * decay)
