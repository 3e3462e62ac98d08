"""Skewed differences, of which t-tests find too many.

A t-test takes the differences to be symmetric about their mean, which they nearly are if variants and base have noise
of the same shape. Where one of the two is noisier, and its noise has one long tail (a training that diverges now and
then), the test errs towards the short tail.
"""

from __future__ import annotations

import math

import numpy as np

from optimizers.comparisons.differences import Differences

_FEWEST = 6  # seeds, below which the skewness of a sample says nothing
_ERRORS = 2.5  # standard errors of a normal sample's skewness that are more than chance
_DRAWS = 4000


def skewed(sample: Differences) -> tuple[float, float] | None:
    """The skewness and the p-value of :func:`bootstrap_p`, where the skewness is more than chance gives.

    Example:
        >>> skewed(differences(contrast, losses, range(20)))  # None of symmetric ones
        (2.1, 0.08)
    """
    n = len(sample.values)
    if n < _FEWEST or not sample.error > 0.0:
        return None
    scores = (sample.values - sample.mean) / sample.values.std()
    skewness = float(np.mean(scores**3)) * math.sqrt(n * (n - 1)) / (n - 2)
    chance = math.sqrt(6.0 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
    return (skewness, bootstrap_p(sample)) if abs(skewness) > _ERRORS * chance else None


def bootstrap_p(sample: Differences) -> float:
    """The p-value of a studentised bootstrap, two-sided with equal tails; not corrected for other comparisons.

    Hall, "The Bootstrap and Edgeworth Expansion", 1992: t-statistics of samples drawn from the centred differences say
    how large one gets by chance, on the side of the observed one.
    """
    values, n = sample.values - sample.mean, len(sample.values)
    drawn = values[np.random.default_rng(0).integers(n, size=(_DRAWS, n))]
    deviations = drawn.std(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.nan_to_num(
            drawn.mean(axis=1) / (deviations * math.sqrt(1.0 / n + sample.resampled)), posinf=1e9, neginf=-1e9
        )
    seen = sample.mean / sample.error
    beyond = float(np.mean(t >= seen if seen > 0.0 else t <= seen))
    return min(1.0, 2.0 * max(beyond, 1.0 / _DRAWS))
