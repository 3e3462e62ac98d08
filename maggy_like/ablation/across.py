"""The answers on several data sets, as one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from maggy_like.ablation import text
from maggy_like.ablation.answer import Answer
from maggy_like.ablation.comparisons import UNDECIDED, Row, verdict
from maggy_like.display.text import clean
from maggy_like.errors import UserError
from optimizers.comparisons.differences import Differences
from optimizers.comparisons.paired_tests import Finding, compare_samples

if TYPE_CHECKING:
    import pandas

_FEWEST_RANKED = 6
"""Data sets, below which signed ranks cannot reach 5 %."""


class AcrossDataSets(Answer):
    """What components are worth on data sets like these: the data sets take the place of the seeds.

    The difference that a component makes on a data set is one value, and the values of all data sets are tested by a
    t-test. That is a random-effects analysis with equal weights: what differs from data set to data set is part of the
    noise, as is what each one's seeds leave open. Beside it stands Wilcoxon's test of signed ranks, which asks for less
    (Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 7, 2006).

    Args:
        answers: By data set, of the same components.
        negligible: A difference that nobody would care for: what is shown to be smaller says so.

    Attributes:
        answers: By data set.

    Raises:
        UserError: There are fewer than two, they compare different things, or one is not decided.

    Example:
        >>> together = Ablation.across({"adult": on_adult, "bank": on_bank, "credit": on_credit})
        >>> together.to_pandas()[["component", "difference", "spread", "signed_rank"]]
    """

    def __init__(self, answers: Mapping[str, Answer], *, negligible: float | None = None) -> None:
        _check(answers)
        first = next(iter(answers.values()))
        super().__init__(
            first.design,
            (),
            metric=first.metric,
            direction=first.direction,
            alpha=first.alpha,
            negligible=negligible,
        )
        self.answers = dict(answers)

    @cached_property
    def findings(self) -> dict[str, Finding]:
        """What the tests say, by row; in losses, so that positive is worse."""
        samples = {}
        for place, effect in enumerate(self.design.effects):
            values = np.array([self.sign * _worth(answer.rows[place]) for answer in self.answers.values()])
            known = np.isfinite(values)
            rounding = max(answer.findings[effect.label].sample.rounding for answer in self.answers.values())
            samples[effect.label] = Differences(values[known], np.flatnonzero(known), int((~known).sum()), rounding)
        return compare_samples(samples, alpha=self.alpha)

    @cached_property
    def rows(self) -> list[Row]:
        """The lines of the table."""
        return [self._line(place, self.findings[effect.label]) for place, effect in enumerate(self.design.effects)]

    @cached_property
    def spread(self) -> list[float | None]:
        """For each line, the standard deviation of the true differences of data sets: 0 if seeds explain them all.

        The variance of their means less what seeds leave open of each (estimate of moments); None of fewer than two.
        """
        made: list[float | None] = []
        for effect in self.design.effects:
            values = self.findings[effect.label].sample.values
            errors = [answer.findings[effect.label].sample.error for answer in self.answers.values()]
            known = [error**2 for error in errors if math.isfinite(error)]
            made.append(
                math.sqrt(max(0.0, float(values.var(ddof=1)) - (fmean(known) if known else 0.0)))
                if len(values) > 1
                else None
            )
        return made

    @cached_property
    def signed_ranks(self) -> list[float | None]:
        """For each line, the p-value of Wilcoxon's test over data sets, for one comparison alone; None if all are 0."""
        from scipy import stats

        samples = [self.findings[effect.label].sample.values for effect in self.design.effects]
        return [float(stats.wilcoxon(values).pvalue) if np.any(values != 0.0) else None for values in samples]

    @property
    def method(self) -> str:
        """How the differences were tested: a sentence for a paper."""
        n = len(self.rows)
        level = f"{'simultaneous ' if n > 1 else ''}{100 * (1 - self.alpha):g} % confidence intervals"
        corrected = f", corrected for {n} comparisons by max-T" if n > 1 else ""
        names = ", ".join(map(clean, self.answers))
        return (
            f"{text.opening(self)} means over {len(self.answers)} data sets ({names}), on each of which they are means "
            f"over seeds; {level} for data sets like these; p-values of t-tests over data sets (random effects, equal "
            f"weights){corrected}.{text.negligible(self)}"
        )

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the data: few data sets, lines that lack some, signed ranks."""
        lines = []
        if len(self.answers) < _FEWEST_RANKED:
            lines.append(f"{len(self.answers)} data sets find large differences alone, that differ little between them")
        else:
            named = [
                f"{clean(row.component)} {text.p_text(p)}" for row, p in zip(self.rows, self.signed_ranks, strict=True)
            ]
            lines.append(f"p-values of signed ranks over data sets, each for one comparison alone: {', '.join(named)}")
        if lacking := [f"{clean(row.component)} ({row.dropped})" for row in self.rows if row.dropped]:
            lines.append(f"data sets left out, since no seed of theirs has all results: {', '.join(lacking)}")
        return lines

    def to_pandas(self) -> pandas.DataFrame:
        """A row a comparison: the attributes of :class:`Row`, ``spread`` and ``signed_rank``."""
        columns = {"spread": self.spread, "signed_rank": self.signed_ranks}
        return super().to_pandas().assign(**{name: np.array(made, dtype=float) for name, made in columns.items()})

    def _line(self, place: int, finding: Finding) -> Row:
        effect, sample = self.design.effects[place], finding.sample
        each = {name: answer.rows[place] for name, answer in self.answers.items()}
        low, high = sorted((self.sign * finding.low, self.sign * finding.high))
        difference = self.sign * finding.difference + 0.0
        return Row(
            component=effect.label,
            with_it=_mean([row.with_it for row in each.values()]),
            without_it=_mean([row.without_it for row in each.values()]),
            difference=difference,
            unbiased=difference,
            low=low,
            high=high,
            p=finding.corrected,
            verdict=verdict(finding, is_interaction=effect.is_interaction, negligible=self.negligible),
            repeats=finding.seeds,
            dropped=finding.dropped,
            fitted=0,
            failed=sum(row.failed for row in each.values()),
            effect_size=self.sign * finding.difference / sample.deviation if sample.deviation > 0.0 else None,
            by_seed={name: _worth(row) for name, row in each.items()},
            skewed=None,
            seconds_saved=None,
            seconds_low=None,
            seconds_high=None,
            parameters_saved=None,
        )


def _worth(row: Row) -> float:
    """What a data set says of a line, without the luck of having stopped early."""
    return row.difference if row.unbiased is None else row.unbiased


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _check(answers: Mapping[str, Answer]) -> None:
    if not isinstance(answers, Mapping) or len(answers) < 2:
        raise UserError(
            f"across needs the answers on two data sets or more, {{name: ablate(...)}}, got {answers!r}; six and more "
            "tell more"
        )
    for name, answer in answers.items():
        if not isinstance(answer, Answer) or isinstance(answer, AcrossDataSets):
            raise UserError(f"the answer on {name!r} must be one of ablate(...), got {answer!r}")
        if UNDECIDED in [row.verdict for row in answer.rows]:
            raise UserError(f"the study on {name!r} is undecided, since it was cut short; end it with resume=True")
    (first_name, first), *others = answers.items()
    for name, answer in others:
        for what, a, b in (
            ("comparisons", [*first.design.contrasts], [*answer.design.contrasts]),
            ("metric", first.metric, answer.metric),
            ("direction", first.direction, answer.direction),
            ("alpha", first.alpha, answer.alpha),
        ):
            if a != b:
                raise UserError(
                    f"the {what} on {name!r} is {b!r}, and on {first_name!r} it is {a!r}; give components the same "
                    "names on all data sets, and measure the same"
                )
