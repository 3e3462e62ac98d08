"""Runs for other tools: as a study of Optuna, for its plots, its dashboard and its analyses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from maggy_like.errors import UserError
from maggy_like.extras import require
from maggy_like.protocol.values import attribute_names
from maggy_like.results.data import ResultData
from optimizers.core.trial import Trial, TrialState
from optimizers.samplers.optuna_space import quiet
from optimizers.space.domains import Constant, Domain, Float, Integer

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial


OWN_ATTRIBUTES = ("attempts", "step", "value_step", "state", "failure")
"""What an exported trial has as user attributes besides those of the function."""


def to_optuna(result: ResultData, storage: str | BaseStorage | None, study_name: str | None) -> optuna.Study:
    """The run as a study; see :meth:`~maggy_like.results.result.Result.to_optuna`."""
    require("optuna", "to_optuna()")
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
        except Exception as error:  # of whatever database it is
            raise UserError(f"Optuna cannot open storage={storage!r}: {str(error) or type(error).__name__}") from error
        study.set_metric_names([result.objective, *(name for _, name in result.others)])
        taken = {*OWN_ATTRIBUTES, *(name for trial in result.trials for name in trial.metrics)}
        names = attribute_names(result.trials, taken)
        best = result.best_trial
        study.add_trials([_frozen(trial, dims, now, names, is_best=trial is best) for trial in result.trials])
    return study


def _frozen(
    trial: Trial, dims: dict[str, BaseDistribution], now: datetime, names: Mapping[str, str], *, is_best: bool
) -> FrozenTrial:
    """A trial as Optuna has it. The best one is complete there, else Optuna would call another one the best."""
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
    """The distribution whose values are those of the configurations, for people to read."""
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
    """A value that Optuna's storages keep: text for tuples and lists."""
    return repr(value) if isinstance(value, tuple | list) else value
