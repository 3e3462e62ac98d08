from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from optimizers.core.base import Observation
from optimizers.core.objectives import ParetoFront, dominates
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.errors import OptimizerError, UserError
from optimizers.samplers.non_adaptive import Grid, RandomSearch, Sobol
from optimizers.samplers.skopt_search import SkoptSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule
from optimizers.space.domains import Float

LINE = {"x": Float(0, 1)}
LOSSES = st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, math.inf])] * 3), max_size=8)


# -- the Pareto set ---------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(LOSSES, st.integers(0, 7), st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, math.inf])] * 3))
def test_the_front_is_what_none_dominates_also_where_a_result_changes(
    entries: list[tuple[float, ...]], changed: int, losses: tuple[float, ...]
) -> None:
    front = ParetoFront()
    for number, entry in enumerate(entries):
        front.enter(number, entry)
    if changed < len(entries):
        entries[changed] = losses
        front.enter(changed, losses)
    expected = [
        number
        for number, entry in enumerate(entries)
        if math.inf not in entry and not any(dominates(other, entry) for other in entries)
    ]
    assert list(front) == expected
    assert len(front) == len(expected)


def test_domination_needs_one_better_and_none_worse() -> None:
    assert dominates((1.0, 2.0), (1.0, 3.0))
    assert not dominates((1.0, 2.0), (1.0, 2.0))
    assert not dominates((0.0, 3.0), (1.0, 2.0))


# -- a study ----------------------------------------------------------------------------------------


def study_of(optimizer: Any = None, **options: Any) -> Study:
    options = {"direction": ["max", "min"], "objectives": ["accuracy", "latency"], "n_trials": 6, **options}
    return Study(LINE, optimizer or RandomSearch(), **options)


def test_a_study_of_two_objectives_has_a_pareto_set_and_no_best() -> None:
    study = study_of()
    values = [(0.9, 5.0), (0.8, 1.0), (0.7, 2.0), (0.9, 4.0), (math.nan, 0.1)]
    for value in values:
        trial = study.ask()
        assert trial is not None
        study.tell(trial, value)
    failing = study.ask()
    assert failing is not None
    study.fail(failing)
    assert [trial.id for trial in study.pareto] == [1, 3]
    assert study.best is None
    assert [trial.values for trial in study.pareto] == [(0.8, 1.0), (0.9, 4.0)]
    for update in study.take_updates():
        study.history.apply(update)
    seen = study.history.observations
    assert [observation.losses for observation in seen[:2]] == [(-0.9, 5.0), (-0.8, 1.0)]
    assert [observation.loss for observation in seen[:2]] == [-0.9, -0.8]
    assert seen[4].losses == (math.inf, 0.1)
    assert seen[5].losses == (math.inf, math.inf)


def test_in_a_study_of_one_objective_there_are_no_losses_but_the_one() -> None:
    study = Study(LINE, RandomSearch(), n_trials=1)
    trial = study.ask()
    assert trial is not None
    study.tell(trial, 0.5)
    assert study.pareto == []
    assert trial.values == ()
    assert study.take_updates()[-1] == Observation(0, trial.config, 1, -0.5)


def test_a_value_that_is_missing_fails_the_trial_and_is_named() -> None:
    study = study_of()
    trial = study.ask()
    assert trial is not None
    with pytest.raises(UserError, match=r"value must have 2 numbers, one for each objective, got 0\.5"):
        study.tell(trial, 0.5)
    for event in study.conclude(trial, 0.5, {}, 0.0):  # as a training function ends that returns one number
        study.apply(event)
    assert trial.state is TrialState.FAILED
    assert trial.failure is not None
    assert trial.failure.message == (
        "the metric 'latency' is missing; given: one number. Return it in a dict, or report it"
    )


@pytest.mark.parametrize("optimizer", [RandomSearch(), Grid(5), Sobol()])
def test_those_that_do_not_learn_serve_several_objectives(optimizer: Any) -> None:
    study = study_of(optimizer, n_trials=5)
    while (trial := study.ask()) is not None:
        x = trial.config["x"]
        study.tell(trial, (x, x))  # the larger, the better and the worse: nobody is dominated
    assert len(study.pareto) == 5


@pytest.mark.parametrize("optimizer", [ASHA(), PBT(), MedianRule(), SkoptSearch()])
def test_those_that_go_by_one_loss_refuse_several(optimizer: Any) -> None:
    with pytest.raises(OptimizerError, match=r"supports one objective, got 2; use optimizer='bayesian'"):
        study_of(optimizer, max_budget=27, n_trials=30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": ["max"]}, r"objectives \['accuracy', 'latency'\] need as many directions, got \['max'\]"),
        ({"direction": ["max", "down"]}, "direction must be 'max' or 'min', got 'down'"),
    ],
)
def test_directions_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        study_of(**options)
