from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from optimizers.core.base import History, Observation, Optimizer, Pending, Problem
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.errors import OptimizerError
from optimizers.registry import make_optimizer
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.samplers.optuna_sampler import OptunaSampler
from optimizers.schedulers.asha import ASHA, BOHB, MOBSTER, HighestRung, Hyperband
from optimizers.schedulers.stopping import MedianRule, Patience
from optimizers.schedulers.successive_halving import BracketScheduler
from optimizers.space import Config
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

LINE = SearchSpace(x=Float(0, 1))


@pytest.mark.parametrize("sampler", ["random", RandomSearch, RandomSearch()])
def test_the_plain_algorithm_is_asha_over_random_search(sampler: Any) -> None:
    optimizer = ASHA(sampler=sampler)
    assert isinstance(optimizer.sampler, RandomSearch)
    assert optimizer.levels(50) == (1, 5, 16, 50)
    assert optimizer.etas((1, 5, 16, 50)) == (3.0,) * 4


def test_early_eta_sets_the_lower_rungs_of_any_sampler() -> None:
    assert ASHA(sampler="random", early_eta=2).etas((1, 5, 16, 50)) == (2.0, 2.0, 3.0, 3.0)
    assert ASHA(early_eta=3).etas((1, 5, 16, 50)) == (3.0,) * 4


def test_eta_sets_the_share_of_the_budget_that_the_model_is_fitted_to() -> None:
    optimizer = ASHA(eta=4, mode="stopping")
    assert isinstance(optimizer.sampler, BayesianSearch)
    assert (optimizer.sampler.n_initial, optimizer.sampler.min_share) == (8, 0.25)
    assert optimizer.levels(81) == (1, 5, 20, 81)


@pytest.mark.parametrize("factory", [ASHA, MOBSTER, Hyperband, BOHB])
def test_the_mode_is_that_which_suits_the_function(factory: type[ASHA]) -> None:
    optimizer = factory()
    for checkpoints, mode in ((True, "promotion"), (False, "stopping")):
        suited = optimizer.suited_to(checkpoints=checkpoints)
        assert isinstance(suited, factory)
        assert suited.mode == mode
        assert f"mode='{mode}'" in suited.describe()
    assert optimizer.mode is None  # the caller's own stays as it is
    given = factory(mode="promotion")
    assert given.suited_to(checkpoints=False) is given


def test_a_rule_passes_on_what_suits_the_function() -> None:
    suited = MedianRule(Patience(ASHA())).suited_to(checkpoints=False)
    assert suited.describe().count("mode='stopping'") == 1


@pytest.mark.parametrize(
    ("max_budget", "min_budget", "levels", "etas"),
    [
        (50, None, (1, 5, 16, 50), (1.5, 1.5, 3.0, 3.0)),
        (1000, None, (37, 111, 333, 1000), (1.5, 1.5, 3.0, 3.0)),
        (50, 5, (5, 16, 50), (1.5, 3.0, 3.0)),
        (50, 16, (16, 50), (3.0, 3.0)),
        (3, None, (1, 3), (3.0, 3.0)),
        (1, None, (1,), (3.0,)),
    ],
)
def test_the_early_rungs_end_the_worst_third(
    max_budget: int, min_budget: int | None, levels: tuple[int, ...], etas: tuple[float, ...]
) -> None:
    optimizer = ASHA(min_budget=min_budget)
    assert optimizer.levels(max_budget) == levels
    assert optimizer.etas(levels) == etas


def test_two_in_three_pass_a_early_rung_and_one_in_three_a_strict_one() -> None:
    study = Study(LINE, ASHA(), max_budget=9, direction="min", seed=0, n_trials=18)
    while (trial := study.ask()) is not None:
        study.tell(trial, trial.config["x"])
    steps = Counter(trial.step for trial in study.trials)
    assert steps == {1: 6, 3: 8, 9: 4}


@pytest.mark.parametrize(
    ("optimizer", "max_budget", "use"),
    [
        (ASHA(min_budget=10), 27, "use min_budget=9 or less"),
        (Hyperband(min_budget=34), 100, "use min_budget=33 or less"),
        (MedianRule(ASHA(eta=4)), 3, "use max_budget=4 or more"),
        (ASHA(min_budget=9), 27, ""),
        (ASHA(), 1, ""),
    ],
)
def test_a_schedule_without_a_rung_below_the_top_says_so(optimizer: Optimizer, max_budget: int, use: str) -> None:
    remarks = optimizer.remarks(Problem(LINE, max_budget=max_budget))
    start = f"no trial stops early, since no rung is below max_budget={max_budget}; "
    assert remarks == ([start + use] if use else [])


def test_a_lowest_rung_above_the_top_is_refused() -> None:
    with pytest.raises(OptimizerError, match="min_budget must be at most max_budget=9, got 10"):
        Study({"x": Float(0, 1)}, ASHA(sampler="random", min_budget=10), max_budget=9)


def test_a_function_that_reports_past_its_rungs_still_climbs_them() -> None:
    """Reports each 5 steps, rungs at 1, 3 and 9: what was reported past a rung stands in it."""
    study = Study({"x": Float(0, 1)}, ASHA(sampler="random"), max_budget=9, n_trials=9)
    while (trial := study.ask()) is not None:
        for step in range(trial.step + 5, trial.budget + 5, 5):
            study.report(trial, step, trial.config["x"])
        study.tell(trial)
    assert study.counts[TrialState.COMPLETED] == 1
    assert study.best.step == 10


def made(name: str) -> ASHA:
    optimizer = make_optimizer(name)
    assert isinstance(optimizer, ASHA)
    return optimizer


@pytest.mark.parametrize(
    ("name", "lowest", "brackets", "sampler"),
    [
        ("asha", 3, 1, BayesianSearch),
        ("mobster", 1, 1, BayesianSearch),
        ("hyperband", 1, 5, RandomSearch),
        ("bohb", 1, 5, HighestRung),
    ],
)
def test_names_stand_for_what_people_know(name: str, lowest: int, brackets: int, sampler: type[Optimizer]) -> None:
    optimizer = made(name)
    assert type(optimizer.sampler) is sampler
    assert optimizer.levels(81)[0] == lowest
    scheduler = optimizer.scheduler(Problem(LINE, max_budget=81))
    assert isinstance(scheduler, BracketScheduler) == (brackets > 1)
    assert len({scheduler.grant(trial).budget for trial in range(300)}) == brackets


def test_an_option_reaches_the_model() -> None:
    sampler = make_optimizer("mobster", n_initial=5).sampler  # type: ignore[attr-defined]
    assert sampler.n_initial == 5
    with pytest.raises(OptimizerError, match="n_initial must be"):
        make_optimizer("mobster", n_initial=0)


def test_bohb_asks_a_density_model() -> None:
    sampler = made("bohb").sampler
    assert isinstance(sampler, HighestRung)
    assert isinstance(sampler.sampler, OptunaSampler)


# -- the model of BOHB: the highest rung with enough results ----------------------------------------


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
