"""An ablation as a search."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from torch import nn

from maggy_like.ablation import AblationStudy
from maggy_like.ablation.search import AblatedFunction, AblationSearch, plan_ablation
from maggy_like.errors import ConfigError
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace

FRESH = """
import sys
from maggy_like.ablation import AblationStudy, Design
from maggy_like.ablation.search import AblatedFunction

class Reporter:
    budget = 1

variant = AblationStudy(model=lambda a: a, config={"a": 3}).config(a=4).without()
function = AblatedFunction(lambda model, seed: model + seed, Design("leave_one_out", (variant,), (), {}, ()))
assert function(Reporter(), variant="base", seed=5) == 8
assert "torch" not in sys.modules
"""


def train(variant: Any, seed: int, dropout: float = 0.5, lr: float = 0.1) -> float:
    return 0.0


def plan(study: AblationStudy | None = None, **options: Any) -> AblationSearch:
    defaults = {"design": "leave_one_out", "repeats": 2, "first_seed": 0}
    return plan_ablation(train, study or AblationStudy().config(dropout=0.0), **{**defaults, **options})


def test_numbers_may_be_numpy_s() -> None:
    assert plan(repeats=np.int64(3)).n_trials == 2 * 3
    searched = SearchSpace({"lr": Float(0, 1)})
    assert plan(repeats=np.int32(3), searched=searched, n_configs=4).n_trials == 2 * 3 * (4 + 1)


@pytest.mark.parametrize(("option", "value"), [("repeats", np.float64(3)), ("repeats", True), ("repeats", None)])
def test_what_is_no_number_is_told(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be .* got"):
        plan(**{option: value})


@pytest.mark.parametrize("factory", [nn.Identity, partial(nn.Identity), lambda: nn.Identity()])
def test_workers_import_torch_once_for_a_model_of_torch(factory: Any) -> None:
    study = AblationStudy(model=factory).config(dropout=0.0)
    preload = plan(study).preload
    assert preload[:2] == ("maggy_like.ablation.search", "maggy_like.ablation.modules")
    assert any(module.startswith("torch") for module in preload)


def test_workers_import_what_the_factory_uses_and_no_torch_for_another_model() -> None:
    def make() -> Any:
        import decimal

        return decimal.Decimal(1)

    preload = plan(AblationStudy(model=make).config(dropout=0.0)).preload
    assert "decimal" in preload
    assert "maggy_like.ablation.modules" not in preload
    assert plan().preload == ("maggy_like.ablation.search",)


class Reporter:
    budget = 1


def test_a_factory_of_anything_gets_what_is_studied_and_what_is_searched() -> None:
    study = AblationStudy(model=lambda **config: config, config={"width": 64}).config(width=8)
    design = study.bound(lambda seed, model: 0).designed()
    function = AblatedFunction(lambda seed, model, **rest: (model, rest), design)
    given = function(Reporter(), variant="without width", seed=3, lr=0.1)
    assert given == ({"width": 8, "lr": 0.1}, {"lr": 0.1})


def test_a_default_holds_where_the_study_has_neither_model_nor_data() -> None:
    design = AblationStudy(config={"a": 1}).config(a=0).bound(lambda seed, a: 0).designed()
    function = AblatedFunction(lambda seed, a, model=None, n_features=30: (a, model, n_features), design)
    assert function(Reporter(), variant="base", seed=0, a=1) == (1, None, 30)


@pytest.mark.slow
def test_a_trial_without_torch_imports_none() -> None:
    subprocess.run([sys.executable, "-c", FRESH], check=True)
