"""Wrong use of ablations is told before anything starts, naming the value and the mend."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import ablation_functions as fns
import pytest
import torch

from maggy_like import AblationStudy, Float, lagom
from maggy_like.errors import UserError


def take_all(variant: Any, seed: int, dropout: float = 0.5, lr: float = 0.1) -> float:
    return 0.0


def take_unfilled(variant: Any, seed: int, rate: float) -> float:
    return 0.0


def take_no_seed(variant: Any) -> float:
    return 0.0


def take_dropout(seed: int, dropout: float = 0.5) -> float:
    return 0.0


def take_positional(variant: Any, /, seed: int) -> float:
    return 0.0


def take_by_star(seed: int, **config: Any) -> float:
    return 0.0


def take_model(seed: int, model: Any, A: Any = None) -> float:
    return 0.0


LOCK = threading.Lock()


def modelled(**config: Any) -> AblationStudy:
    return AblationStudy(model=fns.Network, data=fns.COLUMNS, label="y", sample=torch.zeros(2, 4), config=config)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "no study": ({"ablation": object()}, "ablation must be an AblationStudy, got <object"),
    "no function": ({"train_fn": 3}, "train_fn must be a function, got 3"),
    "a near module": ({"ablation": modelled().modules("nrm")}, r"no module 'nrm' \(did you mean 'norm'\?\)"),
    "a module that is never used": ({"ablation": modelled().modules("spare")}, "the model never uses 'spare'"),
    "shapes that do not fit": (
        {"ablation": modelled(units=6).modules("entry")}, r"'entry' turns \(2, 4\) into \(2, 6\), so identity"),
    "an unknown group": (
        {"ablation": modelled().features("A").group("g", "B"), "design": "leave_one_group_out"},
        "no component 'B' of the group 'g'"),
    "no groups": ({"design": "leave_one_group_out"}, r"no groups.*study.group\("),
    "no components": ({"ablation": AblationStudy()}, "no components; add some"),
    "no seed": ({"train_fn": take_no_seed}, "take_no_seed takes none; add a parameter 'seed'"),
    "a parameter that nothing fills": ({"train_fn": take_unfilled}, "nothing fills the parameter 'rate' of take_unf"),
    "a positional-only parameter": ({"train_fn": take_positional}, "'variant' of take_positional is positional-only"),
    "a parameter that nothing uses": (
        {"ablation": AblationStudy(config={"droput": 0.5}).config(droput=0.0), "train_fn": take_dropout},
        r"nothing uses the parameter 'droput' \(did you mean 'dropout'"),
    "a parameter that nothing knows": (
        {"ablation": AblationStudy().config(droput=0.0)}, r"nothing says what 'droput' is.*did you mean 'dropout'"),
    "a parameter that is mistyped": (
        {"ablation": AblationStudy(config={"droput": 0.5}).config(dropout=0.0), "train_fn": take_dropout},
        r"nothing uses the parameter 'droput' \(did you mean 'dropout'"),
    "features by **": ({"train_fn": take_by_star}, "'A' changes; add one of the parameters variant, features, n_f"),
    "a model of no factory": (
        {"ablation": AblationStudy(config={"A": 1}).config(A=2), "train_fn": take_model},
        "nothing fills the parameter 'model' of take_model; the study has no model"),
    "a factory that cannot be sent": (
        {"ablation": AblationStudy(model=lambda lock=LOCK: lock).config(dropout=0.0)},
        "the model's factory uses the default 'lock' of type lock"),
    "a reserved parameter": (
        {"ablation": AblationStudy(config={"budget": 3}).config(dropout=0.0)}, "cannot set 'budget'"),
    "a reserved name that is searched": (
        {"searchspace": {"seed": [1, 2]}, "tune": True}, "search space sets 'seed', which the runtime fills"),
    "both searched and studied": (
        {"searchspace": {"dropout": Float(0, 1)}, "tune": True,
         "ablation": AblationStudy().config(dropout=0.0)}, r"sets \['dropout'\], which are searched"),
    "tune without a space": ({"tune": True}, "tune and a search space belong together"),
    "a space without tune": ({"searchspace": {"lr": Float(0, 1)}}, "tune and a search space belong together"),
    "tune of nothing": ({"searchspace": {"lr": Float(0, 1)}, "tune": -1}, "tune must be True, False .* got -1"),
    "tune of auto": (
        {"searchspace": {"lr": Float(0, 1)}, "tune": 2, "repeats": "auto"}, "needs a fixed number of repeats"),
    "an optimizer": ({"optimizer": "random"}, "optimizer='random' is for a search"),
    "n_trials": ({"n_trials": 3}, "n_trials=3 is for a search"),
    "earlier runs": ({"warm_start": ["last-week"]}, "warm_start=.* is for a search"),
    "points": ({"points_to_evaluate": [{"lr": 1}]}, "points_to_evaluate=.* is for a search"),
    "train_best": ({"train_best": True}, "train_best=True is for a search"),
    "rungs": ({"eta": 3}, "eta=3 is for a search"),
    "several objectives": ({"metric": ["a", "b"], "direction": ["max", "min"]}, "metric=.* is for a search"),
    "repeats=0": ({"repeats": 0}, "repeats must be a whole number of at least 1, or 'auto', got 0"),
    "repeats in a word": ({"repeats": "often"}, "got 'often'"),
    "an unknown design": ({"design": "pair"}, r"unknown design 'pair' \(did you mean 'pairs'\?\)"),
    "a design without a study": (
        {"ablation": None, "design": "pairs", "searchspace": {"lr": Float(0, 1)},
         "train_fn": lambda lr: lr}, "those of an ablation; give its study too"),
    "a function that cannot be sent": (
        {"train_fn": lambda variant, seed, lock=LOCK: 0.0}, "cannot be sent to the workers"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_told_and_nothing_starts(case: str, tmp_path: Path) -> None:
    arguments, message = CASES[case]
    study = AblationStudy(data=fns.COLUMNS, label="y").features("A")
    options = {"train_fn": take_all, "ablation": study, "engine": "local", "progress": False, **arguments}
    with pytest.raises(UserError, match=message):
        lagom(**options, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []
