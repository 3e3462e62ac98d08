from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from optimizers.core.base import Observation
from optimizers.core.events import Event, Measured, TrialCreated, from_json, to_json
from optimizers.core.objectives import Directions, Objectives, ParetoFront, dominates
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.errors import OptimizerError, UserError
from optimizers.samplers.non_adaptive import Grid, RandomSearch, Sobol
from optimizers.samplers.skopt_search import SkoptSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule
from optimizers.space.domains import Float

SPACE = {"x": Float(0, 1)}


@pytest.mark.parametrize(
    ("direction", "names", "expected"),
    [
        (None, ("loss",), ("min",)),
        (None, ("accuracy",), ("max",)),
        (None, ("wobble",), ("max",)),
        (None, ("accuracy", "latency", "size"), ("max", "min", "max")),
        ("max", ("loss",), ("max",)),
        ("minimize", ("accuracy",), ("min",)),
        ("maximize", (), ("max",)),
        (["min", None], ("size", "error"), ("min", "min")),
    ],
)
def test_directions_are_those_given_or_what_the_names_say(
    direction: Directions, names: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    objectives = Objectives(direction, names)
    assert objectives.directions == expected
    assert not objectives.is_open


def test_without_a_name_and_a_direction_the_first_word_on_it_stands() -> None:
    objectives = Objectives()
    assert objectives.is_open
    objectives.settle("min")
    objectives.settle("max")
    assert (objectives.is_open, objectives.directions, objectives.loss(0.25)) == (False, ("min",), 0.25)


def test_the_first_report_settles_the_direction_before_anything_is_decided_by_it() -> None:
    study = Study(SPACE, ASHA(sampler="random", eta=2, mode="stopping"), max_budget=2, n_trials=4)
    good, bad = study.ask(), study.ask()
    assert study.direction is None
    study.apply(Measured(good.id, 1, "val_loss", {"val_loss": ([1], [0.1])}))
    assert study.direction == "min"
    study.apply(Measured(bad.id, 1, "val_loss", {"val_loss": ([1], [0.9])}))
    assert study.best is good


def test_what_the_record_of_a_measurement_says_stands_before_what_its_name_would_say_today() -> None:
    study = Study(SPACE, RandomSearch(), max_budget=2, n_trials=4)
    trial = study.ask()
    study.apply(Measured(trial.id, 1, "loss", {"loss": ([1], [0.1])}, direction="max"))
    assert study.direction == "max"


def test_the_only_number_that_a_function_returns_has_its_name() -> None:
    for metrics, objective, direction in (({"loss": 0.3}, "loss", "min"), ({}, "value", "max")):
        study = Study(SPACE, RandomSearch(), n_trials=1)
        trial = study.ask()
        for event in study.conclude(trial, 0.3, metrics, 0.0):
            study.apply(event)
        assert (trial.objective, study.direction, trial.value_step) == (objective, direction, None)


@given(
    name=st.sampled_from(["loss", "accuracy", "wobble", "value"]),
    direction=st.sampled_from([None, "min", "maximize"]),
    draw=st.randoms(use_true_random=False),
)
def test_replay_gives_the_same_direction(name: str, direction: str | None, draw: random.Random) -> None:
    """Whatever ends, and whenever the first report comes."""
    options: dict[str, Any] = {"direction": direction, "max_budget": 4, "n_trials": 6}
    live, events = Study(SPACE, ASHA(sampler="random", eta=2), **options), list[Event]()

    def apply(event: Event) -> None:
        settled = live.settled(name) if isinstance(event, Measured) else None
        if isinstance(event, Measured) and draw.random() < 0.5:  # a journal that lost the record that says it
            event = Measured(event.trial, event.attempt, event.objective, event.columns, direction=settled)
        live.apply(event)
        events.append(event)

    running = []
    for _ in range(20):
        if (promoted := live.next_promotion()) is not None or len(live.trials) < 6:
            trial = promoted or live._new_trial()
            assert trial is not None
            events += [] if promoted else [TrialCreated(trial.id, trial.config, trial.ask)]
            apply(live.started(trial, 0, 0.0))
            running.append(trial)
        trial = draw.choice(running)
        if trial.state is not TrialState.RUNNING:
            continue
        if draw.random() < 0.2:
            for event in live.conclude(trial, draw.random() if draw.random() < 0.5 else None, {}, 0.0):
                apply(event)
        elif trial.step < trial.budget:
            step = trial.step + 1
            apply(Measured(trial.id, trial.attempt, name, {name: ([step], [draw.random()])}))
    replayed = Study(SPACE, ASHA(sampler="random", eta=2), **options)
    for event in events:
        replayed.apply(from_json(to_json(event)))
    assert (replayed.direction, replayed.objectives.is_open) == (live.direction, live.objectives.is_open)
    assert (replayed.best and replayed.best.id) == (live.best and live.best.id)
    assert repr(replayed.trials) == repr(live.trials)


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
    return Study(SPACE, optimizer or RandomSearch(), **options)


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
    seen = study.history.observations
    assert [observation.losses for observation in seen[:2]] == [(-0.9, 5.0), (-0.8, 1.0)]
    assert [observation.loss for observation in seen[:2]] == [-0.9, -0.8]
    assert seen[4].losses == (math.inf, 0.1)
    assert seen[5].losses == (math.inf, math.inf)


def test_the_first_trial_is_the_best_of_an_earlier_search_in_the_first_objective_that_nobody_dominates() -> None:
    results = [(0.5, -0.9, math.inf), (0.6, -0.8, 5.0), (0.7, -0.8, 4.0), (0.8, -0.7, 1.0)]
    earlier = [Observation(n, {"x": x}, 1, a, losses=(a, b)) for n, (x, a, b) in enumerate(results)]
    assert study_of(earlier=[earlier]).ask().config == {"x": 0.7}
    assert study_of(earlier=[earlier[:1]]).points == ()


def test_in_a_study_of_one_objective_there_are_no_losses_but_the_one() -> None:
    study = Study(SPACE, RandomSearch(), n_trials=1)
    trial = study.ask()
    study.tell(trial, 0.5)
    assert study.pareto == []
    assert trial.values == ()
    assert study.history.observations == [Observation(0, trial.config, 1, -0.5)]


def test_a_value_that_is_missing_fails_the_trial_and_is_named() -> None:
    study = study_of()
    trial = study.ask()
    with pytest.raises(UserError, match=r"value must have 2 numbers, one for each objective, got 0\.5"):
        study.tell(trial, 0.5)
    for event in study.conclude(trial, 0.5, {}, 0.0):  # as a training function ends that returns one number
        study.apply(event)
    assert trial.state is TrialState.FAILED
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
        (
            {"direction": ["max"]},
            r"objectives \['accuracy', 'latency'\] need as many directions, got \['max'\]; give one for each",
        ),
        ({"direction": "up", "objectives": ["accuracy"]}, "direction must be 'max' or 'min', got 'up'"),
        ({"direction": ["max", "down"]}, "direction must be 'max' or 'min', got 'down'"),
    ],
)
def test_directions_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        study_of(**options)
