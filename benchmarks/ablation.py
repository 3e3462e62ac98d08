"""How often the tests of ablation studies err, and what they find, on simulated studies of known truth.

- ``family_error.KIND``: the share of studies with a false difference, where the documentation claims 5 % at most;
  ``family_error.max`` is the largest, and ``family_error.beyond.KIND`` is where the documentation says that this ends
- ``coverage.KIND``: the share of studies in which all intervals hold the truth; ``coverage.min`` is the smallest
- ``skewed.t_test``, ``skewed.bootstrap``: how often each test errs in one comparison with a long tail
- ``skewed.noted``: the share of wrong studies with such noise that a note warns of; ``skewed.noted.gaussian`` and
  ``skewed.noted.heavy``: the share of studies with symmetric noise that have the note
- ``power.6.sd1``, ``power.20.sd1``: the share of studies that find the one component of 6 or 20 that is worth one
  deviation of a difference, also with adaptive repeats; ``power.6.sd1.predicted`` is what ``study.power`` says
- ``share.KIND``: trials of the adaptive design, of those of 20 fixed repeats
- ``overstated.fixed``, ``overstated.adaptive``: found differences, in parts of the true one; ``overstated.unbiased``:
  the same of the median-unbiased estimates

    python -m benchmarks.ablation [--quick] [--json PATH]
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy import special

from benchmarks.common import means, parser, publish
from maggy_like.ablation import AblationStudy
from optimizers.comparisons.paired_tests import (
    Contrast,
    Differences,
    Finding,
    bootstrap_p,
    compare,
    p_value,
    power,
    skewed_together,
)
from optimizers.comparisons.paired_tests import skewed as is_skewed
from optimizers.comparisons.sequential_tests import SequentialTests

ALPHA, REPEATS = 0.05, 20
STUDIES, FACTORIALS, SLOW = 10_000, 4000, 1500
"""Studies of each kind: of most, of factorial ones, and of adaptive ones and those beyond the claim."""

TEST, TRAIN = 30, 70
"""Rows of each split of a data set of 100."""

Values = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int], Values]
"""Draws the values of so many variants and seeds, the base first; ``inf`` is a failed trial. Deviations are about 1."""


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


CLAIMED = {
    **{f"gaussian.{k}": Case(gaussian, k) for k in (2, 6, 20, 60)},
    "gaussian.6.five_seeds": Case(gaussian, seeds=5),
    "gaussian.20.five_seeds": Case(gaussian, 20, seeds=5),
    "gaussian.6.adaptive": Case(gaussian, adaptive=True),
    "t3": Case(heavy),
    "unequal": Case(unequal),
    "quiet_base": Case(quiet_base),
    "accuracy": Case(accuracy),
    "one_less_accuracy": Case(error_rate),
    "one_less_accuracy.two_seeds": Case(error_rate, seeds=2),
    "one_less_accuracy.adaptive": Case(error_rate, adaptive=True),
    "skewed_alike": Case(skewed_alike),
    "missing": Case(missing),
    "missing.factorial": Case(missing, factorial=True),
    "tuned": Case(tuned),
    "resampled": Case(splits, resampled=TEST / TRAIN),
    "resampled.adaptive": Case(splits, adaptive=True, resampled=TEST / TRAIN),
}
BEYOND = {
    "skewed": Case(skewed),
    "skewed.60": Case(skewed, 60),
    "missing_bad": Case(missing_bad),
    "resampled_untold": Case(splits),
    "tuned_once": Case(tuned_once),
}
PLANTED = {
    "6.sd1": Case(gaussian, effect=1.0),
    "6.sd1.adaptive": Case(gaussian, effect=1.0, adaptive=True),
    "20.sd1": Case(gaussian, 20, effect=1.0),
    "20.sd1.adaptive": Case(gaussian, 20, effect=1.0, adaptive=True),
    "6.sd1_all": Case(gaussian, effect=1.0, all_real=True),
    "6.sd1_all.adaptive": Case(gaussian, effect=1.0, adaptive=True, all_real=True),
}


def measure(case: Case, studies: int) -> dict[str, float]:
    """How often a kind of study errs, and what it finds."""
    truths = case.truths()

    def judge(number: int) -> dict[str, float]:
        found = case.study(number)
        lines = [*zip(found, truths, strict=bool(found))]
        row: dict[str, float] = {
            "family_error": any(line.differs for line, truth in lines if truth == 0.0),
            "coverage": all(line.low <= truth <= line.high for line, truth in lines),
            "power": bool(found) and found[0].differs,
        }
        if case.adaptive:
            seeds = [line.seeds for line in found]
            row["share"] = (max(seeds) + sum(seeds)) / ((case.components + 1) * case.seeds)
        if truths[0] and row["power"]:
            row["overstated"] = found[0].difference / truths[0]
            row["overstated_unbiased"] = (found[0].unbiased or 0.0) / truths[0]
        return row

    return means(map(judge, range(studies)))


def skewness(studies: int) -> dict[str, float]:
    """What tests make of one comparison with a long tail, and whether a note warns of what errs."""
    rng, t_tests, bootstraps = np.random.default_rng(0), [], []
    for _ in range(studies):
        base, without = skewed(rng, 2, REPEATS)
        sample = Differences(without - base, np.arange(REPEATS), 0, 0.0)
        p = p_value(sample)
        t_tests.append(p is not None and p <= ALPHA)
        bootstraps.append(bootstrap_p(sample) <= ALPHA)
    found = [Case(skewed).study(number) for number in range(studies)]
    noted = [is_noted(lines) for lines in found if any(line.differs for line in lines)]
    figures = {"skewed.t_test": fmean(t_tests), "skewed.bootstrap": fmean(bootstraps), "skewed.noted": fmean(noted)}
    for noise in (gaussian, heavy):
        whole = [Case(noise).study(number, whole=True) for number in range(studies // 4)]
        figures[f"skewed.noted.{noise.__name__}"] = fmean(map(is_noted, whole))
    return figures


def is_noted(found: list[Finding]) -> bool:
    """Whether a note below the table says that differences are skewed."""
    samples = [line.sample for line in found]
    return skewed_together(samples) is not None or any(
        is_skewed(sample, of=len(samples)) is not None for sample in samples
    )


def main() -> None:
    """Simulate and print."""
    arguments = parser(__doc__).parse_args()
    fewer = 40 if arguments.quick else 1
    figures: dict[str, float] = {}
    for name, case in {**CLAIMED, **PLANTED}.items():
        studies = SLOW if case.adaptive else FACTORIALS if case.factorial else STUDIES
        made = measure(case, studies // fewer)
        figures[f"coverage.{name}"] = made["coverage"]
        if name in CLAIMED:
            figures[f"family_error.{name}"] = made["family_error"]
            continue
        figures[f"power.{name}"] = made["power"]
        if case.adaptive:
            figures[f"share.{name.removeprefix('6.').removesuffix('.adaptive')}"] = made["share"]
        if name == "6.sd1":
            figures["overstated.fixed"] = made["overstated"]
        elif name == "6.sd1.adaptive":
            figures |= {"overstated.adaptive": made["overstated"], "overstated.unbiased": made["overstated_unbiased"]}
    figures["coverage.min"] = min(value for name, value in figures.items() if name.startswith("coverage."))
    figures["family_error.max"] = max(value for name, value in figures.items() if name.startswith("family_error."))
    figures["power.6.sd1.predicted"] = power(1.0, 1.0, REPEATS, contrasts=[*contrasts_of(6, False).values()])
    for name, case in BEYOND.items():
        figures[f"family_error.beyond.{name}"] = measure(case, SLOW // fewer)["family_error"]
    publish(figures | skewness(SLOW // fewer), arguments.json)


if __name__ == "__main__":
    main()
