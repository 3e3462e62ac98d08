from __future__ import annotations

import math
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from maggy_like.errors import UserError
from maggy_like.protocol.endings import Ending
from maggy_like.results.result import Result
from optimizers.core.events import AttemptEnded
from optimizers.core.study import Study
from optimizers.core.trial import TrialState as Ours
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.space.domains import Choice, Float, Integer, Ordinal
from optimizers.space.search_space import SearchSpace

SPACE = SearchSpace(
    lr=Float(1e-4, 1, log=True),
    drop=Float(0, 0.5, step=0.15),
    units=Integer(1, 64, log=True),
    even=Integer(0, 9, step=2),
    act=Choice(["relu", None]),
    size=Ordinal([8, 64], when={"act": "relu"}),
    fixed="as it is",
)


def result_of(study: Study, directory: Path) -> Result:
    return Result(
        trials=study.trials,
        best_trial=study.best,
        objective="value",
        direction=study.direction,
        ending=Ending.COMPLETED,
        seconds=1.0,
        directory=directory / "a-run",
        space=study.problem.space,
    )


@pytest.fixture
def searched(tmp_path: Path) -> Result:
    """Trials 0 to 5: completed, promoted, paused, failed, not a number, never ended; ended out of order."""
    study = Study(SPACE, RandomSearch(), direction="max", seed=3, max_budget=3)
    trials = [study.ask() for _ in range(6)]
    assert all(trials)
    first, second, third, fourth, fifth, _ = (trial for trial in trials if trial)
    study.fail(fourth, "out of memory")
    study.report(third, 1, 0.3)
    study.apply(AttemptEnded(third.id, 1, Ours.STOPPED, 0.0))
    study.tell(fifth, math.nan)
    study.report(second, 1, 0.2)
    study.report(second, 2, 0.6)
    study.tell(second, 0.9)
    for event in study.conclude(first, 0.5, {"accuracy": 0.75}, 2.5):
        study.apply(event)
    return result_of(study, tmp_path)


def test_every_trial_keeps_its_number_configuration_and_outcome(searched: Result) -> None:
    study = searched.to_optuna()
    assert study.study_name == "a-run"
    assert study.direction is optuna.study.StudyDirection.MAXIMIZE
    assert study.metric_names == ["value"]
    assert [trial.params for trial in study.trials] == [trial.config for trial in searched.trials]
    assert [(trial.state, trial.value) for trial in study.trials] == [
        (TrialState.COMPLETE, 0.5),
        (TrialState.COMPLETE, 0.6),
        (TrialState.PRUNED, 0.3),
        (TrialState.FAIL, None),
        (TrialState.FAIL, None),
        (TrialState.WAITING, None),
    ]
    assert study.best_trial.number == 1
    assert study.trials[1].intermediate_values == {1: 0.2, 2: 0.6}
    assert study.trials[0].user_attrs == {"attempts": 1, "accuracy": 0.75}
    assert study.trials[1].user_attrs == {"attempts": 1, "step": 2, "value_step": 2}
    assert study.trials[0].duration == timedelta(seconds=2.5)
    assert study.trials[3].user_attrs["failure"] == "out of memory"
    assert study.trials[4].user_attrs["failure"] == "the value is nan"


def test_distributions_are_those_of_the_space(searched: Result) -> None:
    dims = {name: dim for trial in searched.to_optuna().trials for name, dim in trial.distributions.items()}
    assert dims == {
        "lr": FloatDistribution(1e-4, 1, log=True),
        "drop": FloatDistribution(0, 0.45, step=0.15),
        "units": IntDistribution(1, 64, log=True),
        "even": IntDistribution(0, 8, step=2),
        "act": CategoricalDistribution(["relu", None]),
        "size": CategoricalDistribution([8, 64]),
        "fixed": CategoricalDistribution(["as it is"]),
    }


def test_optuna_goes_on_where_the_run_ended(searched: Result) -> None:
    study = searched.to_optuna()
    trial = study.ask()
    assert trial.number == 5
    assert trial.suggest_float("lr", 1e-4, 1, log=True) == searched.trials[5].config["lr"]


def test_paused_trials_of_asha_are_pruned_at_their_rung(tmp_path: Path) -> None:
    asha = Study(
        {"x": Float(0, 1)}, ASHA(sampler="random", mode="promotion"), direction="min", max_budget=9, n_trials=9
    )
    while trial := asha.ask():
        asha.tell(trial, trial.config["x"])
    states = [trial.state for trial in result_of(asha, tmp_path).to_optuna().trials]
    assert (states.count(TrialState.COMPLETE), states.count(TrialState.PRUNED)) == (1, 8)


@pytest.mark.slow
def test_a_storage_keeps_the_study_under_its_name(searched: Result) -> None:
    storage = optuna.storages.InMemoryStorage()
    searched.to_optuna(storage)
    searched.to_optuna(storage, study_name="again")
    assert len(optuna.load_study(study_name="again", storage=storage).trials) == 6
    with pytest.raises(UserError, match="a study named 'a-run' already; pass another study_name"):
        searched.to_optuna(storage)
    with pytest.raises(UserError, match="Optuna cannot open storage='bogus://': "):
        searched.to_optuna("bogus://")
    with pytest.raises(UserError, match=r"storage='studies.db': .*; use 'sqlite:///studies.db'$"):
        searched.to_optuna("studies.db")


@pytest.mark.parametrize("method", ["to_optuna", "importance"])
def test_without_optuna_the_pip_line_is_told(searched: Result, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    call: Any = getattr(searched, method)
    with pytest.raises(UserError, match=rf"{method}\(\) needs optuna; .* pip install 'maggy_like\[optuna\]'"):
        call()
