from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

from maggy_like import ablate
from maggy_like.ablation import AblationStudy
from maggy_like.ablation.search import check_sendable
from maggy_like.ablation.variant import check_filled
from maggy_like.errors import ConfigError, TrainFunctionError, UserError


def make(width: int = 4, decay: float = 0.1) -> nn.Module:
    return nn.Linear(width, 1)


async def waits(seed: int, decay: float) -> float:
    return decay


def decayed(**arguments: Any) -> AblationStudy:
    study = AblationStudy(**{"config": {"decay": 0.1}, **arguments})
    return study.custom("weight decay", lambda variant: variant.changed(config={"decay": 0.0}))


def columned(**arguments: Any) -> AblationStudy:
    return AblationStudy(data=["a", "b"], **arguments).features("a")


# -- what a component changes -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("study", "function"),
    [
        (decayed(), lambda seed, decay: 0),
        (decayed(), lambda seed, config: 0),
        (decayed(), lambda **config: 0),
        (decayed(model=make), lambda seed, model: 0),
        (decayed(model=lambda **config: 0), lambda seed, model: 0),
        (AblationStudy().custom("early stopping", lambda variant: variant), lambda seed, variant: 0),
        (columned(), lambda features, **config: 0),
        (AblationStudy(model=lambda: nn.Sequential(make())).modules("0"), lambda seed, model: 0),
    ],
)
def test_a_function_that_gets_what_changes_will_do(study: AblationStudy, function: Any) -> None:
    study.bound(function)


@pytest.mark.parametrize(
    ("study", "function", "message"),
    [
        (
            columned(),
            lambda seed, **config: 0,
            "'a' changes, got nothing; add one of the parameters variant, features, n_features",
        ),
        (
            columned(),
            lambda config: 0,
            "'a' changes, got nothing; add one of the parameters variant, features, n_features",
        ),
        (
            columned(),
            lambda seed, **features: 0,
            "'a' changes, got nothing; add one of the parameters variant, features",
        ),
        (decayed(), lambda seed: 0, "'weight decay' changes, got nothing; add one of the parameters variant, decay$"),
        (
            decayed(model=make),
            lambda seed: 0,
            "'weight decay' changes, got nothing; add one of the parameters variant, model, decay$",
        ),
        (
            AblationStudy().custom("c", lambda variant: variant.changed(data=lambda table: table)),
            lambda seed, **config: 0,
            "removing 'c' changes, got nothing; add the parameter variant$",
        ),
        (
            AblationStudy(model=make).custom("c", lambda variant: variant.changed(model=lambda model: model)),
            lambda seed, decay=0.1, **config: 0,
            "removing 'c' changes, got nothing; add one of the parameters variant, model$",
        ),
    ],
)
def test_a_function_that_gets_nothing_of_it_is_told(study: AblationStudy, function: Any, message: str) -> None:
    with pytest.raises(TrainFunctionError, match=message):
        study.bound(function)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (waits, r"waits is an async function.*asyncio.run\(waits"),
        (lambda seed, decay: (yield), "has a yield, so it is a generator"),
    ],
)
def test_a_function_that_does_not_train_when_it_is_called_is_told(function: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(TrainFunctionError, match=message):
        ablate(function, decayed(), engine="inline", directory=tmp_path, progress=False)


# -- what uses a parameter --------------------------------------------------------------------------
@pytest.mark.parametrize(
    "function",
    [
        lambda seed, features, variant: 0,
        lambda config, features: 0,
        lambda features, **config: 0,
        lambda seed, features, widht: 0,
    ],
)
def test_a_parameter_may_be_used_in_many_ways(function: Any) -> None:
    columned(config={"widht": 8}).bound(function)


def test_the_factory_and_the_sample_use_parameters_too() -> None:
    def sample(length: int) -> torch.Tensor:
        return torch.zeros(length, 4)

    study = columned(model=make, sample=sample, config={"length": 3, "width": 4})
    study.bound(lambda seed, model, features: 0)
    columned(model=lambda **config: make(**config), config={"width": 4}).bound(lambda seed, model, features: 0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda seed, features, width: 0,
            r"the parameter 'widht' must be used.* \(did you mean 'width'\?\).*remove it",
        ),
        (
            lambda seed, features, model: 0,
            r"'widht' must be used.*\(did you mean 'width'\?\).*or to the model's factory, or remove",
        ),
    ],
)
def test_a_parameter_that_nothing_takes_is_told(function: Any, message: str) -> None:
    with pytest.raises(TrainFunctionError, match=message):
        columned(model=make, config={"widht": 8}).bound(function)


def test_a_factory_that_is_never_called_is_told() -> None:
    study = AblationStudy(model=make).config(decay=0.0)
    with pytest.raises(TrainFunctionError, match=r"only the model's factory takes the parameter 'decay'; add one"):
        study.bound(lambda seed: 0)


@pytest.mark.parametrize("value", [(64, 64), [64], nn.ReLU, np.ones(2), pandas.DataFrame({"a": [1]}), float("inf")])
def test_a_value_that_no_trial_may_have_is_told_by_name(value: Any) -> None:
    kind = type(value).__name__
    for study in (columned(config={"given": value}), AblationStudy(config={"given": 0}).config(given=value)):
        with pytest.raises(ConfigError, match=rf"the parameter 'given' .* must be a bool, .* got a {kind}.*load data"):
            study.bound(lambda seed, variant, given: 0)
        study.bound(lambda seed, variant: 0)


# -- what is filled ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("study", "function", "message"),
    [
        (
            columned(),
            lambda model, features, seed: 0,
            r"'model' of <lambda> must have a value, got none; the study must have a model",
        ),
        (
            decayed(),
            lambda features, decay, seed: 0,
            "'features' of <lambda> must have a value, got none; the study must have data",
        ),
        (
            decayed(),
            lambda n_features, decay, seed: 0,
            "'n_features' of <lambda> must have a value, got none; the study must have data",
        ),
        (decayed(), lambda rate, decay, seed: 0, r"'rate' of <lambda>.*AblationStudy\(config=\{'rate': ...\}\)"),
    ],
)
def test_a_parameter_that_the_study_cannot_fill_is_told(study: AblationStudy, function: Any, message: str) -> None:
    bound = study.bound(function)
    with pytest.raises(TrainFunctionError, match=f"the parameter {message}"):
        check_filled(function, bound.without(), bound.taken or (), ())


@pytest.mark.parametrize(
    "function",
    [
        lambda decay, seed, model=None, features=(), n_features=30: 0,
        lambda decay, seed, *rest, reporter, budget, variant, **more: 0,
    ],
)
def test_what_has_a_default_or_comes_from_the_runtime_is_filled(function: Any) -> None:
    bound = decayed().bound(function)
    check_filled(function, bound.without(), bound.taken or (), ())
    assert not {"model", "features", "n_features"} & set(bound.without().fills)


def test_a_name_that_is_searched_must_be_taken() -> None:
    with pytest.raises(UserError, match=r"must have the parameter 'lrr' \(did you mean 'lr'\?\); add it"):
        check_filled(lambda seed, variant, lr=0.1: 0, decayed().without(), (), ["lrr"])


# -- what cannot be sent to the workers is named ----------------------------------------------------


LOCK = threading.Lock()


def make_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2))


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock = LOCK


UNSENDABLE = {
    "factory": (
        AblationStudy(model=lambda: (LOCK, make_layers())[1]).config(a=0),
        "model's factory uses the global 'LOCK'",
    ),
    "config": (AblationStudy(config={"lock": LOCK}).config(a=0), "the value of 'lock' in the study's config cannot"),
    "setting": (AblationStudy(config={"b": 1}).config(b=LOCK), "the value of 'b' without 'b' cannot"),
    "module": (
        AblationStudy(model=make_layers).modules(lin="0", replace=Locked()),
        "replacement of 'lin' uses .* 'lock'",
    ),
    "replacing": (
        AblationStudy(model=make_layers).modules(lin="0", replace=lambda module: (LOCK, module)[1]),
        "the replacement of 'lin' uses the global 'LOCK' of type lock",
    ),
    "model": (
        AblationStudy(model=make_layers).custom(
            "bias", lambda variant: variant.changed(model=lambda model: (LOCK, model)[1])
        ),
        "the change of 'bias' uses the global 'LOCK'",
    ),
    "data": (
        AblationStudy().custom("rows", lambda variant: variant.changed(data=lambda table, lock=LOCK: table)),
        "the change of 'rows' uses the default 'lock'",
    ),
    "changed": (
        AblationStudy(config={"b": 1}).custom("b off", lambda variant: variant.changed(config={"b": LOCK})),
        "the value of 'b' without 'b off' cannot",
    ),
}  # fmt: skip


def train_anything(variant: Any, seed: int, a: int = 1) -> float:
    return 0.0


@pytest.mark.parametrize("case", UNSENDABLE)
def test_the_part_that_cannot_be_sent_is_named(case: str) -> None:
    study, message = UNSENDABLE[case]
    with pytest.raises(TrainFunctionError, match=message):
        check_sendable(study.bound(train_anything))


def test_what_can_be_sent_passes() -> None:
    study = AblationStudy(model=make_layers, config={"f": lambda x: x}).modules("0", replace=lambda module: nn.ReLU())
    check_sendable(study.config(a=0).bound(train_anything))
