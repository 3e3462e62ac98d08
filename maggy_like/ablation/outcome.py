"""What an ablation study found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from maggy_like.ablation import text
from maggy_like.ablation.across import AcrossDataSets
from maggy_like.ablation.answer import Answer
from maggy_like.ablation.comparisons import Run
from maggy_like.ablation.design import Design
from maggy_like.ablation.notes import notes
from maggy_like.errors import UserError
from optimizers.comparisons.repeats import SEED, VARIANT
from optimizers.core.trial import Trial, TrialState

if TYPE_CHECKING:
    from maggy_like.results.result import Result


class Ablation(Answer):
    """The answer of an ablation study: a line for each comparison. It can be pickled, less the models' factory.

    Differences are paired by seed. With a fixed number of repeats, they are tested by paired t-tests
    (:func:`optimizers.comparisons.paired_tests.compare`); with ``bound``, by the sequential tests that gave the repeats
    (:class:`optimizers.comparisons.sequential_tests.SequentialTests`). Both correct for the number of comparisons by
    the joint distribution of their p-values (:class:`optimizers.comparisons.joint_tests.JointTests`).

    Args:
        design: What was tried.
        runs: The trials that ended, in any order.
        metric: The metric's name.
        direction: ``max`` or ``min``.
        alpha: The probability of any false difference, at most.
        bound: The bound of adaptive repeats; None where their number was fixed.
        first_seed: The first seed of the study, from which adaptive repeats are counted.
        n_configs: How many configurations were tried for each variant in each repeat; 0 where nothing was tuned.
        planned: The number of seeds that was fixed beforehand: a comparison of which fewer have ended is not tested.
            None if all are there, or with ``bound``.
        resampled: Rows in a test set by rows in a training set, where each seed splits the same rows anew; else 0.
        negligible: A difference that nobody would care for: what is shown to be smaller says so.

    Example:
        >>> answer = ablate(train_fn, study)
        >>> print(answer)
        >>> answer.plot("ablation.png")
        >>> answer.result.to_pandas()
    """

    _result: Result | None = None

    @property
    def result(self) -> Result:
        """The trials and the run's files: what a search returns, without a best trial.

        Raises:
            UserError: The answer was made of trials alone.
        """
        if self._result is None:
            raise UserError(
                "this answer was made of trials alone, and belongs to no run; use that of maggy_like.ablate"
            )
        return self._result

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
        """The answer that trials give; those that did not end are left out. For the other arguments, see the class.

        Args:
            seeds: How many seeds there are; trials of later ones are left out: they are the searches of a tuned
                study (:class:`optimizers.comparisons.tuned_repeats.TunedRepeats`).
            result: Of the run that the trials are from, if there is one.
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
        """One answer for several data sets: what a component is worth on data sets like these.

        The data sets take the place of the seeds (see :class:`~maggy_like.ablation.across.AcrossDataSets`).

        Args:
            answers: By data set, what :func:`maggy_like.ablate` found on it, of the same components.
            negligible: A difference that nobody would care for: what is shown to be smaller says so.

        Raises:
            UserError: There are fewer than two, they compare different things, or one is not decided.

        Example:
            >>> answers = {name: ablate(train_on(name), study, repeats=5) for name in ("adult", "bank", "credit")}
            >>> print(Ablation.across(answers))
        """
        return AcrossDataSets(answers, negligible=negligible)

    @property
    def method(self) -> str:
        """How the differences were tested: a sentence for a paper."""
        return text.method(self)

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the data: failed trials, too few repeats, repeats that do not differ."""
        return notes(self)

    def report(self, path: str | PathLike[str]) -> None:
        """Write a page with the table, the forest plot, and what there is to see of the trials.

        It needs nothing else, and loads nothing (see :meth:`maggy_like.Result.report`).

        Args:
            path: The page's file: a path or a URL.

        Raises:
            UserError: plotly is missing, the file cannot be written, or the answer belongs to no run.

        Example:
            >>> ablation.report("ablation.html")
        """
        from maggy_like.ablation.report import report

        report(self, self.result, path)

    def __getstate__(self) -> dict[str, Any]:
        variants = tuple(variant.bare() for variant in self.design.variants)
        return {**self.__dict__, "design": replace(self.design, variants=variants)}
