"""Checks of the model, the search and the options of a run, before any row is read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from maggy_like import Choice, Float, Integer
from maggy_like.errors import ConfigError
from maggy_like.ml import TorchEstimator
from maggy_like.ml.estimator.fit import plan_of, space_of
from maggy_like.ml.estimator.objective import make_optimizer
from maggy_like.ml.estimator.param_checks import check_model
from maggy_like.ml.estimator.plan import Data, TrainingPlan


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": None}, "model must be a torch module or a function that returns one, got None"),
        ({"model": nn.Linear(1, 1), "loss": None}, "loss must be given"),
        ({"loss": "crossentrpy"}, "known loss of torch.nn, got 'crossentrpy'"),
    ],
)
def test_what_is_no_model_is_told(given: dict[str, Any], message: str) -> None:
    plan = TrainingPlan(nn.Identity, "cross_entropy", ("x",), ("label",), Data((), (), 120))
    with pytest.raises(ConfigError, match=message):
        check_model(replace(plan, **given))


def checked(**given: Any) -> Any:
    estimator = TorchEstimator(**{"model": lambda hidden=4: nn.Linear(hidden, 3), "loss": "cross_entropy"} | given)
    return space_of(estimator, plan_of(estimator), {})


WRONG_SEARCHES: list[tuple[dict[str, Any], str]] = [
    ({"learningRate": "a"}, "search: learningRate cannot be 'a', of Constant"),
    ({"learningRate": Float(0.0, 0.1)}, "learningRate cannot be 0.0, of Float.*above 0"),
    ({"batchSize": Float(8, 64)}, "batchSize cannot be .*integer"),
    ({"batchSize": [0, 32]}, "batchSize cannot be 0.*at least 1"),
    ({"optimizer": ["adam", "adem"]}, "optimizer cannot be 'adem'.*'adam'"),
    ({"loss": ["cross_entropy", "cross"]}, "loss cannot be 'cross'"),
]


@pytest.mark.parametrize(("search", "message"), WRONG_SEARCHES)
def test_values_that_a_param_does_not_take_are_told(search: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(search=search)


WRONG_OPTIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"metric": "loss"}, "arguments of maggy_like.run, which trains without a search, got 'metric'"),
    ({"search": {"hidden": [4]}}, {"n_trial": 3}, "got 'n_trial'.*did you mean 'n_trials'"),
    (
        {"search": {"hidden": [4]}},
        {"max_budget": 3},
        "must not have 'max_budget', which the Estimator sets; use epochs",
    ),
    ({"search": {"hidden": [4]}}, {"train_best": False}, "must not have train_best=False"),
    ({"search": {"hidden": [4]}}, {"confirm": True}, "must not have 'confirm', .*use the Param confirm"),
    ({"confirm": True}, {}, "confirm must be used with a search"),
    ({"search": {"seed": [1, 2]}, "confirm": True}, {}, "search must not have 'seed' with confirm"),
    ({"search": {"hidden": [4]}, "confirm": "yes"}, {}, "confirm must be True, False or a Confirmation, got 'yes'"),
    ({"search": {"hidden": [4]}}, {"metric": ["loss", "accuracy"]}, "the name of one metric"),
    ({"search": {"hidden": [4]}}, {"metric": "acuracy"}, "'acuracy'.*mean 'accuracy'.*use one of loss, accuracy"),
    (
        {"search": {"hidden": [4]}},
        {"metric": "validation_loss"},
        "metric must be one that epochs report.*validationFraction",
    ),
]


@pytest.mark.parametrize(("given", "options", "message"), WRONG_OPTIONS)
def test_options_that_the_run_does_not_take_are_told(
    given: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(**given, runOptions=options)


def fixed_rate(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


LOSSES: list[tuple[dict[str, Any], list[str], str]] = [
    ({}, ["mse", "huber"], "got 'mse', 'huber', because values of .* be compared; search with each loss by itself"),
    ({"runOptions": {"metric": "accuracy"}}, ["mse", "nll"], "compared; search with each loss by itself"),
    ({}, ["nll", "cross_entropy"], "compared; use runOptions={'metric': 'accuracy'}"),
    ({"validationFraction": 0.5}, ["nll", "bce"], "compared; use runOptions={'metric': 'validation_accuracy'}"),
    ({"runOptions": {"metric": "loss"}}, ["nll", "bce"], "compared; use runOptions={'metric': 'accuracy'}"),
    ({"runOptions": {"metric": "acuracy"}}, ["nll", "bce"], "got 'acuracy' .did you mean 'accuracy'"),
]


@pytest.mark.parametrize(("given", "losses", "message"), LOSSES)
def test_values_of_several_losses_are_not_compared(given: dict[str, Any], losses: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(search={"loss": losses}, **given)


RATES: list[tuple[dict[str, Any], str]] = [
    ({"optimizerParams": {"lr": 0.5}}, "optimizerParams must not have 'lr', got 0.5; use learningRate"),
    ({"search": {"lr": Float(0.1, 1)}}, "search must not have 'lr', which learningRate sets; use learningRate"),
    (
        {"optimizer": fixed_rate, "learningRate": 0.5},
        "optimizer must take lr, the value of learningRate, got <function",
    ),
    ({"optimizer": fixed_rate, "search": {"learningRate": Float(0.1, 1)}}, "optimizer must take lr"),
]


@pytest.mark.parametrize(("given", "message"), RATES)
def test_a_learning_rate_that_would_have_no_effect_is_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(**given)


def test_a_learning_rate_belongs_to_whatever_takes_it() -> None:
    def rate_of(name: str, **given: Any) -> Any:
        estimator = TorchEstimator(**{"model": nn.Linear(1, 1), "loss": "mse", "search": {name: Float(0.1, 1)}} | given)
        plan = plan_of(estimator)
        space_of(estimator, plan, {})
        plan = plan.with_config({name: 0.5})
        return plan.rate, plan.model_params, plan.optimizer_params

    assert rate_of("learningRate", optimizer=partial(torch.optim.SGD, lr=0.1)) == (0.5, {}, {})
    assert rate_of("lr", optimizer=partial(torch.optim.SGD, lr=0.1)) == (None, {}, {"lr": 0.5})
    assert rate_of("lr", model=lambda lr: nn.Linear(1, 1))[1:] == ({"lr": 0.5}, {})


MOMENTUM = Float(0.1, 0.9)
NESTED = {
    "is_fast": Choice([True, False], when={"optimizer": "sgd"}),
    "momentum": Float(0.1, 0.9, when={"is_fast": True}),
}


@pytest.mark.parametrize(
    "search",
    [
        {"optimizer": ["sgd", "rmsprop"], "momentum": MOMENTUM},
        {"optimizer": ["adam", "sgd"], "momentum": Float(0.1, 0.9, when={"optimizer": "sgd"})},
        {"optimizer": ["adam", "sgd", "rmsprop"], "momentum": Float(0.1, 0.9, when={"optimizer": ["sgd", "rmsprop"]})},
        {"optimizer": ["adam", "sgd"], **NESTED},
    ],
)
def test_an_argument_of_some_optimizers_is_searched_with_these(search: dict[str, Any]) -> None:
    estimator = TorchEstimator(model=lambda is_fast=False: nn.Linear(1, 1), loss="mse", search=search)
    plan = plan_of(estimator)
    space = space_of(estimator, plan, {})
    assert space is not None
    random = np.random.default_rng(0)
    for config in (space.sample(random) for _ in range(20)):
        made = plan.with_config(config)
        assert made.optimizer_params.keys() == config.keys() & {"momentum"}
        make_optimizer(made.optimizer, [nn.Parameter(torch.zeros(1))], made.rate, made.optimizer_params)


@pytest.mark.parametrize("default", ["adam", "sgd"])
def test_an_argument_that_a_drawn_optimizer_does_not_take_is_told(default: str) -> None:
    message = (
        r"momentum must be an argument of each optimizer .* got 'adam'; add when={'optimizer': \['sgd'\]} to Float"
    )
    with pytest.raises(ConfigError, match=message):
        checked(optimizer=default, search={"optimizer": ["adam", "sgd"], "momentum": MOMENTUM})
    with pytest.raises(
        ConfigError, match=r"optimizerParams must be arguments of each .* 'momentum', which 'adam' does"
    ):
        checked(optimizer=default, optimizerParams={"momentum": 0.5}, search={"optimizer": ["sgd", "adam"]})
    with pytest.raises(ConfigError, match=r"search must have Params.*got 'momentum'"):
        checked(optimizer=default, search={"optimizer": ["adam", "adamw"], "momentum": MOMENTUM})
    with pytest.raises(ConfigError, match=r"search must have Params.*got 'momentum'"):
        checked(
            optimizer=default,
            search={"optimizer": ["adam", "sgd"], "momentum": Float(0, 1, when={"optimizer": "adam"})},
        )


def test_what_is_right_is_taken() -> None:
    search = {"learningRate": Float(1e-4, 1e-1, log=True), "batchSize": Integer(8, 64), "patience": [None, 3]}
    options = {"metric": "validation_accuracy", "n_trials": 3, "train_best": 5}
    assert checked(search=search, validationFraction=0.2, runOptions=options).names == tuple(search)
    assert checked(search={"loss": ["cross_entropy", "nll"]}, runOptions={"metric": "accuracy"}) is not None
    assert checked(search={"loss": ["mse"]}) is not None
    assert checked(search={"optimizer": ["adam", "sgd"]}, loss=torch.nn.MSELoss()) is not None
