"""The comparisons of a study: the results of its tests on the trials, one row for each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from maggy_like.ablation.design import Design, Effect
from optimizers.comparisons.paired_tests import (
    Differences,
    Finding,
    LeastSquares,
    compare,
    differences,
    is_usable,
    skewed,
)
from optimizers.comparisons.sequential_tests import SequentialTests

UNDECIDED = "undecided"
"""The verdict if more repeats are due."""


@dataclass(frozen=True, slots=True)
class Run:
    """One trial of a study.

    Attributes:
        variant: Name of the variant.
        seed: Seed of the trial.
        value: Objective; None if the trial failed.
        seconds: Duration, if it is known.
    """

    variant: str
    seed: int
    value: float | None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the answer, in the units and the direction of the metric.

    Attributes:
        component: Component that is removed; ``A and B`` for both, ``A x B`` for their interaction.
        with_it: Mean of the metric with it, over the seeds; None for an interaction.
        without_it: Mean without it.
        difference: ``without_it`` minus ``with_it``. For an interaction, the effect of removing both minus the effects
            of removing each.
        unbiased: Median-unbiased estimate of the difference, if the number of seeds was decided after every seed,
            because the mean is exaggerated then; None if there is none.
        low: Lower end of the simultaneous confidence interval.
        high: Upper end of it.
        p: p-value, corrected for the number of rows; None without a test.
        verdict: Verdict in words.
        repeats: Number of seeds that were compared.
        dropped: Number of seeds left out because a trial failed.
        fitted: Number of seeds with a failed trial, whose difference was fitted to the others by least squares.
        failed: Number of failed trials of the variants without it.
        effect_size: Difference divided by its standard deviation; None if that is 0 or unknown.
        by_seed: Difference for each seed; across data sets, for each data set.
        seconds_saved: Seconds per trial that removing it saves, if known; paired by seed, as the differences are.
        seconds_low: Lower end of its interval, which is simultaneous over all rows.
        seconds_high: Upper end of it.
        parameters_saved: Number of parameters of the model that removing it saves, if there is a model.
        skewed: Skewness of the differences and the p-value of a studentised bootstrap, if the skewness is more than
            chance explains.
    """

    component: str
    with_it: float | None
    without_it: float | None
    difference: float
    unbiased: float | None
    low: float
    high: float
    p: float | None
    verdict: str
    repeats: int
    dropped: int
    fitted: int
    failed: int
    effect_size: float | None
    by_seed: Mapping[int, float] | Mapping[str, float]
    skewed: tuple[float, float] | None
    seconds_saved: float | None
    seconds_low: float | None
    seconds_high: float | None
    parameters_saved: int | None

    @property
    def is_zero(self) -> bool:
        """Whether it made no difference with any seed."""
        return self.difference == 0.0 and self.effect_size is None


class Comparisons(ABC):
    """The data of an :class:`~maggy_like.ablation.outcome.Ablation`, which its tables and its plot read."""

    @property
    @abstractmethod
    def method(self) -> str:
        """How the differences were tested, in sentences for a paper."""

    @property
    @abstractmethod
    def notes(self) -> list[str]:
        """Notes on the data that a reader must know."""

    def __init__(
        self,
        design: Design,
        runs: Iterable[Run],
        *,
        metric: str = "value",
        direction: Literal["max", "min"] = "max",
        alpha: float = 0.05,
        bound: int | None = None,
        first_seed: int = 0,
        n_configs: int = 0,
        planned: int | None = None,
        resampled: float = 0.0,
        negligible: float | None = None,
    ) -> None:
        self.design = design
        self.runs = tuple(runs)
        self.metric = metric
        self.direction = direction
        self.alpha = alpha
        self.bound = bound
        self.first_seed = first_seed
        self.n_configs = n_configs
        self.planned = planned
        self.resampled = resampled
        self.negligible = negligible

    @property
    def sign(self) -> float:
        """The factor that turns a value into a loss."""
        return -1.0 if self.direction == "max" else 1.0

    @cached_property
    def losses(self) -> dict[tuple[str, int], float]:
        """Losses by variant and repeat, counted from 0 for any seed; ``inf`` if the trial failed."""
        return {
            (run.variant, run.seed - self.first_seed): self.sign * run.value
            if run.value is not None and math.isfinite(run.value)
            else math.inf
            for run in self.runs
        }

    @cached_property
    def findings(self) -> dict[str, Finding]:
        """Results of the tests by row, in losses, so that positive is worse."""
        if self.bound is None:
            return compare(
                self.design.contrasts, self.losses, alpha=self.alpha, planned=self.planned, resampled=self.resampled
            )
        tests = SequentialTests(self.design.contrasts, self.bound, alpha=self.alpha, resampled=self.resampled)
        return tests.compare(self.losses)

    @cached_property
    def _of_seconds(self) -> dict[str, Finding]:
        """Comparisons of the seconds of a trial, as for results with a fixed number of repeats."""
        known = {(run.variant, run.seed): run.seconds for run in self.runs if run.seconds and run.value is not None}
        contrasts = {effect.label: effect.contrast for effect in self.design.effects if not effect.is_interaction}
        return compare(contrasts, known, alpha=self.alpha) if known else {}

    @cached_property
    def rows(self) -> list[Row]:
        """The lines of the table."""
        return [self._row(effect, self.findings[effect.label]) for effect in self.design.effects]

    def _row(self, effect: Effect, finding: Finding) -> Row:
        sign, sample = self.sign, finding.sample
        low, high = sorted((sign * finding.low, sign * finding.high))
        removed = {variant for variant, weight in effect.contrast.items() if weight > 0.0}
        saved, saved_low, saved_high = self._seconds_saved(effect)
        difference = sign * finding.difference + 0.0  # no negative zero
        unbiased = None if finding.unbiased is None else sign * finding.unbiased + 0.0
        return Row(
            component=effect.label,
            with_it=None if effect.is_interaction else self._side(effect, sample, -1.0),
            without_it=None if effect.is_interaction else self._side(effect, sample, 1.0),
            difference=difference,
            unbiased=difference if self.bound is None else unbiased,
            low=low,
            high=high,
            p=finding.corrected,
            verdict=verdict(
                finding,
                is_interaction=effect.is_interaction,
                fails=self._fails(effect),
                negligible=self.negligible,
                bound=self.bound,
            ),
            repeats=finding.seeds,
            dropped=finding.dropped,
            fitted=sample.fitted,
            failed=sum(run.value is None or not is_usable(run.value) for run in self.runs if run.variant in removed),
            effect_size=sign * finding.difference / sample.deviation if sample.deviation > 0.0 else None,
            by_seed={
                int(seed) + self.first_seed: sign * float(value) + 0.0
                for seed, value in zip(sample.seeds, sample.values, strict=True)
            },
            skewed=skewed(sample, of=len(self.design.effects)),
            seconds_saved=saved,
            seconds_low=saved_low,
            seconds_high=saved_high,
            parameters_saved=None if effect.is_interaction else self._parameters_saved(effect),
        )

    def _fails(self, effect: Effect) -> bool:
        """Whether every trial without it failed, and one with it did not."""
        values: dict[bool, list[bool]] = {True: [], False: []}
        for run in self.runs:
            if weight := effect.contrast.get(run.variant):
                values[weight > 0.0].append(run.value is not None and is_usable(run.value))
        return not effect.is_interaction and bool(values[True]) and not any(values[True]) and any(values[False])

    def _side(self, effect: Effect, sample: Differences, sign: float) -> float | None:
        """Return the mean of the metric over the variants on one side of a difference, at the compared seeds."""
        side = {variant: max(0.0, weight * sign) for variant, weight in effect.contrast.items()}
        fit = LeastSquares(self.design.contrasts.values()) if sample.fitted else None
        means = differences(side, self.losses, sample.seeds.tolist(), fit=fit)
        return self.sign * means.mean + 0.0 if len(sample.values) and len(means.values) == len(sample.values) else None

    def _seconds_saved(self, effect: Effect) -> tuple[float | None, float | None, float | None]:
        """Return the saved seconds with the ends of the interval; None if they are unknown."""
        found = self._of_seconds.get(effect.label)
        if found is None or not found.seeds:
            return None, None, None
        bounded = math.isfinite(found.low)
        return -found.difference + 0.0, -found.high if bounded else None, -found.low if bounded else None

    def _parameters_saved(self, effect: Effect) -> int | None:
        known = self.design.parameters
        if not all(variant in known for variant in effect.contrast):
            return None
        return round(-math.fsum(weight * known[variant] for variant, weight in effect.contrast.items()))


def verdict(
    finding: Finding,
    *,
    is_interaction: bool,
    fails: bool = False,
    negligible: float | None = None,
    bound: int | None = None,
) -> str:
    """Put a finding into words.

    With ``bound``, a comparison that ended before that many seeds without a finding was given up. With ``negligible``,
    the verdict is "no larger" if the interval is inside of plus and minus that, also if there is a difference: both
    one-sided tests reject (Schuirmann, 1987), simultaneously for all comparisons.
    """
    is_small = negligible is not None and -negligible < finding.low and finding.high < negligible
    if finding.differs:
        said = "worse" if finding.difference > 0.0 else "better"
        than = f", no larger than {negligible:g}" if is_small else " than the sum" if is_interaction else " without it"
        return f"{'both: ' * is_interaction}{said}{than}"
    if not finding.decided:
        return UNDECIDED
    if fails:
        return "fails without it"
    if finding.corrected is None:
        return "not tested"
    if is_small:
        return f"no larger than {negligible:g}"
    if bound is not None and finding.sample.ended < bound:
        return f"given up after {finding.sample.ended} seeds"
    return "no interaction seen" if is_interaction else "no difference seen"
