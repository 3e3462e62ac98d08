"""Differences between variants, paired by seed, and simultaneous tests of several of them.

A *contrast* is a weighted sum of the losses of variants that had the same seed: ``{"without A": 1, "base": -1}``
is the difference that removing A makes, ``{"without A and B": 1, "without A": -1, "without B": -1, "base": 1}``
the interaction of A and B. Each seed gives one value of it, in which all that the seed decides (the split of the
data, the order of the batches) cancels as far as it can.

Sources: Student, "The Probable Error of a Mean", 1908 (the paired t-test); Holm, "A Simple Sequentially Rejective
Multiple Test Procedure", Scandinavian Journal of Statistics, 1979 (the correction).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizers.errors import OptimizerError

Contrast = Mapping[str, float]
"""Weights of variants by name."""

Losses = Mapping[tuple[str, int], float]
"""Losses by variant and seed; ``inf`` where the trial failed, absent where it did not end."""

_SINGLE, _DOUBLE = (4.0 * float(np.finfo(kind).epsneg) for kind in (np.float32, np.float64))
"""Differences count as all the same if their deviation is below this share of the losses: it is rounding. Metrics
often come in single precision, and one that counts (an accuracy) gives the same difference twice now and then."""

_LARGEST = 1e150
"""Losses past this have diverged, and their squares are past all floats."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the repeats for one contrast.

    Attributes:
        difference: The mean of the contrast over the seeds; nan if there is none.
        low: Lower end of the simultaneous confidence interval; ``-inf`` where nothing bounds it.
        high: Upper end of it; ``inf`` where nothing bounds it.
        p: The p-value, two-sided; None where there is no test: of fewer than two seeds, or where every seed gave
            the same difference other than zero, so that nothing is known of the noise.
        corrected: The p-value, corrected for the number of contrasts.
        seeds: How many seeds it is the mean of.
        dropped: How many more were left out, since a trial of theirs failed.
        differs: Whether the difference is not zero, at the level that was asked for.
        decided: Whether no more repeats are due.
    """

    difference: float
    low: float
    high: float
    p: float | None
    corrected: float | None
    seeds: int
    dropped: int
    differs: bool
    decided: bool = True


@dataclass(frozen=True, slots=True)
class Differences:
    """The values of a contrast, a seed each.

    Attributes:
        values: Shape (n,), in the order of the seeds.
        dropped: Seeds left out, since a trial of theirs failed.
        rounding: Deviations below this are none.
    """

    values: NDArray[np.float64]
    dropped: int
    rounding: float

    @property
    def mean(self) -> float:
        """Their mean; nan if there is none."""
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def error(self) -> float:
        """The standard error of the mean; nan of fewer than two, and 0 if all are the same."""
        if len(self.values) < 2:
            return math.nan
        deviation = float(self.values.std(ddof=1))
        return deviation / math.sqrt(len(self.values)) if deviation > self.rounding else 0.0

    @property
    def is_zero(self) -> bool:
        """Whether every seed, of at least two, gave zero."""
        return self.error == 0.0 and abs(self.mean) <= self.rounding


def is_usable(loss: float) -> bool:
    """Whether it is a number to compare: finite, and not so large that the training has diverged."""
    return math.isfinite(loss) and abs(loss) < _LARGEST


def differences(contrast: Contrast, losses: Losses, seeds: Iterable[int]) -> Differences:
    """The values of a contrast at those of ``seeds`` at which all trials of it ended.

    Example:
        >>> losses = {("base", 0): 1.0, ("without A", 0): 1.5, ("base", 1): 1.0, ("without A", 1): math.inf}
        >>> differences({"without A": 1.0, "base": -1.0}, losses, range(2))
        Differences(values=array([0.5]), dropped=1, rounding=3.576278686523438e-07)
    """
    values: list[float] = []
    used: list[float] = []
    dropped = 0
    for seed in seeds:
        terms = [(weight, losses[variant, seed]) for variant, weight in contrast.items() if (variant, seed) in losses]
        if not all(is_usable(loss) for _, loss in terms):
            dropped += 1
        elif len(terms) == len(contrast):
            values.append(math.fsum(weight * loss for weight, loss in terms))
            used += [loss for _, loss in terms]
    return Differences(np.array(values), dropped, _rounding(used))


def _rounding(losses: list[float]) -> float:
    """How far a difference of these may be off, by the precision that they seem to have."""
    known = np.abs(np.array(losses))
    with np.errstate(over="ignore"):  # past single precision, so not of it
        single = known[known.astype(np.float32) == known]
    return max(_SINGLE * float(single.max(initial=0.0)), _DOUBLE * float(known.max(initial=0.0)))


def compare(contrasts: Mapping[str, Contrast], losses: Losses, *, alpha: float = 0.05) -> dict[str, Finding]:
    """Test all contrasts, with paired t-tests and Holm's correction, after a number of repeats fixed beforehand.

    Args:
        contrasts: All that are asked, by name: their number counts, those that cannot be tested included.
        losses: The results.
        alpha: The probability of any false difference, at most.

    Returns:
        A finding for each contrast. The intervals are Bonferroni's, each of confidence ``1 - alpha / K`` for K
        contrasts, so that all of them together hold with ``1 - alpha``. Where a later step of Holm's finds a
        difference that such an interval leaves open, the interval is cut at zero: it ends where the decision has it.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> compare({"A": {"without A": 1.0, "base": -1.0}}, losses)["A"].corrected
        0.003
    """
    check_contrasts(contrasts, alpha)
    seeds = sorted({seed for _, seed in losses})
    samples = {name: differences(contrast, losses, seeds) for name, contrast in contrasts.items()}
    p_values = {name: p_value(sample) for name, sample in samples.items()}
    heights = {name: t_height(len(sample.values), alpha / len(contrasts)) for name, sample in samples.items()}
    return findings(samples, p_values, heights, alpha=alpha)


def findings(
    samples: Mapping[str, Differences],
    p_values: Mapping[str, float | None],
    heights: Mapping[str, float],
    *,
    alpha: float,
    undecided: Iterable[str] = (),
) -> dict[str, Finding]:
    """Put what is known of each contrast together.

    Args:
        samples: The differences.
        p_values: Of each contrast alone.
        heights: Half the width of each simultaneous interval, in standard errors.
        alpha: The probability of any false difference, at most.
        undecided: Contrasts of which more repeats are due.
    """
    corrected, undecided = holm(p_values), set(undecided)
    made = {}
    for name, sample in samples.items():
        p = corrected[name]
        differs = p is not None and p <= alpha
        low, high = _interval(sample, heights[name])
        if differs:
            low, high = (max(low, 0.0), high) if sample.mean > 0.0 else (low, min(high, 0.0))
        made[name] = Finding(
            sample.mean,
            low,
            high,
            p_values[name],
            p,
            len(sample.values),
            sample.dropped,
            differs,
            name not in undecided,
        )
    return made


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """p-values corrected for their number, those that are None counted as 1.

    Example:
        >>> holm({"A": 0.01, "B": 0.04, "C": None})
        {'A': 0.03, 'B': 0.08, 'C': None}
    """
    corrected: dict[str, float | None] = dict.fromkeys(p_values)
    known = sorted((p, name) for name, p in p_values.items() if p is not None)
    largest = 0.0
    for rank, (p, name) in enumerate(known):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        corrected[name] = largest
    return corrected


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


def check_contrasts(contrasts: Mapping[str, Contrast], alpha: float) -> None:
    """Check the arguments that all comparisons share.

    Raises:
        OptimizerError: One is not valid.
    """
    if not contrasts or not all(contrasts.values()):
        raise OptimizerError(f"there is nothing to compare in {dict(contrasts)!r}; give at least one contrast")
    if not 0.0 < alpha < 1.0:
        raise OptimizerError(f"alpha must lie between 0 and 1, got {alpha!r}; 0.05 is usual")


def _interval(sample: Differences, height: float) -> tuple[float, float]:
    if not sample.error > 0.0:
        return -math.inf, math.inf
    return sample.mean - height * sample.error, sample.mean + height * sample.error
