"""``SearchCV``: a search with cross-validation as an estimator of scikit-learn."""

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from sklearn import get_config
from sklearn.base import clone, is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.model_selection._search import BaseSearchCV
from sklearn.utils import Tags, check_random_state, get_tags
from sklearn.utils.validation import indexable

from maggy_like.api.lagom import lagom
from maggy_like.argument_checks import real
from maggy_like.driver.settings import Confirmation, FailurePolicy, read_confirmation
from maggy_like.errors import ConfigError
from maggy_like.protocol.endings import Ending
from maggy_like.sklearn import caught_warnings
from maggy_like.sklearn.folds import Folds
from maggy_like.sklearn.spaces import Objects, read_space
from optimizers.checks import did_you_mean, explains_arguments, explains_init, short
from optimizers.core.trial import Trial, TrialState
from optimizers.registry import make_optimizer

if TYPE_CHECKING:
    from maggy_like.engines.base import Engine
    from maggy_like.results.result import Result
    from optimizers.core.base import Optimizer
    from optimizers.space.search_space import SearchSpace


_DEFAULT_TRIALS = 20


def cv_results(
    trials: Sequence[Trial], configs: Sequence[dict[str, Any]], folds: int, error_score: float
) -> dict[str, Any]:
    """Return the columns of ``cv_results_``, with one row per configuration in the order of creation.

    ``configs`` are those of all trials, as the estimator takes them. A full evaluation has ``folds`` folds, and
    configurations that failed have the score ``error_score``.
    """
    scores, fit_times, score_times = (
        _by_fold(trials, name, folds) for name in ("test_score", "fit_time", "score_time")
    )
    failed = np.array([trial.state is TrialState.FAILED for trial in trials], dtype=bool)
    scores[failed] = error_score
    n_folds = np.array([len(_values(trial, "test_score")) for trial in trials], dtype=int)
    results: dict[str, Any] = {}
    for name, column in (("fit_time", fit_times), ("score_time", score_times)):
        results[f"mean_{name}"], results[f"std_{name}"] = _mean_and_std(column)
    for name in sorted({name for config in configs for name in config}):
        results[f"param_{name}"] = _masked(configs, name)
    results["params"] = list(configs)
    for fold in range(folds):
        results[f"split{fold}_test_score"] = scores[:, fold]
    mean, std = _mean_and_std(scores)
    results["mean_test_score"], results["std_test_score"] = mean, std
    results["n_folds"] = n_folds
    results["stopped"] = (n_folds < folds) & ~failed
    results["rank_test_score"] = _ranks(mean, ~failed & (n_folds == folds), failed)
    return results


def _values(trial: Trial, metric: str) -> list[float]:
    curve = trial.curves.get(metric)
    return list(curve.values) if curve is not None else []


def _by_fold(trials: Sequence[Trial], metric: str, folds: int) -> np.ndarray[Any, Any]:
    """Return a metric with shape (trials, folds); nan for folds that were not run."""
    table = np.full((len(trials), folds), np.nan)
    for row, trial in enumerate(trials):
        values = _values(trial, metric)[:folds]
        table[row, : len(values)] = values
    return table


def _mean_and_std(table: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return mean and standard deviation of each row over the folds that were run; nan if there are none."""
    rows = [row[~np.isnan(row)] for row in table]
    mean = np.array([row.mean() if len(row) else np.nan for row in rows])
    std = np.array([row.std() if len(row) else np.nan for row in rows])
    return mean, std


def _masked(configs: Sequence[dict[str, Any]], name: str) -> np.ma.MaskedArray[Any, Any]:
    """Return the values of one parameter, masked for configurations without it."""
    column = np.ma.MaskedArray(np.empty(len(configs), dtype=object), mask=True)
    for row, config in enumerate(configs):
        if name in config:
            column[row] = config[name]
    return column


def _ranks(
    mean: np.ndarray[Any, Any], complete: np.ndarray[Any, Any], failed: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Rank from 1 by mean: complete configurations first, then stopped, then failed ones; ties share a rank."""
    group = np.where(complete, 0, np.where(failed, 2, 1))
    keys = [(int(g), np.inf if np.isnan(m) else -float(m)) for g, m in zip(group, mean, strict=True)]
    order = sorted(keys)
    return np.array([bisect_left(order, key) + 1 for key in keys], dtype=np.int32)


_ELSEWHERE = {
    "direction": "a scoring of which greater values are better, such as 'neg_log_loss'",
    **dict.fromkeys(("eta", "factor", "reduction_factor"), "optimizer=ASHA(eta={})"),
    "groups": "fit(X, y, groups=groups)",
    "return_train_score": "cross_validate(search.best_estimator_, X, y, return_train_score={}) after the search",
}
"""Arguments of other searches, and what to write instead in ``SearchCV``; ``{}`` stands for the value."""


@partial(explains_init, elsewhere=_ELSEWHERE)
class SearchCV(BaseSearchCV):  # type: ignore[misc]  # scikit-learn has no types
    """Search for the best parameters of an estimator by cross-validation, and stop bad configurations after few folds.

    It replaces ``RandomizedSearchCV`` and ``GridSearchCV``. Each fold is a step of a trial, so ``"asha"`` runs all
    folds only for promising configurations. After ``fit``, ``predict``, ``score`` and other methods use the best
    estimator.

    Args:
        estimator: Estimator to tune. Parameters of a ``Pipeline`` have names such as ``clf__C``.
        search_space: Domains by parameter, as :func:`maggy_like.lagom` or ``RandomizedSearchCV`` takes them. A value
            may also be an array, ``loguniform``, ``uniform`` or ``randint`` of ``scipy.stats``, or a list of objects:
            ``{"scaler": [StandardScaler(), "passthrough"]}``. A parameter that only some objects have needs ``when``,
            with the object as it prints: ``{"clf": [SVC(), tree], "clf__C": Float(0.1, 10, when={"clf": "SVC()"})}``.
        n_trials: Number of configurations to try. Default: 20, or all of a grid.
        optimizer: Optimizer, as :func:`maggy_like.lagom` takes it.
        scoring: Metric: a name, a scorer, or None for the estimator's ``score``. Greater values are better.
        cv: Folds: a number, a splitter, or a list of pairs of indices.
        refit: If True, the best configuration is trained on all samples at the end.
        confirm: If True, or a :class:`~maggy_like.Confirmation`, the best configurations are cross-validated again on
            new splits, and the best one of these is used. ``cv`` must be a number or a splitter that can shuffle.
        error_score: Score of configurations that fail in ``fit`` or ``score``. With ``"raise"``, the failure is
            raised.
        random_state: Seed of the search. With a seed and one worker, the search is reproducible.
        engine: Engine, as :func:`maggy_like.lagom` takes it: ``"local"``, ``"spark"``, ``"inline"``, ``"auto"`` or an
            engine object.
        workers: Number of parallel workers. Default: all slots of the engine.
        directory: Directory in which the run is kept, under the estimator's name, such as ``SVC-20260131-120000-1f2e``.
            Default: a temporary directory, which is removed.
        progress: If True, a live display is shown.

    Attributes:
        best_estimator_: Best estimator, trained on all samples. Exists only with ``refit=True``.
        best_params_: Best configuration of those that ran all folds, or the one that ``confirm`` recommends.
        best_score_: Mean score of the best configuration.
        best_index_: Row of the best configuration in ``cv_results_``.
        cv_results_: Table as in scikit-learn's searches, with two additional columns: ``n_folds`` (folds that were
            run) and ``stopped``. Folds that were not run are nan, means are over the folds that were run, and stopped
            configurations rank after all complete ones.
        n_splits_: Number of folds.
        scorer_: Scorer that was used.
        result_: :class:`~maggy_like.Result` of the search, with its trials and plots. ``result_.log`` requires
            ``directory``, because a temporary directory is removed.
        refit_time_: Seconds of the training on all samples.

    Example:
        >>> from sklearn.svm import SVC
        >>> search = SearchCV(SVC(), {"C": Float(1e-3, 1e3, log=True)}, n_trials=10, random_state=0)
        >>> search.fit(x, y).score(x_test, y_test) > 0.9
        True
    """

    def __init__(
        self,
        estimator: Any,
        search_space: SearchSpace | Mapping[str, Any],
        *,
        n_trials: int | None = None,
        optimizer: str | Optimizer | type[Optimizer] = "asha",
        scoring: Any = None,
        cv: Any = None,
        refit: bool = True,
        confirm: bool | Confirmation = False,
        error_score: float | str = np.nan,
        random_state: Any = None,
        engine: str | Engine = "auto",
        workers: int | None = None,
        directory: str | Path | None = None,
        progress: bool | str = False,
    ) -> None:
        # As scikit-learn asks for, arguments are kept as they are, and checked in fit.
        self.estimator = estimator
        self.search_space = search_space
        self.n_trials = n_trials
        self.optimizer = optimizer
        self.scoring = scoring
        self.cv = cv
        self.refit = refit
        self.confirm = confirm
        self.error_score = error_score
        self.random_state = random_state
        self.engine = engine
        self.workers = workers
        self.directory = directory
        self.progress = progress

    @explains_arguments({})
    def fit(self, X: Any, y: Any = None, **params: Any) -> SearchCV:  # scikit-learn's name
        """Run the search, and train the best configuration on all samples.

        Args:
            X: Samples, of shape (samples, features).
            y: Targets, of shape (samples,), or None.
            **params: Arguments of the estimator's ``fit``, such as ``sample_weight``, and ``groups`` for the splitter.

        Returns:
            The fitted search itself.

        Raises:
            UserError: An argument is wrong, all configurations failed, or none ran all folds.
            TypeError: All configurations failed with a TypeError, such as one about the data.
            RuntimeError: A configuration failed, with ``error_score="raise"``.
            KeyboardInterrupt: The user pressed Ctrl-C. The results until then are kept.
        """
        space, self._objects = self._check_arguments()
        if y is None and get_tags(self.estimator).target_tags.required:
            kind = type(self.estimator).__name__
            raise ConfigError(f"{kind} requires y to be passed, but the target y is None; use fit(X, y)")
        self.scorer_ = check_scoring(self.estimator, scoring=self.scoring)
        self.multimetric_ = False
        X, y = indexable(X, y)
        routed = self._get_routed_params_for_fit(params)
        splitter = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        splits = list(splitter.split(X, y, **routed.splitter.split))
        self.n_splits_ = len(splits)
        others = {
            seed: list(_shuffled(splitter, seed).split(X, y, **routed.splitter.split)) for seed in self._other_seeds()
        }
        if others and len(set(map(_folds_of, others.values()))) == 1:  # it has a seed that it does not use
            raise _not_shuffled(splitter)
        to_folds = {name: value for name, value in params.items() if name != "groups"}
        config, filters = get_config(), caught_warnings.current_filters()
        to_scorer = {} if config["enable_metadata_routing"] else dict(routed.scorer.score)
        scorer, objects = self.scorer_, self._objects
        folds = Folds(self.estimator, objects, X, y, splits, scorer, to_folds, to_scorer, config, filters, others)
        result = self._search(folds, space)
        caught_warnings.show(result.trials)
        self.result_ = result
        if result.ending is Ending.INTERRUPTED:  # as Ctrl-C ends any other cell or script
            with contextlib.suppress(ConfigError, RuntimeError):
                self._read(result)
            raise KeyboardInterrupt(
                f"the search was interrupted after {len(result.trials)} configurations; if one of them ran all folds, "
                "cv_results_ has their scores"
            )
        self._read(result)
        if self.refit:
            self.best_estimator_ = clone(self.estimator).set_params(**clone(self.best_params_, safe=False))
            begin = time.perf_counter()
            self.best_estimator_.fit(*((X,) if y is None else (X, y)), **routed.estimator.fit)
            self.refit_time_ = time.perf_counter() - begin
            if hasattr(self.best_estimator_, "feature_names_in_"):
                self.feature_names_in_ = self.best_estimator_.feature_names_in_
        return self

    def _check_arguments(self) -> tuple[SearchSpace, Objects]:
        """Check what lagom does not, and return the search space and the objects that names in it stand for."""
        if isinstance(self.estimator, type) or not hasattr(self.estimator, "get_params"):
            raise ConfigError(
                f"estimator must be an estimator of scikit-learn, such as SVC(), got {short(self.estimator)}"
            )
        space, objects = read_space(self.search_space)
        known = dict.fromkeys([*self.estimator.get_params(), *objects.parameters()])
        wrong = [name for name in space if name not in known]
        if wrong:
            inner = [name for name in known if name.endswith(f"__{wrong[0]}")]  # of a step of a pipeline
            meant = f" (did you mean {inner[0]!r}?)" if inner else did_you_mean(wrong[0], known)
            raise ConfigError(
                f"search_space must have parameters of {type(self.estimator).__name__}, got "
                f"{wrong[0]!r}{meant}; use some of {', '.join(sorted(known))}"
            )
        if isinstance(self.scoring, (list, tuple, set, dict)):
            raise ConfigError(
                f"scoring must be one metric, got {short(self.scoring)}; pass the metric to search by, and refit=True, "
                "and compute the other ones of the best estimator with cross_validate"
            )
        if not isinstance(self.refit, bool):
            raise ConfigError(
                f"refit must be True or False, got {short(self.refit)}; use scoring= for the metric to search by"
            )
        if self.error_score != "raise" and real(self.error_score) is None:
            raise ConfigError(f"error_score must be a number or 'raise', got {self.error_score!r}")
        return space, objects

    def _other_seeds(self) -> range:
        """Return the seeds of the repeats of the best configurations."""
        from optimizers.comparisons.confirmation import FIRST_SEED

        confirmation = read_confirmation(self.confirm)
        return range(FIRST_SEED, FIRST_SEED + (0 if confirmation is None else confirmation.repeats))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags = copy.deepcopy(get_tags(self.estimator).target_tags)
        return tags

    def _search(self, folds: Folds, space: SearchSpace) -> Result:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        n_trials = self.n_trials
        if n_trials is None and make_optimizer(self.optimizer).size(space) is None:
            n_trials = _DEFAULT_TRIALS
        with tempfile.TemporaryDirectory() as temporary:
            return lagom(
                folds,
                space,
                optimizer=self.optimizer,
                metric="mean_test_score",
                direction="max",
                value="last",
                n_trials=n_trials,
                max_budget=self.n_splits_,
                confirm=self.confirm,
                engine=self.engine,
                workers=self.workers,
                seed=seed,
                # A configuration that cannot be fitted is part of the search, as in scikit-learn's own.
                failures=FailurePolicy(catch=(Exception,)),
                directory=temporary if self.directory is None else self.directory,
                progress=self.progress,
            )

    def _read(self, result: Result) -> None:
        """Store what the search found.

        With ``error_score="raise"``, a configuration that failed raises RuntimeError. If all failed, or none ran all
        folds, ConfigError is raised, and TypeError if the estimator rejects the type of the data.
        """
        failed = [trial for trial in result.trials if trial.state is TrialState.FAILED]
        if failed and self.error_score == "raise":
            raise RuntimeError(f"the configuration {failed[0].config} failed: {_why(result, failed[0])}")
        if failed and len(failed) == len(result.trials):
            why = f"all {len(failed)} configurations failed; {failed[0].config}: {_why(result, failed[0])}"
            assert failed[0].failure is not None
            is_about_type = "builtins.TypeError" in failed[0].failure.types  # of the data, as the estimator raises it
            raise (TypeError if is_about_type else ConfigError)(why)
        error_score = np.nan if self.error_score == "raise" else float(self.error_score)
        configs = [self._objects.of(trial.config) for trial in result.trials]
        self.cv_results_ = cv_results(result.trials, configs, self.n_splits_, error_score)
        if not (self.cv_results_["n_folds"] == self.n_splits_).any():
            raise ConfigError(
                f"none of {len(result.trials)} configurations ran all {self.n_splits_} folds; use more n_trials than "
                f"{len(result.trials)}, or error_score='raise' to see a failure"
            )
        self.best_index_ = int(np.argmin(self.cv_results_["rank_test_score"]))
        if result.confirmed is not None and (best := result.confirmed.best) is not None:
            self.best_index_ = result.trials.index(best.trial)
        self.best_params_ = self.cv_results_["params"][self.best_index_]
        self.best_score_ = float(self.cv_results_["mean_test_score"][self.best_index_])
        if failed:
            warnings.warn(
                f"{len(failed)} of {len(result.trials)} configurations failed, and have error_score={error_score}; "
                f"{self._objects.of(failed[0].config)}: {_why(result, failed[0])}",
                FitFailedWarning,
                stacklevel=4,  # the call of fit, which explains_arguments wraps
            )


def _why(result: Result, trial: Trial) -> str:
    """Return why a trial failed. The traceback is left out if the display has shown it."""
    assert trial.failure is not None
    return str(msgspec.structs.replace(trial.failure, traceback="") if result._shown.lines else trial.failure)


def _shuffled(splitter: Any, seed: int) -> Any:
    """Return a copy of a splitter that makes other splits, or reject a splitter that cannot."""
    if not hasattr(splitter, "random_state"):
        raise _not_shuffled(splitter)
    made = copy.copy(splitter)
    made.random_state = seed
    if hasattr(made, "shuffle"):
        made.shuffle = True
    return made


def _not_shuffled(splitter: Any) -> ConfigError:
    kind = type(getattr(splitter, "cv", splitter)).__name__  # scikit-learn wraps a list
    return ConfigError(
        f"confirm= needs a cv that can make other splits, got a {kind}; use a number of folds, or a splitter such as "
        "ShuffleSplit or StratifiedKFold"
    )


def _folds_of(splits: Sequence[tuple[Any, Any]]) -> frozenset[bytes]:
    """Return the test samples of each fold, in no order."""
    return frozenset(np.sort(test).tobytes() for _, test in splits)
