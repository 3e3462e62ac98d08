"""The training function of a cross-validated search, with one fold per step."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import cross_validate

from maggy_like.errors import ConfigError
from maggy_like.sklearn import caught_warnings
from maggy_like.sklearn.spaces import Objects

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter


_cross_validate = inspect.unwrap(cross_validate)
"""Without the check of its arguments, which would present a wrong parameter of the estimator as one of its own."""


@dataclass(frozen=True)
class Folds:
    """Cross-validate one configuration, and report after each fold. It is sent to each worker once, with its data."""

    estimator: Any  # cloned for each fold
    objects: Objects  # that names in configurations stand for
    x: Any  # samples
    y: Any  # targets, or None
    splits: list[tuple[Any, Any]]  # indices of training and test samples, one pair per fold
    scoring: Any  # metric, as ``cross_validate`` takes it
    params: dict[str, Any]  # arguments of ``fit`` and, with scikit-learn's metadata routing, of the scorer
    score_params: dict[str, Any]  # arguments of the scorer without metadata routing: values per sample
    config: dict[str, Any]  # scikit-learn's settings at the call of the search (``sklearn.set_config``)
    filters: list[bytes]  # the filters of warnings at the call of the search
    other_splits: dict[int, list[tuple[Any, Any]]]  # by seed, for trials that repeat a configuration with ``seed``

    @property
    def __name__(self) -> str:  # by which runs and messages call a function
        return type(self.estimator).__name__

    def __call__(self, config: dict[str, Any], reporter: Reporter) -> None:
        """Run the folds that the reporter grants; the score of each must be one finite number."""
        with config_context(**self.config), caught_warnings.kept(reporter.attributes, self.filters):
            self._run(config, reporter)

    def _run(self, config: dict[str, Any], reporter: Reporter) -> None:
        splits = self.other_splits[config.pop("seed")] if self.other_splits and "seed" in config else self.splits
        estimator = clone(self.estimator).set_params(**clone(self.objects.of(config), safe=False))
        scores: list[float] = []
        for fold, split in enumerate(splits[: reporter.budget], start=1):
            measured = _cross_validate(
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
                raise ConfigError(
                    f"scoring must give one metric, got several ({names}); pass only the metric to search by"
                )
            score = float(measured["test_score"][0])
            if not np.isfinite(score):
                raise ValueError(f"the score of fold {fold} must be finite, got {score}")
            scores.append(score)
            reporter.report(
                mean_test_score=float(np.mean(scores)),
                test_score=score,
                fit_time=float(measured["fit_time"][0]),
                score_time=float(measured["score_time"][0]),
                step=fold,
            )

    def _scorer_of(self, samples: Any) -> Any:
        """Return the scorer with its arguments for these samples."""
        if not self.score_params:
            return self.scoring
        return partial(self.scoring, **{name: np.asarray(value)[samples] for name, value in self.score_params.items()})
