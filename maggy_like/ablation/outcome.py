"""The results of an ablation study, with one or several data sets, and how a journal records its comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from maggy_like.ablation import text
from maggy_like.ablation.checks import check_negligible
from maggy_like.ablation.comparisons import UNDECIDED, Comparisons, Row, Run, verdict
from maggy_like.ablation.design import Design, DesignName, Effect
from maggy_like.ablation.text import notes
from maggy_like.argument_checks import require
from maggy_like.display.text import clean
from maggy_like.errors import UserError
from maggy_like.results.frames import as_frame
from optimizers.comparisons.paired_tests import Differences, Finding, compare_samples
from optimizers.comparisons.repeats import SEED, VARIANT
from optimizers.core.trial import Trial, TrialState

if TYPE_CHECKING:
    from pathlib import Path

    import pandas
    from plotly.graph_objects import Figure

    from maggy_like.protocol.endings import Ending
    from maggy_like.results.result import Result


class Answer(Comparisons):
    """Comparisons with tables and a plot."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with one row per comparison, whose columns are the attributes of :class:`Row`."""
        require("pandas", "to_pandas()")
        return as_frame([{name: getattr(row, name) for name in Row.__slots__} for row in self.rows])

    def to_markdown(self) -> str:
        """Return the table in GitHub's Markdown, with the method below it."""
        return text.markdown(self)

    def to_latex(self) -> str:
        """Return the table as a ``tabular`` for the package booktabs, with the method below it."""
        return text.latex(self)

    def plot(self) -> Figure:
        """Plot each difference with its interval, as a forest plot.

        A notebook shows the figure, and ``.write_html(path)`` saves it. ``.write_image(path)`` saves a PDF, SVG or PNG
        if kaleido and Chrome are installed.

        Returns:
            The figure, of plotly.

        Raises:
            UserError: plotly is not installed.

        Example:
            >>> answer.plot().write_html("ablation.html")
        """
        require("plotly", "plot()")
        return text.forest(self)

    def __repr__(self) -> str:
        return text.plain(self)

    def _repr_html_(self) -> str:
        return text.html(self)


_FEWEST_RANKED = 6
"""Number of data sets below which signed ranks cannot reach 5 %."""


class AcrossDataSets(Answer):
    """The effects of components on data sets like these. The data sets take the place of the seeds.

    The difference that a component makes on a data set is one value, and the values of all data sets are tested by a
    t-test. That is a random-effects analysis with equal weights: the noise includes the variation between data sets
    and the uncertainty that the seeds leave on each one. In addition, it has Wilcoxon's test of signed ranks, which
    assumes less (Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 7, 2006).

    Args:
        answers: Answers with the same components, by data set.
        negligible: Difference that is too small to matter, in units of the metric. A comparison that is shown to be
            smaller has the verdict "no larger than". Default: None.

    Attributes:
        answers: Answers by data set.

    Raises:
        UserError: There are fewer than two answers, they compare different things, or one is undecided.

    Example:
        >>> def train_on_adult(dropout, seed):
        ...     return 0.80 + dropout / 10
        >>> def train_on_bank(dropout, seed):
        ...     return 0.90 + dropout / 2
        >>> study = AblationStudy(config={"dropout": 0.2}).config(dropout=0.0)
        >>> together = Ablation.across({"adult": ablate(train_on_adult, study), "bank": ablate(train_on_bank, study)})
        >>> print(together.to_pandas()[["component", "difference", "spread"]].round(3))
          component  difference  spread
        0   dropout       -0.06   0.057
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
            negligible=check_negligible(negligible),
        )
        self.answers = dict(answers)

    @cached_property
    def findings(self) -> dict[str, Finding]:
        """Results of the tests by row, in losses, so that positive is worse."""
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
        """Standard deviation of the true differences between data sets, for each line; 0 if seeds explain them all.

        It is the variance of the means minus the uncertainty that the seeds leave on each (estimate of moments); None
        for fewer than two data sets.
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
        """p-value of Wilcoxon's test over data sets for each line, not corrected; None if all differences are 0."""
        from scipy import stats

        samples = [self.findings[effect.label].sample.values for effect in self.design.effects]
        return [float(stats.wilcoxon(values).pvalue) if np.any(values != 0.0) else None for values in samples]

    @property
    def method(self) -> str:
        """How the differences were tested, in sentences for a paper."""
        names = ", ".join(map(clean, self.answers))
        return (
            f"{text.opening(self)} Differences are means over {len(self.answers)} data sets ({names}), on each of "
            f"which they are means over seeds. {text.level(self, 't-tests over data sets')} Both hold for data sets "
            f"like these (random effects, equal weights).{text.negligible(self)}"
        )

    @property
    def notes(self) -> list[str]:
        """Notes on the data that a reader must know: few data sets, lines that lack some, signed ranks."""
        lines = []
        if len(self.answers) < _FEWEST_RANKED:
            lines.append(f"{len(self.answers)} data sets find only large differences that are similar on all of them")
        else:
            named = [
                f"{clean(row.component)} {text.p_text(p)}" for row, p in zip(self.rows, self.signed_ranks, strict=True)
            ]
            lines.append(
                f"p-values of signed ranks over data sets, not corrected for the number of comparisons: "
                f"{', '.join(named)}"
            )
        if lacking := [f"{clean(row.component)} ({row.dropped})" for row in self.rows if row.dropped]:
            lines.append(f"data sets left out, because none of their seeds has all results: {', '.join(lacking)}")
        return lines

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with one row per comparison: :class:`Row` with ``spread`` and ``signed_rank``."""
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
    """Return the difference on a data set, without the bias of an early stop."""
    return row.difference if row.unbiased is None else row.unbiased


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _check(answers: Mapping[str, Answer]) -> None:
    if not isinstance(answers, Mapping) or len(answers) < 2:
        got = [*answers] if isinstance(answers, Mapping) else f"a {type(answers).__name__}"
        raise UserError(
            f"answers must be a dict of at least two data sets, {{name: ablate(...)}}, got {got}; for p-values of "
            "signed ranks below 0.05, use six or more"
        )
    for name, answer in answers.items():
        if not isinstance(name, str):
            raise UserError(f"the names of data sets must be text, got {name!r}; use {str(name)!r}")
        if not isinstance(answer, Answer) or isinstance(answer, AcrossDataSets):
            raise UserError(f"the answer on {name!r} must be a result of ablate(...), got {answer!r}")
        if UNDECIDED in [row.verdict for row in answer.rows]:
            raise UserError(
                f"the study on {name!r} must be complete, got an interrupted one; resume it with resume=True"
            )
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
                    f"the {what} must be the same on all data sets, got {b!r} on {name!r} and {a!r} on {first_name!r}; "
                    "use the same names of components, and the same metric"
                )


class Ablation(Answer):
    """The answer of an ablation study, with one line per comparison. :func:`maggy_like.ablate` returns it.

    Print it to see the table. It can be pickled, without the model's factory.

    Differences are paired by seed. With a fixed number of repeats, they are tested by paired t-tests
    (:func:`optimizers.comparisons.paired_tests.compare`). With ``bound``, they are tested by the sequential tests that
    chose the number of repeats (:class:`optimizers.comparisons.sequential_tests.SequentialTests`). Both correct for
    the number of comparisons by the joint distribution of their p-values
    (:class:`optimizers.comparisons.paired_tests.JointTests`).

    Args:
        design: Variants and comparisons.
        runs: Trials that ended, in any order.
        metric: Name of the metric.
        direction: ``max`` or ``min``.
        alpha: Maximum probability of any false difference. Default: 0.05.
        bound: Maximum number of adaptive repeats; None if the number of repeats was fixed.
        first_seed: First seed of the study, from which adaptive repeats are counted.
        n_configs: Number of configurations tried for each variant in each repeat; 0 if nothing was tuned.
        planned: Number of seeds that was fixed beforehand. A comparison with fewer seeds is not tested. None if all
            are there, or with ``bound``.
        resampled: Ratio of test rows to training rows if each seed splits the same rows again; otherwise 0.
        negligible: Difference that is too small to matter, in units of the metric. A comparison that is shown to be
            smaller has the verdict "no larger than". Default: None.

    Example:
        >>> answer = ablate(train_fn, study)
        >>> [(row.component, row.verdict) for row in answer.rows]
        [('norm', 'no difference seen'), ('dropout', 'worse without it')]
        >>> answer.plot().write_html("ablation.html")
        >>> len(answer.result.to_pandas())
        15
    """

    _result: Result | None = None

    @property
    def result(self) -> Result:
        """The trials and the files of the run, as a search returns them, but without a best trial.

        Raises:
            UserError: The answer was made from trials and has no run.
        """
        if self._result is None:
            raise UserError("this answer was made from trials and has no run; use the answer of maggy_like.ablate")
        return self._result

    @property
    def trials(self) -> list[Trial]:
        """All trials of the run, by number."""
        return self.result.trials

    @property
    def ending(self) -> Ending:
        """How the run ended, as of a search."""
        return self.result.ending

    @property
    def seconds(self) -> float:
        """Wall time of all drivers of the run, including those before a resume."""
        return self.result.seconds

    @property
    def counts(self) -> dict[TrialState, int]:
        """Number of trials by state."""
        return self.result.counts

    @property
    def failures(self) -> list[Trial]:
        """The failed trials."""
        return self.result.failures

    @property
    def name(self) -> str:
        """The run's name."""
        return self.result.name

    @property
    def directory(self) -> Path | str:
        """The run's directory, as a path or URL."""
        return self.result.directory

    def log(self, trial: int, rank: int = 0) -> str:
        """Return everything that a trial printed (see :meth:`maggy_like.Result.log`)."""
        return self.result.log(trial, rank)

    def decision_log(self) -> list[str]:
        """Return one line per decision of the run (see :meth:`maggy_like.Result.decision_log`)."""
        return self.result.decision_log()

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
        n_configs: int = 0,
        planned: int | None = None,
        resampled: float = 0.0,
        negligible: float | None = None,
        seeds: int | None = None,
        result: Result | None = None,
    ) -> Ablation:
        """Make the answer from trials; those that did not end are left out. For the other arguments, see the class.

        Args:
            seeds: Number of seeds. Trials of later seeds are left out: they belong to the searches of a tuned study
                (:class:`optimizers.comparisons.repeats.TunedRepeats`).
            result: Result of the run with the trials, if there is one.
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
        answer = cls(
            design,
            runs,
            metric=metric,
            direction=direction,
            alpha=alpha,
            bound=bound,
            first_seed=first_seed,
            n_configs=n_configs,
            planned=planned,
            resampled=resampled,
            negligible=negligible,
        )
        answer._result = result
        return answer

    @staticmethod
    def across(answers: Mapping[str, Ablation], *, negligible: float | None = None) -> AcrossDataSets:
        """Combine the answers on several data sets: the effects of components on data sets like these.

        The data sets take the place of the seeds (see :class:`~maggy_like.ablation.outcome.AcrossDataSets`).

        Args:
            answers: Answers of :func:`maggy_like.ablate` with the same components, by data set.
            negligible: Difference that is too small to matter, in units of the metric. A comparison that is shown to
                be smaller has the verdict "no larger than". Default: None.

        Raises:
            UserError: There are fewer than two answers, they compare different things, or one is undecided.

        Example:
            >>> from functools import partial
            >>> def train_on(data_set, dropout, seed):
            ...     return {"adult": 0.8, "bank": 0.9}[data_set] + dropout / 10
            >>> study = AblationStudy(config={"dropout": 0.2}).config(dropout=0.0)
            >>> together = Ablation.across({name: ablate(partial(train_on, name), study) for name in ("adult", "bank")})
            >>> round(together.rows[0].difference, 3)
            -0.02
        """
        return AcrossDataSets(answers, negligible=negligible)

    @property
    def method(self) -> str:
        """How the differences were tested, in sentences for a paper."""
        return text.method(self)

    @property
    def notes(self) -> list[str]:
        """Notes on the data that a reader must know: failed trials, too few repeats, repeats that do not differ."""
        return notes(self)

    def report(self, path: str | PathLike[str]) -> None:
        """Write an HTML page with the table, the forest plot and plots of the trials.

        The page needs no other files, and loads nothing from elsewhere (see :meth:`maggy_like.Result.report`).

        Args:
            path: Path or URL of the page.

        Raises:
            UserError: plotly is not installed, the file cannot be written, or the answer has no run.

        Example:
            >>> answer.report("ablation.html")
        """
        from maggy_like.ablation.text import report

        report(self, self.result, path)

    def __getstate__(self) -> dict[str, Any]:
        variants = tuple(variant.bare() for variant in self.design.variants)
        return {**self.__dict__, "design": replace(self.design, variants=variants)}


class AblationRecord(msgspec.Struct, frozen=True):
    """How the trials of an ablation are compared."""

    name: DesignName
    effects: tuple[Effect, ...]
    parameters: dict[str, int]  # number of parameters of each variant's model; empty without a model
    first_seed: int
    bound: int | None  # maximum number of adaptive repeats; None if the number of repeats is fixed
    seeds: int | None  # number of seeds; later ones belong to the searches of a tuning, without which this is None
    n_configs: int  # configurations that each variant tries in each repeat; 0 if nothing is tuned
    planned: int | None  # number of seeds that was fixed beforehand; None for adaptive repeats
    resampled: float  # ratio of test rows to training rows if each seed splits the same rows again; otherwise 0
    negligible: float | None  # difference that is too small to matter, in units of the metric; None if not given

    def answer(self, result: Result, design: Design | None = None) -> Ablation:
        """Return the answer from the trials of a run. Its tables and plots do not need ``design``."""
        return Ablation.of_trials(
            design or Design(self.name, (), self.effects, self.parameters, ()),
            result.trials,
            metric=result.objective,
            direction="min" if result.direction == "min" else "max",
            bound=self.bound,
            first_seed=self.first_seed,
            seeds=self.seeds,
            n_configs=self.n_configs,
            planned=self.planned,
            resampled=self.resampled,
            negligible=self.negligible,
            result=result,
        )


def recorded_answer(result: Result, comparisons: Mapping[str, Any]) -> Ablation:
    """Return the answer of a run from its trials, and from the comparisons in the header of its journal."""
    return msgspec.convert(comparisons, AblationRecord).answer(result)
