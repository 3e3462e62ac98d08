"""Differences between variants, paired by seed, and the tests of several of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from optimizers.checks import integer
from optimizers.errors import OptimizerError

_EXACT = 1e-8  # relative to weights of about 1


class LeastSquares:
    """The least-squares fit of the contrasts of a design, which are weights of variants."""

    def __init__(self, contrasts: Iterable[Mapping[str, float]]) -> None:
        contrasts = list(contrasts)
        self._places = {name: place for place, name in enumerate(dict.fromkeys(v for c in contrasts for v in c))}
        spanning = np.array([np.ones(len(self._places)), *map(self._vector, contrasts)])
        _, sizes, basis = np.linalg.svd(spanning, full_matrices=False)
        self._basis: NDArray[np.float64] = basis[sizes > _EXACT * sizes[0]].T
        self.has_spare = self._basis.shape[1] < len(self._places)  # more variants than effects: a trial may be missing
        self._inverses: dict[frozenset[str], NDArray[np.float64]] = {}

    def weights(self, contrast: Mapping[str, float], present: Iterable[str]) -> dict[str, float] | None:
        """Return weights of the losses of ``present`` variants that give a contrast, or None.

        None means that these variants do not determine the contrast.
        """
        names = [name for name in self._places if name in set(present)]
        asked = self._vector(contrast) @ self._basis
        rows = self._basis[[self._places[name] for name in names]]
        key = frozenset(names)
        if key not in self._inverses:
            self._inverses[key] = np.asarray(np.linalg.pinv(rows, rcond=_EXACT), dtype=np.float64)
        made = asked @ self._inverses[key]
        if not names or np.abs(made @ rows - asked).max() > _EXACT:
            return None
        return dict(zip(names, made.tolist(), strict=True))

    def _vector(self, contrast: Mapping[str, float]) -> NDArray[np.float64]:
        made = np.zeros(len(self._places))
        for name, weight in contrast.items():
            made[self._places[name]] = weight
        return made


Contrast = Mapping[str, float]
"""Weights of variants by name."""

Losses = Mapping[tuple[str, int], float]
"""Losses by variant and seed: ``inf`` if the trial failed, absent if it did not end."""

_SINGLE, _DOUBLE = (4.0 * float(np.finfo(kind).epsneg) for kind in (np.float32, np.float64))
"""Differences count as equal if their deviation is below this share of the losses, because it is rounding. Metrics are
often in single precision, and counts (such as an accuracy) sometimes give the same difference twice."""

_WHOLE = 2.0**24
"""Integers below this are exact in both precisions."""

_CONSTANT = 1e-4
"""Differences also count as equal if their deviation is below this share of their mean."""

_LARGEST = 1e150
"""Losses above this have diverged, and their squares overflow."""


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """The values of a contrast, one per seed.

    Attributes:
        values: Shape (n,), in the order of the seeds.
        seeds: Seeds of the values, shape (n,).
        dropped: Number of seeds that were left out because a trial failed.
        rounding: Deviations below this are rounding.
        resampled: Number of test rows by number of training rows, if each seed splits the same rows. Otherwise 0.
        fitted: Number of seeds with a failed trial whose value comes from a fit to the others.
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
        """Number of seeds whose trials all ended, or of which one failed."""
        return len(self.values) + self.dropped

    @property
    def mean(self) -> float:
        """The mean; nan without values."""
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation; nan for fewer than two values, and 0 if all are equal except for rounding."""
        if len(self.values) < 2:
            return math.nan
        deviation = float(self.values.std(ddof=1))
        return deviation if deviation > max(self.rounding, _CONSTANT * abs(self.mean)) else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean; nan for fewer than two values, and 0 if all are equal.

        Means over splits of the same rows vary less than means over new rows, because their test sets and training sets
        overlap. The variance is then ``1/n + n_test/n_train`` times that of one difference (Nadeau and Bengio,
        "Inference for the Generalization Error", Machine Learning 52, 2003).
        """
        return self.deviation * math.sqrt(1.0 / len(self.values) + self.resampled) if len(self.values) else math.nan

    @property
    def is_zero(self) -> bool:
        """Whether every seed, of at least two, gave zero."""
        return self.error == 0.0 and abs(self.mean) <= self.rounding


def is_usable(loss: float) -> bool:
    """Return whether a loss can be compared: it is finite, and not so large that the training has diverged."""
    return math.isfinite(loss) and abs(loss) < _LARGEST


def differences(
    contrast: Contrast,
    losses: Losses,
    seeds: Iterable[int],
    *,
    resampled: float = 0.0,
    fit: LeastSquares | None = None,
) -> Differences:
    """Return the values of a contrast at those ``seeds`` whose trials all ended.

    If a trial failed, ``fit`` (of the contrast's design) gives the value, provided that the other trials determine it.
    For ``resampled``, see :class:`Differences`.
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
            continue  # more trials may follow
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
    return Differences(np.array(values), np.array(whole, dtype=np.int64), dropped, rounding(used), resampled, fitted)


def rounding(losses: Sequence[float]) -> float:
    """Return the possible error of a difference of these losses, from their apparent precision."""
    known = np.abs(np.array(losses))
    if np.all((known == np.rint(known)) & (known < _WHOLE)):
        return 0.0
    with np.errstate(over="ignore"):  # past single precision, so not of it
        single = known[known.astype(np.float32) == known]
    return max(_of_precision(single, _SINGLE), _of_precision(known, _DOUBLE))


def _of_precision(losses: NDArray[np.float64], share: float) -> float:
    """Return the rounding of losses of one precision.

    A small loss may be the result of a larger number, like ``1 - accuracy``. Then all losses are multiples of the power
    of two that is the last place of numbers near 1.
    """
    return max(share * float(losses.max(initial=0.0)), min(share, 4.0 * _spacing(losses)))


def _spacing(losses: NDArray[np.float64]) -> float:
    """Return the largest power of two of which all losses are multiples; 0 if all are zero."""
    mantissas, exponents = np.frexp(losses[losses > 0.0])
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    return float(np.ldexp((whole & -whole).astype(float), exponents - 53).min(initial=math.inf)) if len(whole) else 0.0


_DRAWS = 2**13
_FEWEST = 50  # draws in a tail; with fewer, Bonferroni's bound is the better estimate


class JointTests:
    """The joint distribution of the p-values of several contrasts.

    Samples that cannot be tested count as independent. ``alpha`` is the maximum probability of any false difference.
    """

    def __init__(self, samples: Sequence[Differences], alpha: float) -> None:
        self._number = len(samples)
        self._alpha = alpha
        self._highest = highest(correlations(samples)) if self._number > 1 else np.zeros(0)
        self.level = level_of(self._highest, alpha, self._number)  # largest p-value that counts as a difference

    def corrected(self, p: float) -> float:
        """Return the probability that the smallest p-value of all is at most ``p``.

        It is at most alpha if ``p`` is at most the level.
        """
        from scipy import special

        bound = min(1.0, self._number * p)
        if self._number == 1 or bound == 0.0:
            return bound
        above = _DRAWS - int(np.searchsorted(self._highest, -float(special.ndtri(p / 2.0))))
        exact = min(bound, max(p, above / _DRAWS)) if above >= _FEWEST else bound
        # Between two draws both are right, but a table must not print 0.05 next to an interval with zero.
        return min(exact, self._alpha) if p <= self.level else max(exact, math.nextafter(self._alpha, 1.0))


def expected_level(contrasts: Sequence[Mapping[str, float]], seeds: int, alpha: float) -> float:
    """Return the likely level of a study's tests, if all variants have the same noise. It is known before any trial."""
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
    made *= (1.0 - 1e-6) * (squares / (squares + by_chance) if squares > 0.0 else 0.0)  # shrunk as on average
    np.fill_diagonal(made, 1.0)
    return level_of(highest(made), alpha, len(contrasts))


def highest(correlated: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest absolute value of normal variables with these correlations, in many draws, sorted."""
    return np.sort(np.abs(_normals(len(correlated)) @ np.linalg.cholesky(correlated).T).max(axis=1))


def level_of(drawn: NDArray[np.float64], alpha: float, number: int) -> float:
    """Return the p-value below which the smallest of ``number`` falls with probability ``alpha`` by chance."""
    from scipy import special

    beyond = int(alpha * _DRAWS)
    if number == 1 or beyond < _FEWEST:
        return alpha / number
    return max(alpha / number, float(2.0 * special.ndtr(-drawn[-beyond])))


def correlations(samples: Sequence[Differences]) -> NDArray[np.float64]:
    """Return the correlations of the means, shrunk towards independence, shape (contrasts, contrasts).

    Means over different sets of seeds are correlated by the seeds that they share.
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
    made *= 1.0 - 1e-6  # so that the matrix is regular even if two contrasts are equal
    np.fill_diagonal(made, 1.0)
    return made


@lru_cache(maxsize=16)
def _normals(number: int) -> NDArray[np.float64]:
    """Return independent normal variables, evenly spread and the same each time, shape (draws, number)."""
    from scipy import special
    from scipy.stats import qmc

    uniform = qmc.Sobol(number, rng=0).random(_DRAWS)
    normals: NDArray[np.float64] = special.ndtri(np.clip(uniform, 1e-12, 1.0 - 1e-12))
    return normals


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the repeats for one contrast.

    Attributes:
        sample: The differences, one per seed.
        low: Lower end of the simultaneous confidence interval; ``-inf`` if unbounded.
        high: Upper end of the interval; ``inf`` if unbounded.
        p: The two-sided p-value. None without a test: for fewer than two seeds, for fewer than planned, or if every
            seed gave the same difference other than zero, so that the noise is unknown.
        corrected: The p-value, corrected for the number of contrasts.
        differs: Whether the difference is not zero, at the requested level. The interval then excludes zero.
        decided: Whether no more repeats are due.
        unbiased: The median-unbiased estimate of the difference, if looks after every seed determined their number.
            None if the mean is unbiased, or no such estimate is known.
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
        """The mean of the contrast over the seeds; nan without any."""
        return self.sample.mean

    @property
    def seeds(self) -> int:
        """Number of seeds in the mean."""
        return len(self.sample.values)

    @property
    def dropped(self) -> int:
        """Number of seeds that were left out because a trial failed."""
        return self.sample.dropped


def compare(
    contrasts: Mapping[str, Contrast],
    losses: Losses,
    *,
    alpha: float = 0.05,
    planned: int | None = None,
    resampled: float = 0.0,
) -> dict[str, Finding]:
    """Test all contrasts with paired t-tests and the max-T correction, after a fixed number of repeats.

    All contrasts count in the correction, including those that cannot be tested. The probability of any false
    difference is at most ``alpha``, and all intervals hold together with probability ``1 - alpha``.

    If ``planned`` seeds were fixed in advance, a contrast with fewer ended seeds is not tested, because stopping at the
    first difference finds false ones too often. None means that all planned seeds have ended. For ``resampled``, see
    :class:`Differences`.
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
    """Run the tests of :func:`compare` on known differences."""
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
    """Return the two-sided p-value of the t-test; None if there is none (see :attr:`Finding.p`)."""
    from scipy import special

    if sample.is_zero:
        return 1.0
    if not sample.error > 0.0:
        return None
    return float(2.0 * special.stdtr(len(sample.values) - 1, -abs(sample.mean) / sample.error))


def t_height(n: int, level: float) -> float:
    """Return the two-sided critical value of a t-test of ``n`` values; ``inf`` for fewer than two."""
    from scipy import special

    return float(-special.stdtrit(n - 1, level / 2.0)) if n > 1 else math.inf


def interval(sample: Differences, height: float) -> tuple[float, float]:
    """Return the interval of ``height`` standard errors on both sides of the mean."""
    if not sample.error > 0.0:
        return -math.inf, math.inf
    return sample.mean - height * sample.error, sample.mean + height * sample.error


def check_contrasts(contrasts: Mapping[str, Contrast], alpha: float, resampled: float = 0.0) -> None:
    """Check the arguments that all comparisons share."""
    if not contrasts or not all(contrasts.values()):
        raise OptimizerError(
            f"contrasts must have weights of variants, got {dict(contrasts)!r}; use at least one contrast"
        )
    if not 0.0 < alpha < 1.0:
        raise OptimizerError(f"alpha must be between 0 and 1, got {alpha!r}; use 0.05")
    if not 0.0 <= resampled < math.inf:
        raise OptimizerError(
            f"resampled must be the number of test rows by training rows, got {resampled!r}; use 0.3 / 0.7, for example"
        )


def power(
    effect: float,
    sd: float,
    repeats: int,
    *,
    contrasts: Sequence[Contrast] = ({"": 1.0},),
    alpha: float = 0.05,
    resampled: float = 0.0,
) -> float:
    """Return the probability that a difference is found with a fixed number of seeds.

    The test uses the mean level of the joint test of all ``contrasts``, if all variants have the same noise
    (:func:`optimizers.comparisons.paired_tests.expected_level`). ``sd`` is the standard deviation of paired
    differences, for example from a pilot of a few seeds. ``alpha`` is the maximum probability of any false difference.
    For ``resampled``, see :class:`Differences`.
    """
    from scipy import stats

    repeats = integer("repeats", repeats, least=2)
    if not (math.isfinite(effect) and 0.0 < sd < math.inf):
        raise OptimizerError(
            f"effect must be a number and sd a number above 0, got {effect!r} and {sd!r}; use the standard deviation "
            "of paired differences in a pilot of a few seeds"
        )
    critical = t_height(repeats, expected_level(contrasts, repeats, alpha))
    shift = abs(effect) / (sd * math.sqrt(1.0 / repeats + resampled))
    # The lower tail is the upper one of the mirrored effect; asked for directly, scipy gives nan where it is near 0.
    return float(stats.nct.sf(critical, repeats - 1, shift) + stats.nct.sf(critical, repeats - 1, -shift))


_FEWEST_SEEDS = 6  # seeds; with fewer, the skewness of a sample is meaningless
_RARE = 0.006  # share of normal samples that get a note on their skewness
_RESAMPLES = 4000


def skewed(sample: Differences, *, of: int = 1) -> tuple[float, float] | None:
    """Return the skewness and the p-value of :func:`bootstrap_p`, if the skewness is more than chance.

    ``of`` is the number of contrasts that are checked.
    """
    from scipy import special

    skewness = _skewness(sample)
    errors = -float(special.ndtri(_RARE / of))
    if skewness is None or abs(skewness) <= errors * _chance(len(sample.values)):
        return None
    return skewness, bootstrap_p(sample)


def skewed_together(samples: Sequence[Differences]) -> float | None:
    """Return the mean skewness of several contrasts, if it is more than chance.

    A test fails for samples that happen to lack their long tail and show no skewness themselves. The other contrasts
    do.
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
    """Return the skewness of a sample (G1); None for too few values."""
    n = len(sample.values)
    if n < _FEWEST_SEEDS or not sample.error > 0.0:
        return None
    scores = (sample.values - sample.mean) / sample.values.std()
    return float(np.mean(scores**3)) * math.sqrt(n * (n - 1)) / (n - 2)


def _chance(n: int) -> float:
    """Return the standard error of the skewness of ``n`` normal values."""
    return math.sqrt(6.0 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))


def bootstrap_p(sample: Differences) -> float:
    """Return the two-sided p-value of a studentised bootstrap with equal tails, not corrected for other comparisons.

    Hall, "The Bootstrap and Edgeworth Expansion", 1992: the t-statistics of samples drawn from the centred differences
    show how large one gets by chance, on the side of the observed one.
    """
    values, n = sample.values - sample.mean, len(sample.values)
    drawn = values[np.random.default_rng(0).integers(n, size=(_RESAMPLES, n))]
    deviations = drawn.std(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.nan_to_num(
            drawn.mean(axis=1) / (deviations * math.sqrt(1.0 / n + sample.resampled)), posinf=1e9, neginf=-1e9
        )
    seen = sample.mean / sample.error
    beyond = float(np.mean(t >= seen if seen > 0.0 else t <= seen))
    return min(1.0, 2.0 * max(beyond, 1.0 / _RESAMPLES))
