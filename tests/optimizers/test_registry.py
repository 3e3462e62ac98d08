from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import maggy_like
import optimizers
from optimizers import registry
from optimizers.core.base import Decision, History, Optimizer
from optimizers.core.study import Study
from optimizers.errors import OptimizerError
from optimizers.registry import make_optimizer, names, register
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.non_adaptive import Enumeration, Grid, RandomSearch, Sobol
from optimizers.samplers.optuna_sampler import TPE, OptunaSampler
from optimizers.samplers.skopt_search import SkoptSearch
from optimizers.schedulers.asha import ASHA, BOHB, MOBSTER, Hyperband
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule, Threshold
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
        ("ahsa", {}, r"\(did you mean 'asha'\?\)"),
        ("gird", {}, r"\(did you mean 'grid'\?\)"),
        ("randm", {}, r"\(did you mean 'random'\?\)"),
        ("bayes", {}, r"\(did you mean 'bayesian'\?\)"),
        ("asha", {"reduction_factor": 3}, r"no option 'reduction_factor' \(did you mean 'eta'\?\)"),
        *(  # an optimizer of weights is not taken for a typo
            (name, {}, rf"unknown optimizer '{name}'; use one of random, grid")
            for name in ("adam", "AdamW", "RAdam", "NAdam", "sgd", "rmsprop", "adagrad", "lbfgs")
        ),
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


MODELS = {"bayesian", "asha", "mobster", "bohb", "skopt", "tpe"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.conformance if name in MODELS else []) for name in CLASSES]
)
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
    study = Study(space, optimizer, direction="min", seed=7, max_budget=20, n_trials=17)
    while (trial := study.ask()) is not None:
        for step in range(trial.step + 1, trial.budget + 1):
            if study.report(trial, step, trial.config["x"] + trial.config["n"] / step) is Decision.STOP:
                break
        else:
            study.tell(trial)
    return [(trial.config, trial.budget, trial.state, trial.value) for trial in study.trials]


# -- how an optimizer is described ------------------------------------------------------------------


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
