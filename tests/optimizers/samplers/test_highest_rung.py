from __future__ import annotations

import math

from optimizers.core.base import History, Observation, Optimizer, Pending, Problem
from optimizers.schedulers.asha import HighestRung
from optimizers.space import Config
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

LINE = SearchSpace(x=Float(0, 1))  # three results are enough
MODEL = {"x": 0.123}


class Witness(Optimizer):
    """Notes what it is shown."""

    def __init__(self) -> None:
        self.shown: list[History] = []

    def ask(self, index: int, history: History) -> Config:
        self.shown.append(history)
        return MODEL


def result(trial: int, step: int, loss: float = 1.0) -> Observation:
    return Observation(trial, {"x": trial / 100}, step, loss)


def test_one_budget_is_shown_the_highest_with_enough_results() -> None:
    history = History(Problem(LINE, max_budget=9))
    witness = Witness()
    optimizer = HighestRung(witness, random_share=0.0)

    def ask() -> list[tuple[int, int]]:
        """What is shown, as (trial, step); nothing if the model is not asked."""
        witness.shown.clear()
        answer = optimizer.ask(len(history.observations), history)
        assert (answer == MODEL) == bool(witness.shown)
        return [(seen.trial, seen.step) for shown in witness.shown for seen in shown.observations]

    for trial in range(2):
        history.apply(result(trial, 1))
    history.apply(result(2, 1, math.inf))
    assert ask() == []  # two finite ones
    history.apply(result(3, 1))
    assert ask() == [(0, 1), (1, 1), (2, 1), (3, 1)]
    first = witness.shown[0]
    assert first.problem.max_budget == 1
    history.apply(result(0, 3))
    history.apply(result(1, 3))
    history.apply(result(4, 1))
    assert ask() == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]
    assert witness.shown[0] is first  # a cursor into it stays good
    history.apply(result(3, 3))
    history.apply(Pending(9, {"x": 0.9}))
    assert ask() == [(2, 1), (0, 3), (1, 3), (3, 3)]  # and what failed, wherever that was
    assert witness.shown[0].problem.max_budget == 3
    assert witness.shown[0].pending == {9: {"x": 0.9}}
    fresh = Witness()
    HighestRung(fresh, random_share=0.0).ask(0, history)
    assert repr(fresh.shown) == repr(witness.shown)


def test_a_third_is_random_whatever_the_model_says() -> None:
    history = History(Problem(LINE), [result(trial, 1) for trial in range(3)])
    answers = [HighestRung(Witness()).ask(index, history) for index in range(300)]
    assert 70 < sum(answer != MODEL for answer in answers) < 130
