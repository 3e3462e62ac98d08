"""Save a fitted network as an MLflow model of the ``python_function`` flavor, which predicts from a pandas DataFrame.

MLflow loads it with this module (``_load_pyfunc``), without Spark. The model includes the code of this package.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pyarrow as pa
import torch

import maggy_like
import optimizers
from maggy_like.argument_checks import require
from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import Column
from maggy_like.ml.estimator.network import network_of_bytes, network_to_bytes
from maggy_like.ml.inference.predictor import FIELDS, Predictor, ShippedNetwork, fields_for

if TYPE_CHECKING:
    import pandas as pd

    from maggy_like.ml.estimator.model import TorchModel

_NEEDED = ("torch", "pyarrow", "numpy", "pandas", "cloudpickle", "fsspec", "msgspec")
_OWN = ("loader_module", "data_path", "code_paths", "python_model", "artifacts")
"""Options of MLflow that are set here."""


def save_pyfunc(model: TorchModel, path: str | Path, **options: Any) -> None:
    """Save a fitted model as a directory of MLflow's ``python_function`` flavor.

    The saved model takes a pandas DataFrame with the columns of ``featuresCol`` (numbers, lists or arrays, bytes). It
    returns a DataFrame with the columns that ``transform`` adds: ``predictionCol``, ``probabilityCol``, and others
    that were named. A row that the network cannot take has nulls in them. The result and the history of the training
    are not included; :meth:`TorchModel.save` keeps them.

    Args:
        model: Fitted :class:`TorchModel`.
        path: Directory to create; it must not exist.
        **options: Further arguments of ``mlflow.pyfunc.save_model`` (``signature``, ``metadata``, ...).

    Raises:
        ConfigError: This function sets an option itself, or the network cannot be pickled.
        UserError: MLflow is not installed.

    Example:
        >>> save_pyfunc(model, "model")
        >>> len(mlflow.pyfunc.load_model("model").predict(df.toPandas())["prediction"])
        60
    """
    _with_files(model, "save_model", options, path=str(path))


def log_pyfunc(model: TorchModel, name: str = "model", **options: Any) -> Any:
    """Log a fitted model to the active MLflow run, or to a new one. See :func:`save_pyfunc`.

    Args:
        model: Fitted :class:`TorchModel`.
        name: Name of the model in the run.
        **options: Further arguments of ``mlflow.pyfunc.log_model`` (``registered_model_name``, ``signature``, ...).

    Returns:
        MLflow's ``ModelInfo``, whose ``model_uri`` loads the model.

    Raises:
        ConfigError: This function sets an option itself, or the network cannot be pickled.
        UserError: MLflow is not installed.

    Example:
        >>> log_pyfunc(model, registered_model_name="churn").model_uri  # doctest: +SKIP
    """
    return _with_files(model, "log_model", options, name=name)


def _with_files(model: TorchModel, function: str, options: Mapping[str, Any], **place: str) -> Any:
    """Call a function of ``mlflow.pyfunc`` on the files of a model."""
    require("mlflow", f"{function.split('_')[0]}_pyfunc")
    import mlflow.pyfunc

    if not hasattr(model, "outputs") or not model.outputs:
        raise ConfigError(f"model must be a fitted TorchModel, got {model!r}; use the result of TorchEstimator.fit")
    if taken := sorted(set(options) & set(_OWN)):
        raise ConfigError(f"{taken[0]} must not be given, because {function.split('_')[0]}_pyfunc sets it; omit it")
    if "pip_requirements" not in options:
        options = {**options, "pip_requirements": [f"{name}=={version(name)}" for name in _NEEDED]}
    with tempfile.TemporaryDirectory() as directory:
        _write(model, Path(directory, "network"))
        return getattr(mlflow.pyfunc, function)(
            **place,
            loader_module=__name__,
            data_path=str(Path(directory, "network")),
            code_paths=[str(Path(package.__path__[0])) for package in (maggy_like, optimizers)],
            **options,
        )


def _write(model: TorchModel, directory: Path) -> None:
    from maggy_like.ml.estimator.params import (
        into,
        made_columns,
        pickled,  # here, as it needs pyspark, which a server of models lacks
    )

    directory.mkdir()
    columns = into(made_columns(model, model.outputs))
    about = {
        "inputs": [[it.name, it.shape, it.dtype] for it in model._inputs()],
        "outputs": model.outputs,
        "columns": {name: [part] if isinstance(part, str) else part for name, part in columns.items()},
        "batch_size": model._given("batchSize"),
    }
    parts = {**network_to_bytes(model.network), "decode": pickled("decode", model._given("decode"))}
    for name, content in {**parts, "about.json": json.dumps(about).encode()}.items():
        (directory / name).write_bytes(content)


def _load_pyfunc(path: str) -> _Predictions:
    """Load a model. Called by MLflow."""
    directory = Path(path)
    about = json.loads((directory / "about.json").read_bytes())
    network = network_of_bytes({name: (directory / name).read_bytes() for name in ("structure", "weights")})
    inputs = tuple(Column(name, shape and tuple(shape), dtype) for name, shape, dtype in about["inputs"])
    outputs, columns = about["outputs"], about["columns"]
    taken = {field for *_, field in columns.values()}
    predictor = Predictor(
        ShippedNetwork.of(network),
        inputs,
        outputs if len(outputs) > 1 else next(iter(outputs.values())),
        about["batch_size"],
        cloudpickle.loads((directory / "decode").read_bytes()),
        fields_for(taken),
        torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )
    return _Predictions(predictor, columns)


class _Predictions:
    """Predicts. Called by MLflow's server and by ``predict``."""

    def __init__(self, predictor: Predictor, columns: Mapping[str, list[str]]) -> None:
        self._predictor, self._columns = predictor, columns

    def predict(self, data: pd.DataFrame) -> pd.DataFrame:
        """Return the columns that ``transform`` adds, for each row.

        Raises:
            DataError: A column is missing, or the network cannot take it.
        """
        import pandas as pd

        names = [column.name for column in self._predictor.inputs]
        if not isinstance(data, pd.DataFrame) or set(names) - set(data.columns):
            columns = ", ".join(map(repr, getattr(data, "columns", [])))
            has = f"the columns {columns}" if columns else f"a {type(data).__name__}"
            raise DataError(f"data must be a pandas DataFrame with {', '.join(map(repr, names))}, got {has}")
        found = list(self._predictor(iter([[_array(data[name]) for name in names]]))) if len(data) else []
        return pd.DataFrame({name: _values(found, part) for name, part in self._columns.items()}, data.index)


def _array(values: pd.Series) -> pa.Array:
    """Convert a column to Arrow. Rows of nested arrays become lists, because Arrow accepts nothing else."""
    if values.dtype != object:
        return pa.array(values.to_numpy())
    there = values.where(values.notna(), None)  # as pandas writes NaN for a list that is missing
    rows = [it.toArray() if hasattr(it, "toArray") else it for it in there]  # vectors of pyspark.ml
    return pa.array([it.tolist() if isinstance(it, np.ndarray) else it for it in rows])


def _values(found: list[pa.StructArray], part: list[str]) -> Any:
    """Return a column of the results: a field of an output, or the whole struct as a dict."""
    import pandas as pd

    *output, field = part
    arrays = [it.field(output[0]) if output else it for it in found]
    if field != "struct":
        arrays = [it.field(field) for it in arrays]
    arrays = arrays or [pa.array([], FIELDS.get(field, pa.null()))]
    return pd.concat([it.to_pandas() for it in arrays], ignore_index=True).array
