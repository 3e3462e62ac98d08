"""The comparisons of a study: what its tests make of the trials, a row each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Literal

from maggy_like.ablation.design import Design, Effect
from optimizers.comparisons.differences import is_usable
from optimizers.comparisons.paired_tests import Finding, compare
from optimizers.comparisons.sequential_tests import SequentialTests
from optimizers.comparisons.skewness import skewed

UNDECIDED = "undecided"
"""The verdict where more repeats are due."""


@dataclass(frozen=True, slots=True)
class Run:
    """One trial of a study.

    Attributes:
        variant: The variant's name.
        seed: Its seed.
        value: The objective; None if the trial failed.
        seconds: How long it took, if that is known.
    """

    variant: str
    seed: int
    value: float | None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the answer, in the units and the direction of the metric.

    Attributes:
        component: What is removed; ``A and B`` for both, ``A x B`` for their interaction.
        with_it: The mean of the metric with it, over the seeds; None for an interaction.
        without_it: The mean without it.
        difference: Without less with; of an interaction, what removing both makes beyond what removing each makes.
        low: Lower end of the simultaneous confidence interval.
        high: Upper end of it.
        p: The p-value, corrected for the number of rows; None where there is no test.
        verdict: In words.
        repeats: Seeds that were compared.
        dropped: Seeds left out, since a trial failed.
        failed: How many trials of the variants without it failed.
        effect_size: The difference in standard deviations of itself; None where there is none to divide by.
        by_seed: The difference with each seed.
        seconds_saved: Seconds of a trial that removing it saves, if known.
        parameters_saved: Parameters of the model that removing it saves, where there is a model.
        skewed: The skewness of the differences and the p-value of a studentised bootstrap, where the skewness is more
            than chance would give.
    """

    component: str
    with_it: float | None
    without_it: float | None
    difference: float
    low: float
    high: float
    p: float | None
    verdict: str
    repeats: int
    dropped: int
    failed: int
    effect_size: float | None
    by_seed: dict[int, float]
    skewed: tuple[float, float] | None
    seconds_saved: float | None
    parameters_saved: int | None

    @property
    def is_zero(self) -> bool:
        """Whether it made no difference with any seed."""
        return self.difference == 0.0 and self.effect_size is None


class Comparisons:
    """The data of an :class:`~maggy_like.ablation.outcome.Ablation`, which its tables and its plot read."""

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

    @cached_property
    def findings(self) -> dict[str, Finding]:
        """What the tests say, by row; in losses, so that positive is worse."""
        sign = -1.0 if self.direction == "max" else 1.0
        losses = {
            (run.variant, run.seed - self.first_seed): sign * run.value
            if run.value is not None and math.isfinite(run.value)
            else math.inf
            for run in self.runs
        }
        if self.bound is None:
            return compare(
                self.design.contrasts, losses, alpha=self.alpha, planned=self.planned, resampled=self.resampled
            )
        tests = SequentialTests(self.design.contrasts, self.bound, alpha=self.alpha, resampled=self.resampled)
        return tests.compare(losses)

    @cached_property
    def rows(self) -> list[Row]:
        """The lines of the table."""
        return [self._row(effect, self.findings[effect.label]) for effect in self.design.effects]

    def _row(self, effect: Effect, finding: Finding) -> Row:
        sign = -1.0 if self.direction == "max" else 1.0
        low, high = sorted((sign * finding.low, sign * finding.high))
        sample = finding.sample
        removed = {variant for variant, weight in effect.contrast.items() if weight > 0.0}
        with_it = without_it = None
        if not effect.is_interaction:
            with_it, without_it = self._side(effect, -1.0), self._side(effect, 1.0)
        return Row(
            effect.label,
            with_it,
            without_it,
            sign * finding.difference + 0.0,  # no negative zero
            low,
            high,
            finding.corrected,
            verdict(
                finding, is_interaction=effect.is_interaction, fails=self._fails(effect), negligible=self.negligible
            ),
            finding.seeds,
            finding.dropped,
            sum(run.value is None or not is_usable(run.value) for run in self.runs if run.variant in removed),
            sign * finding.difference / sample.deviation if sample.deviation > 0.0 else None,
            {
                int(seed) + self.first_seed: sign * float(value) + 0.0
                for seed, value in zip(sample.seeds, sample.values, strict=True)
            },
            skewed(sample, of=len(self.design.effects)),
            None if effect.is_interaction else self._seconds_saved(effect),
            None if effect.is_interaction else self._parameters_saved(effect),
        )

    def _fails(self, effect: Effect) -> bool:
        """Whether every trial without it failed, and one with it did not."""
        values: dict[bool, list[bool]] = {True: [], False: []}
        for run in self.runs:
            if weight := effect.contrast.get(run.variant):
                values[weight > 0.0].append(run.value is not None and is_usable(run.value))
        return not effect.is_interaction and bool(values[True]) and not any(values[True]) and any(values[False])

    def _side(self, effect: Effect, sign: float) -> float | None:
        """The mean of the metric over the variants on one side of a difference, at the seeds that were compared."""
        values = {(r.variant, r.seed): r.value for r in self.runs if r.value is not None and is_usable(r.value)}
        seeds = sorted({run.seed for run in self.runs})
        whole = [seed for seed in seeds if all((variant, seed) in values for variant in effect.contrast)]
        compared = whole[: self.findings[effect.label].seeds]  # a sequential test takes the first of them
        side = {variant: abs(weight) for variant, weight in effect.contrast.items() if weight * sign > 0.0}
        means = [
            weight * fmean(values[variant, seed] for seed in compared) for variant, weight in side.items() if compared
        ]
        return math.fsum(means) if means else None

    def _seconds_saved(self, effect: Effect) -> float | None:
        seconds: dict[str, list[float]] = {}
        for run in self.runs:
            if run.seconds is not None and run.value is not None:
                seconds.setdefault(run.variant, []).append(run.seconds)
        if not all(variant in seconds for variant in effect.contrast):
            return None
        return -math.fsum(weight * fmean(seconds[variant]) for variant, weight in effect.contrast.items())

    def _parameters_saved(self, effect: Effect) -> int | None:
        known = self.design.parameters
        if not all(variant in known for variant in effect.contrast):
            return None
        return round(-math.fsum(weight * known[variant] for variant, weight in effect.contrast.items()))


def verdict(finding: Finding, *, is_interaction: bool, fails: bool = False, negligible: float | None = None) -> str:
    """A finding in words.

    With ``negligible``, an interval inside of plus and minus that says that the difference is no larger: both one-sided
    tests reject (Schuirmann, 1987), those of all comparisons together.
    """
    if finding.differs and is_interaction:
        return "both: worse than the sum" if finding.difference > 0.0 else "both: better than the sum"
    if finding.differs:
        return "worse without it" if finding.difference > 0.0 else "better without it"
    if not finding.decided:
        return UNDECIDED
    if fails:
        return "fails without it"
    if finding.corrected is None:
        return "not tested"
    if negligible is not None and -negligible < finding.low and finding.high < negligible:
        return f"no larger than {negligible:g}"
    return "no interaction seen" if is_interaction else "no difference seen"
