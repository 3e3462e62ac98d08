"""SearchCV: an estimator of scikit-learn whose folds are steps."""

from __future__ import annotations

import pickle
import re
import shutil
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, TimeSeriesSplit, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from maggy_like import Choice, Confirmation, Float, Integer, RandomSearch, load_run
from maggy_like.errors import ConfigError, UserError
from maggy_like.sklearn import SearchCV
from maggy_like.sklearn.spaces import read_space
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.slow

X, Y = load_iris(return_X_y=True)
SPACE = {"C": Float(1e-4, 1e2, log=True)}


def search(estimator: Any = None, space: Any = None, **options: Any) -> SearchCV:
    chosen = {"n_trials": 9, "random_state": 0, "engine": "inline", **options}
    return SearchCV(estimator or SVC(), space or SPACE, **chosen)


def test_the_best_is_the_best_of_those_with_all_folds_and_is_trained() -> None:
    found = search(cv=5).fit(X, Y)
    results = found.cv_results_
    complete = results["n_folds"] == 5
    assert found.best_score_ == results["mean_test_score"][complete].max() > 0.9
    assert found.best_params_ == results["params"][found.best_index_]
    assert found.score(X, Y) > 0.9
    assert list(found.classes_) == [0, 1, 2]


def test_stopped_configurations_are_marked_and_rank_last() -> None:
    results = search(cv=5, n_trials=20).fit(X, Y).cv_results_
    stopped = results["stopped"]
    assert 0 < stopped.sum() < 20
    folds = np.stack([results[f"split{fold}_test_score"] for fold in range(5)], axis=1)
    assert (np.isfinite(folds).sum(axis=1) == results["n_folds"]).all()
    assert results["mean_test_score"] == pytest.approx(np.nanmean(folds, axis=1))
    assert results["rank_test_score"][~stopped].max() < results["rank_test_score"][stopped].min()


def test_the_best_are_confirmed_on_other_splits() -> None:
    found = search(cv=3, confirm=Confirmation(top=3, repeats=3)).fit(X, Y)
    confirmed = found.result_.confirmed
    assert confirmed is not None
    assert confirmed.is_complete
    assert found.best_params_ == confirmed.config
    assert found.best_score_ == found.cv_results_["mean_test_score"][found.best_index_]
    best = confirmed.best
    assert best is not None
    scores = []
    for repeat in best.repeats:
        folds = StratifiedKFold(3, shuffle=True, random_state=repeat.config["seed"])
        scores.append(float(cross_val_score(SVC(**confirmed.config), X, Y, cv=folds).mean()))
    assert [*best.values.values()] == pytest.approx(scores)
    assert len(set(scores)) > 1


def test_a_confirmation_needs_a_splitter_with_other_splits() -> None:
    with pytest.raises(UserError, match=r"confirm= needs a cv that can make other splits, got a list; use a number of"):
        search(cv=[(np.arange(100), np.arange(100, 150))], confirm=True).fit(X, Y)


@pytest.mark.parametrize(
    ("cv", "groups"), [(TimeSeriesSplit(3), None), (GroupKFold(3, shuffle=True), np.arange(len(X)) % 3)]
)
def test_splits_that_are_the_same_with_each_seed_confirm_nothing(cv: Any, groups: Any) -> None:
    with pytest.raises(UserError, match=f"confirm= needs a cv that can make other splits, got a {type(cv).__name__};"):
        search(cv=cv, confirm=True).fit(X, Y, groups=groups)


def test_a_seed_repeats_the_search() -> None:
    first, second = (search(cv=3).fit(X, Y).cv_results_ for _ in range(2))
    assert first["params"] == second["params"]
    assert first["mean_test_score"].tolist() == second["mean_test_score"].tolist()


def test_parameters_of_pipelines_and_groups_and_weights() -> None:
    pipeline = make_pipeline(StandardScaler(), SVC())
    space = {"svc__C": Float(0.1, 10, log=True)}
    found = search(pipeline, space, cv=GroupKFold(3), n_trials=3).fit(
        X, Y, groups=np.arange(150) % 10, svc__sample_weight=np.ones(150)
    )
    assert set(found.best_params_) == {"svc__C"}


@pytest.mark.parametrize("routing", [False, True])
@pytest.mark.parametrize("engine", ["inline", pytest.param("local", marks=pytest.mark.e2e)])
def test_weights_and_settings_reach_the_folds_as_in_scikit_learn_s_own(engine: str, routing: bool) -> None:
    weights = np.random.default_rng(0).uniform(0.01, 5, len(Y))
    values = [0.01, 0.1, 10.0]
    with config_context(enable_metadata_routing=routing):
        model = SVC()
        if routing:
            model = model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        theirs = GridSearchCV(model, {"C": values}, cv=4).fit(X, Y, sample_weight=weights).cv_results_
        options = {"optimizer": "grid", "n_trials": 3, "engine": engine, "workers": 1, "cv": 4}
        ours = search(model, {"C": Choice(values)}, **options).fit(X, Y, sample_weight=weights).cv_results_
    found = {config["C"]: score for config, score in zip(ours["params"], ours["mean_test_score"], strict=True)}
    assert [found[value] for value in values] == pytest.approx(theirs["mean_test_score"].tolist(), abs=1e-12)


def test_a_grid_is_tried_as_a_whole_unless_n_trials_limits_it() -> None:
    values = [float(value) for value in range(1, 26)]

    def tried(**options: Any) -> list[float]:
        found = SearchCV(SVC(), {"C": values}, cv=2, engine="inline", **options).fit(X, Y)
        return [config["C"] for config in found.cv_results_["params"]]

    assert sorted(tried(optimizer="grid")) == values
    assert len(tried(optimizer="grid", n_trials=3)) == 3
    assert len(tried(optimizer="random")) == 20


def test_ctrl_c_is_raised_and_what_was_found_is_kept() -> None:
    begun: list[int] = []

    def score(model: Any, x: Any, y: Any) -> float:
        begun.append(1)
        if len(begun) == 8:
            signal.raise_signal(signal.SIGINT)
        return float(model.score(x, y))

    found = search(cv=3, optimizer="random", scoring=score)
    with pytest.raises(KeyboardInterrupt, match="interrupted after 3 configurations"):
        found.fit(X, Y)
    assert list(found.cv_results_["n_folds"][:2]) == [3, 3]


def test_spaces_of_randomized_search_cv() -> None:
    space = {
        "C": stats.loguniform(1e-3, 1e3),
        "gamma": stats.uniform(1, 4),
        "degree": stats.randint(2, 6),
        "tol": np.array([1e-5, 1e-4, 1e-3]),
        "kernel": np.array(["rbf", "poly", "rbf"]),
        "shrinking": [True, False],
    }
    assert dict(read_space(space)[0].domains) == {
        "C": Float(1e-3, 1e3, log=True),
        "gamma": Float(1, 5),
        "degree": Integer(2, 5),
        "tol": Choice([1e-5, 1e-4, 1e-3]),
        "kernel": Choice(["rbf", "poly"]),
        "shrinking": Choice([True, False]),
    }
    assert set(search(SVC(), space, cv=2, n_trials=2).fit(X, Y).best_params_) == set(space)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"space": {"c": Float(0, 1)}},
            r"must have parameters of SVC, got 'c' \(did you mean 'C'\?\); use some of C, ",
        ),
        (
            {"estimator": make_pipeline(SVC()), "space": {"C": [1, 2]}},
            r"must have parameters of Pipeline, got 'C' \(did you mean 'svc__C'\?\)",
        ),
        (
            {"space": {"gama": Float(0, 1)}},
            r"must have parameters of SVC, got 'gama' \(did you mean 'gamma'\?\); use some of",
        ),
        ({"space": [SPACE]}, r"search_space must be a dict .* use one dict"),
        ({"space": {"C": np.ones((2, 2))}}, r"'C': values must be a list, got a ndarray"),
        (
            {"space": {"C": stats.expon(scale=100)}},
            r"'C' must have a known distribution, got scipy's expon; use Float\(0\.50125, 529\.83\)",
        ),
        ({"space": {"C": stats.loguniform(1, 10, loc=5)}}, "must have a known distribution, got scipy's loguniform"),
        (
            {"space": {"C": stats.Uniform(a=1, b=2)}},
            r"must have a known distribution, got scipy's Uniform; use Float\(low",
        ),
        (
            {"space": {"C": SimpleNamespace(lower=1, upper=9, sample=len)}},
            r"'C': a domain must not be a distribution, got .*; use Float\(1, 9\)",
        ),
        (
            {"scoring": ["accuracy", "f1"], "refit": "f1"},
            "scoring must be one metric, got .*; pass the metric to search",
        ),
        ({"estimator": SVC}, r"estimator must be an estimator of scikit-learn, such as SVC\(\), got <class"),
        ({"estimator": "SVC"}, "estimator must be an estimator of scikit-learn, .* got 'SVC'"),
        ({"refit": "accuracy"}, "refit must be True or False, got 'accuracy'; use scoring= for the metric"),
        ({"error_score": "nan"}, "error_score must be a number or 'raise'"),
    ],
)
def test_mistakes_are_answered_before_anything_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        search(**options).fit(X, Y)


def test_configurations_that_fail_have_the_error_score_and_rank_last() -> None:
    found = search(SVC(), {"kernel": ["rbf", "precomputed"], "C": Float(0.1, 10)}, cv=2, error_score=-1.0)
    message = r"of 9 configurations failed, and have error_score=-1.0; \{'kernel'"
    with pytest.warns(FitFailedWarning, match=message) as caught:
        found.fit(X, Y)
    assert caught[0].filename == __file__
    failed = np.array([params["kernel"] == "precomputed" for params in found.cv_results_["params"]])
    assert failed.any()
    assert (found.cv_results_["mean_test_score"][failed] == -1.0).all()
    assert found.best_params_["kernel"] == "rbf"


def test_failures_alike_end_no_search_and_if_all_fail_the_first_is_told() -> None:
    space = {"kernel": ["precomputed", "rbf"], "C": Float(0.1, 10)}
    with pytest.warns(FitFailedWarning, match="X should be a square kernel matrix"):
        found = search(SVC(), space, cv=2, n_trials=8, optimizer=RandomSearch()).fit(X, Y)
    assert np.isnan(found.cv_results_["mean_test_score"]).any()
    with pytest.raises(ConfigError, match=r"all 4 configurations failed; .*X should be a square kernel matrix"):
        search(SVC(), {"kernel": ["precomputed"], "C": Float(0.1, 10)}, cv=2, n_trials=4).fit(X, Y)
    with pytest.raises(
        ConfigError, match=r"ConfigError: scoring must give one metric, got several \(a, b\); pass only the metric to"
    ):
        search(scoring=lambda *_: {"a": 1.0, "b": 2.0}, cv=2, n_trials=3).fit(X, Y)
    with pytest.raises(RuntimeError, match=r"'precomputed'.* failed: .*X should be a square kernel matrix"):
        search(SVC(), space, cv=2, n_trials=8, optimizer=RandomSearch(), error_score="raise").fit(X, Y)
    with pytest.raises(TypeError, match="The 'C' parameter of SVC must be a float"):
        search(SVC(), {"C": [-1.0, -2.0]}, cv=2, n_trials=2).fit(X, Y)


def test_a_list_may_have_objects_such_as_the_steps_of_a_pipeline() -> None:
    steps = [StandardScaler(), MinMaxScaler(), "passthrough"]
    weights = [None, {0: 2, 1: 1, 2: 1}, {0: 1, 1: 2, 2: 1}]
    pipeline = Pipeline([("scaler", StandardScaler()), ("svc", SVC())])
    space = {"scaler": steps, "svc__class_weight": weights, "svc__C": SPACE["C"]}
    found = search(pipeline, space, cv=3, n_trials=20).fit(X, Y)
    assert all(step in steps for step in found.cv_results_["param_scaler"])
    assert all(params["svc__class_weight"] in weights for params in found.cv_results_["params"])
    assert found.best_params_["scaler"] in steps
    assert type(found.best_estimator_["scaler"]) is type(found.best_params_["scaler"])
    assert not hasattr(steps[0], "mean_") and not hasattr(steps[1], "min_")  # noqa: PT018  # none was fitted
    best = clone(pipeline).set_params(**found.best_params_)
    assert cross_val_score(best, X, Y, cv=3).mean() == pytest.approx(found.best_score_)


def test_parameters_of_objects_are_searched_with_these() -> None:
    pipeline = Pipeline([("clf", Ridge())])
    space = {
        "clf": [SVC(), DecisionTreeClassifier()],
        "clf__C": Float(0.1, 10, when={"clf": "SVC()"}),
        "clf__max_depth": Integer(1, 3, when={"clf": "DecisionTreeClassifier()"}),
    }
    found = search(pipeline, space, cv=2, n_trials=6, optimizer="random").fit(X, Y)
    kinds = {type(params["clf"]): params.keys() - {"clf"} for params in found.cv_results_["params"]}
    assert kinds == {SVC: {"clf__C"}, DecisionTreeClassifier: {"clf__max_depth"}}
    assert found.best_estimator_["clf"].get_params().items() >= {
        (name.removeprefix("clf__"), value) for name, value in found.best_params_.items() if name != "clf"
    }
    with pytest.raises(UserError, match=r"got 'clf__max_dept' .did you mean 'clf__max_depth'"):
        search(pipeline, {**space, "clf__max_dept": [1]}, cv=2).fit(X, Y)


def test_objects_have_names_of_their_own_in_the_space() -> None:
    values = ["f", len, len, {1: 2}, [1, 2], True]
    space, objects = read_space({"p": values})
    assert list(space.domains["p"].values) == ["f", "len", "len #2", "{1: 2}", [1, 2], True]
    assert [objects.of({"p": name})["p"] for name in space.domains["p"].values] == values


def test_tuples_are_spelled_as_everywhere() -> None:
    space, _ = read_space(
        {"C": ("DOUBLE", [0.1, 10.0]), "degree": ("INTEGER", [1, 4]), "kernel": ("DISCRETE", ["a", "b"])}
    )
    assert [type(domain).__name__ for domain in space.domains.values()] == ["Float", "Integer", "Ordinal"]
    with pytest.raises(UserError, match="may be a range or two values"):
        read_space({"C": (0.1, 10.0)})


class Told(StandardScaler):
    """Says how it was set when it is trained."""

    seen: ClassVar[list[tuple[float, bool]]] = []

    def fit(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        self.seen.append((self.copy, self.with_std))
        return super().fit(x, y, sample_weight)


def test_an_object_is_each_configuration_s_own() -> None:
    space = {"s": [Told()], "s__with_std": Choice([False], when={"c__C": 1.0}), "c__C": [1.0, 2.0, 3.0]}
    Told.seen.clear()
    found = search(Pipeline([("s", StandardScaler()), ("c", SVC())]), space, cv=2, n_trials=12, refit=False).fit(X, Y)
    expected = [params.get("s__with_std", True) for params in found.cv_results_["params"]]
    folds = found.cv_results_["n_folds"]
    assert [with_std for _, with_std in Told.seen] == list(np.repeat(expected, folds))
    assert {True, False} == set(expected)


@pytest.mark.parametrize("estimator", [SVC(), Pipeline([("scale", StandardScaler()), ("svc", SVC())])])
def test_a_search_leads_to_its_result_and_names_its_run_after_the_estimator(tmp_path: Path, estimator: Any) -> None:
    space = {"svc__C": SPACE["C"]} if isinstance(estimator, Pipeline) else SPACE
    found = search(estimator, space, cv=2, n_trials=2, directory=tmp_path).fit(X, Y)
    (run,) = tmp_path.iterdir()
    assert run.name.startswith(f"{type(estimator).__name__}-")
    assert found.result_.directory == run
    assert [trial.config for trial in found.result_.trials] == found.cv_results_["params"]
    assert load_run(run).counts == found.result_.counts
    again = pickle.loads(pickle.dumps(found))
    assert again.result_.best_value == found.result_.best_value
    assert f"files: {run}" in str(again.result_)
    shutil.rmtree(run)  # as without directory=
    assert "files:" not in str(again.result_)
    with pytest.raises(UserError, match=r"directory .* was deleted, .*; pass directory='maggy_runs' to SearchCV"):
        again.result_.log(0)
    assert not hasattr(clone(found), "result_")


@pytest.mark.spark
def test_spark_runs_it(spark_local: Any, tmp_path: Any) -> None:
    found = search(cv=2, n_trials=2, engine="spark", workers=1, directory=tmp_path).fit(X, Y)
    assert found.best_score_ > 0.3


CHECKED = {
    "classifier": (LogisticRegression(), {"C": Float(0.1, 1)}),
    "regressor": (Ridge(), {"alpha": Float(0.1, 1)}),
    "pipeline": (make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": Float(0.1, 1)}),
}

IN_PROCESSES = {
    "check_dtype_object",
    "check_estimators_nan_inf",
    "check_estimators_pickle",
    "check_fit_idempotent",
    "check_n_features_in_after_fitting",
    "check_regressor_multioutput",
    "check_requires_y_none",
    "check_sample_weights_not_an_array",
    "check_supervised_y_2d",
}
"""The checks in which a trial in another process may differ: its data, errors, warnings, and what comes back."""


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore")  # data of the checks that is wrong on purpose warns before it fails
@pytest.mark.parametrize("kind", CHECKED)
def test_the_checks_of_scikit_learn(kind: str) -> None:
    results = check_estimator(search(*CHECKED[kind], n_trials=2, cv=2), on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 50


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CHECKED)
def test_the_checks_of_scikit_learn_in_processes(kind: str) -> None:
    candidate = search(*CHECKED[kind], n_trials=2, cv=2, engine="local", workers=2)
    checks = [check for _, check in estimator_checks_generator(candidate) if check.func.__name__ in IN_PROCESSES]
    assert len(checks) >= 5
    for check in checks:
        check(clone(candidate))


class Warns(LogisticRegression):
    """Warns in each fit, of two lines, and of one with a different text in each."""

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> Any:
        warnings.warn(f"too slow by {self.C}", ConvergenceWarning, stacklevel=1)
        warnings.warn("caf\u00e9 " + 2000 * "x", UserWarning, stacklevel=1)
        warnings.warn("nobody is shown this", PendingDeprecationWarning, stacklevel=1)
        if self.C < 0.3:
            raise ValueError("too small")
        return super().fit(x, y, sample_weight)


@pytest.mark.parametrize("engine", ["inline", pytest.param("local", marks=pytest.mark.e2e)])
def test_warnings_of_trials_are_raised_once_where_the_search_is_called(engine: str) -> None:
    space = {"C": [0.1, 0.5, 1.0]}
    found = search(Warns(max_iter=1000), space, optimizer="grid", n_trials=3, cv=3, engine=engine, workers=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        found.set_params(refit=False).fit(X, Y)
    assert [it.category for it in caught] == [ConvergenceWarning, UserWarning, FitFailedWarning]
    assert {Path(it.filename).name for it in caught[:2]} == {Path(__file__).name}
    slow, long, _ = (str(it.message) for it in caught)
    assert re.fullmatch(r"too slow by [\d.]+ \(trial 0 and 2 others\)", slow)
    assert long.startswith("caf\u00e9 xxx")


@pytest.mark.parametrize("engine", ["inline", pytest.param("local", marks=pytest.mark.e2e)])
def test_filters_of_warnings_hold_in_trials(engine: str) -> None:
    found = search(Warns(), {"C": [0.5, 1.0]}, optimizer="grid", n_trials=2, cv=2, engine=engine, workers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ConvergenceWarning)
        with pytest.raises(UserError, match=r"all 2 configurations failed; .*ConvergenceWarning: too slow by"):
            found.fit(X, Y)


@pytest.mark.filterwarnings("ignore")
def test_a_stopped_configuration_keeps_its_warnings() -> None:
    with pytest.warns(ConvergenceWarning, match="too slow"):
        found = search(Warns(max_iter=1000), {"C": Float(0.3, 1)}, cv=5, n_trials=9, refit=False).fit(X, Y)
    stopped = [trial for trial in found.result_.trials if trial.state is TrialState.STOPPED]
    assert stopped
    assert all(trial.attributes["warnings"] for trial in stopped)


def test_data_of_a_wrong_type_raises_a_type_error() -> None:
    """scikit-learn's ``check_dtype_object`` asks for it."""
    x = np.array([[{"foo": "bar"}, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]], dtype=object)
    search = SearchCV(LogisticRegression(), {"C": Float(0.1, 1)}, n_trials=2, cv=2, engine="inline")
    with pytest.raises(TypeError, match=r"all 2 configurations failed; .*argument must be a string or a real number"):
        search.fit(x, [0, 1, 0, 1])
