"""What a new user writes wrong is answered with what to write."""

from __future__ import annotations

import copy
import pickle
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna.samplers import BruteForceSampler

from maggy_like import (
    ASHA,
    AblationStudy,
    FailurePolicy,
    Reporter,
    SearchSpace,
    Searchspace,
    ablate,
    lagom,
    load_run,
    run,
)
from maggy_like.errors import ConfigError, TrainFunctionError
from maggy_like.protocol.values import ReportError
from optimizers.core.trial import Failure, FailureKind
from optimizers.samplers.optuna_sampler import OptunaSampler
from optimizers.space.domains import Float, Integer


def test_positional_arguments_of_report_are_answered_with_their_names() -> None:
    with pytest.raises(ReportError) as raised:
        Reporter().report(0.5, 3)
    assert str(raised.value).startswith("report() must have at most one value without a name, got report(0.5, 3)")
    assert "report(loss, step=step)" in str(raised.value)


def test_the_first_maggy_s_spellings_are_read_or_answered_with_ours() -> None:
    assert Searchspace(lr=("DOUBLE", [0.1, 1])).domains == {"lr": Float(0.1, 1)}
    reporter, space = Reporter(), SearchSpace()
    with pytest.raises(AttributeError, match=r"no attribute 'broadcast'; use report\(accuracy=\.\.\., step="):
        reporter.broadcast(metric=0.5)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'add'; .* pass all parameters at once: SearchSpace\(lr="):
        space.add("lr", ("DOUBLE", [0.1, 1]))  # type: ignore[attr-defined]
    assert not hasattr(reporter, "broadcast")
    assert not hasattr(space, "__deepcopy__")


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("save", "checkpoint(state)"),
        ("save_checkpoint", "checkpoint(state)"),
        ("load", "restore()"),
        ("load_checkpoint", "restore()"),
        ("log_metrics", "report(accuracy=..., step=...)"),
        ("should_prune", "report(), which ends a trial that is to stop"),
        ("hparams", "config"),
        ("suggest_float", "a parameter of the function, and its domain in the search space"),
        ("set_user_attr", "attributes[name] = value"),
        ("number", "trial"),
        ("trial_id", "trial"),
    ],
)
def test_other_names_of_the_reporter_s_methods_are_answered_with_ours(name: str, use: str) -> None:
    reporter = Reporter()
    with pytest.raises(AttributeError) as raised:
        getattr(reporter, name)
    assert str(raised.value) == f"'Reporter' object has no attribute {name!r}; use {use}"
    assert not hasattr(reporter, name)
    assert name not in dir(reporter)  # else completion would suggest it
    assert {"report", "checkpoint", "restore", "trial"} <= {*dir(reporter)}


ATTRIBUTES = {
    "result.best_params": "use best_config",
    "result.best_score_": "use best_value",
    "result.best_model": r"use load_best\(\)",
    "result.trials_dataframe": r"use to_pandas\(\)",
    "result.best_trials": "use pareto, or best_trial for one objective",
    "result.get_trials": r"use trials, or to_optuna\(\) for a function of Optuna",
    "result.study_name": "use name",
    "result.user_attrs": r"use trials\[0\].attributes",
    "result.enqueue_trial": r"use lagom\(..., points_to_evaluate=",
    "result.optimize": r"use lagom\(..., name=result.name, resume=True",
    "result.get_best_result": "use best_trial",
    "result.results_df": r"use to_pandas\(\)",
    "result.best_hp": "use best_config",
    "result.history": r"use curves\(\), or plot.history\(\)",
    "result.best_confg": "did you mean 'best_config'",
    "result.story": r"use decision_log\(\)",
    "result.to_csv": r"use to_pandas\(\)\.to_csv\(path\)",
    "result.plot.curve": "did you mean 'curves'",
    "result.plot.slice": r"use slices\(\)",
    "result.best_trial.params": "use config",
    "result.best_trial.number": "use id",
    "result.best_trial.intermediate_values": "use curve",
    "result.best_trial.suggest_int": r"use config\[name\]",
    "result.best_trial.confg": "did you mean 'config'",
    "handle.best_config": r"use result\(\), which waits for the end",
    "handle.wait": r"use result\(\)$",
    "handle.cancel": r"use stop\(\)",
}


def test_the_name_of_an_attribute_elsewhere_is_answered_with_ours(tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_trials": 1, "direction": "max", "engine": "inline", "directory": tmp_path}
    handle = lagom(lambda x: x, {"x": Float(0, 1)}, progress=False, block=False, **options)
    result = handle.result()
    for path, remedy in ATTRIBUTES.items():
        first, *names = path.split(".")
        value = {"result": result, "handle": handle}[first]
        for name in names[:-1]:
            value = getattr(value, name)
        with pytest.raises(AttributeError, match=f"'{names[-1]}'.*{remedy}"):
            getattr(value, names[-1])
    with pytest.raises(TypeError, match=r"train\(\) has no argument 'epochs', got epochs=3 \(did you mean 'budget'"):
        result.train(epochs=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"the directory of a run, got completed after .*; use its path or URL"):
        load_run(result)  # type: ignore[arg-type]
    for value in (result, result.plot, result.best_trial, handle):
        assert not hasattr(value, "_repr_png_")
        assert not hasattr(value, "__deepcopy__")
    assert pickle.loads(pickle.dumps(result)).trials == copy.deepcopy(result).trials == result.trials


def test_a_space_can_be_copied_and_pickled() -> None:
    space = SearchSpace(lr=Float(0, 1))
    assert copy.deepcopy(space).domains == pickle.loads(pickle.dumps(space)).domains == space.domains


def test_a_printed_failure_can_be_read() -> None:
    failure = Failure(FailureKind.EXCEPTION, "ValueError: no", "Traceback:\n  here\nValueError: no\n")
    assert str(failure) == "exception: ValueError: no\nTraceback:\n  here\nValueError: no"
    assert str(Failure(FailureKind.EXIT, "sys.exit()")) == "exit: sys.exit()"


def test_a_model_in_a_config_is_named_in_short() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(100)))
    with pytest.raises(ConfigError) as raised:
        run(print, {"model": model})
    message = str(raised.value)
    assert message.startswith("config['model'] must be a number, text, boolean or None")
    assert "got Sequential(" in message
    assert "of type Sequential; use functools.partial" in message
    assert len(message) < 500
    assert "\n" not in message


def test_a_sampler_that_goes_through_all_configurations_tries_them_all_by_default(tmp_path: Path) -> None:
    optimizer = OptunaSampler(lambda seed: BruteForceSampler(seed))
    space = {"a": Integer(1, 60)}
    result = lagom(lambda a: a, space, optimizer=optimizer, engine="inline", directory=tmp_path, progress=False)
    assert result.best_config == {"a": 60}
    assert len(result.trials) == 60


def test_a_loop_that_is_longer_than_the_budget_is_answered_with_both_numbers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(x: float, reporter: Reporter) -> dict[str, float]:
        for epoch in range(1, 41):
            reporter.report(accuracy=x, step=epoch)
        return {"accuracy": x, "test_accuracy": 0.5}

    options = {"optimizer": "random", "n_trials": 3, "engine": "inline", "directory": tmp_path}
    lagom(train, {"x": Float(0, 1)}, progress="plain", max_budget=27, **options)
    said = capfd.readouterr()
    lines = [line for line in (said.out + said.err).splitlines() if "which ended the function" in line]
    assert len(lines) == 1
    assert "reported step 28 with a budget of 27 steps (max_budget)" in lines[0]
    lagom(train, {"x": Float(0, 1)}, progress="plain", max_budget=40, **options)
    assert "which ended the function" not in "".join(capfd.readouterr())


FILLED: list[float] = []


def fills_a_list_past_the_budget(x: float, reporter: Reporter) -> None:
    FILLED.append(x)
    for epoch in range(1, 5):
        reporter.report(accuracy=x, step=epoch)


@pytest.mark.e2e
def test_mistakes_are_logged_if_there_is_no_display(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"optimizer": "random", "n_trials": 2, "max_budget": 3, "workers": 1, "engine": "local"}
    lagom(fills_a_list_past_the_budget, {"x": Float(0, 1)}, name="run", directory=tmp_path, progress=False, **options)
    filled, cut = [message for message in caplog.messages if message.startswith("run: ")]
    assert filled.startswith("run: FILLED will stay unchanged in this process")
    assert cut.startswith("run: [trial 0] reported step 4 with a budget of 3 steps (max_budget), which ended the")


@pytest.mark.parametrize("train_best", [False, True])
@pytest.mark.parametrize("optimizer", ["random", "asha"])
def test_a_function_that_asks_for_no_budget_trains_to_its_end_if_nobody_sets_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], optimizer: str, train_best: bool
) -> None:
    def train(x: float, reporter: Reporter) -> dict[str, float]:
        for epoch in range(1, 41):
            reporter.report(accuracy=x, step=epoch)
        return {"accuracy": x, "test_accuracy": 0.5}

    options: dict[str, Any] = {"n_trials": 3, "engine": "inline", "directory": tmp_path, "progress": "plain"}
    result = lagom(train, {"x": Float(0, 1)}, optimizer=optimizer, train_best=train_best, **options)
    said = "".join(capfd.readouterr())
    assert result.trials[0].metrics["test_accuracy"] == 0.5
    assert max(trial.step for trial in result.trials) == 40
    assert "that ended the function" not in said
    assert said.count("max_budget=27 is only the default") == (optimizer == "asha")


@pytest.mark.parametrize("every", [None, 1, 2])
def test_a_promoted_trial_that_starts_over_is_told_of_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], every: int | None
) -> None:
    def train(x: float, reporter: Reporter) -> None:
        for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
            if every is not None and step % every == 0:
                reporter.checkpoint(step)
            reporter.report(score=x * step, step=step)

    optimizer = ASHA(sampler="random", mode="promotion")
    options: dict[str, Any] = {"n_trials": 9, "engine": "inline", "directory": tmp_path, "progress": "plain"}
    result = lagom(train, {"x": Float(0, 1)}, optimizer=optimizer, max_budget=9, direction="max", **options)
    assert sum(trial.attempt > 1 for trial in result.trials) > 1
    lines = [line for line in "".join(capfd.readouterr()).splitlines() if "trains again" in line]
    assert len(lines) == (every != 1)
    assert all("was promoted after step 1 and trains again from step 1" in line for line in lines)
    assert all("because it had saved no state by step 1; save one by then and restore it" in line for line in lines)
    assert all(line.endswith(", or use ASHA(mode='stopping')") for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "restores"), [("asha", False), ("asha", True), ("pbt", False)])
def test_a_function_that_saves_and_never_restores_is_told_of_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], optimizer: str, restores: bool
) -> None:
    def train(x: float, reporter: Reporter) -> None:
        start = reporter.restore() or 0 if restores else 0
        for step in range(start + 1, reporter.budget + 1):
            reporter.checkpoint(step)
            reporter.report(score=x * step, step=step)

    options: dict[str, Any] = {"n_trials": 20, "engine": "inline", "directory": tmp_path, "progress": "plain"}
    result = lagom(train, {"x": Float(0, 1)}, optimizer=optimizer, max_budget=9, direction="max", seed=0, **options)
    assert not result.failures
    assert any(trial.attempt > 1 for trial in result.trials)
    lines = [line for line in "".join(capfd.readouterr()).splitlines() if "trains from the beginning" in line]
    assert len(lines) == (not restores)
    assert all(line.endswith("to continue from there, begin with state = reporter.restore()") for line in lines)


async def waits(x: float) -> float:
    return x


@pytest.mark.parametrize(
    ("returned", "remedy"),
    [
        (lambda x: (x, 1.0), r"of type tuple; return a dict with a name for each number, such as \{'loss': loss, "),
        (lambda x: [x], r"of type list; return a dict with a name for each number"),
        (lambda x: waits(x), r"of type coroutine; return asyncio.run\(...\) of it"),
        (lambda x: (each for each in [x]), r"of type generator; call reporter.report\(...\) instead of yield"),
        (lambda x: sys.exit(), r"called sys.exit\(None\); use return, which keeps the trial's reports$"),
        (lambda x: sys.exit(3), r"called sys.exit\(3\)$"),
    ],
)
def test_what_is_returned_instead_of_a_number_is_answered_with_what_to_return(
    returned: Callable[..., Any], remedy: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"optimizer": "random", "n_trials": 1, "engine": "inline", "progress": False}
    failures = FailurePolicy(max_attempts=1)
    result = lagom(returned, {"x": Float(0, 1)}, direction="max", failures=failures, directory=tmp_path, **options)
    (trial,) = result.failures
    assert trial.failure is not None
    assert re.search(remedy, trial.failure.message)


@pytest.mark.parametrize(
    ("order", "is_late"),
    [("report save", True), ("save report", False), ("report save-step", False), ("every 2", False)],
)
def test_states_that_are_saved_after_their_reports_are_told_of_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], order: str, is_late: bool
) -> None:
    def train(x: float, reporter: Reporter) -> None:
        for step in range(1, reporter.budget + 1):
            if order == "save report":
                reporter.checkpoint(step)
            reporter.report(score=x * step, step=step)
            if order == "report save" or (order == "every 2" and step % 2 == 0):
                reporter.checkpoint(step)
            elif order == "report save-step":
                reporter.checkpoint(step, step=step)
        if order == "save report":
            reporter.checkpoint("final")

    options: dict[str, Any] = {"n_trials": 3, "engine": "inline", "directory": tmp_path, "progress": "plain"}
    result = lagom(train, {"x": Float(0, 1)}, optimizer="random", max_budget=4, direction="max", **options)
    told = [line for line in "".join(capfd.readouterr()).splitlines() if "after the report of its step" in line]
    assert len(told) == is_late
    assert all("before the best one; call checkpoint(state) before report()" in line for line in told)
    assert (result.load_best() == 3) is is_late  # the best is that of step 4


@pytest.mark.parametrize("asks", ["reads it", "takes it"])
def test_a_function_that_asks_for_its_budget_is_held_to_the_default(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], asks: str
) -> None:
    def reads_it(x: float, reporter: Reporter) -> None:
        steps = reporter.budget + 5
        for epoch in range(1, steps):
            reporter.report(accuracy=x, step=epoch)

    def takes_it(x: float, budget: int, reporter: Reporter) -> None:
        for epoch in range(1, budget + 5):
            reporter.report(accuracy=x, step=epoch)

    train = reads_it if asks == "reads it" else takes_it
    options: dict[str, Any] = {"n_trials": 1, "engine": "inline", "directory": tmp_path, "progress": "plain"}
    result = lagom(train, {"x": Float(0, 1)}, optimizer="random", **options)
    assert result.trials[0].step == 27
    assert "reported step 28 with a budget of 27 steps (max_budget)" in "".join(capfd.readouterr())


class Trainer:
    def __init__(self, lr: float = 0.1, seed: int = 0) -> None:
        self.lr = lr


_CLASS = "got the class Trainer, whose call only creates an object; use a def that creates the object, trains it and"
_TORCH = r"creates the model.* and trains it, with reporter\.report\(\.\.\.\) in the loop"


@pytest.mark.parametrize(
    ("train_fn", "message"),
    [
        (Trainer, _CLASS),
        (partial(Trainer, seed=1), _CLASS),
        (torch.nn.Linear(2, 2), f"got the torch module Linear; use a def that {_TORCH}"),
        (torch.nn.Linear, f"got the torch module Linear; use a def that {_TORCH}"),
        (None, "got None; pass the function itself, without calling it"),
        ("train", "got 'train'; pass the function itself, without calling it"),
    ],
)
def test_what_does_not_train_when_called_is_refused_with_what_to_pass(
    tmp_path: Path, train_fn: Any, message: str
) -> None:
    check_refused(train_fn, message, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("lightning")
def test_a_lightning_module_is_refused_with_what_to_pass(tmp_path: Path) -> None:
    from lightning_modules import Line  # which takes seconds, in each process that collects the tests

    fit = r"creates the model.* and calls Trainer\(callbacks=\[LightningReport\(reporter\)\]\)\.fit\(model\)"
    for module in (Line, partial(Line, hidden=1), Line()):
        check_refused(module, f"got the LightningModule Line; use a def that {fit}", tmp_path)


def check_refused(train_fn: Any, message: str, directory: Path) -> None:
    options: dict[str, Any] = {"engine": "inline", "directory": directory / "runs", "progress": False}
    starts = (
        lambda: lagom(train_fn, {"lr": Float(0, 1)}, **options),
        lambda: ablate(train_fn, AblationStudy(config={"lr": 0.1}).config(lr=0.0), **options),
        lambda: run(train_fn, {"lr": 0.1}, **options),
    )
    for start in starts:
        with pytest.raises(TrainFunctionError, match=f"^train_fn must be a function.*{message}") as raised:
            start()
        assert len(str(raised.value).split()) <= 40
    assert not (directory / "runs").exists()


def test_a_keras_model_is_refused_with_what_to_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Layer:
        def __call__(self, lr: float) -> float:
            return lr

    class Sequential(Layer):
        pass

    monkeypatch.setattr(Layer, "__module__", "keras.src.layers.layer")
    with pytest.raises(TrainFunctionError, match=r"Keras model Sequential; .*callbacks=\[KerasReport\(reporter\)\]"):
        lagom(Sequential(), {"lr": Float(0, 1)}, engine="inline", directory=tmp_path, progress=False)


def nested(x: float, reporter: Reporter) -> None:
    reporter.report({"accuracy": x}, step=1)  # type: ignore[arg-type]


def twice(x: float, reporter: Reporter) -> None:
    reporter.report(loss=x, step=1)
    reporter.report(accuracy=x, step=1)


def unnamed(x: float, reporter: Reporter) -> None:
    reporter.report(step=1)


def returned(x: float) -> dict[str, float]:
    return {"accuracy": x, "loss": 1 - x}


@pytest.mark.parametrize(
    ("train", "metric", "message"),
    [
        (nested, None, r"of type dict; use report\(\*\*metrics\)"),
        (
            twice,
            "loss",
            r"step must be greater than the last one, which is 1, got 1; report all metrics of a step in one call",
        ),
        (unnamed, None, r"report\(\) must have a metric, got none; use report\(accuracy=accuracy, step=step\)"),
        (returned, "acuracy", r"got accuracy, loss \(did you mean 'accuracy'\?\); .* or use metric='accuracy'"),
    ],
)
def test_what_is_reported_wrongly_is_answered_with_the_call_under_the_error_s_short_name(
    train: Callable[..., Any], metric: str | None, message: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"optimizer": "random", "n_trials": 1, "max_budget": 1, "engine": "inline"}
    result = lagom(train, {"x": Float(0, 1)}, metric=metric, directory=tmp_path, progress=False, **options)
    (trial,) = result.failures
    assert trial.failure is not None
    assert re.match(rf"ReportError: .*{message}", trial.failure.message)
    if train is returned:  # no line of the function is wrong then
        assert trial.failure.traceback == ""
    else:
        assert "\nReportError: " in trial.failure.traceback
        assert "reporter.py" not in trial.failure.traceback
    assert "protocol.report_error" not in f"{result} {trial.failure}"
