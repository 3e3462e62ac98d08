"""The training function of a cross-validated search: one fold a step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import cross_validate

from maggy_like.sklearn.spaces import Objects

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter


@dataclass(frozen=True)
class Folds:
    """Cross-validates one configuration, and reports after each fold. It is sent to the workers once, with its data.

    Attributes:
        estimator: What is cloned for each fold.
        objects: What names in configurations stand for.
        x: The samples.
        y: Their targets, or None.
        splits: Indices of training and test samples, a pair a fold.
        scoring: As ``cross_validate`` takes it.
        params: What goes to ``fit`` and, with scikit-learn's metadata routing, to the scorer.
        score_params: What goes to the scorer without it: values of the samples.
        config: Scikit-learn's settings where the search was called (``sklearn.set_config``).
    """

    estimator: Any
    objects: Objects
    x: Any
    y: Any
    splits: list[tuple[Any, Any]]
    scoring: Any
    params: dict[str, Any]
    score_params: dict[str, Any]
    config: dict[str, Any]

    @property
    def __name__(self) -> str:  # by which runs and messages call a function
        return type(self.estimator).__name__

    def __call__(self, config: dict[str, Any], reporter: Reporter) -> None:
        """Run the folds that the reporter grants.

        Raises:
            ValueError: A score is not finite.
            TypeError: The scorer gives several.
        """
        with config_context(**self.config):
            self._run(config, reporter)

    def _run(self, config: dict[str, Any], reporter: Reporter) -> None:
        estimator = clone(self.estimator).set_params(**clone(self.objects.of(config), safe=False))
        scores: list[float] = []
        for fold, split in enumerate(self.splits[: reporter.budget], start=1):
            measured = cross_validate(
                estimator,
                self.x,
                self.y,
                cv=[split],
                scoring=self._scorer_of(split[1]),
                params=self.params,
                error_score="raise",
            )
            if "test_score" not in measured:
                names = ", ".join(name.removeprefix("test_") for name in measured if name.startswith("test_"))
                raise TypeError(f"scoring gives several metrics ({names}); give one, the metric to search by")
            score = float(measured["test_score"][0])
            if not np.isfinite(score):
                raise ValueError(f"fold {fold} has the score {score}; scores must be finite")
            scores.append(score)
            reporter.report(
                mean_test_score=float(np.mean(scores)),
                test_score=score,
                fit_time=float(measured["fit_time"][0]),
                score_time=float(measured["score_time"][0]),
                step=fold,
            )

    def _scorer_of(self, samples: Any) -> Any:
        """The scorer with what it gets of these samples."""
        if not self.score_params:
            return self.scoring
        return partial(self.scoring, **{name: np.asarray(value)[samples] for name, value in self.score_params.items()})
