"""A run as a study of Optuna: exported, or for the importance of its parameters."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from maggy_like.argument_checks import require
from maggy_like.errors import UserError
from maggy_like.protocol.values import attribute_names
from maggy_like.results.data import ResultData
from optimizers.core.trial import Trial, TrialState
from optimizers.samplers.optuna_space import distributions, load_optuna, quiet, to_params
from optimizers.space.domains import Constant, Domain, Float, Integer

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

OWN_ATTRIBUTES = ("attempts", "step", "value_step", "state", "failure")
"""User attributes of an exported trial, in addition to those of the function."""


def to_optuna(result: ResultData, storage: str | BaseStorage | None, study_name: str | None) -> optuna.Study:
    """Implement :meth:`~maggy_like.results.result.Result.to_optuna`."""
    require("optuna", "to_optuna()")
    load_optuna()
    import optuna

    name = study_name or result.name
    dims = {name: _distribution(domain) for name, domain in result.space.domains.items()}
    directions = (result.direction, *(direction for direction, _ in result.others))
    now = datetime.now()
    with quiet():
        try:
            study = optuna.create_study(
                storage=storage,
                study_name=name,
                directions=["minimize" if d == "min" else "maximize" for d in directions],
            )
        except optuna.exceptions.DuplicatedStudyError:
            raise UserError(f"the storage has a study named {name!r} already; pass another study_name") from None
        except Exception as error:  # of any database
            said = str(error).partition("\n")[0] or type(error).__name__
            is_path = isinstance(storage, str) and "://" not in storage
            remedy = f"; use 'sqlite:///{storage}'" if is_path else ""
            raise UserError(f"Optuna cannot open storage={storage!r}: {said}{remedy}") from error
        study.set_metric_names([result.objective, *(name for _, name in result.others)])
        taken = {*OWN_ATTRIBUTES, *(name for trial in result.trials for name in trial.metrics)}
        names = attribute_names((trial.attributes for trial in result.trials), taken)
        best = result.best_trial
        study.add_trials([_frozen(trial, dims, now, names, is_best=trial is best) for trial in result.trials])
    return study


def _frozen(
    trial: Trial, dims: dict[str, BaseDistribution], now: datetime, names: Mapping[str, str], *, is_best: bool
) -> FrozenTrial:
    """Return a trial of Optuna. The best trial is complete there, else Optuna would consider another one the best."""
    import optuna

    states = {
        TrialState.COMPLETED: optuna.trial.TrialState.COMPLETE,
        TrialState.STOPPED: optuna.trial.TrialState.PRUNED,
        TrialState.PAUSED: optuna.trial.TrialState.PRUNED,
        TrialState.FAILED: optuna.trial.TrialState.FAIL,
    }
    state = states.get(trial.state, optuna.trial.TrialState.WAITING)
    failure = None if trial.failure is None else trial.failure.message
    given = trial.values or (trial.value,)
    values = [value for value in given if value is not None and math.isfinite(value)]
    has_value = len(values) == len(given)
    if state is optuna.trial.TrialState.COMPLETE and not has_value:
        state, failure = optuna.trial.TrialState.FAIL, failure or f"the value is {trial.value}"
    otherwise = trial.state.value if is_best and state is not optuna.trial.TrialState.COMPLETE else None
    if is_best:
        state = optuna.trial.TrialState.COMPLETE
    ended = state in (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    own = zip(OWN_ATTRIBUTES, (trial.attempts, trial.reported, trial.value_step, otherwise, failure), strict=True)
    attrs: dict[str, Any] = {name: attr for name, attr in own if attr is not None}
    attrs |= {names[name]: attr for name, attr in trial.attributes.items()}
    frozen = optuna.trial.create_trial(
        state=state,
        values=values if ended and has_value else None,
        params={name: _plain(value) for name, value in trial.config.items()},
        distributions={name: dims[name] for name in trial.config},
        intermediate_values=dict(zip(trial.curve.steps, trial.curve.values, strict=True)),
        user_attrs={**attrs, **trial.metrics},
    )
    if state.is_finished():
        frozen.datetime_complete = now
        frozen.datetime_start = now - timedelta(seconds=trial.seconds)
    return frozen


def _distribution(domain: Domain) -> BaseDistribution:
    """Return a distribution with the values of the configurations, for people to read."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Float):
        with quiet():  # a step need not divide the range
            return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
    if isinstance(domain, Integer):
        high = domain.low + (domain.size - 1) * (domain.step or 1)
        return IntDistribution(domain.low, high, log=domain.log, step=domain.step or 1)
    if isinstance(domain, Constant):
        return CategoricalDistribution([_plain(domain.value)])
    return CategoricalDistribution([_plain(value) for value in domain.grid(domain.size or 1)])


def _plain(value: Any) -> Any:
    """Return a value that Optuna's storages accept: text for tuples and lists."""
    return repr(value) if isinstance(value, tuple | list) else value


NEEDED = 20
"""With fewer trials, shares are mostly chance (tried on functions of known shares)."""

_BEST = 0.25  # of the trials: shares vary less from run to run than with Optuna's tenth


def importance(result: ResultData) -> dict[str, float]:
    """Implement :meth:`~maggy_like.results.result.Result.importance`."""
    require("optuna", "importance()")
    load_optuna()
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
    """Return the trials that can be compared, and their ranks from 0. There must be enough, with different values."""
    trials = [trial for trial in result.trials if _counts(trial)]
    if len(trials) < NEEDED:
        raise UserError(
            f"importance() needs {NEEDED} ended trials, got {len(trials)}; "
            "use resume=True with a larger n_trials to run more"
        )
    n_best = math.ceil(_BEST * len(trials))
    steps = sorted((trial.step for trial in trials if _is_usable(trial)), reverse=True)
    if len(steps) < n_best:
        raise UserError(
            f"importance() compares the best quarter with the other trials, and only {len(steps)} of {len(trials)} "
            "trials have a finite value; see result.failures"
        )
    step = steps[n_best - 1]  # the highest that this many reached
    sign = 1.0 if result.direction == "min" else -1.0
    losses = [sign * value if math.isfinite(value := _value_at(trial, step)) else math.inf for trial in trials]
    levels, ranks = np.unique(losses, return_inverse=True)
    if len(levels) == 1:
        raise UserError(f"all {len(trials)} trials have the same {result.objective}; widen the search space")
    return trials, ranks.astype(float).tolist()


def _counts(trial: Trial) -> bool:
    if trial.state is TrialState.FAILED:
        return trial.failure is None or trial.failure.kind.is_fault
    return trial.is_over or trial.state is TrialState.PAUSED


def _is_usable(trial: Trial) -> bool:
    return trial.state is not TrialState.FAILED and trial.last_value is not None and math.isfinite(trial.last_value)


def _value_at(trial: Trial, step: int) -> float:
    """Return the objective at the first report from ``step`` on. NaN if there is none."""
    if trial.last_value is None or not _is_usable(trial) or trial.step < step:
        return math.nan
    place = bisect.bisect_left(trial.curve.steps, step)
    # at the same step, the returned value replaces the last report
    is_end = place >= len(trial.curve) - (trial.curve.last_step == trial.step)
    return trial.last_value if is_end else trial.curve.values[place]
