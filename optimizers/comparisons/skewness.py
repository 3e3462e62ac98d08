"""Skewed differences, of which t-tests find too many.

A t-test takes the differences to be symmetric about their mean, which they nearly are if variants and base have noise
of the same shape. Where one of the two is noisier, and its noise has one long tail (a training that diverges now and
then), the test errs towards the short tail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from optimizers.comparisons.differences import Differences
from optimizers.comparisons.joint_tests import correlations

_FEWEST = 6  # seeds, below which the skewness of a sample says nothing
_RARE = 0.006  # the share of normal samples on whose skewness a note stands
_DRAWS = 4000


def skewed(sample: Differences, *, of: int = 1) -> tuple[float, float] | None:
    """The skewness and the p-value of :func:`bootstrap_p`, where the skewness is more than chance gives.

    Args:
        sample: The differences of one contrast.
        of: How many contrasts are looked at.

    Example:
        >>> skewed(differences(contrast, losses, range(20)))  # None of symmetric ones
        (2.1, 0.08)
    """
    from scipy import special

    skewness = _skewness(sample)
    errors = -float(special.ndtri(_RARE / of))
    if skewness is None or abs(skewness) <= errors * _chance(len(sample.values)):
        return None
    return skewness, bootstrap_p(sample)


def skewed_together(samples: Sequence[Differences]) -> float | None:
    """The mean skewness of several contrasts, where it is more than chance gives.

    A test errs on samples that happen to lack their long tail, and so show no skewness themselves; those of the other
    contrasts do.
    """
    from scipy import special

    known = [(sample, skewness) for sample in samples if (skewness := _skewness(sample)) is not None]
    if len(known) < 2:
        return None
    # Skewnesses of normal variables have the cubes of their correlations.
    shared = float(np.sum(np.maximum(correlations([sample for sample, _ in known]), 0.0) ** 3)) / len(known) ** 2
    chance = max(_chance(len(sample.values)) for sample, _ in known) * math.sqrt(shared)
    mean = float(np.mean([skewness for _, skewness in known]))
    return mean if abs(mean) > -float(special.ndtri(_RARE)) * chance else None


def _skewness(sample: Differences) -> float | None:
    """The skewness of a sample (G1); None of too few."""
    n = len(sample.values)
    if n < _FEWEST or not sample.error > 0.0:
        return None
    scores = (sample.values - sample.mean) / sample.values.std()
    return float(np.mean(scores**3)) * math.sqrt(n * (n - 1)) / (n - 2)


def _chance(n: int) -> float:
    """The standard error of the skewness of ``n`` normal values."""
    return math.sqrt(6.0 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))


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
