"""Which way an objective goes where nobody has said it: settled and told at its first measurement."""

from __future__ import annotations

from typing import Any

import pytest
from hand import Hand

from maggy_like.driver.settings import TrainingSettings
from maggy_like.errors import ConfigError, OptimizerError
from optimizers.core.events import Measured, from_json, to_json
from optimizers.core.study import Study
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.stopping import Threshold


def measurements(hand: Hand) -> list[Measured]:
    return [event for event in hand.events if isinstance(event, Measured)]


def test_the_first_report_says_it_in_the_journal_and_a_resumed_run_knows() -> None:
    hand = Hand(ASHA(sampler="random", eta=2), metric="loss").start()
    first, second = hand.join(0), hand.join(1)
    assert hand.study.direction is None
    hand.report(first, 1, 0.5)
    hand.report(second, 1, 0.4)
    assert [event.direction for event in measurements(hand)] == ["min", None]
    assert hand.study.best is hand.study.trials[1]
    assert hand.shown == []  # the display's headline says it
    again = Study(hand.study.problem.space, ASHA(sampler="random", eta=2), max_budget=9, n_trials=4)
    for event in hand.events:
        again.apply(from_json(to_json(event)))
    assert (again.direction, again.best and again.best.id) == ("min", 1)


@pytest.mark.parametrize(
    ("study", "expected"),
    [
        ({"direction": "max"}, ["direction='max' maximizes 'loss', and its name suggests to minimize it"]),
        ({"direction": "min"}, []),
        ({"objectives": ["loss"]}, []),  # told before the search, if there is anything to tell
    ],
)
def test_what_is_told_is_told_once(study: dict[str, object], expected: list[str]) -> None:
    hand = Hand(study=study, metric="loss").start()
    first, second = hand.join(0), hand.join(1)
    for step in (1, 2):
        hand.report(first, step, 0.5)
        hand.report(second, step, 0.4)
    assert [line.split(";")[0] for line in hand.shown] == expected


def test_a_value_that_is_merely_returned_has_no_name_and_is_to_be_large() -> None:
    hand = Hand().start()
    hand.finish(hand.join(0), 0.5)
    assert hand.study.direction == "max"
    assert [line.split(":")[0] for line in hand.shown] == ["the objective is maximized"]


def test_a_returned_value_names_the_objective_of_the_display_and_of_later_trials() -> None:
    hand = Hand().start()
    worker = hand.join(0)
    hand.finish(worker, 0.5, metrics={"loss": 0.5})
    assert (hand.machine.objective, hand.study.direction) == ("loss", "min")
    assert hand.assigned(worker).objective == "loss"
    again = Hand()
    again.machine.replay(hand.events)
    again.start()
    assert again.machine.objective == "loss"


def test_a_returned_number_names_nothing_so_that_later_trials_may_report() -> None:
    hand = Hand(metric="accuracy").start()
    worker = hand.join(0)
    hand.finish(worker, 0.5)
    assert hand.machine.objective is None
    again = Hand(metric="accuracy")
    again.machine.replay(hand.events)
    again.start()
    assert again.machine.objective is None
    hand.report(worker, 1, 0.5)
    assert hand.machine.objective == "accuracy"


@pytest.mark.parametrize("returns", [False, True])
def test_a_first_report_that_contradicts_itself_ends_the_search_before_it_counts(returns: bool) -> None:
    hand = Hand(metric="accuracy_drop").start()
    worker = hand.join(0)
    if returns:
        hand.finish(worker, 0.5, metrics={"accuracy_drop": 0.5})
    else:
        hand.report(worker, 1, 0.5, awaiting=True)
        hand.finish(worker, outcome="stopped")
    assert isinstance(hand.machine.error, ConfigError)
    assert "direction must be given for 'accuracy_drop', since 'accuracy' and 'drop' contradict each other" in str(
        hand.machine.error
    )
    assert measurements(hand) == []
    assert hand.states() == ["pending"]
    again = Hand(study={"direction": "min"}, metric="accuracy_drop")
    again.machine.replay(hand.events)
    again.start()
    again.report(again.join(0), 1, 0.5)
    assert [event.direction for event in measurements(again)] == ["min"]  # a reader of the journal knows it too


@pytest.mark.parametrize("returns", [False, True])
def test_a_first_report_that_contradicts_a_rule_s_direction_ends_the_search_before_it_counts(returns: bool) -> None:
    rule = Threshold(step=1, worse_than=0.2, direction="max")
    hand = Hand(rule, metric="loss").start()
    worker = hand.join(0)
    if returns:
        hand.finish(worker, 0.5, metrics={"loss": 0.5})
    else:
        hand.report(worker, 1, 0.5, awaiting=True)
        hand.finish(worker, outcome="stopped")
    assert isinstance(hand.machine.error, OptimizerError)
    assert "contradicts the search, which has direction='min'" in str(hand.machine.error)
    assert measurements(hand) == []
    suited = Hand(rule, metric="accuracy").start()
    suited.report(suited.join(0), 1, 0.5)
    assert suited.machine.error is None
    assert len(measurements(suited)) == 1


def test_a_training_alone_needs_no_direction() -> None:
    hand = Hand(n_trials=0, metric="accuracy_drop", workers=1, training=TrainingSettings(9, {"x": 0.5})).start()
    hand.report(hand.join(0), 1, 0.5)
    assert hand.machine.error is None
    assert len(measurements(hand)) == 1


def test_a_loss_that_is_always_below_zero_is_told_once_with_the_first_result() -> None:
    hand = Hand(metric="loss", guessed=True).start()
    first, second = hand.join(0), hand.join(1)
    hand.report(first, 1, -0.5)
    hand.report(second, 1, -0.5)
    assert hand.shown == []
    hand.finish(first, -0.4, metrics={"loss": -0.4})
    hand.finish(second, -0.4, metrics={"loss": -0.4})
    signs = [line.split(":")[0] for line in hand.shown if "minimized" in line]
    assert signs == ["'loss' is minimized, and all its values so far are below 0"]
    resumed = Hand(metric="loss", guessed=True)
    resumed.machine.replay(hand.events)
    resumed.start()
    resumed.finish(resumed.join(0), -0.4, metrics={"loss": -0.4})
    assert resumed.shown == []


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"metric": "loss", "guessed": True}, 0.4),
        ({"metric": "score", "guessed": True}, -0.4),
        ({"metric": "loss", "study": {"direction": "min"}}, -0.4),
    ],
    ids=["above zero", "not a loss", "the direction was given"],
)
def test_other_values_are_no_surprise(options: Any, value: float) -> None:
    hand = Hand(**options).start()
    worker = hand.join(0)
    hand.report(worker, 1, value)
    hand.finish(worker, value)
    assert hand.shown == []
