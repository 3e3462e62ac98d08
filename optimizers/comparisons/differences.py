"""Differences between variants, paired by seed.

A *contrast* is a weighted sum of the losses of variants that had the same seed: ``{"without A": 1, "base": -1}``
is the difference that removing A makes, ``{"without A and B": 1, "without A": -1, "without B": -1, "base": 1}``
the interaction of A and B. Each seed gives one value of it, in which all that the seed decides (the split of the
data, the order of the batches) cancels as far as it can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizers.comparisons.least_squares import LeastSquares

Contrast = Mapping[str, float]
"""Weights of variants by name."""

Losses = Mapping[tuple[str, int], float]
"""Losses by variant and seed; ``inf`` where the trial failed, absent where it did not end."""

_SINGLE, _DOUBLE = (4.0 * float(np.finfo(kind).epsneg) for kind in (np.float32, np.float64))
"""Differences count as all the same if their deviation is below this share of the losses: it is rounding. Metrics
often come in single precision, and one that counts (an accuracy) gives the same difference twice now and then."""

_WHOLE = 2.0**24
"""Whole numbers below this are exact in both precisions."""

_CONSTANT = 1e-4
"""Differences count as all the same, too, if their deviation is below this share of their mean."""

_LARGEST = 1e150
"""Losses past this have diverged, and their squares are past all floats."""


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """The values of a contrast, a seed each.

    Attributes:
        values: Shape (n,), in the order of the seeds.
        seeds: Their seeds, shape (n,).
        dropped: Seeds left out, since a trial failed.
        rounding: Deviations below this are none.
        resampled: Rows in a test set by rows in a training set, where each seed splits the same rows anew; else 0.
        fitted: Seeds of which a trial failed, and whose value is that of a fit to the others.
    """

    values: NDArray[np.float64]
    seeds: NDArray[np.int64]
    dropped: int
    rounding: float
    resampled: float = 0.0
    fitted: int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Differences):
            return NotImplemented
        return (
            np.array_equal(self.values, other.values)
            and np.array_equal(self.seeds, other.seeds)
            and (self.dropped, self.rounding, self.resampled, self.fitted)
            == (other.dropped, other.rounding, other.resampled, other.fitted)
        )

    @property
    def ended(self) -> int:
        """Seeds of which all trials ended, or one failed."""
        return len(self.values) + self.dropped

    @property
    def mean(self) -> float:
        """Their mean; nan if there is none."""
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def deviation(self) -> float:
        """Their standard deviation; nan of fewer than two, and 0 if all are the same but for rounding."""
        if len(self.values) < 2:
            return math.nan
        deviation = float(self.values.std(ddof=1))
        return deviation if deviation > max(self.rounding, _CONSTANT * abs(self.mean)) else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean; nan of fewer than two, and 0 if all are the same.

        Means over splits of the same rows vary less than means over new rows would: their test sets overlap, and their
        training sets too. The variance is then ``1/n + n_test/n_train`` times that of one difference (Nadeau and
        Bengio, "Inference for the Generalization Error", Machine Learning 52, 2003).
        """
        return self.deviation * math.sqrt(1.0 / len(self.values) + self.resampled) if len(self.values) else math.nan

    @property
    def is_zero(self) -> bool:
        """Whether every seed, of at least two, gave zero."""
        return self.error == 0.0 and abs(self.mean) <= self.rounding


def is_usable(loss: float) -> bool:
    """Whether it is a number to compare: finite, and not so large that the training has diverged."""
    return math.isfinite(loss) and abs(loss) < _LARGEST


def differences(
    contrast: Contrast,
    losses: Losses,
    seeds: Iterable[int],
    *,
    resampled: float = 0.0,
    fit: LeastSquares | None = None,
) -> Differences:
    """The values of a contrast at those of ``seeds`` at which all trials of it ended.

    Args:
        contrast: Weights of variants.
        losses: The results.
        seeds: Those to take.
        resampled: Rows in a test set by rows in a training set, where each seed splits the same rows anew; else 0.
        fit: Of the design that the contrast is one of: gives a value where a trial failed, if the others determine it.

    Example:
        >>> losses = {("base", 0): 1.0, ("without A", 0): 1.5, ("base", 1): 1.0, ("without A", 1): math.inf}
        >>> differences({"without A": 1.0, "base": -1.0}, losses, range(2)).values
        array([0.5])
    """
    values: list[float] = []
    whole: list[int] = []
    used: list[float] = []
    dropped = fitted = 0
    for seed in seeds:
        ended = {variant: losses[variant, seed] for variant in contrast if (variant, seed) in losses}
        usable = {variant: loss for variant, loss in ended.items() if is_usable(loss)}
        failed, fits = len(usable) < len(ended), fit is not None and fit.has_spare
        if len(ended) < len(contrast) and (fits or not failed):
            continue  # more trials may come that matter
        weights = contrast
        if failed:
            made = fit.weights(contrast, usable) if fit is not None and fits else None
            if made is None:
                dropped += 1
                continue
            weights = made
            fitted += 1
        values.append(math.fsum(weight * usable[variant] for variant, weight in weights.items()))
        whole.append(seed)
        used += usable.values()
    return Differences(np.array(values), np.array(whole, dtype=np.int64), dropped, _rounding(used), resampled, fitted)


def _rounding(losses: list[float]) -> float:
    """How far a difference of these may be off, by the precision that they seem to have."""
    known = np.abs(np.array(losses))
    if np.all((known == np.rint(known)) & (known < _WHOLE)):
        return 0.0
    with np.errstate(over="ignore"):  # past single precision, so not of it
        single = known[known.astype(np.float32) == known]
    return max(_of_precision(single, _SINGLE), _of_precision(known, _DOUBLE))


def _of_precision(losses: NDArray[np.float64], share: float) -> float:
    """The rounding of losses that have a precision.

    A small loss may have been computed from a larger number, as ``1 - accuracy`` is: then all are multiples of the
    power of two that is the last place of numbers near 1.
    """
    return max(share * float(losses.max(initial=0.0)), min(share, 4.0 * _spacing(losses)))


def _spacing(losses: NDArray[np.float64]) -> float:
    """The largest power of two of which all are multiples; 0 if all are zero."""
    mantissas, exponents = np.frexp(losses[losses > 0.0])
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    return float(np.ldexp((whole & -whole).astype(float), exponents - 53).min(initial=math.inf)) if len(whole) else 0.0
