"""Asynchronous hyperparameter search on Apache Spark, or on the processes of a laptop.

    from maggy_like import lagom, Float, Integer

    result = lagom(train_fn, {"lr": Float(1e-4, 1e-1, log=True), "units": Integer(16, 256)})

Names are loaded on first use, so that a worker's process starts light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maggy_like.ablation import AblationStudy, Variant
    from maggy_like.api import lagom
    from maggy_like.engines.inline import InlineEngine
    from maggy_like.engines.local import LocalEngine
    from maggy_like.engines.spark import SparkEngine
    from maggy_like.experiment.simulate import simulate
    from maggy_like.failures import FailurePolicy
    from maggy_like.handle import Experiment
    from maggy_like.result import Result
    from maggy_like.runs import load_run
    from maggy_like.spark import ConnectServer, StandaloneCluster, spark_session
    from maggy_like.trained import Training
    from maggy_like.training import run
    from maggy_like.worker.reporter import Reporter
    from optimizers.domains import Choice, Constant, Float, Integer, Ordinal
    from optimizers.space import SearchSpace
    from optimizers.space import SearchSpace as Searchspace

__version__ = "0.1.0"

_HOMES = {
    "AblationStudy": "maggy_like.ablation",
    "Choice": "optimizers.domains",
    "ConnectServer": "maggy_like.spark",
    "Constant": "optimizers.domains",
    "Experiment": "maggy_like.handle",
    "FailurePolicy": "maggy_like.failures",
    "Float": "optimizers.domains",
    "InlineEngine": "maggy_like.engines.inline",
    "Integer": "optimizers.domains",
    "LocalEngine": "maggy_like.engines.local",
    "Ordinal": "optimizers.domains",
    "Reporter": "maggy_like.worker.reporter",
    "Result": "maggy_like.result",
    "SearchSpace": "optimizers.space",
    "SparkEngine": "maggy_like.engines.spark",
    "StandaloneCluster": "maggy_like.spark",
    "Training": "maggy_like.trained",
    "Variant": "maggy_like.ablation",
    "lagom": "maggy_like.api",
    "load_run": "maggy_like.runs",
    "run": "maggy_like.training",
    "simulate": "maggy_like.experiment.simulate",
    "spark_session": "maggy_like.spark",
}

__all__ = [
    "AblationStudy",
    "Choice",
    "ConnectServer",
    "Constant",
    "Experiment",
    "FailurePolicy",
    "Float",
    "InlineEngine",
    "Integer",
    "LocalEngine",
    "Ordinal",
    "Reporter",
    "Result",
    "SearchSpace",
    "Searchspace",
    "SparkEngine",
    "StandaloneCluster",
    "Training",
    "Variant",
    "lagom",
    "load_run",
    "run",
    "simulate",
    "spark_session",
]


def __getattr__(name: str) -> Any:
    if name == "Searchspace":  # the first Maggy's spelling
        return importlib.import_module("optimizers.space").SearchSpace
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'maggy_like' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
