"""What an ablation study found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from maggy_like.ablation import forest, text
from maggy_like.ablation.design import Design, Effect
from optimizers.comparisons.paired_tests import Finding, compare, is_usable
from optimizers.comparisons.repeats import SEED, VARIANT
from optimizers.comparisons.sequential_tests import SequentialTests
from optimizers.core.trial import Trial, TrialState

if TYPE_CHECKING:
    import pandas


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
        seconds_saved: Seconds of a trial that removing it saves, if known.
        parameters_saved: Parameters of the model that removing it saves, where there is a model.
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
    seconds_saved: float | None
    parameters_saved: int | None


class Ablation:
    """The answer of an ablation study: a line for each comparison. It can be pickled, less the models' factory.

    Differences are paired by seed. With a fixed number of repeats, they are tested by paired t-tests
    (:func:`optimizers.comparisons.paired_tests.compare`); with ``bound``, by the sequential tests that gave the repeats
    (:class:`optimizers.comparisons.sequential_tests.SequentialTests`). Both correct for the number of comparisons by
    Holm.

    Args:
        design: What was tried.
        runs: The trials that ended, in any order.
        metric: The metric's name.
        direction: ``max`` or ``min``.
        alpha: The probability of any false difference, at most.
        bound: The bound of adaptive repeats; None where their number was fixed.
        first_seed: The first seed of the study, from which adaptive repeats are counted.

    Example:
        >>> ablation = Ablation.of_trials(design, result.trials, metric="accuracy", direction="max")
        >>> print(ablation)
        >>> ablation.plot("ablation.png")
    """

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
    ) -> None:
        self.design = design
        self.runs = tuple(runs)
        self.metric = metric
        self.direction = direction
        self.alpha = alpha
        self.bound = bound
        self.first_seed = first_seed

    @classmethod
    def of_trials(
        cls,
        design: Design,
        trials: Sequence[Trial],
        *,
        metric: str = "value",
        direction: Literal["max", "min"] = "max",
        alpha: float = 0.05,
        bound: int | None = None,
        first_seed: int = 0,
        seeds: int | None = None,
    ) -> Ablation:
        """The answer that trials give; those that did not end are left out. For the other arguments, see the class.

        Args:
            seeds: How many seeds there are; trials of later ones are left out: they are the searches of a tuned
                study (:class:`optimizers.comparisons.tuned_repeats.TunedRepeats`).
        """
        runs = [
            Run(
                trial.config[VARIANT],
                trial.config[SEED],
                trial.last_value if trial.state is not TrialState.FAILED else None,
                trial.seconds or None,
            )
            for trial in trials
            if trial.is_over and (seeds is None or trial.config[SEED] < first_seed + seeds)
        ]
        return cls(design, runs, metric=metric, direction=direction, alpha=alpha, bound=bound, first_seed=first_seed)

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
            return compare(self.design.contrasts, losses, alpha=self.alpha)
        return SequentialTests(self.design.contrasts, self.bound, alpha=self.alpha).compare(losses)

    @cached_property
    def rows(self) -> list[Row]:
        """The lines of the table."""
        return [self._row(effect, self.findings[effect.label]) for effect in self.design.effects]

    @property
    def method(self) -> str:
        """How the differences were tested: a sentence for a paper."""
        counts = sorted({row.repeats for row in self.rows})
        if counts[-1] == 0:
            return f"No seed has given a difference in {self.metric} yet."
        better = "higher" if self.direction == "max" else "lower"
        everything = text.with_everything(self)
        base = f"; {everything} with everything" if everything is not None else ""
        differences = f"Differences in {self.metric} ({better} is better{base}), without less with, are"
        if counts[-1] == 1:
            return f"{differences} of one seed, and so not tested."
        seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        level = f"{100 * (1 - self.alpha):g} %"
        n = len(self.rows)
        tests = (
            "paired t-tests" if self.bound is None else f"group sequential paired t-tests (at most {self.bound} seeds)"
        )
        corrected = f", corrected for {n} comparisons by Holm's method" if n > 1 else ""
        return (
            f"{differences} means over {seeds} seeds, paired by seed; "
            f"{'simultaneous ' if n > 1 else ''}{level} confidence intervals; "
            f"p-values of {tests}{corrected}."
        )

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the data: failed trials, too few repeats, repeats that do not differ."""
        return text.notes(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A row a comparison; the columns are the attributes of :class:`Row`."""
        import pandas

        return pandas.DataFrame([{name: getattr(row, name) for name in Row.__slots__} for row in self.rows])

    def to_markdown(self) -> str:
        """The table, with the method below it, in GitHub's Markdown."""
        return text.markdown(self)

    def to_latex(self) -> str:
        """The table as a ``tabular`` for the package booktabs, with the method below it."""
        return text.latex(self)

    def plot(self, path: str | Path) -> None:
        """Draw a forest plot: each difference with its interval.

        Args:
            path: The picture's file; its suffix says of which kind (``.png``, ``.svg``, ``.pdf``).

        Raises:
            UserError: matplotlib is missing.

        Example:
            >>> ablation.plot("ablation.pdf")
        """
        forest.plot(self, path)

    def __repr__(self) -> str:
        return text.plain(self)

    def __getstate__(self) -> dict[str, Any]:
        variants = tuple(variant.bare() for variant in self.design.variants)
        return {**self.__dict__, "design": replace(self.design, variants=variants)}

    def _repr_html_(self) -> str:
        return text.html(self)

    def _row(self, effect: Effect, finding: Finding) -> Row:
        sign = -1.0 if self.direction == "max" else 1.0
        low, high = sorted((sign * finding.low, sign * finding.high))
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
            text.verdict(finding, is_interaction=effect.is_interaction),
            finding.seeds,
            finding.dropped,
            None if effect.is_interaction else self._seconds_saved(effect),
            None if effect.is_interaction else self._parameters_saved(effect),
        )

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
