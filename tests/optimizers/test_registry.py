from __future__ import annotations

from typing import Any

import pytest

from optimizers import registry
from optimizers.core.base import History, Optimizer
from optimizers.errors import OptimizerError
from optimizers.registry import make_optimizer, names, register
from optimizers.samplers.grid import Grid
from optimizers.samplers.random_search import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.space.config import Config


class Fixed(Optimizer):
    def __init__(self, value: float, *, name: str = "x") -> None:
        self.value = value
        self.name = name

    def ask(self, index: int, history: History) -> Config:
        return {self.name: self.value}


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def test_names_classes_factories_and_instances() -> None:
    made = make_optimizer("grid", resolution=3)
    assert isinstance(made, Grid)
    assert made.resolution == 3
    assert isinstance(make_optimizer(RandomSearch), RandomSearch)
    assert make_optimizer(made) is made
    assert isinstance(make_optimizer(lambda: Fixed(1.0)), Fixed)
    assert {"random", "grid", "sobol", "asha", "skopt"} <= set(names())
    assert all(isinstance(make_optimizer(name), Optimizer) for name in names())


def test_own_names_may_be_given_anew_but_built_in_ones_not() -> None:
    register("fixed", Fixed)
    register("fixed", lambda: Fixed(2.0))
    made = make_optimizer("fixed")
    assert isinstance(made, Fixed)
    assert made.value == 2.0
    assert names()[-1] == "fixed"
    with pytest.raises(OptimizerError, match="'asha' is built in"):
        register("asha", Fixed)
    with pytest.raises(OptimizerError, match="use a class"):
        register("made", Fixed(1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("asah", {}, "unknown optimizer 'asah' .did you mean 'asha'.*random, grid, sobol, bayesian, asha"),
        ("Sobol", {}, "did you mean 'sobol'"),
        ("asha", {"etta": 3}, "'asha' has no option 'etta' .did you mean 'eta'.*it takes eta, min_budget"),
        ("random", {"seed": 3}, "no option 'seed'; it takes no options"),
        (Fixed, {"name": "y"}, "'Fixed': missing a required argument: 'value'; it takes value, name"),
        (ASHA(), {"eta": 3}, r"options \['eta'\] come too late for a ASHA"),
        (3, {}, "a name, an optimizer or its class, got 3"),
        (dict, {}, "an optimizer or its class, got <class 'dict'>"),
        (lambda: 3, {}, "makes 3, which is no Optimizer"),
    ],
)
def test_mistakes_name_the_mend(spec: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        make_optimizer(spec, **options)
