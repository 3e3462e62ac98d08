from __future__ import annotations

from typing import Any

import pytest

import maggy_like
import optimizers
from optimizers import registry
from optimizers.core.base import Decision, History, Optimizer
from optimizers.core.study import Study
from optimizers.errors import OptimizerError
from optimizers.registry import make_optimizer, names, register
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.non_adaptive import Grid, RandomSearch, Sobol
from optimizers.samplers.optuna_sampler import TPE
from optimizers.samplers.skopt_search import SkoptSearch
from optimizers.schedulers.asha import ASHA, BOHB, MOBSTER, Hyperband
from optimizers.schedulers.population import PBT
from optimizers.space import Config
from optimizers.space.domains import Float, Integer


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
    with pytest.raises(OptimizerError, match="factory must be a class or a function, got"):
        register("made", Fixed(1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("asah", {}, "unknown optimizer 'asah' .did you mean 'asha'.*random, grid, sobol, bayesian, asha"),
        ("Sobol", {}, "did you mean 'sobol'"),
        ("asha", {"etta": 3}, "'asha' has no option 'etta' .did you mean 'eta'.*it takes eta, min_budget"),
        ("random", {"seed": 3}, "no option 'seed'; it takes no options"),
        (Fixed, {"name": "y"}, "'Fixed': missing a required argument: 'value'; it takes value, name"),
        (ASHA(), {"eta": 3}, r"options must be passed when the ASHA is created, got \['eta'\] later"),
        (3, {}, "a name, an optimizer or its class, got 3"),
        (dict, {}, "an optimizer or its class, got <class 'dict'>"),
        (lambda: 3, {}, "must return an Optimizer, got 3"),
    ],
)
def test_mistakes_name_the_remedy(spec: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        make_optimizer(spec, **options)


CLASSES: dict[str, type[Optimizer]] = {
    "random": RandomSearch,
    "grid": Grid,
    "sobol": Sobol,
    "bayesian": BayesianSearch,
    "asha": ASHA,
    "mobster": MOBSTER,
    "hyperband": Hyperband,
    "bohb": BOHB,
    "pbt": PBT,
    "skopt": SkoptSearch,
    "tpe": TPE,
}


def test_each_name_has_a_public_class() -> None:
    assert tuple(CLASSES) == names()
    for kind in CLASSES.values():
        assert kind.__name__ in optimizers.__all__
        assert getattr(maggy_like, kind.__name__) is kind


@pytest.mark.parametrize("name", CLASSES)
def test_a_name_means_what_its_class_means(name: str) -> None:
    """The same proposals, grants and decisions for the same seed, whichever form of training is asked for."""
    pair = both(name)
    assert run(pair[0].suited_to(checkpoints=True)) == run(pair[1].suited_to(checkpoints=True))
    pair = both(name)
    by_name, by_class = (made.suited_to(checkpoints=False) for made in pair)
    if (by_name, by_class) == pair:  # it has one form alone
        return
    assert run(by_name) == run(by_class)


def both(name: str) -> tuple[Optimizer, Optimizer]:
    by_name, by_class = make_optimizer(name), CLASSES[name]()
    assert type(by_name) is type(by_class)
    assert by_name.describe() == by_class.describe()
    return by_name, by_class


def run(optimizer: Optimizer) -> list[tuple[Any, ...]]:
    """Search one trial at a time."""
    space = {"x": Float(0.01, 1, log=True), "n": Integer(1, 9), "act": ["relu", "gelu"]}
    study = Study(space, optimizer, direction="min", seed=7, max_budget=20, n_trials=20)
    while (trial := study.ask()) is not None:
        for step in range(trial.step + 1, trial.budget + 1):
            if study.report(trial, step, trial.config["x"] + trial.config["n"] / step) is Decision.STOP:
                break
        else:
            study.tell(trial)
    return [(trial.config, trial.budget, trial.state, trial.value) for trial in study.trials]


@pytest.mark.parametrize("name", ["adam", "AdamW", "RAdam", "NAdam", "sgd", "rmsprop", "adagrad", "lbfgs"])
def test_an_optimizer_of_weights_is_not_taken_for_a_typo(name: str) -> None:
    with pytest.raises(OptimizerError, match=rf"unknown optimizer '{name}'; use one of random, grid"):
        make_optimizer(name)


@pytest.mark.parametrize(
    ("name", "near"), [("ahsa", "asha"), ("gird", "grid"), ("randm", "random"), ("bayes", "bayesian")]
)
def test_a_typo_in_an_optimizers_name_is_guessed(name: str, near: str) -> None:
    with pytest.raises(OptimizerError, match=rf"\(did you mean '{near}'\?\)"):
        make_optimizer(name)


def test_an_option_of_another_library_is_guessed() -> None:
    with pytest.raises(OptimizerError, match=r"no option 'reduction_factor' \(did you mean 'eta'\?\)"):
        make_optimizer("asha", reduction_factor=3)
