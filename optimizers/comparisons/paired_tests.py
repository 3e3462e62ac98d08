"""Simultaneous tests of several differences that are paired by seed, after a number of repeats fixed beforehand.

Sources: Student, "The Probable Error of a Mean", 1908 (the paired t-test); of the correction see
:mod:`optimizers.comparisons.joint_tests`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from optimizers.comparisons.differences import Contrast, Differences, Losses, differences
from optimizers.comparisons.joint_tests import JointTests
from optimizers.comparisons.least_squares import LeastSquares
from optimizers.errors import OptimizerError


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the repeats for one contrast.

    Attributes:
        sample: The differences, a seed each.
        low: Lower end of the simultaneous confidence interval; ``-inf`` where nothing bounds it.
        high: Upper end of it; ``inf`` where nothing bounds it.
        p: The p-value, two-sided; None where there is no test: of fewer than two seeds, of fewer than were planned, or
            where every seed gave the same difference other than zero, so that nothing is known of the noise.
        corrected: The p-value, corrected for the number of contrasts.
        differs: Whether the difference is not zero, at the level that was asked for: the interval leaves zero out.
        decided: Whether no more repeats are due.
        unbiased: The median-unbiased estimate of the difference, where looks after every seed decided how many there
            are; None where the mean is unbiased, or no such estimate is known.
    """

    sample: Differences
    low: float
    high: float
    p: float | None
    corrected: float | None
    differs: bool
    decided: bool = True
    unbiased: float | None = None

    @property
    def difference(self) -> float:
        """The mean of the contrast over the seeds; nan if there is none."""
        return self.sample.mean

    @property
    def seeds(self) -> int:
        """How many seeds it is the mean of."""
        return len(self.sample.values)

    @property
    def dropped(self) -> int:
        """How many more were left out, since a trial of theirs failed."""
        return self.sample.dropped


def compare(
    contrasts: Mapping[str, Contrast],
    losses: Losses,
    *,
    alpha: float = 0.05,
    planned: int | None = None,
    resampled: float = 0.0,
) -> dict[str, Finding]:
    """Test all contrasts, with paired t-tests and the max-T correction, after a number of repeats fixed beforehand.

    Args:
        contrasts: All that are asked, by name: their number counts, those that cannot be tested included.
        losses: The results.
        alpha: The probability of any false difference, at most.
        planned: The number of seeds that was fixed beforehand. A contrast of which fewer have ended is not tested: who
            may stop when a difference is seen finds one too often. None if all planned seeds are there.
        resampled: Rows in a test set by rows in a training set, where each seed splits the same rows anew.

    Returns:
        A finding for each contrast; all intervals together hold with probability ``1 - alpha``.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> compare({"A": {"without A": 1.0, "base": -1.0}}, losses)["A"].corrected
        0.003
    """
    check_contrasts(contrasts, alpha, resampled)
    seeds = sorted({seed for _, seed in losses})
    fit = LeastSquares(contrasts.values())
    samples = {
        name: differences(contrast, losses, seeds, resampled=resampled, fit=fit) for name, contrast in contrasts.items()
    }
    return compare_samples(samples, alpha=alpha, planned=planned)


def compare_samples(
    samples: Mapping[str, Differences], *, alpha: float = 0.05, planned: int | None = None
) -> dict[str, Finding]:
    """The same tests of differences that are known."""
    joint = JointTests([*samples.values()], alpha)
    found = {}
    for name, sample in samples.items():
        if planned is not None and sample.ended < planned:
            found[name] = Finding(sample, -math.inf, math.inf, None, None, differs=False, decided=False)
            continue
        p = p_value(sample)
        differs = p is not None and p <= joint.level
        low, high = interval(sample, t_height(len(sample.values), joint.level))
        corrected = joint.corrected(p) if p is not None else None
        found[name] = Finding(sample, low, high, p, corrected, differs)
    return found


def p_value(sample: Differences) -> float | None:
    """The two-sided p-value of the t-test; None where there is none (see :attr:`Finding.p`)."""
    from scipy import special

    if sample.is_zero:
        return 1.0
    if not sample.error > 0.0:
        return None
    return float(2.0 * special.stdtr(len(sample.values) - 1, -abs(sample.mean) / sample.error))


def t_height(n: int, level: float) -> float:
    """The two-sided critical value of a t-test of ``n`` values; ``inf`` of fewer than two."""
    from scipy import special

    return float(-special.stdtrit(n - 1, level / 2.0)) if n > 1 else math.inf


def interval(sample: Differences, height: float) -> tuple[float, float]:
    """The mean and ``height`` standard errors to both sides."""
    if not sample.error > 0.0:
        return -math.inf, math.inf
    return sample.mean - height * sample.error, sample.mean + height * sample.error


def check_contrasts(contrasts: Mapping[str, Contrast], alpha: float, resampled: float = 0.0) -> None:
    """Check the arguments that all comparisons share.

    Raises:
        OptimizerError: One is not valid.
    """
    if not contrasts or not all(contrasts.values()):
        raise OptimizerError(f"there is nothing to compare in {dict(contrasts)!r}; give at least one contrast")
    if not 0.0 < alpha < 1.0:
        raise OptimizerError(f"alpha must lie between 0 and 1, got {alpha!r}; 0.05 is usual")
    if not 0.0 <= resampled < math.inf:
        raise OptimizerError(
            f"resampled must be a number of test rows by training rows, such as 0.3 / 0.7, got {resampled!r}"
        )
