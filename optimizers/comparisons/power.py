"""How likely a difference is found, before anything is tried."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optimizers.checks.options import integer
from optimizers.comparisons.differences import Contrast
from optimizers.comparisons.joint_tests import expected_level
from optimizers.comparisons.paired_tests import t_height
from optimizers.errors import OptimizerError


def power(
    effect: float,
    deviation: float,
    seeds: int,
    *,
    contrasts: Sequence[Contrast] = ({"": 1.0},),
    alpha: float = 0.05,
    resampled: float = 0.0,
) -> float:
    """The probability that a difference is found with a fixed number of seeds.

    It is tested at the level that the joint test of all contrasts has on average, if the noise of all variants is alike
    (:func:`optimizers.comparisons.joint_tests.expected_level`).

    Args:
        effect: The size of the difference.
        deviation: The standard deviation of paired differences, such as a pilot of a few seeds has.
        seeds: How many.
        contrasts: All that are tested together.
        alpha: The probability of any false difference, at most.
        resampled: Rows in a test set by rows in a training set, where each seed splits the same rows anew.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> round(power(1.0, 1.0, 20, contrasts=[{name: 1.0, "base": -1.0} for name in "ABCDEF"]), 2)
        0.93
    """
    from scipy import stats

    seeds = integer("seeds", seeds, least=2)
    if not (math.isfinite(effect) and 0.0 < deviation < math.inf):
        raise OptimizerError(
            f"effect must be a number and the deviation one above 0, got {effect!r} and {deviation!r}; the deviation "
            "of paired differences is that of a pilot of a few seeds"
        )
    critical = t_height(seeds, expected_level(contrasts, seeds, alpha))
    shift = abs(effect) / (deviation * math.sqrt(1.0 / seeds + resampled))
    # The lower tail is the upper one of the mirrored effect; asked for directly, scipy gives nan where it is near 0.
    return float(stats.nct.sf(critical, seeds - 1, shift) + stats.nct.sf(critical, seeds - 1, -shift))
