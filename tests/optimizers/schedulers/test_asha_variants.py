from __future__ import annotations

import pytest

from optimizers.core.base import Optimizer, Problem
from optimizers.errors import OptimizerError
from optimizers.registry import make_optimizer
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.samplers.optuna_sampler import OptunaSampler
from optimizers.schedulers.asha import ASHA, HighestRung
from optimizers.schedulers.successive_halving import BracketScheduler
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

LINE = SearchSpace(x=Float(0, 1))


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
