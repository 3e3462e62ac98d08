"""Asynchronous hyperparameter search on Apache Spark, or on the processes of a laptop.

    from maggy_like import lagom, Float, Integer

    result = lagom(train_fn, {"lr": Float(1e-4, 1e-1, log=True), "units": Integer(16, 256)})

Names are loaded on first use, so that a worker's process starts light.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from maggy_like.version import __version__ as __version__

if TYPE_CHECKING:
    from maggy_like.ablation.outcome import Ablation
    from maggy_like.ablation.study import AblationStudy
    from maggy_like.ablation.variant import Variant
    from maggy_like.api.ablate import Tuning, ablate
    from maggy_like.api.lagom import lagom
    from maggy_like.api.run import run, run_script
    from maggy_like.api.saved_runs import compare_runs, list_runs, load_run
    from maggy_like.driver.run_handle import RunHandle
    from maggy_like.driver.settings import Confirmation, FailurePolicy
    from maggy_like.driver.simulate import simulate
    from maggy_like.engines.inline import InlineEngine
    from maggy_like.engines.local import LocalEngine
    from maggy_like.processes.zygote.client import warm_up
    from maggy_like.results.data import Training
    from maggy_like.results.result import Result
    from maggy_like.spark.engine.engine import SparkEngine
    from maggy_like.spark.servers import ConnectServer, StandaloneCluster
    from maggy_like.spark.session import spark_session
    from maggy_like.storage.run_paths import Store
    from maggy_like.worker.child.reporter import Reporter
    from optimizers.samplers.bayesian import BayesianSearch
    from optimizers.samplers.non_adaptive import Grid, RandomSearch, Sobol
    from optimizers.samplers.optuna_sampler import TPE, OptunaSampler
    from optimizers.samplers.skopt_search import SkoptSearch
    from optimizers.schedulers.asha import ASHA, BOHB, MOBSTER, Hyperband
    from optimizers.schedulers.population import PBT
    from optimizers.schedulers.stopping import MedianRule, Patience, Threshold
    from optimizers.space.domains import Choice, Constant, Float, Integer, Ordinal
    from optimizers.space.search_space import SearchSpace
    from optimizers.space.search_space import SearchSpace as Searchspace

_HOMES = {
    "ASHA": "optimizers.schedulers.asha",
    "Ablation": "maggy_like.ablation.outcome",
    "AblationStudy": "maggy_like.ablation.study",
    "BOHB": "optimizers.schedulers.asha",
    "BayesianSearch": "optimizers.samplers.bayesian",
    "Choice": "optimizers.space.domains",
    "Confirmation": "maggy_like.driver.settings",
    "ConnectServer": "maggy_like.spark.servers",
    "Constant": "optimizers.space.domains",
    "FailurePolicy": "maggy_like.driver.settings",
    "Float": "optimizers.space.domains",
    "Grid": "optimizers.samplers.non_adaptive",
    "Hyperband": "optimizers.schedulers.asha",
    "InlineEngine": "maggy_like.engines.inline",
    "Integer": "optimizers.space.domains",
    "LocalEngine": "maggy_like.engines.local",
    "MOBSTER": "optimizers.schedulers.asha",
    "MedianRule": "optimizers.schedulers.stopping",
    "OptunaSampler": "optimizers.samplers.optuna_sampler",
    "Ordinal": "optimizers.space.domains",
    "PBT": "optimizers.schedulers.population",
    "Patience": "optimizers.schedulers.stopping",
    "RandomSearch": "optimizers.samplers.non_adaptive",
    "Reporter": "maggy_like.worker.child.reporter",
    "Result": "maggy_like.results.result",
    "RunHandle": "maggy_like.driver.run_handle",
    "SearchSpace": "optimizers.space.search_space",
    "SkoptSearch": "optimizers.samplers.skopt_search",
    "Sobol": "optimizers.samplers.non_adaptive",
    "SparkEngine": "maggy_like.spark.engine.engine",
    "StandaloneCluster": "maggy_like.spark.servers",
    "Store": "maggy_like.storage.run_paths",
    "TPE": "optimizers.samplers.optuna_sampler",
    "Threshold": "optimizers.schedulers.stopping",
    "Training": "maggy_like.results.data",
    "Tuning": "maggy_like.api.ablate",
    "Variant": "maggy_like.ablation.variant",
    "ablate": "maggy_like.api.ablate",
    "compare_runs": "maggy_like.api.saved_runs",
    "lagom": "maggy_like.api.lagom",
    "list_runs": "maggy_like.api.saved_runs",
    "load_run": "maggy_like.api.saved_runs",
    "run": "maggy_like.api.run",
    "run_script": "maggy_like.api.run",
    "simulate": "maggy_like.driver.simulate",
    "spark_session": "maggy_like.spark.session",
    "warm_up": "maggy_like.processes.zygote.client",
}

__all__ = [
    "ASHA",
    "BOHB",
    "MOBSTER",
    "PBT",
    "TPE",
    "Ablation",
    "AblationStudy",
    "BayesianSearch",
    "Choice",
    "Confirmation",
    "ConnectServer",
    "Constant",
    "FailurePolicy",
    "Float",
    "Grid",
    "Hyperband",
    "InlineEngine",
    "Integer",
    "LocalEngine",
    "MedianRule",
    "OptunaSampler",
    "Ordinal",
    "Patience",
    "RandomSearch",
    "Reporter",
    "Result",
    "RunHandle",
    "SearchSpace",
    "Searchspace",
    "SkoptSearch",
    "Sobol",
    "SparkEngine",
    "StandaloneCluster",
    "Store",
    "Threshold",
    "Training",
    "Tuning",
    "Variant",
    "ablate",
    "compare_runs",
    "lagom",
    "list_runs",
    "load_run",
    "run",
    "run_script",
    "simulate",
    "spark_session",
    "warm_up",
]


_ELSEWHERE = {
    **dict.fromkeys(("Categorical", "CategoricalDistribution", "choice"), "Choice([...])"),
    **dict.fromkeys(("Real", "Uniform", "uniform", "FloatDistribution"), "Float(low, high)"),
    **dict.fromkeys(("LogUniform", "loguniform"), "Float(low, high, log=True)"),
    **dict.fromkeys(("Int", "randint", "IntDistribution"), "Integer(low, high)"),
    **dict.fromkeys(("fmin", "minimize", "optimize", "search", "tune", "Tuner"), "lagom(train_fn, searchspace)"),
    **dict.fromkeys(("create_study", "Study"), "lagom(train_fn, searchspace), or optimizers.Study to ask and tell"),
    "TrialPruned": "reporter.report(...), which ends a trial that is to stop",
    "importance": "result.importance()",
    "load_study": "load_run(path)",
    "pruners": "optimizer=, such as 'asha' or MedianRule('tpe')",
    "samplers": "optimizer=, such as 'tpe' or OptunaSampler(lambda seed: CmaEsSampler(seed=seed))",
    **dict.fromkeys(("report", "checkpoint", "session"), "the parameter reporter of train_fn: reporter.report(...)"),
    **dict.fromkeys(
        ("experiment", "HyperparameterOptConfig", "OptimizationConfig", "SparkTrials", "Trials"),
        "lagom(train_fn, searchspace)",
    ),
    "AblationConfig": "ablate(train_fn, AblationStudy(...))",
    **dict.fromkeys(("DistributedConfig", "TorchDistributedConfig"), "run(train_fn, config, workers=8)"),
    **dict.fromkeys(("ASHAScheduler", "AsyncHyperBandScheduler", "Asha"), "ASHA(eta=3)"),
    **dict.fromkeys(("HyperBandScheduler", "HyperbandPruner"), "Hyperband()"),
    **dict.fromkeys(("MedianStoppingRule", "MedianPruner"), "MedianRule('random')"),
    "PopulationBasedTraining": "PBT(interval=4)",
    "hp": "Float(low, high), Integer(low, high) or Choice([...])",
    **dict.fromkeys(
        ("SearchCV", "GridSearchCV", "RandomizedSearchCV", "HalvingRandomSearchCV"),
        "SearchCV of maggy_like.sklearn",
    ),
    **dict.fromkeys(("TorchEstimator", "CrossValidator"), "TorchEstimator of maggy_like.ml"),
    **{
        name: f"{name} of maggy_like.callbacks"
        for name in ("KerasReport", "LightGBMReport", "LightningReport", "TransformersReport", "XGBoostReport")
    },
    "train": "lagom(train_fn, searchspace) to search, or run(train_fn, config) to train",
    "visualization": "result.plot, or result.to_optuna() for Optuna's own",
}
"""What to write instead of names of other libraries, and of names that are in a subpackage."""


def __getattr__(name: str) -> Any:
    if name == "Searchspace":  # the first Maggy's spelling
        return importlib.import_module("optimizers.space.search_space").SearchSpace
    if name in _HOMES:
        try:
            return getattr(importlib.import_module(_HOMES[name]), name)
        except (ImportError, AttributeError) as error:
            if other := _other_optimizers():
                raise ImportError(
                    f"maggy_like comes with a package called optimizers, and Python finds {other} under that name; "
                    "rename your file or directory, or move it into a package of your own"
                ) from error
            raise
    hint = f"; use {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    if hint and sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
        # ``from maggy_like import NAME`` would hide the text of an AttributeError.
        raise ImportError(f"cannot import name {name!r} from 'maggy_like'{hint}", name=__name__)
    raise AttributeError(f"module 'maggy_like' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _other_optimizers() -> str:
    """The file of a module of the user's that has the name of the package next to this one; empty if there is none."""
    place: str = getattr(sys.modules.get("optimizers"), "__file__", None) or ""
    is_ours = os.path.dirname(os.path.dirname(place)) == os.path.dirname(os.path.dirname(__file__))
    return "" if is_ours else place
