"""Noise of ablations in which nothing makes a difference, and what the tests make of it.

Values have the shape (variants, seeds), the base first; ``inf`` is a failed trial. Deviations are about 1.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from maggy_like.ablation import AblationStudy
from optimizers.comparisons.paired_tests import Contrast, Finding, compare
from optimizers.comparisons.sequential_tests import SequentialTests

Values = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int], Values]
"""Draws the values of so many variants and seeds."""

TEST, TRAIN = 30, 70  # rows of each split of a data set of 100


def gaussian(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """Normal noise, the same for all variants."""
    return rng.normal(size=(variants, seeds))


def heavy(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """Student's t with three degrees of freedom."""
    return rng.standard_t(3, size=(variants, seeds))


def unequal(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """Normal noise of another size for each variant, the base included."""
    return rng.normal(size=(variants, seeds)) * np.exp(0.7 * rng.normal(size=(variants, 1)))


def quiet_base(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """Normal noise, next to none of it in the base, so that comparisons are independent."""
    return gaussian(rng, variants, seeds) * np.where(np.arange(variants) == 0, 0.05, 1.0)[:, None]


def skewed(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """Exponential noise of the variants beside a quiet base."""
    made = rng.exponential(size=(variants, seeds)) - 1.0
    made[0] = 0.2 * rng.normal(size=seeds)
    return made


def skewed_alike(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """Exponential noise of all, the base included: the differences are symmetric."""
    return rng.exponential(size=(variants, seeds))


def accuracy(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """Accuracies of 114 rows, a few of which are wrong; many differences are ties. As losses, so negative."""
    return -(114 - rng.binomial(114, 0.02, size=(variants, seeds))) / 114


def error_rate(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """The same as ``1 - accuracy``."""
    return 1.0 + accuracy(rng, variants, seeds)


def missing(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """One trial in ten failed, whatever its result would have been."""
    return np.where(rng.random((variants, seeds)) < 0.1, np.inf, gaussian(rng, variants, seeds))


def missing_bad(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """The variants fail in their worst three trials of ten, the base never does."""
    made = gaussian(rng, variants, seeds)
    made[1:][made[1:] > 0.524] = np.inf
    return made


def splits(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """Every seed splits the same 100 rows; all variants are as good as each other on all rows that there could be.

    Each variant is a regression on a column of its own, of the same worth, fitted to the 70 rows of a split.
    """
    x = rng.normal(size=(variants, TEST + TRAIN))
    y = 0.3 * x.sum(axis=0) + rng.normal(size=TEST + TRAIN)
    made = np.empty((variants, seeds))
    for seed in range(seeds):
        order = rng.permutation(TEST + TRAIN)
        test, train = order[:TEST], order[TEST:]
        slopes = (x[:, train] @ y[train]) / (x[:, train] ** 2).sum(axis=1)
        made[:, seed] = ((y[test] - slopes[:, None] * x[:, test]) ** 2).mean(axis=1)
    return made


def tuned(rng: np.random.Generator, variants: int, seeds: int, *, once: bool = False) -> Values:
    """The best of eight configurations, as spread as the noise, by one trial each; searched in each repeat or once."""
    searches = 1 if once else seeds
    worth = rng.normal(size=(variants, searches, 8))
    best = np.argmin(worth + rng.normal(size=worth.shape), axis=2)
    chosen = np.take_along_axis(worth, best[:, :, None], axis=2)[:, :, 0]
    return chosen + rng.normal(size=(variants, seeds))


def tuned_once(rng: np.random.Generator, variants: int, seeds: int) -> Values:
    """One search a variant, whose best is repeated: not what ``tune=`` does."""
    return tuned(rng, variants, seeds, once=True)


@lru_cache(maxsize=16)
def contrasts_of(components: int, factorial: bool) -> Mapping[str, Contrast]:
    """The comparisons of a study with so many components; the base is the first variant."""
    names = [f"c{number}" for number in range(components)]
    if factorial:
        return AblationStudy(data=[*names, "always", "y"], label="y").features(*names).designed("factorial").contrasts
    return {name: {"base": -1.0, f"without {name}": 1.0} for name in names}


@dataclass(frozen=True)
class Case:
    """One kind of study.

    Attributes:
        noise: Draws its values.
        components: How many comparisons with the base it has.
        seeds: How many, at most if it is adaptive.
        adaptive: Whether it is looked at after every seed.
        resampled: As the tests are told.
        effect: What the first component is worth, in deviations of a difference.
        all_real: Whether all components are worth as much.
        factorial: Whether all combinations of the components are tried.
    """

    noise: Noise
    components: int = 6
    seeds: int = 20
    adaptive: bool = False
    resampled: float = 0.0
    effect: float = 0.0
    all_real: bool = False
    factorial: bool = False

    def truths(self) -> NDArray[np.float64]:
        """The difference that each comparison has."""
        made = np.full(len(contrasts_of(self.components, self.factorial)), self.effect * np.sqrt(2.0))
        if not self.all_real:
            made[1:] = 0.0
        return made

    def study(self, number: int, *, whole: bool = False) -> list[Finding]:
        """The findings of one study; none where a look at plain t-tests says that there is nothing to find.

        Args:
            number: Which.
            whole: Give them all the same.
        """
        rng = np.random.default_rng([number, self.components, self.seeds, zlib.crc32(self.noise.__name__.encode())])
        contrasts = contrasts_of(self.components, self.factorial)
        variants = [*dict.fromkeys(name for contrast in contrasts.values() for name in contrast)]
        values = self.noise(rng, len(variants), self.seeds)
        if not self.factorial:
            values[1:] += self.truths()[:, None]
            if not (whole or self.adaptive or self.effect) and self._is_clear(values):
                return []
        rows = zip(variants, values.tolist(), strict=True)
        losses = {(variant, seed): loss for variant, row in rows for seed, loss in enumerate(row)}
        if self.adaptive:
            return [*SequentialTests(contrasts, self.seeds, resampled=self.resampled).compare(losses).values()]
        return [*compare(contrasts, losses, planned=self.seeds, resampled=self.resampled).values()]

    def _is_clear(self, values: Values) -> bool:
        """Whether no p-value is below three times Bonferroni's level, which no correction of these passes.

        Six in seven studies without a difference are clear, and take a twentieth of the time.
        """
        known = np.where(np.isfinite(values), values, np.nan)
        differences = known[1:] - known[0]
        counts = np.isfinite(differences).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            errors = np.nanstd(differences, axis=1, ddof=1) * np.sqrt(1.0 / counts + self.resampled)
            p = 2.0 * special.stdtr(counts - 1, -np.abs(np.nanmean(differences, axis=1)) / errors)
        return bool(np.all(p > 0.15 / self.components))  # not of nan
