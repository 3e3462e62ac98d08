"""Names that are no identifiers, and choices of tuples and lists, through whole searches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna_storages import database

from maggy_like import AblationStudy, Float, ablate, lagom, run
from maggy_like.display.text import config_text
from maggy_like.errors import ConfigError, TrainFunctionError
from optimizers.core.trial import TrialState
from optimizers.space.search_space import SearchSpace

SPACE = {"lambda": Float(0.1, 1.0), "model.lr": [0.1, 0.2], "clf__svc.C": 3, "layers": [(64, 64), (128,), [32]]}


def by_config(config: dict[str, Any]) -> dict[str, Any]:
    layers = config["layers"]
    assert type(layers) is (list if layers == [32] else tuple)
    assert config["clf__svc.C"] == 3
    return {"value": config["lambda"] + sum(layers) / 1000, "kind": type(layers).__name__}


def by_keywords(**parameters: Any) -> float:
    return float(parameters["lambda"] + len(parameters["layers"]))


def by_name(layers: Any) -> float:
    return float(sum(layers))


@pytest.mark.parametrize("engine", ["inline", pytest.param("local", marks=pytest.mark.e2e)])
def test_a_search_gives_the_function_what_was_given(engine: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine": engine, "directory": tmp_path, "progress": False, "name": "run"}
    first = lagom(by_config, SPACE, optimizer="random", n_trials=6, workers=1, direction="max", **options)
    assert not first.failures
    assert {type(trial.config["layers"]) for trial in first.trials} == {tuple, list}
    resumed = lagom(
        by_config, SPACE, optimizer="random", n_trials=8, workers=1, direction="max", resume=True, **options
    )
    assert not resumed.failures
    assert [repr(t.config) for t in resumed.trials[:6]] == [repr(t.config) for t in first.trials]
    table = resumed.to_pandas()
    assert list(table["layers"]) == [trial.config["layers"] for trial in resumed.trials]
    assert table["model.lr"].isin([0.1, 0.2]).all()
    text = config_text({"model.lr": 0.1, "layers": (64, 64)})
    assert "model.lr" in text
    assert "64" in text


@pytest.mark.slow
def test_they_go_to_optuna_and_into_another_search(tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine": "inline", "directory": tmp_path, "progress": False, "optimizer": "random"}
    first = lagom(by_keywords, SPACE, n_trials=5, **options)
    with database(f"sqlite:///{tmp_path}/studies.db") as storage:  # keeps text where we have tuples
        study = first.to_optuna(storage, study_name="one")
        loaded = optuna.load_study(study_name="one", storage=storage)
        assert [t.params["layers"] for t in loaded.trials] == [repr(t.config["layers"]) for t in first.trials]
        assert study.best_trial.params["model.lr"] in (0.1, 0.2)
    again = lagom(
        by_keywords, SPACE, n_trials=4, warm_start=[first], points_to_evaluate=[{**first.trials[0].config}], **options
    )
    assert repr(again.trials[0].config) == repr(first.trials[0].config)
    assert again.best_config is not None


def test_run_takes_such_names_too(tmp_path: Path) -> None:
    def named(config: dict[str, Any]) -> Any:
        return config["model.lr"]

    assert run(named, {"model.lr": 0.5}, engine="inline", directory=tmp_path, progress=False) == 0.5


def test_run_takes_the_best_configuration_of_a_search(tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine": "inline", "directory": tmp_path, "progress": False}
    best = lagom(by_keywords, SPACE, optimizer="random", n_trials=2, **options).best_config
    assert best is not None
    assert run(lambda config: repr(config), best, **options) == repr(best)
    with pytest.raises(ConfigError, match=r"config\['layers'\] must be finite for the journal, got \(1, nan\)"):
        run(by_name, {"layers": (1, math.nan)}, **options)
    with pytest.raises(ConfigError, match=r"config\['layers'\] must be a number, .* list of them, got .* of type list"):
        run(by_name, {"layers": [1, object()]}, **options)


@pytest.mark.parametrize("name", ["lambda", "model.lr", "a b"])
def test_a_name_that_no_parameter_can_have_is_told_with_the_mend(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        TrainFunctionError,
        match=rf"by_name cannot have a parameter '{name}', .*take config \(a dict of all\) .*\['{name}'\]",
    ):
        lagom(by_name, SearchSpace({name: [1], "layers": [(1,)]}), directory=tmp_path, progress=False)


def test_a_function_with_a_long_name_makes_a_run_that_can_be_resumed_by_name(tmp_path: Path) -> None:
    def train(x: float) -> float:
        return x

    train.__name__ = "train_" * 50  # 300 bytes: file systems take 255, and a name of a run has 200 at most
    options: Any = {"optimizer": "random", "direction": "max", "engine": "inline", "directory": tmp_path}
    first = lagom(train, {"x": Float(0, 1)}, n_trials=2, progress=False, **options)
    resumed = lagom(train, {"x": Float(0, 1)}, n_trials=3, progress=False, name=first.name, resume=True, **options)
    assert len(resumed.trials) == 3


def test_what_the_functions_return_has_the_same_names_for_the_same_things(tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine": "inline", "directory": tmp_path, "progress": False}
    found = lagom(by_name, {"layers": [(1,), (2,)]}, optimizer="grid", train_best=True, **options)
    study = AblationStudy(config={"rate": 0.5}).config(rate=0.0)
    ablation = ablate(lambda rate, seed: rate + seed, study, repeats=2, **options)
    assert found.training is not None
    for returned in (found, found.training, found.train(), ablation):
        assert returned.ending == "completed"
        assert returned.seconds > 0
        assert set(returned.counts) == {TrialState.COMPLETED}
        assert returned.failures == []
        assert Path(returned.directory).name == returned.name
