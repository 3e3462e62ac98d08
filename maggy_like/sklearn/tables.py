"""``cv_results_``: the measurements of a search's trials in scikit-learn's columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optimizers.core.trial import Trial, TrialState


def cv_results(
    trials: Sequence[Trial], configs: Sequence[dict[str, Any]], folds: int, error_score: float
) -> dict[str, Any]:
    """Return the columns of ``cv_results_``, with one row per configuration in the order of creation.

    Args:
        trials: All trials.
        configs: Their configurations, as the estimator takes them.
        folds: Number of folds of a full evaluation.
        error_score: Score of configurations that failed.
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
    return np.array([order.index(key) + 1 for key in keys], dtype=np.int32)
