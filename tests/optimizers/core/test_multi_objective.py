from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from optimizers.core.base import History, Observation, Problem
from optimizers.core.multi_objective import ParetoFront, dominates, parego_losses, scalarized
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.errors import OptimizerError, UserError
from optimizers.samplers.grid import Grid
from optimizers.samplers.random_search import RandomSearch
from optimizers.samplers.skopt_search import SkoptSearch
from optimizers.samplers.sobol import Sobol
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

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
    study.tell(trial, 0.5)
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
    with pytest.raises(OptimizerError, match=r"serves one objective, and there are 2; use optimizer='bayesian'"):
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


# -- one loss of many -------------------------------------------------------------------------------


def test_a_dominated_row_never_has_the_smallest_loss() -> None:
    rng = np.random.default_rng(0)
    losses = np.array([[0.0, 10.0], [0.5, 5.0], [1.0, 0.0], [1.0, 10.0]])
    best = [int(parego_losses(losses, rng).argmin()) for _ in range(200)]
    assert set(best) == {0, 1, 2}


def test_the_order_of_rows_and_the_scale_of_an_objective_do_not_matter() -> None:
    losses = np.array([[0.0, 10.0], [0.5, 5.0], [1.0, 0.0]])
    expected = parego_losses(losses, np.random.default_rng(1))
    scaled = parego_losses(losses * [1e6, 1e-3] + 7.0, np.random.default_rng(1))
    assert scaled == pytest.approx(expected)
    for order in permutations(range(3)):
        rows = list(order)
        assert parego_losses(losses[rows], np.random.default_rng(1)) == pytest.approx(expected[rows])


@pytest.mark.parametrize("huge", [1e308, -1e308])
def test_failed_equal_and_huge_rows_are_stood(huge: float) -> None:
    rng = np.random.default_rng(0)
    made = parego_losses(np.array([[1.0, math.nan], [math.inf, 0.0], [-huge, 1.0], [huge, 1.0]]), rng)
    assert made[:2].tolist() == [math.inf, math.inf]
    assert np.isfinite(made[2:]).all()
    assert parego_losses(np.full((2, 2), math.inf), rng).tolist() == [math.inf] * 2
    assert np.ptp(parego_losses(np.ones((3, 2)), rng)) == 0.0
    assert parego_losses(np.empty((0, 2)), rng).shape == (0,)


def test_a_history_of_several_objectives_reads_as_one_of_one() -> None:
    space = SearchSpace(LINE)
    history = History(Problem(space, seed=3, n_objectives=2))
    for trial in range(4):
        history.apply(Observation(trial, {"x": 0.5}, 1, 1.0, losses=(float(trial), 3.0 - trial)))
    first, again, other = (scalarized(history, index) for index in (0, 0, 1))
    assert first.observations == again.observations != other.observations
    assert [seen.trial for seen in first.observations] == [0, 1, 2, 3]
    assert history.observations[0].loss == 1.0
    plain = History(Problem(space))
    assert scalarized(plain, 0) is plain
