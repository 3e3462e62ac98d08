"""scikit-learn's iterative estimators in searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from continued import check_promoted_trials_equal_whole_trainings

from maggy_like import Float, Reporter
from maggy_like.callbacks import sklearn_steps
from maggy_like.driver.followers import read_callbacks
from maggy_like.errors import ConfigError
from maggy_like.protocol.values import ReportError

pytestmark = pytest.mark.slow


def digits() -> tuple[Any, Any, Any, Any]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x[::2] / 16, y[::2], x[1::2] / 16, y[1::2]


def partial_fit(alpha: float, reporter: Reporter) -> None:
    from sklearn.linear_model import SGDClassifier

    x, y, held_out, truth = digits()
    for model, report in sklearn_steps(SGDClassifier(alpha=alpha, random_state=0), reporter):
        model.partial_fit(x, y, classes=range(10))
        report(accuracy=model.score(held_out, truth))


def warm_start(alpha: float, reporter: Reporter) -> None:
    from sklearn.ensemble import RandomForestClassifier

    x, y, held_out, truth = digits()
    forest = RandomForestClassifier(ccp_alpha=alpha / 10, max_depth=6, random_state=0)
    for model, report in sklearn_steps(forest, reporter, grow="n_estimators", by=3):
        report(accuracy=model.fit(x, y).score(held_out, truth))
        assert len(model.estimators_) % 3 == 0


@pytest.mark.parametrize("train", [partial_fit, warm_start])
def test_a_promoted_trial_goes_on_as_if_it_had_never_paused(train: Any, tmp_path: Path) -> None:
    space = {"alpha": Float(1e-5, 1e-1, log=True)}
    best = check_promoted_trials_equal_whole_trainings(train, space, tmp_path, metric="accuracy", tolerance=0.0)
    assert best.value > 0.8


@pytest.mark.parametrize("wrong", [Reporter, 5, None])
def test_what_is_no_reporter_is_told(wrong: Any) -> None:
    with pytest.raises(ReportError, match="reporter must be the Reporter that train_fn gets, got"):
        next(sklearn_steps(object(), wrong))


def test_a_state_that_the_function_has_saved_itself_is_left_aside() -> None:
    reporter = Reporter(budget=2)
    reporter.checkpoint([1, 2])
    estimator = object()
    model, _ = next(sklearn_steps(estimator, reporter))
    assert model is estimator


def test_a_callback_of_a_library_is_none_of_the_run() -> None:
    from maggy_like.callbacks import XGBoostReport

    for callback in (XGBoostReport(Reporter(budget=1)), XGBoostReport):
        with pytest.raises(ConfigError, match=r"is a callback of the training library; use XGBoostReport\(reporter"):
            read_callbacks([callback], "runs/x")  # type: ignore[list-item]


def test_an_estimator_of_a_pipeline_grows() -> None:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    x, y, _, _ = digits()
    pipeline = make_pipeline(MinMaxScaler(), RandomForestClassifier(max_depth=2))
    trees = []
    for model, report in sklearn_steps(pipeline, Reporter(budget=2), grow="randomforestclassifier__n_estimators"):
        trees.append([*model.fit(x, y)[-1].estimators_])
        report(accuracy=0.5)
    assert len(trees[1]) == 2
    assert trees[1][0] is trees[0][0]


@pytest.mark.parametrize("reports", [0, 2])
def test_each_step_reports_once(reports: int) -> None:
    from sklearn.linear_model import SGDClassifier

    steps = sklearn_steps(SGDClassifier(), Reporter(budget=4))
    _, report = next(steps)
    for _ in range(reports):
        report(accuracy=0.5)
    with pytest.raises(ReportError, match=r"step 1 must be reported exactly once"):
        next(steps)


def saved_by_another_trial(estimator: Any) -> Reporter:
    x, y, _, _ = digits()
    reporter = Reporter(budget=2)
    model, report = next(sklearn_steps(estimator, reporter))
    model.fit(x, y)
    report(accuracy=0.5)
    reporter.trial = 1
    return reporter


def test_another_trial_s_state_is_trained_with_the_parameters_of_this_one() -> None:
    from sklearn.linear_model import SGDClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    def make(alpha: float) -> Any:
        return make_pipeline(MinMaxScaler(), SGDClassifier(alpha=alpha, warm_start=True))

    model, _ = next(sklearn_steps(make(0.2), saved_by_another_trial(make(0.1))))
    assert model[-1].alpha == 0.2
    assert model[-1].coef_.shape == (10, 64)
    assert model[0].n_features_in_ == 64


def test_another_trial_s_state_of_an_estimator_with_other_parts_is_rejected() -> None:
    from sklearn.linear_model import Perceptron, SGDClassifier

    reporter = saved_by_another_trial(SGDClassifier())
    with pytest.raises(ReportError, match=r"that trial 0 saved \(SGDClassifier\(.*\)\), got Perceptron\("):
        next(sklearn_steps(Perceptron(), reporter))
