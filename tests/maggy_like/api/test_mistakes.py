"""Wrong use of ``lagom``, ``run`` and ``ablate`` is an error before anything starts, which names value and remedy."""

from __future__ import annotations

import math
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ablation_functions as fns
import numpy as np
import pytest
import torch

from maggy_like import (
    ASHA,
    AblationStudy,
    FailurePolicy,
    Float,
    Integer,
    LocalEngine,
    RandomSearch,
    Searchspace,
    Tuning,
    ablate,
    lagom,
    load_run,
    run,
    simulate,
)
from maggy_like.api import execution
from maggy_like.api.run_settings import check_objectives, reach_hint
from maggy_like.errors import ConfigError, EngineError, JournalError, MaggyError, UserError
from optimizers import Study
from optimizers.core.base import Optimizer, Problem
from optimizers.samplers.non_adaptive import Sobol
from optimizers.schedulers.stopping import MedianRule, Threshold
from optimizers.space.search_space import SearchSpace

SPACE = {"lr": Float(1e-4, 1e-1, log=True), "units": Integer(16, 256)}


def train(lr: float, units: int, reporter: Any) -> None:
    reporter.report(lr * units)


def unfilled(lr: float, units: int, rate: float) -> None: ...


def only_lr(lr: float) -> None: ...


def needs_momentum(lr: float, momentum: float) -> None: ...


LOCK = threading.Lock()


def uses_a_lock(lr: float) -> float:
    with LOCK:
        return lr


def positional(lr: float, /) -> None: ...


def closure() -> Any:
    handle = threading.Event()

    def train_with_handle(lr: float) -> float:
        handle.set()
        return lr

    return train_with_handle


async def waits(lr: float) -> float:
    return lr


def yields(lr: float) -> Iterator[float]:
    yield lr


class Yields:
    def __call__(self, lr: float) -> Iterator[float]:
        yield lr


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "a parameter that nothing fills": (
        {"train_fn": unfilled}, r"nothing fills the parameter 'rate' of unfilled.*default.*which has lr, units"),
    "a name that train_fn lacks": (
        {"train_fn": only_lr}, r"only_lr has no parameter 'units', which the search space sets"),
    "a near name": (
        {"space": {"lr": Float(0, 1), "unit": Integer(1, 2)}}, r"'units' of train \(did you mean 'unit'\?\)"),
    "a conditional parameter without a default": (
        {"train_fn": needs_momentum,
         "space": {"lr": [0.1, 0.2], "momentum": Float(0, 1, when={"lr": 0.1})}}, "momentum=None"),
    "a reserved name": ({"space": {**SPACE, "budget": [1]}}, "'budget' from the runtime"),
    "a positional-only parameter": ({"train_fn": positional, "space": {"lr": [1]}}, "remove the '/'"),
    "a built-in function": ({"train_fn": abs, "space": {"x": [1]}}, r"use lambda x: abs\(x\)"),
    "an async function": ({"train_fn": waits, "space": {"lr": [1]}}, r"waits is an async function.*asyncio.run\(waits"),
    "a generator": ({"train_fn": yields, "space": {"lr": [1]}}, r"yields has a yield.*reporter.report"),
    "a generator as a callable": ({"train_fn": Yields(), "space": {"lr": [1]}}, r"has a yield.*reporter.report"),
    "no function": ({"train_fn": 3}, "train_fn must be a function, got 3"),
    "a global that cannot be sent": (
        {"train_fn": uses_a_lock, "space": {"lr": [1]}, "by_value": True},
        r"uses the global 'LOCK' of type lock, which cannot be sent.*create it inside"),
    "a closure that cannot be sent": (
        {"train_fn": closure(), "space": {"lr": [1]}}, "the variable 'handle' of type Event"),
    "an empty space": ({"space": {}}, "empty|at least one"),
    "n_trials=0": ({"n_trials": 0}, "n_trials must be an integer of at least 1, got 0"),
    "a million workers": ({"workers": 10**6, "engine": "local"}, "workers must be at most 1000 .* for one per core"),
    "workers=0": ({"workers": 0}, "workers must be an integer of at least 1, got 0"),
    "max_budget=1.5": ({"max_budget": 1.5}, "max_budget must be an integer of at least 1, got 1.5"),
    "n_trials=1e3": ({"n_trials": 1e3}, "n_trials must be an integer of at least 1, got 1000.0; use 1000$"),
    "max_budget=9.0": ({"max_budget": 9.0}, "max_budget must be an integer of at least 1, got 9.0; use 9$"),
    "n_trials=0.0": (
        {"n_trials": 0.0}, "n_trials must be an integer of at least 1, got 0.0; leave it out for the default$"),
    "bounds as floats": (
        {"space": {"lr": ("INTEGER", [1, 1e3])}}, "'lr': high of an Integer must be an int, got 1000.0; use 1000"),
    "timeout=-1": ({"timeout": -1}, "timeout must be a positive number of seconds, got -1"),
    "an unknown direction": ({"direction": "maximise"}, r"'minimize', got 'maximise' \(did you"),
    "a rule of the other direction": (
        {"optimizer": MedianRule(Threshold(step=1, worse_than=0.5, direction="min")), "direction": "max"},
        r"Threshold\(direction='min'\) contradicts the search, which has direction='max'.*give both the same"),
    "as many directions as objectives": (
        {"metric": ["loss", "seconds"], "direction": ["min"]}, r"has 2 names and .*\['min'\] has 1; give a direction"),
    "one direction for several objectives": (
        {"metric": ["loss", "seconds"], "direction": "max"}, r"direction='max' does not fit metric=.* one direction"),
    "several directions for one objective": ({"metric": "loss", "direction": ["min"]}, "does not fit metric='loss'"),
    "the same objective twice": (
        {"metric": ["loss", "loss"], "direction": ["min", "max"]}, "names 'loss' twice; name each objective once"),
    "a metric that is no name": ({"metric": ["loss", 3], "direction": ["min", "max"]}, "metric must be a name or a"),
    "a direction in the metric": (
        {"metric": ("accuracy", "max")},
        r"metric must be names without directions, got 'max' in \['accuracy', 'max'\]; use metric='accuracy', dir",
    ),
    "directions in the metric": (
        {"metric": ["loss", "cost", "min", "minimize"]},
        r"got 'min' in \[.*; use direction=\['min', 'minimize'\]",
    ),
    "no metric in the list": ({"metric": [], "direction": []}, r"metric must be a name or a list of names, got \[\]"),
    "an unknown direction among several": (
        {"metric": ["loss", "cost"], "direction": ["min", "mix"]}, r"got 'mix' \(did you mean"),
    "several objectives for asha": (
        {"metric": ["loss", "cost"], "direction": ["min", "min"]},
        "ASHA supports one objective, got 2; use optimizer='bayesian'"),
    "a name that contradicts itself": (
        {"metric": "accuracy_drop"}, "given for 'accuracy_drop', since 'accuracy' and 'drop' .*use direction='max' if"),
    "one of several names that contradicts itself": (
        {"metric": ["loss", "time_saved"], "direction": ["min", None], "optimizer": "random"}, "for 'time_saved', sin"),
    "an unknown optimizer": ({"optimizer": "ahsa"}, "ahsa.*asha"),
    "min_budget above max_budget": (
        {"optimizer": ASHA(min_budget=30), "max_budget": 27}, "min_budget must be at most max_budget=27, got 30"),
    "an unknown engine": ({"engine": "sprak"}, r"got 'sprak' \(did you mean 'spark'\?\)"),
    "more inline workers than one": ({"engine": "inline", "workers": 2}, "workers=2 but engine='inline' has 1 slot;"),
    "a name that is no directory": ({"name": "../up"}, r"name must be the name of a directory, got '../up'; use"),
    "resume without a name": ({"resume": True}, "needs the name of the run"),
    "resume of what is not there": ({"resume": True, "name": "nothing"}, "no run named 'nothing'"),
    "a display that is none": ({"progress": "termnal"}, r"progress must be .*, got 'termnal'; did you mean 'terminal'"),
    "a directory with a null character": (
        {"directory": "with\0"}, r"directory must be the path or URL of a directory, got 'with\\x00'; leave out"),
    "a store with a null character": ({"store": "with\0"}, r"store must be .*, got 'with\\x00'; leave out the null"),
    "a directory that cannot be": ({"directory": "/proc/none"}, r"directory='/proc/none' cannot be written"),
    "a point outside the space": ({"points_to_evaluate": [{"lr": 1.0, "units": 20}]}, "lr"),
    "workers_per_trial=0": ({"workers_per_trial": 0}, "workers_per_trial must be an integer of at least 1, got 0"),
    "trials wider than the gang": (
        {"workers": 2, "workers_per_trial": 3}, "workers_per_trial=3 is more than workers=2; pass workers=3 or more"),
    "trials wider than the engine": (
        {"engine": "inline", "workers_per_trial": 2}, "workers_per_trial=2, but engine='inline' has 1 worker"),
    "min_workers above workers": (
        {"workers": 2, "failures": FailurePolicy(min_workers=3)},
        "min_workers=3 is more than workers=2; pass 2 or fewer"),
    "min_workers below workers_per_trial": (
        {"workers": 4, "workers_per_trial": 3, "failures": FailurePolicy(min_workers=2)},
        "min_workers=2 is less than workers_per_trial=3, so no trial could run; pass 3 or more"),
    "a training of the best of two objectives": (
        {"metric": ["loss", "cost"], "direction": ["min", "min"], "optimizer": "random", "train_best": True},
        "train_best=True needs a best configuration, and a search of 2 objectives has a Pareto set"),
    "train_best=0": ({"train_best": 0}, "train_best must be an integer of at least 1, got 0"),
    "train_best='yes'": ({"train_best": "yes"}, "train_best must be an integer of at least 1, got 'yes'"),
    "exceptions as policy": ({"failures": (KeyError,)}, r"use FailurePolicy\(catch=\(KeyError,\)\)$"),
    "no policy": ({"failures": 3}, r"failures must be a FailurePolicy, got 3; use FailurePolicy\(max_attempts=5\)"),
    "block='no'": ({"block": "no"}, "block must be True or False, got 'no'; use block=False for"),
    "no store": ({"store": 3}, "store must be the path or URL of a directory, or a Store, got 3"),
    "an async callback": ({"callbacks": [waits]}, "callbacks must be plain functions, got waits, whose call runs noth"),
    "a generator as callback": ({"callbacks": [Yields()]}, "callbacks must be plain .*; leave out async and yield"),
    "a callback that is none": ({"callbacks": [3]}, r"functions of one event, got 3; use def f\(event\): "),
}  # fmt: skip


FOUND_LATE = ("a directory that cannot be",)
"""The function is loaded first, in another process."""


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.e2e] * (case in FOUND_LATE)) for case in CASES])
def test_a_mistake_is_an_error_and_nothing_starts(case: str, tmp_path: Path) -> None:
    arguments, message = CASES[case]
    options = {"engine": "local", "directory": tmp_path, "progress": False, **arguments}
    options.pop("by_value", None)
    train_fn, space = options.pop("train_fn", train), options.pop("space", SPACE)
    if arguments.get("by_value"):
        train_fn = by_value(train_fn)
    with pytest.raises(MaggyError, match=message) as caught:
        lagom(train_fn, space, **options)
    assert isinstance(caught.value, UserError | EngineError | JournalError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{"directory": "/proc/none/a/b"}, {"store": "/proc/none/a/b"}])
def test_a_directory_that_cannot_be_written_is_one_error(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        lagom(train, SPACE, **{"engine": "inline", "directory": tmp_path, "progress": False, "n_trials": 1, **options})
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


def drop(lr: float, reporter: Any, **_: Any) -> None:
    reporter.report(accuracy_drop=lr, step=1)


def test_a_search_that_ended_for_its_metric_s_name_is_resumed_with_a_direction(tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine": "inline", "directory": tmp_path, "progress": False, "name": "run"}
    options |= {"optimizer": "random", "n_trials": 2, "max_budget": 2}
    with pytest.raises(ConfigError, match=r"direction must be given for 'accuracy_drop', .*resume=True"):
        lagom(drop, {"lr": Float(0, 1)}, **options)
    result = lagom(drop, {"lr": Float(0, 1)}, resume=True, direction="min", **options)
    assert result.best_value == min(trial.config["lr"] for trial in result.trials)
    assert len(result.trials) == 2
    assert load_run(result.directory).direction == "min"
    for direction in (None, "min"):
        assert lagom(drop, {"lr": Float(0, 1)}, resume=True, direction=direction, **options).direction == "min"
    with pytest.raises(ConfigError, match="was started with direction=None, not 'max'"):
        lagom(drop, {"lr": Float(0, 1)}, resume=True, direction="max", **options)


def by_value(function: Any) -> Any:
    """The function as one of a notebook, which travels by value."""
    import types

    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__module__ = "__main__"
    return copy


def test_a_run_is_not_overwritten_and_not_resumed_as_another(tmp_path: Path) -> None:
    options = {
        "engine": "inline",
        "directory": tmp_path,
        "progress": False,
        "optimizer": "random",
        "name": "run",
    }
    lagom(train, SPACE, n_trials=1, **options)
    with pytest.raises(UserError, match=r"a run named 'run'.*resume=True.*another name"):
        lagom(train, SPACE, n_trials=1, **options)
    with pytest.raises(UserError, match="started with seed=0, not 1"):
        lagom(train, SPACE, n_trials=1, resume=True, seed=1, **options)
    other = {"lr": Float(1e-4, 1.0, log=True), "steps": [1, 2]}
    with pytest.raises(UserError) as caught:
        lagom(lambda lr, steps: lr, other, n_trials=1, resume=True, **options)
    assert str(caught.value) == (
        "the run 'run' was started with another search space: 'units' is missing, 'lr' was Float(0.0001, 0.1, "
        "log=True) and is Float(0.0001, 1.0, log=True), 'steps' is new; pass another name, and warm_start=[DIRECTORY "
        "OF 'run'] to use its results"
    )


@pytest.mark.parametrize(
    "other",
    [
        MedianRule(ASHA(sampler="random", eta=3)),
        ASHA(sampler="random", eta=9),
        MedianRule(ASHA(eta=9, sampler=Sobol())),
    ],
)
def test_a_run_is_not_resumed_by_an_optimizer_with_other_options(tmp_path: Path, other: Optimizer) -> None:
    options = {"engine": "inline", "directory": tmp_path, "progress": False, "name": "run", "n_trials": 1}
    lagom(train, SPACE, optimizer=MedianRule(ASHA(sampler="random", eta=9)), **options)
    with pytest.raises(UserError, match=r"started with optimizer=MedianRule\(optimizer=ASHA\(eta=9, "):
        lagom(train, SPACE, optimizer=other, resume=True, **options)
    lagom(train, SPACE, optimizer=MedianRule(ASHA(sampler="random", eta=9)), resume=True, **options)


def test_the_first_maggy_s_spelling_is_read(tmp_path: Path) -> None:
    space = Searchspace(lr=("DOUBLE", [0.1, 0.2]), units=("INTEGER", [1, 4]))
    result = lagom(train, space, n_trials=2, optimizer="random", engine="inline", directory=tmp_path, progress=False)
    assert result.best_config is not None
    assert 0.1 <= result.best_config["lr"] <= 0.2


def test_too_few_trials_for_the_top_rung_are_hinted_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lagom(train, SPACE, n_trials=3, optimizer=ASHA(min_budget=1), engine="inline", directory=tmp_path)
    shown = capsys.readouterr().out
    assert "n_trials=3 is few for ASHA and max_budget=27: hardly" in shown
    lagom(train, SPACE, n_trials=3, optimizer="mobster", engine="inline", directory=tmp_path)
    assert "n_trials=3 is few for mobster and max_budget=27: hardly" in capsys.readouterr().out
    assert "hardly any trial except the best so far will be trained for all" in shown


@pytest.mark.parametrize(
    ("domain", "above"),
    [
        (Float(1e-5, 0.1), "0.01"),
        (Float(1e-3, 1.0, when={"units": 16}), "0.1"),
        (Float(1e-5, 0.1, log=True), ""),
        (Float(0.0, 0.1), ""),
        (Float(0.01, 1.0), ""),
        (Float(1e-4, 0.1, step=1e-4), ""),
    ],
)
def test_a_range_of_several_orders_of_magnitude_without_a_log_scale_is_hinted_at(
    domain: Float, above: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {"lr": domain, "units": [16, 32]}
    lagom(lambda lr=0.1, units=16: lr, space, optimizer="random", n_trials=1, engine="inline", directory=tmp_path)
    hint = f"90 % of the values of 'lr' are above {above}, since {domain!r} spreads them evenly; pass log=True to try"
    assert (hint in capsys.readouterr().out) is bool(above)


@pytest.mark.parametrize(
    ("optimizer", "needed"),
    [
        (ASHA(sampler="random", mode="stopping"), 27),
        (MedianRule(ASHA(sampler="random")), 27),
        (ASHA(sampler="random", brackets=2), 17),
        (ASHA(sampler="random", brackets=None), 6),
        (Sobol(), 0),
        (MedianRule(), 0),
    ],
)
def test_the_hint_comes_whenever_less_than_one_full_training_is_meant(optimizer: Optimizer, needed: int) -> None:
    """Also behind rules, and in brackets."""
    space = SearchSpace(SPACE)
    for n_trials in (1, max(1, needed - 1), max(1, needed), 100):
        hint = reach_hint("asha", optimizer, Problem(space, max_budget=27, n_trials=n_trials))
        assert (f"use n_trials={needed} or more" in hint) is (n_trials < needed)
    assert not reach_hint("asha", optimizer, Problem(space, max_budget=27))


def test_an_objective_may_be_called_like_a_direction_if_directions_are_given() -> None:
    assert check_objectives(["min", "mean"], ["max", "min"]) == (("min", "mean"), ("max", "min"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": 5000}, "workers must be at most 1000 on one machine, got 5000"),
        ({"workers_per_trial": 3, "max_workers": 2}, "workers_per_trial=3"),
        ({"name": "taken"}, "there is a run named 'taken' in .* already; pass resume=True"),
        ({"name": "missing", "resume": True}, "there is no run named 'missing' in .* to resume"),
    ],
)
def test_size_and_name_are_checked_before_the_function_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], message: str
) -> None:
    lagom(train, SPACE, n_trials=1, optimizer="random", engine="inline", directory=tmp_path, name="taken",
          direction="max", progress=False)  # fmt: skip
    monkeypatch.setattr(execution, "load_first", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(MaggyError, match=message):
        lagom(train, SPACE, n_trials=3, engine="local", directory=tmp_path, progress=False, **wrong)


# -- run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": [1]}, r"config must be a dict of arguments by name, got \[1\]"),
        ({"config": {"x": [{1}]}}, r"config\['x'\] must be .*, got \[\{1\}\] of type list; use functools.partial"),
        ({"config": {"x": math.nan}}, r"config\['x'\] must be finite for the journal, got nan; use a finite number"),
        ({"config": {"x": np.arange(2)}}, r"config\['x'\] must be a number, .* got .* of type ndarray"),
        ({"config": {"x": 1, "y": 1}}, r"no parameter 'y', which config sets"),
        ({"config": {}}, r"nothing fills the parameter 'x'.*add it to config \(which has nothing\)"),
        (
            {"engine": "inline", "workers": None, "failures": FailurePolicy(min_workers=2)},
            "engine='inline' has 1 worker by default; use engine=",
        ),
        ({"workers": 0}, "workers must be an integer of at least 1, got 0"),
        ({"failures": FailurePolicy(min_workers=3)}, "min_workers=3 is more than workers=2; pass 2 or fewer"),
        ({"budget": 0}, "budget must be an integer of at least 1, got 0"),
        ({"callbacks": [3]}, "callbacks must be functions of one event, got 3"),
        ({"engine": "inline"}, "workers=2 but engine='inline' has 1 slot;"),
    ],
)
def test_a_mistake_with_run_is_an_error_and_nothing_starts(tmp_path: Path, arguments: Any, message: str) -> None:
    with pytest.raises((UserError, EngineError), match=message):
        run(
            lambda x: x,
            **{"config": {"x": 1}, "engine": "local", "workers": 2, "directory": tmp_path / "runs", **arguments},
        )
    assert not (tmp_path / "runs").exists()


@pytest.mark.e2e
def test_a_missing_torch_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    message = r"on 2 workers together needs torch; install it with: pip install 'maggy_like\[torch\]'"
    with pytest.raises(UserError, match=message):
        run(lambda: 1, workers=2, engine="local", directory=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


# -- ablate ------------------------------------------------------------------------------------------


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


def modelled(**config: Any) -> AblationStudy:
    return AblationStudy(model=fns.Network, data=fns.COLUMNS, label="y", sample=torch.zeros(2, 4), config=config)


ABLATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "swapped": (
        {"train_fn": AblationStudy().config(dropout=0.0), "study": take_dropout},
        r"train_fn must be a function, got the study; call ablate\(take_dropout, study\)",
    ),
    "a function as study": ({"study": take_dropout}, r"study must be an AblationStudy, got <function take_dropout>;"),
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
    "repeats=3.0": ({"repeats": 3.0}, "repeats must be an integer of at least 1, or 'auto', got 3.0; use 3$"),
    "repeats=0": ({"repeats": 0}, "repeats must be an integer of at least 1, or 'auto', got 0"),
    "repeats in a word": ({"repeats": "often"}, "got 'often'"),
    "resampled that is no ratio": (
        {"resampled": True}, r"resampled must be the rows of the test set .*, such as 0\.3 / 0\.7, got True"),
    "negligible that is none": ({"negligible": 0}, r"negligible must be a difference above 0 .* such as 0\.005, got 0"),
    "an unknown design": ({"design": "pair"}, r"design must be one of .* got 'pair' \(did you mean 'pairs'\?\)"),
    "a function that cannot be sent": (
        {"train_fn": lambda variant, seed, lock=LOCK: 0.0}, "cannot be sent to the workers"),
}  # fmt: skip


@pytest.mark.parametrize("case", ABLATIONS)
def test_a_mistake_with_ablate_is_an_error_and_nothing_starts(case: str, tmp_path: Path) -> None:
    arguments, message = ABLATIONS[case]
    study = AblationStudy(data=fns.COLUMNS, label="y").features("A")
    options = {"train_fn": take_all, "study": study, "engine": "local", "progress": False, **arguments}
    with pytest.raises(UserError, match=message):
        ablate(**options, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_parameter_is_removed_by_name() -> None:
    with pytest.raises(UserError, match=r"by name, got 'dropout'; use config\(dropout=\.\.\.\) with the value"):
        AblationStudy().config("dropout")


@pytest.mark.parametrize(("arguments", "message"), [
    ({}, "the search space of a Tuning is empty"), ({"n_trials": 0}, "n_trials must be an integer of at least 1"),
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


# -- values of another type --------------------------------------------------------------------------


OF_X = {"x": Float(0, 1)}


def itself(x: float) -> float:
    return x


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume": "yes", "name": "august"}, "resume must be True or False, got 'yes'; use resume=True to continue"),
        ({"resume": None}, "resume must be True or False, got None"),
        ({"resume": 1, "name": "august"}, "resume must be True or False, got 1"),
        ({"progress": []}, r"progress must be True, False or one of 'notebook', .*, got \[\]; use True"),
        ({"progress": None}, "progress must be True, False or one of .*, got None"),
        ({"n_trials": 10**400}, r"n_trials must be an integer below 2\*\*63, got 1000"),
        ({"max_budget": 2**64}, r"max_budget must be an integer below 2\*\*63, got 18446"),
        ({"workers": 10**5000}, r"workers must be an integer below 2\*\*63, got a value of type int"),
        ({"timeout": 10**400}, "timeout must be a positive number of seconds, got 1000"),
        ({"target": 10**400}, "target must be a finite number, got 1000"),
        ({"direction": "x" * 10_000}, r"direction must be one of .*, got 'x{70,80}\.\.\."),
    ],
)
def test_nothing_starts_with_nonsense(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        lagom(itself, OF_X, engine="inline", directory=tmp_path, **{"progress": False, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_seed_may_be_as_large_as_those_of_numpy(tmp_path: Path) -> None:
    seed = 2**100
    lagom(itself, OF_X, optimizer="random", n_trials=1, seed=seed, engine="inline", directory=tmp_path, progress=False)
    assert Study(OF_X, RandomSearch(), seed=seed).ask() is not None


def test_run_is_resumed_or_not(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="resume must be True or False, got 'no'"):
        run(itself, {"x": 0.5}, name="august", resume="no", engine="local", directory=tmp_path)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (2, r"gpus must be a list of addresses, got 2; use gpus=\['0', '1'\]"),
        ("01", "gpus must be a list of addresses, got '01'"),
        ([0, 1], "gpus must contain addresses as text, got 0"),
    ],
)
def test_addresses_of_gpus_are_texts(gpus: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        LocalEngine(gpus)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"study": 3}, "study must be a Study, got 3"),
        ({"study": Study(OF_X, ASHA())}, r"study must have n_trials, because ASHA proposes without end; use Study\("),
        *(
            (
                {"objective": lambda config, step, it=it: it},
                "objective must return the value and the seconds of the step, got .*; use 'return value, seconds'",
            )
            for it in (None, 1.0, (1.0,), (1.0, 2.0, 3.0), ("a", 1.0), (1.0, -1.0), (1.0, math.nan), (1.0, math.inf))
        ),
        (
            {"objective": lambda config, step, state: (1.0, 1.0), "state": 0},
            r"seconds of the step, and the new state, got \(1.0, 1.0\); use 'return value, seconds, state',",
        ),
        ({"objective": 3}, "objective must be a function of a configuration and a step, got 3"),
        ({"workers": 0}, "workers must be an integer of at least 1, got 0"),
        ({"horizon": "long"}, "horizon must be a positive number of seconds, got 'long'"),
        ({"on_event": 3}, "on_event must be a function of the time and a number, got 3"),
    ],
)
def test_a_simulation_takes_no_nonsense(wrong: dict[str, Any], message: str) -> None:
    given = {
        "study": Study(OF_X, ASHA(), n_trials=2),
        "objective": lambda config, step: (config["x"], 1.0),
        "workers": 1,
        **wrong,
    }
    with pytest.raises(UserError, match=message):
        simulate(given.pop("study"), given.pop("objective"), **given)


def test_a_handle_and_a_result_take_no_nonsense(tmp_path: Path) -> None:
    handle = lagom(
        itself, OF_X, optimizer="random", n_trials=1, engine="inline", directory=tmp_path, progress=False, block=False,
    )  # fmt: skip
    result = handle.result()
    for wrong in (
        lambda: handle.tail("first"),  # type: ignore[arg-type]
        lambda: handle.tail(lines="all"),  # type: ignore[arg-type]
        lambda: handle.tail(lines=0),
        lambda: handle.result("long"),  # type: ignore[arg-type]
        lambda: result.log("first"),
        lambda: result.log(0, rank=-1),
    ):
        with pytest.raises(UserError, match=r"(trial must be one of|(trial|lines|timeout|rank) must be a)"):
            wrong()


@pytest.mark.parametrize("direction", ["max", "min"])
def test_what_is_not_finite_comes_last_in_the_cell(direction: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    values = iter([math.inf, 0.25, -math.inf, 0.75, math.nan])
    result = lagom(
        lambda x: next(values), OF_X, optimizer="random", n_trials=5, direction=direction, engine="inline",
        directory=tmp_path, progress=False,
    )  # fmt: skip
    table = result._repr_html_().partition("<table")[2]
    finite = [table.index("0.75"), table.index("0.25")]
    assert finite == sorted(finite, reverse=direction == "min")
    assert max(finite) < min(table.index(">inf<"), table.index(">-inf<"))
