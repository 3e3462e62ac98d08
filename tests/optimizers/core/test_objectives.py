from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizers.core.events import Event, Measured, from_json, to_json
from optimizers.core.objectives import Directions, Objectives
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.errors import UserError
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA
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


def test_a_wrong_direction_or_number_of_them_is_told() -> None:
    with pytest.raises(UserError, match="direction must be 'max' or 'min', got 'up'"):
        Objectives("up")
    with pytest.raises(UserError, match="give one for each"):
        Objectives(["max"], ["accuracy", "latency"])


def test_the_first_report_settles_the_direction_before_anything_is_decided_by_it() -> None:
    study = Study(SPACE, ASHA(sampler="random", eta=2, mode="stopping"), max_budget=2, n_trials=4)
    good, bad = study.ask(), study.ask()
    assert good is not None
    assert bad is not None
    assert study.direction is None
    study.apply(Measured(good.id, 1, "val_loss", {"val_loss": ([1], [0.1])}))
    assert study.direction == "min"
    study.apply(Measured(bad.id, 1, "val_loss", {"val_loss": ([1], [0.9])}))
    assert study.best is good


def test_what_the_record_of_a_measurement_says_stands_before_what_its_name_would_say_today() -> None:
    study = Study(SPACE, RandomSearch(), max_budget=2, n_trials=4)
    trial = study.ask()
    assert trial is not None
    study.apply(Measured(trial.id, 1, "loss", {"loss": ([1], [0.1])}, direction="max"))
    assert study.direction == "max"


def test_the_only_number_that_a_function_returns_has_its_name() -> None:
    for metrics, objective, direction in (({"loss": 0.3}, "loss", "min"), ({}, "value", "max")):
        study = Study(SPACE, RandomSearch(), n_trials=1)
        trial = study.ask()
        assert trial is not None
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
            events += [] if promoted else [creation(live)]
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


def creation(study: Study) -> Event:
    from optimizers.core.events import TrialCreated

    trial = study.trials[-1]
    return TrialCreated(trial.id, trial.config, trial.ask)
