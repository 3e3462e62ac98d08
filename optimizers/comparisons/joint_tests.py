"""What several paired tests say together: the distribution of the smallest of their p-values.

Differences that share a variant are correlated, so the smallest of their p-values is small by chance less often than
that of as many independent ones, which is what Bonferroni's and Holm's corrections guard against. Under no
difference anywhere, each p-value is taken for that of a normal variable, and these have the correlations of the
differences: a p-value is corrected to the probability that the smallest of all is as small (the single-step *max-T*
of Westfall and Young, "Resampling-Based Multiple Testing", 1993; of comparisons with one base it is Dunnett's test,
JASA, 1955). Intervals that leave zero out where the corrected p-value is below the level, and nowhere else, hold
simultaneously as they stand.

Correlations of few seeds are chance in part, and taken as they are would make the tests too bold. So they are shrunk
towards independence, which no correlation beats (Sidak, JASA, 1967), by the share of their squares that chance alone
would give: Schaefer and Strimmer, "A Shrinkage Approach to Large-Scale Covariance Matrix Estimation", Statistical
Applications in Genetics and Molecular Biology, 2005, with the variance that a correlation has under independence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from optimizers.comparisons.differences import Differences

_DRAWS = 2**13
_FEWEST = 50  # draws in a tail, below which Bonferroni's bound is the better estimate


class JointTests:
    """The joint distribution of the p-values of several contrasts.

    Args:
        samples: The differences of all of them; those that cannot be tested count as independent.
        alpha: The probability of any false difference, at most.

    Attributes:
        level: The largest p-value of a contrast that counts as a difference.

    Example:
        >>> joint = JointTests(samples, 0.05)
        >>> joint.level >= 0.05 / len(samples)
        True
    """

    def __init__(self, samples: Sequence[Differences], alpha: float) -> None:
        self._number = len(samples)
        self._alpha = alpha
        self._highest = highest(correlations(samples)) if self._number > 1 else np.zeros(0)
        self.level = level_of(self._highest, alpha, self._number)

    def corrected(self, p: float) -> float:
        """The probability that the smallest p-value of all is at most ``p``; at most alpha if ``p`` is at the level."""
        from scipy import special

        bound = min(1.0, self._number * p)
        if self._number == 1 or bound == 0.0:
            return bound
        above = _DRAWS - int(np.searchsorted(self._highest, -float(special.ndtri(p / 2.0))))
        exact = min(bound, max(p, above / _DRAWS)) if above >= _FEWEST else bound
        # Between two draws both are right, and a table must not print 0.05 beside an interval that has zero in it.
        return min(exact, self._alpha) if p <= self.level else max(exact, math.nextafter(self._alpha, 1.0))


def expected_level(contrasts: Sequence[Mapping[str, float]], seeds: int, alpha: float) -> float:
    """The level that a study is likely to test at, if the noise of all variants is alike: known before any trial.

    Example:
        >>> expected_level([{"A": 1.0, "base": -1.0}, {"B": 1.0, "base": -1.0}], 20, 0.05)
        0.0266
    """
    if len(contrasts) == 1:
        return alpha
    names = {name: place for place, name in enumerate(dict.fromkeys(v for c in contrasts for v in c))}
    weights = np.zeros((len(contrasts), len(names)))
    for row, contrast in zip(weights, contrasts, strict=True):
        row[[names[name] for name in contrast]] = [*contrast.values()]
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    made = weights @ weights.T
    np.fill_diagonal(made, 0.0)
    squares = float(np.sum(made**2))
    by_chance = float(np.sum((1.0 - made**2) ** 2) - len(contrasts)) / max(1, seeds - 1)
    made *= (1.0 - 1e-6) * (squares / (squares + by_chance) if squares > 0.0 else 0.0)  # as it is shrunk on average
    np.fill_diagonal(made, 1.0)
    return level_of(highest(made), alpha, len(contrasts))


def highest(correlated: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest of normal variables with these correlations, by size, in many draws that are sorted."""
    return np.sort(np.abs(_normals(len(correlated)) @ np.linalg.cholesky(correlated).T).max(axis=1))


def level_of(drawn: NDArray[np.float64], alpha: float, number: int) -> float:
    """The p-value below which the smallest of ``number`` comes by chance with probability ``alpha``."""
    from scipy import special

    beyond = int(alpha * _DRAWS)
    if number == 1 or beyond < _FEWEST:
        return alpha / number
    return max(alpha / number, float(2.0 * special.ndtr(-drawn[-beyond])))


def correlations(samples: Sequence[Differences]) -> NDArray[np.float64]:
    """The correlations of the means, shrunk towards independence; shape (contrasts, contrasts).

    Means over seeds that only some of them share are correlated by the seeds that they share.
    """
    seeds = np.unique(np.concatenate([sample.seeds for sample in samples]))
    scores = np.zeros((len(samples), len(seeds)))
    for row, sample in zip(scores, samples, strict=True):
        if sample.error > 0.0:
            places = np.searchsorted(seeds, sample.seeds)
            row[places] = (sample.values - sample.mean) / (sample.deviation * np.sqrt(len(sample.values) - 1))
    made = scores @ scores.T
    np.fill_diagonal(made, 0.0)
    tested = sum(sample.error > 0.0 for sample in samples)
    squares = float(np.sum(made**2))
    by_chance = tested * (tested - 1) / max(1, len(seeds) - 1)
    made *= max(0.0, 1.0 - by_chance / squares) if squares > 0.0 else 0.0
    made *= 1.0 - 1e-6  # so that two that are the same can be told apart
    np.fill_diagonal(made, 1.0)
    return made


@lru_cache(maxsize=16)
def _normals(number: int) -> NDArray[np.float64]:
    """Independent normal variables, evenly spread and the same each time; shape (draws, number)."""
    from scipy import special
    from scipy.stats import qmc

    uniform = qmc.Sobol(number, rng=0).random(_DRAWS)
    normals: NDArray[np.float64] = special.ndtri(np.clip(uniform, 1e-12, 1.0 - 1e-12))
    return normals
