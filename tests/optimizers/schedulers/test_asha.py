from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from optimizers.core.base import Optimizer, Problem
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.errors import OptimizerError
from optimizers.registry import make_optimizer
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.samplers.optuna_sampler import OptunaSampler
from optimizers.schedulers.asha import ASHA, BOHB, MOBSTER, HighestRung, Hyperband
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule, Patience
from optimizers.schedulers.successive_halving import BracketScheduler
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
    ("options", "message"),
    [
        ({"eta": 1}, "eta must be an integer of at least 2, got 1"),
        ({"eta": 2.5}, "eta must be an integer of at least 2, got 2.5"),
        ({"eta": 4.0}, "eta must be an integer of at least 2, got 4.0; use 4"),
        ({"eta": 1.0}, "eta must be an integer of at least 2, got 1.0; use 3"),
        ({"min_budget": 0}, "min_budget must be an integer of at least 1, got 0"),
        ({"mode": "hyperband"}, "mode must be 'promotion', 'stopping' or None, got 'hyperband'"),
        ({"mode": "max"}, "mode must be .*, got 'max'; use direction='max'"),
        ({"early_eta": 1}, "early_eta must be a number above 1, got 1"),
        ({"early_eta": math.inf}, "early_eta must be a number above 1, got inf"),
        ({"sampler": "rnd"}, "unknown optimizer 'rnd'"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        ASHA(**options)


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
    assert study.best is not None
    assert study.best.step == 10


@pytest.mark.parametrize("sampler", [PBT(), ASHA(sampler="random"), "pbt", MOBSTER])
def test_a_sampler_with_a_schedule_of_its_own_is_refused(sampler: Any) -> None:
    with pytest.raises(
        OptimizerError, match=rf"sampler must not have a schedule, got {type(make_optimizer(sampler)).__name__}\(\)"
    ):
        ASHA(sampler=sampler)


# -- asha variants --------------------------------------------------------------------------------


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
