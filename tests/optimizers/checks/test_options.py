"""What optimizers say of their options, and take for integers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from optimizers.core.base import History, Optimizer
from optimizers.errors import OptimizerError
from optimizers.registry import make_optimizer, names
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.non_adaptive import Enumeration, Grid, Sobol
from optimizers.samplers.optuna_sampler import TPE, OptunaSampler
from optimizers.samplers.skopt_search import SkoptSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule, Patience, Threshold
from optimizers.space import Config


class Own(Optimizer):
    """What a user writes: one option under its name, one hidden, one that is not kept."""

    def __init__(self, rate: float = 0.1, table: Any = None, forgotten: int = 0) -> None:
        self.rate = rate
        self._table = table

    def ask(self, index: int, history: History) -> Config:
        return {}


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            ASHA(sampler="random", eta=np.int64(4)),
            "ASHA(eta=4, min_budget=1, mode=None, sampler=RandomSearch(), brackets=1, early_eta=4.0)",
        ),
        (MedianRule(Sobol(), grace=2), "MedianRule(optimizer=Sobol(), grace=2, min_trials=3)"),
        (Enumeration([{"lr": 0.1, "act": "relu"}]), "Enumeration(configs=[{'lr': 0.1, 'act': 'relu'}])"),
        (
            make_optimizer("asha", eta=4),
            "ASHA(eta=4, min_budget=None, mode=None, sampler=BayesianSearch(n_initial=8, min_share=0.25), brackets=1, "
            "early_eta=1.5)",
        ),
        (make_optimizer("mobster"), "MOBSTER(eta=3, min_budget=1, mode=None, n_initial=8)"),
        (Own(table=np.zeros(9)), "Own(rate=0.1, table=ndarray)"),
        (Own(table={2.0, 1.0}), "Own(rate=0.1, table={1.0, 2.0})"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_description_is_what_would_be_typed(made: Optimizer, text: str) -> None:
    assert made.describe() == text


@pytest.mark.parametrize("name", names())
def test_no_description_has_an_address(name: str) -> None:
    assert not re.search("0x[0-9a-f]{4}", MedianRule(make_optimizer(name)).describe())
    assert make_optimizer(name).describe() == make_optimizer(name).describe()


def test_a_function_is_described_by_its_name() -> None:
    def make(seed: int) -> Any: ...

    assert OptunaSampler(make).describe().endswith("make)")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (MedianRule(ASHA(eta=9)), MedianRule(ASHA(eta=3))),
        (ASHA(sampler=BayesianSearch(4)), ASHA(sampler=BayesianSearch(8))),
        (make_optimizer("asha", min_budget=1), make_optimizer("asha")),
        (ASHA(), ASHA(sampler=BayesianSearch(min_share=1 / 3))),
        (make_optimizer("mobster", n_initial=4), make_optimizer("mobster")),
        (make_optimizer("mobster"), make_optimizer("hyperband")),
        (PBT(perturbation=0.2), PBT()),
        (Threshold(step=1, worse_than=0.1, direction="max"), Threshold(step=1, worse_than=0.2, direction="max")),
    ],
)
def test_other_options_make_another_description(one: Optimizer, other: Optimizer) -> None:
    assert one.describe() != other.describe()


INTEGERS: list[tuple[str, Callable[[Any], Optimizer]]] = [
    ("eta", lambda n: ASHA(eta=n)),
    ("brackets", lambda n: ASHA(brackets=n)),
    ("min_budget", lambda n: ASHA(min_budget=n)),
    ("min_budget", lambda n: make_optimizer("asha", min_budget=n)),
    ("min_budget", lambda n: make_optimizer("mobster", min_budget=n)),
    ("population", lambda n: PBT(population=n, quantile=0.5)),
    ("interval", lambda n: PBT(interval=n)),
    ("n_initial", lambda n: BayesianSearch(n)),
    ("n_initial", lambda n: SkoptSearch(n)),
    ("resolution", lambda n: Grid(n)),
    ("patience", lambda n: Patience(patience=n)),
    ("min_trials", lambda n: MedianRule(min_trials=n)),
    ("n_startup_trials", lambda n: TPE(n_startup_trials=n)),
    ("n_ei_candidates", lambda n: TPE(n_ei_candidates=n)),
]


@pytest.mark.parametrize(("name", "make"), INTEGERS)
def test_any_integer_is_taken_and_nothing_else(name: str, make: Callable[[Any], Optimizer]) -> None:
    assert make(np.int64(3)).describe() == make(3).describe()
    for wrong in (0, -1, True, 2.5, "3", np.float64(3)):
        with pytest.raises(
            OptimizerError, match=rf"{name} must be an integer of at least [12], got {re.escape(repr(wrong))}"
        ):
            make(wrong)
