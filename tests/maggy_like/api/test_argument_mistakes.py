"""Mistakes of the first hour in the arguments: unknown names, peers' names, single things for lists, texts."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import MedianPruner
from optuna.samplers import QMCSampler, TPESampler
from optuna.study import StudyDirection, create_study
from pandas import DataFrame
from scipy import stats

import maggy_like
from maggy_like import (
    ASHA,
    PBT,
    AblationStudy,
    Choice,
    Constant,
    FailurePolicy,
    Float,
    Integer,
    LocalEngine,
    MedianRule,
    Ordinal,
    SearchSpace,
    lagom,
    run,
)
from maggy_like.errors import UserError
from maggy_like.sklearn import SearchCV
from optimizers.samplers.optuna_sampler import OptunaSampler
from optimizers.space.domains import Domain

SPACE = {"lr": [1, 2]}


def train(lr: Any, units: int = 3) -> float:
    return float(units)


def suggest(new_ids: Any, domain: Any, trials: Any, seed: int) -> None:
    """An algorithm as Hyperopt has it."""


suggest.__module__ = "hyperopt.rand"


class Trainer:
    def fit(self, lr: Any) -> float:
        return float(lr)


def given(**arguments: Any) -> Callable[[], Any]:
    return lambda: lagom(train, SPACE, **arguments)


NAMES: dict[str, tuple[Callable[[], Any], str]] = {
    "a near name": (given(n_trails=3), r"lagom\(\) has no argument 'n_trails', got n_trails=3 .*'n_trials'"),
    "Ray's": (given(num_samples=3), r"got num_samples=3 \(did you mean 'n_trials'"),
    "Hyperopt's": (given(max_evals=3), r"\(did you mean 'n_trials'"),
    "the first Maggy's": (given(num_trials=3), r"\(did you mean 'n_trials'"),
    "epochs": (given(max_epochs=3), r"\(did you mean 'max_budget'"),
    "a time": (given(time_budget_s=3), r"\(did you mean 'timeout'"),
    "an objective": (lambda: lagom(objective=train), "use train_fn= for the function, or metric= for the"),  # type: ignore[call-arg]
    "a space": (lambda: lagom(train, search_space={}), r"\(did you mean 'searchspace'"),  # type: ignore[call-arg]
    "Ray's space": (lambda: lagom(train, param_space={}), r"\(did you mean 'searchspace'"),  # type: ignore[call-arg]
    "Horovod's": (lambda: run(train, num_proc=2), r"run\(\) has no argument 'num_proc'.*'workers'"),  # type: ignore[call-arg]
    "an option of ASHA": (given(eta=4), r"no argument 'eta', got eta=4; use optimizer=ASHA\(eta=4\)"),
    "Ray's eta": (given(reduction_factor=4), r"got reduction_factor=4; use optimizer=ASHA\(eta=4\)"),
    "Ray's lowest rung": (given(grace_period=2), r"use optimizer=ASHA\(min_budget=2\)"),
    "a mode": (given(mode="stopping"), r"or optimizer=ASHA\(mode='stopping'\) for how trials end$"),
    "a direction as mode": (given(mode="min"), "; use direction='max' or 'min' for what is best, or"),
    "attempts": (given(max_attempts=1), r"use failures=FailurePolicy\(max_attempts=1\)"),
    "Ray's resources": (given(resources_per_trial={"gpu": 1}), r"use engine=SparkEngine\(resources=\{'gpu': 1\}\), or"),
    "Ray's stop": (given(stop={"training_iteration": 5}), "use max_budget=, target= or timeout=$"),
    "a patience": (given(patience=3), r"use optimizer=Patience\('random', patience=3\)$"),
    "Optuna's pruner": (given(pruner="median"), r"use optimizer='asha', or MedianRule\('tpe'\)$"),
    "Optuna's sampler": (
        given(sampler=TPESampler()),
        r"; use optimizer=OptunaSampler\(lambda seed: TPESampler\(seed=seed\)\)$"),
    "Optuna's first points": (given(enqueue_trial=[{"lr": 1}]), r"\(did you mean 'points_to_evaluate'\?\)$"),
    "an option that nothing here has": (given(gc_after_trial=True), r"got gc_after_trial=True; it takes train_fn, "),
    "GPUs": (given(gpus=2), r"got gpus=2; use engine=LocalEngine\(gpus=2\), a list such as \['0', '1'\]"),
    "Ray's attempts": (given(max_failures=1), r"FailurePolicy\(max_attempts=...\), which counts the first"),
    "Hyperopt's target": (given(loss_threshold=0.1), r"\(did you mean 'target'"),
    "Hyperopt's file": (given(trials_save_file="t"), "; use name= and directory=, and resume=True to continue$"),
    "the first Maggy's rule": (given(es_policy="median"), r"; use optimizer=MedianRule\('random'\), or another rule"),
    "the first Maggy's grace": (given(es_min=5), r"; use optimizer=MedianRule\('random'\), or another rule"),
    "Keras Tuner's repeats": (given(executions_per_trial=3), "; use confirm=True, which repeats the best"),
    "a name that resembles another": (given(max_resource_attr="epochs"), "'epochs'; it takes train_fn"),
    "a model": (given(model=None), "got model=None; it takes train_fn"),
    "Ray's grace": (lambda: MedianRule(grace_period=4), r"\(did you mean 'grace'"),  # type: ignore[call-arg]
    "a time of an optimizer": (lambda: ASHA(time_attr="epoch"), "got time_attr='epoch'; it takes eta,"),  # type: ignore[call-arg]
    "Ray's interval": (lambda: PBT(perturbation_interval=4), r"\(did you mean 'interval'"),  # type: ignore[call-arg]
    "a trial's time": (given(trial_timeout=9), r"use failures=FailurePolicy\(trial_timeout=9\)"),
    "caught exceptions": (given(catch=(KeyError,)), r"use failures=FailurePolicy\(catch=\(KeyError,\)\)$"),
    "fewer workers": (given(min_workers=9), r"use failures=FailurePolicy\(min_workers=9\)"),
    "a journal": (given(journal="s3://b"), r"use directory='s3://b', the directory of the journal and of the rest"),
    "checkpoints": (given(keep_checkpoints=1), r"use store=Store\(keep_checkpoints=1\)"),
    "a slip in a name that belongs elsewhere": (given(keep_checkpoint=1), r"; use store=Store\(keep_checkpoints=1\)$"),
    "a directory of states": (given(checkpoint_dir="/s"), r"; use store='/s', or leave it out"),
    "an isolation": (given(isolation="worker"), r"use engine=LocalEngine\(isolation='worker'\) or SparkEngine\("),
    "a handle": (given(experiment=None), r"use block=False, which returns a handle with stop\(\)"),
    "a study": (given(ablation=3), r"use maggy_like.ablate\(train_fn, study\)"),
    "repeats": (given(repeats=3), r"use maggy_like.ablate\(train_fn, study, repeats=3\)"),
    "of run": (lambda: run(train, max_attempts=1), r"use failures=FailurePolicy\(max_attempts=1\)"),  # type: ignore[call-overload]
    "of a policy": (lambda: FailurePolicy(max_attempt=1), r"FailurePolicy\(\) has no argument .*'max_attempts'"),  # type: ignore[call-arg]
    "nothing known": (given(xyz=2), "'xyz', got xyz=2; it takes train_fn, searchspace, optimizer"),
    "train_fn's own": (lambda: run(train, lr=0.1), r'got lr=0.1; use config=\{"lr": 0.1\} for an argument'),  # type: ignore[call-arg]
    "too many by place": (lambda: lagom(train, SPACE, 50), "takes only .* by position, got 50 .* optimizer="),  # type: ignore[misc]
    "nothing at all": (lambda: lagom(), "missing a required argument: 'train_fn'"),  # type: ignore[call-arg]
    "of a domain": (lambda: Float(0, 1, logs=True), r"Float\(\) has no argument 'logs', .*'log'"),  # type: ignore[call-arg]
    "a step": (lambda: Float(0, 1, q=0.1), r"\(did you mean 'step'"),  # type: ignore[call-arg]
    "bounds": (lambda: Integer(min=1, max=3), r"got min=1 \(did you mean 'low'"),  # type: ignore[call-arg]
    "one bound": (lambda: Float(1), "missing a required argument: 'high'; it takes low, high"),  # type: ignore[call-arg]
    "a log by place": (lambda: Float(1, 2, True), "takes only .* by position, got True .* log="),  # type: ignore[misc]
    "a list as two bounds": (lambda: Float([1, 2]), r"takes low and high, got \[1, 2\]; use Float\(1, 2\)$"),  # type: ignore
    "choices by place": (lambda: Choice("a", "b"), r"one list, got 2 values; use Choice\(\['a', 'b'\]\)$"),  # type: ignore
    "a range with its name": (
        lambda: Float("lr", 1e-4, 0.1, log=True),  # type: ignore
        r"no name, got 'lr'; use Float\(0.0001, 0.1, log=True\), and the name in .*: \{'lr': Float\(\.\.\.\)\}$"),
    "choices and a condition by place": (
        lambda: Choice(["a"], {"b": 1}), r"takes only values by position, got \{'b': 1\} after them; .*: when="),  # type: ignore
    "choices of lists by place": (lambda: Choice([1], [2]), r"use Choice\(\[\[1\], \[2\]\]\)$"),  # type: ignore
    "a count for run": (lambda: run(train, n_trials=3), r"use maggy_like.lagom\(train_fn, searchspace, n_trials=3\)$"),  # type: ignore
    "bounds with their name": (lambda: Integer("n", low=1, high=9), r"use Integer\(low=1, high=9\), and"),  # type: ignore
    "choices with their name": (lambda: Choice("act", ["a", "b"]), r"use Choice\(\['a', 'b'\]\), and the"),  # type: ignore
    "a search's in an optimizer": (lambda: ASHA(max_budget=9), "use max_budget=9 in the call of the search$"),  # type: ignore
    "a search's in an engine": (lambda: LocalEngine(workers=4), "use workers=4 in the call of the search$"),  # type: ignore
    "a study's by place": (lambda: AblationStudy(train), r"AblationStudy\(\) takes no argument by position"),  # type: ignore
    "scikit-learn's count": (lambda: SearchCV(None, {}, n_iter=3), "did you mean 'n_trials'"),
    "scikit-learn's space": (lambda: SearchCV(None, param_grid={}), "did you mean 'search_space'"),
    "a seed of scikit-learn's": (lambda: SearchCV(None, {}, seed=3), r"\(did you mean 'random_state'\?\)$"),
    "a search's in scikit-learn's": (lambda: SearchCV(None, {}, timeout=3), "got timeout=3; it takes estimator, "),
    "scikit-learn's workers": (lambda: SearchCV(None, {}, n_jobs=-1), "did you mean 'workers'"),
    "a seed of SearchCV": (lambda: SearchCV(None, {}, seed=1), r"\(did you mean 'random_state'"),
    "a metric of SearchCV": (lambda: SearchCV(None, {}, metric="f1"), r"\(did you mean 'scoring'"),
    "a direction of SearchCV": (lambda: SearchCV(None, {}, direction="min"), "use a scoring of which greater values"),
    "groups": (lambda: SearchCV(None, {}, groups=[1]), r"got groups=\[1\]; use fit\(X, y, groups=groups\)$"),
    "train scores": (lambda: SearchCV(None, {}, return_train_score=True), "train_score=True; use cross_validate"),
    "choices": (lambda: Choice(choices=[1]), r"\(did you mean 'values'"),  # type: ignore[call-arg]
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES)
def test_the_error_of_an_unknown_argument_names_the_one_that_was_meant(case: str) -> None:
    call, message = NAMES[case]
    with pytest.raises(TypeError, match=message):
        call()


NAMES_ELSEWHERE: dict[str, tuple[Callable[[], Any], str]] = {
    "Categorical": (lambda: maggy_like.Categorical, r"no attribute 'Categorical'; use Choice\(\[...\]\)"),
    "Real": (lambda: maggy_like.Real, r"use Float\(low, high\)"),
    "fmin": (lambda: maggy_like.fmin, r"use lagom\(train_fn, searchspace\)"),
    "samplers": (lambda: maggy_like.samplers, r"use optimizer=, such as 'tpe' or OptunaSampler\(lambda seed: CmaEs"),
    "TrialPruned": (lambda: maggy_like.TrialPruned, r"use reporter.report\(...\), which ends a trial"),
    "report": (lambda: maggy_like.report, r"the parameter reporter of train_fn: reporter.report\(...\)"),
    "model": (lambda: AblationStudy().model, r"'AblationStudy' object has no attribute 'model'; use modules\(...\)"),
    "feature": (lambda: AblationStudy().feature, r"use features\(...\)"),
    "run": (lambda: AblationStudy().run, r"use ablate\(train_fn, study\)"),
}


@pytest.mark.parametrize("case", NAMES_ELSEWHERE)
def test_a_name_of_another_library_is_answered_with_ours(case: str) -> None:
    call, message = NAMES_ELSEWHERE[case]
    with pytest.raises(AttributeError, match=message):
        call()
    assert copy.deepcopy(AblationStudy(config={"lr": 1})).base == {"lr": 1}


def test_an_import_of_a_name_of_another_place_is_answered_with_ours() -> None:
    with pytest.raises(
        ImportError, match=r"cannot import name 'SearchCV' from 'maggy_like'; use SearchCV of maggy_like.s"
    ):
        from maggy_like import SearchCV  # noqa: F401
    with pytest.raises(
        ImportError, match=r"cannot import name 'experiment' from 'maggy_like'; use lagom\(train_fn, sea"
    ):
        from maggy_like import experiment  # noqa: F401
    with pytest.raises(ImportError, match=r"cannot import name 'nonsense' from 'maggy_like' \("):
        from maggy_like import nonsense  # noqa: F401
    assert not hasattr(maggy_like, "SearchCV")


def test_a_space_for_run_leads_to_lagom() -> None:
    with pytest.raises(UserError, match=r"config\['lr'\] must be one value, got Float\(.*; use lagom\(train_fn, "):
        run(train, {"lr": Float(0, 1)}, engine="inline", progress=False)
    with pytest.raises(UserError, match=r"max_attempts must be .*, got 0; use 1 for no retries$"):
        FailurePolicy(0)


def test_signatures_are_those_of_the_functions() -> None:
    assert inspect.signature(lagom).parameters["n_trials"].default is None
    assert inspect.signature(lagom).parameters["searchspace"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert list(inspect.signature(Float).parameters)[:3] == ["low", "high", "log"]
    assert Float(0, 1) == Float(0.0, 1.0)
    assert isinstance(Ordinal([1]), Domain)


VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "swapped": ({"train_fn": SPACE, "space": train}, r"got the search space \{'lr': \[1, 2\]\}; call lagom\(train, sp"),
    "a study": ({"space": AblationStudy()}, r"got a study; call ablate\(train_fn, study\)"),
    "a space alone": ({"train_fn": SearchSpace(SPACE)}, r"call lagom\(train_fn, space\)"),
    "a list as text": (
        {"space": {"lr": "0.1,0.2"}},
        r"'lr': the text '0.1,0.2' would be a constant; use \[0.1, 0.2\] or Float\(0.1, 0.2\) without quotes, or "
        r"Constant\('0.1,0.2'\)"),
    "three numbers as text": ({"space": {"lr": "[1, 2, 3]"}}, r"use \[1, 2, 3\] without quotes, or Constant"),
    "a range as text": ({"space": {"lr": "1e-4 to 1e-1"}}, r"Float\(1e-4, 1e-1\)"),
    "a domain as text": ({"space": {"lr": "loguniform(1e-4, 1e-1)"}}, r" or Float\(1e-4, 1e-1, log=True\) w"),
    "integers as text": ({"space": {"units": "randint(1, 64)"}}, r"use \[1, 64\] or Integer\(1, 64\) without"),
    "a set": ({"space": {"lr": {1, 2}}}, r"values must be a list, got \{1, 2\}; use \[1, 2\]"),
    "a function": ({"space": {"lr": lambda: 1}}, r"a domain must not be a function, got .*; use Float\(low, high\)"),
    "an array": ({"space": {"lr": np.linspace(0, 1, 3)}}, r"values must be a list, got a ndarray, .*; use .tolist\(\)"),
    "a type": ({"space": {"lr": float}}, r"a domain must not be a class, got float; use Float\(low, high\)"),
    "a dict": ({"space": {"lr": {"low": 1, "high": 2}}}, r"with a type, got .*; use Float\(low, high\)"),
    "a nested space": (
        {"space": {"optimizer": {"lr": Float(0, 1), "name": ["adam", "sgd"]}}},
        "'optimizer': a search space must be flat, got a dict with 'lr', 'name'; name .* 'optimizer_lr', 'opti"),
    "a distribution of scipy": (
        {"space": {"lr": stats.loguniform(1e-4, 1e-1)}},
        r"'lr': a domain must not be a distribution, got .*; use Float\(0.0001, 0.1, log=True\)"),
    "a distribution of Optuna": (
        {"space": {"lr": IntDistribution(1, 64, log=True)}},
        r"not be a distribution, got Int.*; use Integer\(1, 64, log=True\)"),
    "a step of Optuna": (
        {"space": {"lr": FloatDistribution(0, 1, step=0.1)}}, r"use Float\(0, 1, step=0.1\)$"),
    "categories of Optuna": (
        {"space": {"lr": CategoricalDistribution([1, None])}},
        r"not be a distribution, got Cat.*; use \[1, None\]$"),
    "a list of names": (
        {"space": ["lr"]}, r"must be a dict .*, got \['lr'\]; use \{'lr': Float\(1e-4, 1e-1, log=True\)\}"),
    "an unknown kind": ({"space": {"lr": ("FLOAT", [0, 1])}}, r"'lr': unknown type 'FLOAT'; .* or better Float\(low"),
    "swapped bounds": ({"space": {"lr": ("DOUBLE", [1, 0])}}, r"'lr': .* low=1 and high=0; use Float\(0, 1\)"),
    "one point": ({"points_to_evaluate": {"lr": 1}}, r"got \{'lr': 1\}; use points_to_evaluate=\[\{'lr': 1\}\]"),
    "a point that is none": ({"points_to_evaluate": [1]}, "points_to_evaluate must contain dicts, got 1"),
    "a table of points": (
        {"points_to_evaluate": DataFrame({"lr": [1]})}, r"got a DataFrame; use .*=table\.to_dict\('records'\)$"),
    "no points": ({"points_to_evaluate": None}, "configurations, got None; leave it out"),
    "more points than trials": (
        {"points_to_evaluate": [{"lr": 1}] * 3, "n_trials": 2}, "at least 3 to try all .*got 2; use n_trials=3, or"),
    "a number of points": ({"points_to_evaluate": 3}, r"takes a list of .*, got 3; leave it out, or use .*=\[\.\.\.\]"),
    "a number that no journal can hold": ({"space": {"lr": [10**30, 1]}}, "'lr': .* must fit into 64 bits, got 10+"),
    "a text with half a character": ({"space": {"lr": ["a\ud800", "b"]}}, "'lr': a text must be valid UTF-8, got"),
    "a value of another type": ({"points_to_evaluate": [{"lr": "1"}]}, "parameter 'lr': '1' is not in Choice"),
    "a point's unknown name": ({"points_to_evaluate": [{"lrr": 1}]}, r"points_to_evaluate: .*\(did you mean 'lr'\?\)"),
    "an empty point": ({"points_to_evaluate": [{}]}, r"points_to_evaluate: 'lr' is missing in \{\}"),
    "one run": ({"warm_start": "last"}, r"takes a list of runs, got 'last'; use warm_start=\['last'\]"),
    "no run": ({"warm_start": None}, "takes a list of runs, got None; leave it out"),
    "a run that is none": ({"warm_start": [3]}, "warm_start must contain results or directories of runs, got 3"),
    "a run that is nowhere": ({"warm_start": ["nothing"]}, "there is no run in 'nothing'"),
    "a sampler": ({"optimizer": TPESampler()}, r"use OptunaSampler\(lambda seed: TPESampler\(seed=seed\)\)"),
    "a class of samplers": ({"optimizer": TPESampler}, r"Optuna's TPESampler; use OptunaSampler\(lambda seed: TPES"),
    "a sampler that counts": ({"optimizer": QMCSampler}, r"got Optuna's QMCSampler; use 'sobol'$"),
    "a pruner": ({"optimizer": MedianPruner()}, r"got Optuna's MedianPruner; use 'asha', MedianRule\('tpe'\) or"),
    "a pruner's name": ({"optimizer": "MedianPruner"}, r"\(did you mean MedianRule\('tpe'\)\?\); use one of"),
    "CMA-ES": ({"optimizer": "cma-es"}, r"did you mean OptunaSampler\(lambda seed: CmaEsSampler\(seed=seed\)\)\?"),
    "an algorithm of Hyperopt": ({"optimizer": suggest}, "got Hyperopt's rand.suggest; use 'random'$"),
    "a sampler of nothing": ({"optimizer": lambda: OptunaSampler(lambda: TPESampler())}, "sampler must take a seed"),
    "a direction in capitals": ({"direction": "MAX"}, r"got 'MAX' \(did you mean 'max'\?\)"),
    "a sampler's name": ({"optimizer": "TPESampler"}, "did you mean 'tpe'"),
    "a class's name": ({"optimizer": "RandomSearch"}, "did you mean 'random'"),
    "a name in words": ({"optimizer": "grid search"}, "did you mean 'grid'"),
    "an engine that is none": ({"engine": Trainer()}, r"engine such as SparkEngine\(...\), got <.*Trainer object>$"),
    "a method of a class": ({"train_fn": Trainer.fit}, r"fit is a method without its object, .* such as trainer\.fit$"),
    "an object with methods": ({"train_fn": Trainer()}, "got <.*Trainer object>; pass its method: fit$"),
    "classes": ({"space": {"act": [Trainer, dict]}}, r"use its name, 'Trainer', and look it up in train_fn"),
    "a library": ({"optimizer": "optuna"}, "did you mean 'tpe'"),
    "a model": ({"optimizer": "gp"}, "did you mean 'bayesian'"),
    "no optimizer": ({"optimizer": None}, "got None; use one of random, grid"),
    "a list of optimizers": ({"optimizer": ["asha"]}, r"got \['asha'\]; use one of"),
    "a metric that is none": ({"metric": 3}, "metric must be a name or a list of names, got 3"),
    "a dict of metrics": ({"metric": {"acc": "max"}}, r"got \{'acc': 'max'\}; directions go into direction="),
    "an objective of Optuna": (
        {"train_fn": lambda trial: 1.0},
        r"nothing fills the parameter 'trial' of .*; use def train\(lr\) for the .* by name, and reporter to report$"),
    "a dict of all": ({"train_fn": lambda params: 1.0}, "nothing fills the parameter 'params' .*; rename it to config"),
    "a count as text": ({"n_trials": "20"}, "got '20'; use 20$"),
    "an unlimited count": ({"n_trials": -1}, "got -1; leave it out for the default$"),
    "all workers as -1": ({"workers": -1}, "got -1; leave it out for all slots of the engine$"),
    "all workers in a word": ({"workers": "all"}, "got 'all'; leave it out for all slots of the engine$"),
    "a timedelta": ({"timeout": timedelta(hours=1)}, r"got datetime.*; use 3600$"),
    "a time in words": ({"timeout": "1h"}, "got '1h'; leave it out for no limit, or use timeout=3600 for an hour$"),
    "Optuna's direction": (
        {"direction": StudyDirection.MINIMIZE}, r"got <StudyDirection.MINIMIZE: 1>; leave it out, or use 'min'$"),
    "a study of Optuna": (
        {"warm_start": [create_study()]},
        r"got <optuna.* object>; use \[result\], or points_to_evaluate=\[...\] to try the best configurations"),
    "a flag as direction": ({"direction": True}, "direction must be 'max' or 'min', got True; leave it out, or use"),
    "a target as text": ({"target": "0.9"}, "got '0.9'; use 0.9$"),
    "no seed": ({"seed": None}, "seed must be .*, got None; leave it out for 0$"),
    "a training in a word": ({"train_best": "all"}, "train_best must be .*, got 'all'; use True$"),
    "a bound as text": ({"space": {"lr": ("DOUBLE", ["1e-4", 1])}}, "got '1e-4'; use 0.0001$"),
    "a master of Spark": ({"engine": "local[4]"}, r"got 'local\[4\]'; use engine='local', workers=4$"),
    "a flag as store": ({"store": True}, "or a Store, got True; use 's3://bucket/states'$"),
    "no directory": ({"directory": None}, "directory must be the path or URL of a directory, got None; leave it out"),
    "a variable of the shell": (
        {"directory": "$HOME/runs"}, r"directory='\$HOME/runs' has a variable, .*; use os.path.expandvars\('\$HOME/r"),
    "a variable in a store": ({"store": "${HOME}/states"}, r"has a variable, which only a shell replaces"),
    "a number of a directory": ({"directory": 3}, "directory must be the path or URL of a directory, got 3"),
    "an empty directory": ({"directory": ""}, "directory must be the path or URL of a directory, got ''"),
    "a long name": ({"name": "x" * 300}, "name must have at most 200 characters, got 300: 'xxx"),
    "one callback": (
        {"callbacks": print}, r"takes a list of functions of one event, got print; use callbacks=\[print\]$"),
    "no callback": ({"callbacks": None}, "got None; leave it out, or use callbacks="),
    "a callback of nothing": ({"callbacks": [lambda: 1]}, r"must take one event, got <lambda>\(\); use def f\("),
    "a callback of two": ({"callbacks": [lambda a, b: 1]}, r"got <lambda>\(a, b\); use def f\("),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_the_error_of_a_wrong_value_says_what_to_write_and_nothing_starts(case: str, tmp_path: Path) -> None:
    arguments = {"engine": "local", "directory": tmp_path, "progress": False, "n_trials": 1, **VALUES[case][0]}
    with pytest.raises(UserError, match=VALUES[case][1]):
        lagom(arguments.pop("train_fn", train), arguments.pop("space", SPACE), **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["adam", "resnet50", "1.2.3", "224x224", "a,b", "", "10", "2024-01-01", "s3://b/1,2x"])
def test_texts_that_are_no_lists_of_numbers_stay_constants(text: str) -> None:
    assert SearchSpace(x=text).domains["x"] == Constant(text)


def test_who_means_the_text_gets_it() -> None:
    assert SearchSpace(x=Constant("0.1,0.2")).domains["x"] == Constant("0.1,0.2")
    assert SearchSpace(x=["0.1,0.2", "0.3"]).domains["x"].contains("0.3")
