"""LightGBM and XGBoost in searches: trials stop, and promoted ones go on from their rounds."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from continued import (
    StopAtTwo,
    changed,
    check_callback_alone,
    check_promoted_trials_equal_whole_trainings,
    search,
)

from maggy_like import Float, Reporter
from maggy_like.protocol.messages import Assign, Finished, Reported, decode_to_driver
from maggy_like.protocol.task import WorkerTask
from maggy_like.protocol.values import ReportError
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.worker.child.attempt import run_attempt
from maggy_like.worker.child.reporter_hooks import reporter_for
from maggy_like.worker.child.sender import Sender
from optimizers.core.trial import TrialState

SPACE = {"lr": Float(0.01, 1.0, log=True)}


def halves() -> tuple[Any, Any, Any, Any]:
    """Rows and labels to train on, and held out."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return x[::2], y[::2], x[1::2], y[1::2]


def train_lightgbm(lr: float, reporter: Reporter) -> int:
    import lightgbm

    from maggy_like.callbacks import LightGBMReport

    x, y, held_out, truth = halves()
    data = lightgbm.Dataset(x, y)
    report = LightGBMReport(reporter)
    params = {"objective": "binary", "metric": ["auc", "binary_logloss"], "learning_rate": lr, "num_leaves": 7,
              "verbose": -1, "num_threads": 1}  # fmt: skip
    model = lightgbm.train(
        params,
        data,
        report.num_boost_round,
        valid_sets=[lightgbm.Dataset(held_out, truth, reference=data)],
        valid_names=["valid"],
        init_model=report.init_model,
        callbacks=[lightgbm.early_stopping(3, verbose=False), report],
    )
    return model.num_trees()


def train_xgboost(lr: float, reporter: Reporter) -> int:
    import xgboost

    from maggy_like.callbacks import XGBoostReport

    x, y, held_out, truth = halves()
    report = XGBoostReport(reporter)
    params = {
        "objective": "binary:logistic",
        "eval_metric": ["auc", "logloss"],
        "eta": lr,
        "max_depth": 3,
        "nthread": 1,
    }
    model = xgboost.train(
        params,
        xgboost.DMatrix(x, y),
        report.num_boost_round,
        evals=[(xgboost.DMatrix(held_out, truth), "valid")],
        verbose_eval=False,
        xgb_model=report.xgb_model,
        callbacks=[report, xgboost.callback.EarlyStopping(rounds=3)],
    )
    return int(model.num_boosted_rounds())


def cross_validate_lightgbm(lr: float, reporter: Reporter) -> float:
    import lightgbm

    from maggy_like.callbacks import LightGBMReport

    x, y, *_ = halves()
    report = LightGBMReport(reporter)
    params = {"objective": "binary", "metric": "auc", "learning_rate": lr, "verbose": -1, "num_threads": 1}
    found = lightgbm.cv(params, lightgbm.Dataset(x, y), report.num_boost_round, nfold=3, seed=1, callbacks=[report])
    return float(found["valid auc-mean"][-1])


def cross_validate_xgboost(lr: float, reporter: Reporter) -> float:
    import xgboost

    from maggy_like.callbacks import XGBoostReport

    x, y, *_ = halves()
    report = XGBoostReport(reporter)
    params = {"objective": "binary:logistic", "eval_metric": "auc", "eta": lr, "nthread": 1}
    found = xgboost.cv(
        params, xgboost.DMatrix(x, y), report.num_boost_round, nfold=3, seed=1, callbacks=[report], as_pandas=False
    )
    return float(found["test-auc-mean"][-1])


def fit_lightgbm(lr: float, reporter: Reporter) -> None:
    import lightgbm

    from maggy_like.callbacks import LightGBMReport

    x, y, held_out, truth = halves()
    report = LightGBMReport(reporter)
    model = lightgbm.LGBMClassifier(n_estimators=report.num_boost_round, learning_rate=lr, n_jobs=1, verbose=-1)
    model.fit(x, y, eval_set=[(held_out, truth)], eval_metric="auc", callbacks=[report], init_model=report.init_model)


def fit_xgboost(lr: float, reporter: Reporter) -> None:
    import xgboost

    from maggy_like.callbacks import XGBoostReport

    x, y, held_out, truth = halves()
    report = XGBoostReport(reporter)
    rounds = report.num_boost_round
    model = xgboost.XGBClassifier(n_estimators=rounds, eta=lr, n_jobs=1, eval_metric="auc", callbacks=[report])
    model.fit(x, y, eval_set=[(held_out, truth)], verbose=False, xgb_model=report.xgb_model)


def stop_early_in_xgboost_cv(lr: float, reporter: Reporter) -> None:
    import xgboost

    from maggy_like.callbacks import XGBoostReport

    x, y, *_ = halves()
    report = XGBoostReport(reporter)
    params = {"objective": "binary:logistic", "eval_metric": "auc", "eta": lr, "nthread": 1}
    xgboost.cv(
        params, xgboost.DMatrix(x, y), report.num_boost_round, nfold=3, callbacks=[report], early_stopping_rounds=3
    )


def update_xgboost(lr: float, reporter: Reporter) -> None:
    import xgboost

    x, y, held_out, truth = halves()
    data, other = xgboost.DMatrix(x, y), xgboost.DMatrix(held_out, truth)
    booster = xgboost.Booster({"objective": "binary:logistic", "eta": lr, "nthread": 1}, [data, other])
    for step in range(1, reporter.budget + 1):
        booster.update(data, step)
        reporter.report(loss=float(booster.eval(other).rpartition(":")[2]), step=step)


ENTRIES = [
    train_lightgbm,
    train_xgboost,
    cross_validate_lightgbm,
    cross_validate_xgboost,
    stop_early_in_xgboost_cv,
    fit_lightgbm,
    fit_xgboost,
    update_xgboost,
]


@pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")
@pytest.mark.parametrize("milestones", [(), (2,)], ids=["the search ends", "a rule stops it"])
@pytest.mark.parametrize("train", ENTRIES)
def test_a_stop_is_no_failure_whatever_was_called(
    train: Any, milestones: tuple[int, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """A time limit, a target and Ctrl-C ask for a stop at the next report; a rule answers one that waits."""

    def hear(frame: bytes) -> None:
        if isinstance(message := decode_to_driver(frame), Reported) and message.awaiting:
            sender.stop.decide(True)

    assign = Assign(0, 1, {"lr": 0.1}, 4, milestones, is_search=False)
    sender = Sender(assign, hear)
    if not milestones:
        sender.stop.request()
    reporter = reporter_for(assign, CheckpointStore(None), sender)
    task = WorkerTask("tcp://x:1", b"", "run", b"", (), (), (), store="", logs="")
    parameters = inspect.signature(train).parameters.values()
    assert run_attempt(train, parameters, reporter, assign, task, lambda: None, {}) == Finished(0, 1, "stopped")
    assert "raised after a report had ended it" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "metric"), [(cross_validate_lightgbm, "valid_auc"), (cross_validate_xgboost, "test_auc")]
)
def test_the_means_of_a_cross_validation_are_reported_and_a_promoted_one_begins_anew(
    train: Any, metric: str, tmp_path: Path
) -> None:
    best = check_promoted_trials_equal_whole_trainings(train, SPACE, tmp_path, metric=metric, tolerance=1e-9)
    assert train(best.config["lr"], Reporter(budget=4)) == pytest.approx(best.curve.values[-1], abs=1e-9)
    stopped = search(train, SPACE, tmp_path, metric=metric, optimizer=StopAtTwo(), n_trials=1)
    assert list(stopped.trials[0].curve.steps) == [1, 2]


@pytest.mark.parametrize(
    ("train", "metric"), [(train_lightgbm, "valid_binary_logloss"), (train_xgboost, "valid_logloss")]
)
def test_a_promoted_trial_goes_on_as_if_it_had_never_paused(train: Any, metric: str, tmp_path: Path) -> None:
    best = check_promoted_trials_equal_whole_trainings(train, SPACE, tmp_path, metric=metric, tolerance=1e-6)
    assert best.value < 0.6  # 0.66 by the mean alone


@pytest.mark.parametrize(
    ("train", "metric"), [(train_lightgbm, "valid_binary_logloss"), (train_xgboost, "valid_logloss")]
)
def test_a_trial_that_is_told_to_stop_stops(train: Any, metric: str, tmp_path: Path) -> None:
    result = search(train, SPACE, tmp_path, metric=metric, optimizer=StopAtTwo(), n_trials=1)
    assert result.counts == {TrialState.STOPPED: 1}
    assert list(result.trials[0].curve.steps) == [1, 2]


@pytest.mark.parametrize("train", [train_lightgbm, train_xgboost])
def test_with_nothing_left_the_model_is_the_saved_one(train: Any) -> None:
    reporter = Reporter(budget=3)
    assert train(0.1, reporter) == 3
    assert train(0.1, reporter) == 3


@pytest.mark.parametrize(
    ("train", "metric", "argument"),
    [
        (train_lightgbm, "valid_binary_logloss", "init_model=report.init_model"),
        (train_xgboost, "valid_logloss", "xgb_model=report.xgb_model"),
    ],
)
def test_without_the_model_a_promoted_trial_starts_over(
    train: Any, metric: str, argument: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = changed(train, globals(), (f"{argument},", ""), ("report.num_boost_round", "reporter.budget"))
    check_callback_alone(alone, SPACE, tmp_path, capfd, f"pass {argument}", metric=metric)


@pytest.mark.parametrize(
    ("train", "argument"),
    [(train_lightgbm, "init_model=report.init_model"), (train_xgboost, "xgb_model=report.xgb_model")],
)
def test_a_model_that_was_trained_before_counts_no_steps(train: Any, argument: str, tmp_path: Path) -> None:
    name, _, saved = argument.partition("=")
    first = f"earlier = {train.__name__}(0.1, Reporter(budget=3))\n    report ="
    further = changed(
        train,
        {**globals(), train.__name__: changed(train, globals(), ("return model.num_trees()", "return model"),
                                              ("return int(model.num_boosted_rounds())", "return model"))},
        ("report =", first),
        (argument, f"{name}={saved} or earlier"),
    )  # fmt: skip
    reporter = Reporter(budget=2)
    assert further(0.1, reporter) == 5
    assert reporter.restore()["step"] == 2
    reporter.budget = 4
    assert further(0.1, reporter) == 7


def test_without_a_set_to_evaluate_nothing_can_be_reported() -> None:
    import xgboost

    from maggy_like.callbacks import XGBoostReport

    x, y, *_ = halves()
    with pytest.raises(ReportError, match="step 1 must have a metric, got none; configure the library to evaluate"):
        xgboost.train({"nthread": 1}, xgboost.DMatrix(x, y), 1, callbacks=[XGBoostReport(Reporter(budget=1))])


@pytest.mark.parametrize("name", ["LightGBMReport", "XGBoostReport"])
def test_the_metric_of_an_optuna_callback_belongs_to_the_search(name: str) -> None:
    import maggy_like.callbacks

    with pytest.raises(TypeError, match=r"got metric='auc'; use metric='auc' in the call of the search$"):
        getattr(maggy_like.callbacks, name)(Reporter(), metric="auc")


@pytest.mark.parametrize("save_every", [0, 1.5, True, "2"])
def test_save_every_is_a_whole_number(save_every: Any) -> None:
    from maggy_like.callbacks import XGBoostReport

    with pytest.raises(ReportError, match="save_every must be an integer of at least 1, got"):
        XGBoostReport(Reporter(budget=1), save_every=save_every)
