"""Wrong use of ``ablate`` is an error before anything starts, which names the value and the remedy."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import ablation_functions as fns
import pytest
import torch

from maggy_like import AblationStudy, Float, Tuning, ablate
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
    "no study": ({"study": object()}, r"study must be an AblationStudy, got <object.*; use AblationStudy\(\)"),
    "no function": ({"train_fn": 3}, "train_fn must be a function, got 3"),
    "a near module": ({"study": modelled().modules("nrm")}, r"no module 'nrm' \(did you mean 'norm'\?\)"),
    "a module that is never used": ({"study": modelled().modules("spare")}, "the model never uses 'spare'"),
    "shapes that do not fit": (
        {"study": modelled(units=6).modules("entry")}, r"'entry' turns \(2, 4\) into \(2, 6\), so identity"),
    "an unknown group": (
        {"study": modelled().features("A").group("g", "B"), "design": "leave_one_group_out"},
        "no component 'B' of the group 'g'"),
    "no groups": ({"design": "leave_one_group_out"}, r"must have a group of components.*study.group\("),
    "swapped": (
        {"train_fn": AblationStudy().config(dropout=0.0), "study": take_dropout},
        r"train_fn must be a function, got the study; call ablate\(take_dropout, study\)"),
    "a function as study": ({"study": take_dropout}, r"study must be an AblationStudy, got <function take_dropout>;"),
    "no components": ({"study": AblationStudy()}, "must have components, got none"),
    "no seed": ({"train_fn": take_no_seed}, "take_no_seed must have a parameter 'seed', got none"),
    "a parameter that nothing fills": ({"train_fn": take_unfilled}, "the parameter 'rate' of take_unfilled must have"),
    "a positional-only parameter": ({"train_fn": take_positional}, "'variant' of take_positional must be passed"),
    "a parameter that nothing uses": (
        {"study": AblationStudy(config={"droput": 0.5}).config(droput=0.0), "train_fn": take_dropout},
        r"the parameter 'droput' must be used, .* \(did you mean 'dropout'"),
    "a parameter that nothing knows": (
        {"study": AblationStudy().config(droput=0.0)}, r"'droput' must have a value.*did you mean 'dropout'"),
    "a parameter that is mistyped": (
        {"study": AblationStudy(config={"droput": 0.5}).config(dropout=0.0), "train_fn": take_dropout},
        r"the parameter 'droput' must be used, .* \(did you mean 'dropout'"),
    "features by **": ({"train_fn": take_by_star}, "'A' changes, got nothing; add one of the parameters variant, feat"),
    "a model of no factory": (
        {"study": AblationStudy(config={"A": 1}).config(A=2), "train_fn": take_model},
        "the parameter 'model' of take_model must have a value, got none; the study must have a model"),
    "a factory that cannot be sent": (
        {"study": AblationStudy(model=lambda lock=LOCK: lock).config(dropout=0.0)},
        "the model's factory uses the default 'lock' of type lock"),
    "a reserved parameter": (
        {"study": AblationStudy(config={"budget": 3}).config(dropout=0.0)}, "must not have 'budget'"),
    "a reserved name that is searched": (
        {"tune": Tuning({"seed": [1, 2]})}, "search space must not have 'seed', which the runtime fills"),
    "both searched and studied": (
        {"tune": Tuning({"dropout": Float(0, 1)}), "study": AblationStudy().config(dropout=0.0)},
        r"must not set \['dropout'\], which are searched"),
    "tune that is none": (
        {"tune": True}, r"tune must be a Tuning, got True; use tune=Tuning\(searchspace, n_trials=8\)"),
    "several objectives": ({"metric": ["a", "b"]}, r"metric must be the name of one metric, got \['a', 'b'\]"),
    "repeats=3.0": ({"repeats": 3.0}, "repeats must be a whole number of at least 1, or 'auto', got 3.0; use 3$"),
    "repeats=0": ({"repeats": 0}, "repeats must be a whole number of at least 1, or 'auto', got 0"),
    "repeats in a word": ({"repeats": "often"}, "got 'often'"),
    "resampled that is no ratio": (
        {"resampled": True}, r"resampled must be the rows of the test set .*, such as 0\.3 / 0\.7, got True"),
    "negligible that is none": ({"negligible": 0}, r"negligible must be a difference above 0 .* such as 0\.005, got 0"),
    "an unknown design": ({"design": "pair"}, r"design must be one of .* got 'pair' \(did you mean 'pairs'\?\)"),
    "a function that cannot be sent": (
        {"train_fn": lambda variant, seed, lock=LOCK: 0.0}, "cannot be sent to the workers"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_an_error_and_nothing_starts(case: str, tmp_path: Path) -> None:
    arguments, message = CASES[case]
    study = AblationStudy(data=fns.COLUMNS, label="y").features("A")
    options = {"train_fn": take_all, "study": study, "engine": "local", "progress": False, **arguments}
    with pytest.raises(UserError, match=message):
        ablate(**options, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_parameter_is_removed_by_name() -> None:
    with pytest.raises(UserError, match=r"by name, got 'dropout'; use config\(dropout=\.\.\.\) with the value"):
        AblationStudy().config("dropout")


@pytest.mark.parametrize(("arguments", "message"), [
    ({}, "the search space of a Tuning is empty"), ({"n_trials": 0}, "n_trials must be a whole number of at least 1"),
    ({"optimizer": "radnom"}, r"unknown optimizer 'radnom' \(did you mean 'random'"),
])  # fmt: skip
def test_a_tuning_checks_itself(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Tuning({"lr": Float(0, 1)} if arguments else {}, **arguments)


@pytest.mark.parametrize(("argument", "spelling"), [
    ({"searchspace": {}}, r"use tune=Tuning\(searchspace\)"), ({"optimizer": "random"}, r"optimizer='random'\)"),
    ({"n_trials": 3}, r"use tune=Tuning\(searchspace, n_trials=3\)"),
    ({"max_attempts": 1}, r"use failures=FailurePolicy\(max_attempts=1\)"),
    ({"train_best": True}, "no argument 'train_best'"), ({"repeat": 3}, "did you mean 'repeats'"),
])  # fmt: skip
def test_arguments_of_a_search_are_answered_with_what_to_write(argument: dict[str, Any], spelling: str) -> None:
    with pytest.raises(TypeError, match=spelling):
        ablate(take_all, AblationStudy(), **argument)
