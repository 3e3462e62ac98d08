"""Paired comparisons that are tested after every seed, and end as soon as they are decided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from optimizers.checks import integer
from optimizers.comparisons.paired_tests import (
    Contrast,
    Differences,
    Finding,
    JointTests,
    LeastSquares,
    Losses,
    check_contrasts,
    differences,
    interval,
)

_POINTS = 161  # of the grid between the boundaries
_FURTHEST_DRIFT = 40.0  # drifts


def median_unbiased(times: Sequence[float], boundary: Sequence[float], height: float) -> float:
    """Estimate the drift of a Brownian motion that was observed until it crossed a boundary, or until a last look.

    ``times`` are those of the looks in rising order, including the last one. ``boundary`` has the height at each look,
    above and below zero. ``height`` is that of the motion at the last look.
    """
    from scipy import optimize

    plain = height / times[-1]
    if len(times) == 1:
        return plain
    if height < 0.0:
        return -median_unbiased(times, boundary, -height)
    paths = _paths(tuple(times), tuple(boundary))

    def exceeds(drift: float) -> float:
        return paths.farther(height, drift) - 0.5

    if exceeds(0.0) >= 0.0:
        return 0.0
    return float(optimize.brentq(exceeds, 0.0, max(plain, 1.0) + _FURTHEST_DRIFT, xtol=1e-4))


def farther(times: Sequence[float], boundary: Sequence[float], height: float, drift: float) -> float:
    """Return the probability of crossing the upper boundary earlier, or of at least ``height`` at the last look."""
    return _paths(tuple(times), tuple(boundary)).farther(height, drift)


@dataclass(frozen=True, slots=True)
class _Paths:
    """Brownian motions without drift that have crossed no boundary, at each look except the last."""

    times: NDArray[np.float64]  # of the looks
    goals: NDArray[np.float64]  # height of the upper boundary at each look; that of the last is not used
    heights: NDArray[np.float64]  # of the motions between the boundaries, shape (looks - 1, points)
    masses: NDArray[np.float64]  # probabilities of the heights

    def farther(self, height: float, drift: float) -> float:
        """See :func:`farther`."""
        from scipy import special

        goals = np.append(self.goals[:-1], height)
        crossed = float(special.ndtr((drift * self.times[0] - goals[0]) / math.sqrt(self.times[0])))
        before, steps = self.times[:-1, None], np.diff(self.times)[:, None]
        # A density with drift is the one without drift, times the ratio of their likelihoods.
        likelihoods = np.exp(drift * self.heights - drift**2 * before / 2.0)
        reached = special.ndtr((self.heights + drift * steps - goals[1:, None]) / np.sqrt(steps))
        return crossed + float(np.sum(self.masses * likelihoods * reached))


@lru_cache(maxsize=64)
def _paths(times: tuple[float, ...], boundary: tuple[float, ...]) -> _Paths:
    heights, masses = np.zeros((2, len(times) - 1, _POINTS))
    for look in range(len(times) - 1):
        heights[look], weights = _grid(boundary[look])
        if look == 0:
            masses[look] = weights * _normal(heights[look], times[look])
            continue
        steps = _normal(heights[look][:, None] - heights[look - 1][None, :], times[look] - times[look - 1])
        masses[look] = weights * (steps @ masses[look - 1])
    return _Paths(np.array(times), np.array(boundary), heights, masses)


def _grid(height: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return points between the boundaries, and the weights of Simpson's rule."""
    grid = np.linspace(-height, height, _POINTS)
    weights = np.where(np.arange(_POINTS) % 2 == 1, 4.0, 2.0)
    weights[[0, -1]] = 1.0
    return grid, weights * (grid[1] - grid[0]) / 3.0


def _normal(x: NDArray[np.float64], variance: float) -> NDArray[np.float64]:
    density: NDArray[np.float64] = np.exp(-(x**2) / (2.0 * variance)) / math.sqrt(2.0 * math.pi * variance)
    return density


FIRST_LOOK = 3
"""Number of seeds before the first look. With two, almost nothing is known about the noise."""

_FUTILE = 0.03  # predictive probability below which a contrast is given up
_SLOPE = 0.5  # of the boundary; 0 is O'Brien and Fleming's
_FURTHEST = 30.0  # standard deviations; further out, the tail of the normal distribution underflows


@dataclass(slots=True)
class Look:
    """The state of a contrast at the last look."""

    sample: Differences
    highest: float = 0.0  # largest height of the contrast at any look
    corrected: float = 1.0  # smallest corrected p-value at any look
    level: float = math.nan  # p-value that would have been small enough
    found: bool = False  # whether a difference was found


@dataclass(slots=True)
class Looks:
    """The state of all looks so far."""

    seeds: int  # number of seeds at the last look
    open: list[str]  # contrasts that need more repeats, in order
    last: dict[str, Look]  # by contrast


class SequentialTests:
    """Tests of several contrasts after every seed.

    A contrast gets at most ``bound`` seeds. The probability of any false difference is at most ``alpha``. For
    ``resampled``, see :class:`~optimizers.comparisons.paired_tests.Differences`.
    """

    def __init__(
        self, contrasts: Mapping[str, Contrast], bound: int, *, alpha: float = 0.05, resampled: float = 0.0
    ) -> None:
        check_contrasts(contrasts, alpha, resampled)
        self.contrasts = {name: dict(contrast) for name, contrast in contrasts.items()}
        self.bound = integer("the bound of repeats", bound, least=FIRST_LOOK)
        self.alpha = alpha
        self.resampled = resampled
        self._fit = LeastSquares(self.contrasts.values())

    def follow(self, losses: Losses, looks: Looks | None = None) -> Looks:
        """Look as far as the results allow. A look needs all trials of the contrasts that are still open.

        ``looks`` is the result of an earlier call to continue from, which is changed.
        """
        if looks is None:
            looks = Looks(0, list(self.contrasts), {name: Look(self._sample(name, {}, 0)) for name in self.contrasts})
        while looks.open and all((variant, looks.seeds) in losses for variant in self.needed(looks)):
            looks.seeds += 1
            for name in looks.open:
                looks.last[name].sample = self._sample(name, losses, looks.seeds)
            if looks.seeds >= FIRST_LOOK:
                self._test(looks)
        return looks

    def needed(self, looks: Looks) -> list[str]:
        """Return the variants that need more repeats, those that all contrasts share first."""
        count: dict[str, int] = {}
        for name in looks.open:
            for variant in self.contrasts[name]:
                count[variant] = count.get(variant, 0) + 1
        return sorted(count, key=lambda variant: -count[variant])

    def compare(self, losses: Losses) -> dict[str, Finding]:
        """Return the findings of the looks so far. Results after the look that decided a contrast do not count."""
        looks = self.follow(losses)
        findings = {}
        for name, look in looks.last.items():
            sample, is_open = look.sample, name in looks.open
            if looks.seeds < FIRST_LOOK or not _is_testable(sample):
                findings[name] = Finding(sample, -math.inf, math.inf, None, None, differs=False, decided=not is_open)
                continue
            low, high = interval(sample, self._width(len(sample.values), crossing_height(look.level)))
            p = crossing_probability(look.highest)
            unbiased = self._unbiased(look)
            findings[name] = Finding(sample, low, high, p, look.corrected, look.found, not is_open, unbiased)
        return findings

    def _unbiased(self, look: Look) -> float | None:
        """Return the mean without the bias of stopping at a lucky look.

        Splits of the same rows are not a Brownian motion, so there is no such estimate for them.
        """
        n, height = len(look.sample.values), self._height(look.sample)
        if self.resampled or n < FIRST_LOOK or height == 0.0:
            return look.sample.mean if not self.resampled else None
        critical = crossing_height(look.level)
        times = [number / self.bound for number in range(FIRST_LOOK, n + 1)]
        drift = median_unbiased(times, [critical * self._line(number) for number in range(FIRST_LOOK, n + 1)], height)
        return look.sample.mean * drift / (height / times[-1])

    def _sample(self, name: str, losses: Losses, seeds: int) -> Differences:
        return differences(self.contrasts[name], losses, range(seeds), resampled=self.resampled, fit=self._fit)

    def _height(self, sample: Differences) -> float:
        """Return the Brownian motion after these differences; 0 while their noise is unknown."""
        from scipy import special

        n = len(sample.values)
        if not sample.error > 0.0:
            return 0.0
        normal = float(special.ndtri(special.stdtr(n - 1, -abs(sample.mean) / sample.error)))
        return min(max(-normal, 0.0), _FURTHEST) * math.sqrt(n / self.bound)

    def _line(self, n: int) -> float:
        """Return the boundary after ``n`` seeds, as a share of that at the bound."""
        return (1.0 + _SLOPE * n / self.bound) / (1.0 + _SLOPE)

    def _width(self, n: int, critical: float) -> float:
        """Return half the width of a repeated confidence interval, in standard errors."""
        from scipy import special

        tail = float(special.ndtr(-critical * self._line(n) / math.sqrt(n / self.bound))) if n > 1 else 0.0
        return float(-special.stdtrit(n - 1, tail)) if tail > 0.0 else math.inf

    def _test(self, looks: Looks) -> None:
        """Test the open contrasts, and close those that are found, futile, or at the bound."""
        joint = JointTests([look.sample for look in looks.last.values()], self.alpha)
        critical = crossing_height(joint.level)
        still = []
        for name in looks.open:
            look = looks.last[name]
            height = self._height(look.sample) / self._line(max(1, len(look.sample.values)))
            look.highest = max(look.highest, height)
            look.level, look.found = joint.level, height >= critical
            corrected = joint.corrected(crossing_probability(height))
            # The inverse of the probability is found to a few digits, and the two must agree.
            corrected = min(corrected, self.alpha) if look.found else max(corrected, math.nextafter(self.alpha, 1.0))
            look.corrected = min(look.corrected, corrected)
            if not look.found and looks.seeds < self.bound and not self._is_futile(look.sample, critical):
                still.append(name)
        looks.open = still

    def _is_futile(self, sample: Differences, critical: float) -> bool:
        """Return whether the Brownian motion is unlikely to end above ``critical``, with an unknown drift."""
        from scipy import special

        n = len(sample.values)
        if n == 0:
            return True  # every seed failed so far
        time = n / self.bound
        expected = self._height(sample) / time
        spread = math.sqrt((1.0 - time) / time)
        above = special.ndtr((expected - critical) / spread) + special.ndtr((-expected - critical) / spread)
        return bool(above < _FUTILE)


def crossing_probability(height: float) -> float:
    """Return the probability that a Brownian motion crosses one of two lines before time 1.

    The upper line rises with time ``t`` as ``height * (1 + t / 2) / 1.5``, and the lower one mirrors it. ``height`` is
    in standard deviations at time 1. For a line ``a + b t``: Siegmund, "Sequential Analysis", 1985, equation (3.15). It
    is an upper bound, because paths that cross both lines count twice, and paths that only cross a line between two
    looks count too.
    """
    from scipy import special

    a, b = height / (1.0 + _SLOPE), height * _SLOPE / (1.0 + _SLOPE)
    return min(1.0, float(2.0 * (special.ndtr(-a - b) + math.exp(-2.0 * a * b) * special.ndtr(b - a))))


@lru_cache(maxsize=1024)
def crossing_height(level: float) -> float:
    """Return the height that is reached with probability ``level``, the inverse of :func:`crossing_probability`."""
    from scipy import optimize

    return float(optimize.brentq(lambda height: crossing_probability(height) - level, 0.1, _FURTHEST))


def _is_testable(sample: Differences) -> bool:
    return sample.error > 0.0 or sample.is_zero
