"""Which parameters made the difference between the best trials and the others."""

from __future__ import annotations

import bisect
import math

import numpy as np

from maggy_like.errors import UserError
from maggy_like.extras import require
from maggy_like.results.data import ResultData
from optimizers.core.trial import Trial, TrialState
from optimizers.samplers.optuna_space import distributions, quiet, to_params

NEEDED = 20
"""Trials below which shares are mostly chance (tried on functions of known shares)."""

_BEST = 0.25  # of the trials: shares vary less from run to run than with Optuna's tenth


def importance(result: ResultData) -> dict[str, float]:
    """Shares of the parameters; see :meth:`~maggy_like.results.result.Result.importance`."""
    require("optuna", "importance()")
    import optuna

    trials, ranks = _ranked(result)
    dims = distributions(result.space)
    with quiet():
        study = optuna.create_study()
        for trial, rank in zip(trials, ranks, strict=True):
            params = to_params(result.space, trial.config)
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions={n: dims[n] for n in params}, value=rank)
            )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST)
        found = evaluator.evaluate(study)
    total = sum(found.values())
    if not total > 0.0:
        raise UserError("no parameter differs between the best trials and the others; widen the search space")
    shares = {name: found.get(name, 0.0) / total for name in result.space.names}
    return dict(sorted(shares.items(), key=lambda share: -share[1]))


def _ranked(result: ResultData) -> tuple[list[Trial], list[float]]:
    """The trials that can be compared, and their ranks from 0.

    Raises:
        UserError: They are too few, or as good as each other.
    """
    trials = [trial for trial in result.trials if _counts(trial)]
    if len(trials) < NEEDED:
        raise UserError(
            f"importance needs {NEEDED} ended trials, got {len(trials)}; "
            "run more with resume=True and a larger n_trials"
        )
    n_best = math.ceil(_BEST * len(trials))
    steps = sorted((trial.step for trial in trials if _is_usable(trial)), reverse=True)
    if len(steps) < n_best:
        raise UserError(
            f"importance tells the best quarter from the others, and only {len(steps)} of {len(trials)} trials "
            "have a finite value; look at result.failures first"
        )
    step = steps[n_best - 1]  # the highest that this many reached
    sign = 1.0 if result.direction == "min" else -1.0
    losses = [sign * value if math.isfinite(value := _value_at(trial, step)) else math.inf for trial in trials]
    levels, ranks = np.unique(losses, return_inverse=True)
    if len(levels) == 1:
        raise UserError(f"all {len(trials)} trials have the same {result.objective}; no parameter made a difference")
    return trials, ranks.astype(float).tolist()


def _counts(trial: Trial) -> bool:
    if trial.state is TrialState.FAILED:
        return trial.failure is None or trial.failure.kind.is_fault
    return trial.is_over or trial.state is TrialState.PAUSED


def _is_usable(trial: Trial) -> bool:
    return trial.state is not TrialState.FAILED and trial.last_value is not None and math.isfinite(trial.last_value)


def _value_at(trial: Trial, step: int) -> float:
    """The objective where the trial first reached ``step``; nan if it did not, or has no value."""
    if trial.last_value is None or not _is_usable(trial) or trial.step < step:
        return math.nan
    place = bisect.bisect_left(trial.curve.steps, step)
    # what was returned beats what was reported last, at the same step
    is_end = place >= len(trial.curve) - (trial.curve.last_step == trial.step)
    return trial.last_value if is_end else trial.curve.values[place]
