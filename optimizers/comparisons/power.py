"""How likely a difference is found, before anything is tried."""

from __future__ import annotations

import math

from optimizers.checks.options import integer
from optimizers.comparisons.paired_tests import t_height
from optimizers.errors import OptimizerError


def power(
    effect: float, deviation: float, seeds: int, *, comparisons: int = 1, alpha: float = 0.05, resampled: float = 0.0
) -> float:
    """The probability that a difference is found with a fixed number of seeds.

    Each of several comparisons is taken to be tested at ``alpha / comparisons``. The joint test of
    :mod:`optimizers.comparisons.joint_tests` finds somewhat more.

    Args:
        effect: The size of the difference.
        deviation: The standard deviation of paired differences, such as a pilot of a few seeds has.
        seeds: How many.
        comparisons: How many are tested together.
        alpha: The probability of any false difference, at most.
        resampled: Rows in a test set by rows in a training set, where each seed splits the same rows anew.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> round(power(1.0, 1.0, 20, comparisons=6), 2)
        0.92
    """
    from scipy import stats

    seeds, comparisons = integer("seeds", seeds, least=2), integer("comparisons", comparisons, least=1)
    if not (math.isfinite(effect) and 0.0 < deviation < math.inf):
        raise OptimizerError(
            f"effect must be a number and the deviation one above 0, got {effect!r} and {deviation!r}; the deviation "
            "of paired differences is that of a pilot of a few seeds"
        )
    critical = t_height(seeds, alpha / comparisons)
    shift = abs(effect) / (deviation * math.sqrt(1.0 / seeds + resampled))
    return float(stats.nct.sf(critical, seeds - 1, shift) + stats.nct.cdf(-critical, seeds - 1, shift))
