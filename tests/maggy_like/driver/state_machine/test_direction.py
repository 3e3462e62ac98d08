"""Which way an objective goes where nobody has said it: settled and told at its first measurement."""

from __future__ import annotations

import pytest
from hand import Hand

from optimizers.core.events import Measured, from_json, to_json
from optimizers.core.study import Study
from optimizers.schedulers.asha import ASHA


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
        ({"direction": "max"}, ["direction='max' maximises 'loss', and its name suggests to minimise it"]),
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
    assert [line.split(":")[0] for line in hand.shown] == ["the objective is maximised"]
