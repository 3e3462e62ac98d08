"""PyTorch on DataFrames: read Parquet files in batches, train networks, and add predictions to DataFrames.

    from maggy_like.ml import ParquetLoader

    loader = ParquetLoader("/data/sales", ["features", "label"], batch_size=256)

Names are loaded on first use, so that a loader works without pyspark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maggy_like.ml.columns import Column
    from maggy_like.ml.estimator.estimator import PipelineSearch, TorchEstimator
    from maggy_like.ml.estimator.model import TorchModel
    from maggy_like.ml.featurizer import TorchFeaturizer
    from maggy_like.ml.inference.predict import as_udf, predict
    from maggy_like.ml.loader.parquet_loader import ParquetLoader
    from maggy_like.ml.pyfunc import log_pyfunc, save_pyfunc

_HOMES = {
    "Column": "maggy_like.ml.columns",
    "ParquetLoader": "maggy_like.ml.loader.parquet_loader",
    "PipelineSearch": "maggy_like.ml.estimator.estimator",
    "TorchEstimator": "maggy_like.ml.estimator.estimator",
    "TorchFeaturizer": "maggy_like.ml.featurizer",
    "TorchModel": "maggy_like.ml.estimator.model",
    "as_udf": "maggy_like.ml.inference.predict",
    "log_pyfunc": "maggy_like.ml.pyfunc",
    "predict": "maggy_like.ml.inference.predict",
    "save_pyfunc": "maggy_like.ml.pyfunc",
}

__all__ = [
    "Column",
    "ParquetLoader",
    "PipelineSearch",
    "TorchEstimator",
    "TorchFeaturizer",
    "TorchModel",
    "as_udf",
    "log_pyfunc",
    "predict",
    "save_pyfunc",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'maggy_like.ml' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
