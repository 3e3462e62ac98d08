"""``TorchModel``: the result of a fit, a Transformer that adds predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cloudpickle
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import MLReadable, MLReader, MLWritable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from torch import nn

from maggy_like.errors import ConfigError
from maggy_like.ml.columns import Column
from maggy_like.ml.estimator.network import network_of_bytes, network_to_bytes
from maggy_like.ml.estimator.params import (
    PartsWriter,
    PredictionParams,
    check_room,
    into,
    load_metadata,
    made_columns,
    pickled,
    read_parts,
    save_metadata,
    write_parts,
)
from maggy_like.ml.inference.predict import as_udf, predict
from maggy_like.ml.inference.predictor import Kind, Kinds
from maggy_like.ml.spark_columns import check_frame, quoted
from optimizers.space.scalars import from_json, to_json

if TYPE_CHECKING:
    from maggy_like.ml.estimator.fit import Fitted
    from maggy_like.results.result import Result


_BATCH = 1024
"""Default number of rows that a network computes at once for predictions."""


class TorchModel(Model, PredictionParams, MLReadable["TorchModel"], MLWritable):
    """Add the predictions of a trained network to a DataFrame.

    :meth:`TorchEstimator.fit` returns it, and :meth:`load` reads a saved one. ``transform`` adds ``predictionCol``:
    the number of the class for losses over classes, the number for losses over numbers, or an array if the output has
    several numbers. For losses over classes it also adds ``probabilityCol`` and, if named, ``rawPredictionCol``,
    which are vectors. A row that the network cannot take is kept, with nulls in these columns, and ``errorCol`` has the
    reason. ``transform`` works in batch and on streams. Each Python worker of Spark loads the network once.

    Attributes:
        network: Network, on the CPU.
        inputs: Inputs of the network, as :class:`Column`.
        outputs: Kinds of its outputs, by label: ``classes``, ``binary``, ``probability``, ``values`` or ``other``.
        history: Metrics of each epoch: ``epoch``, ``loss``, ``validation_loss``, ``accuracy``, ..., or what a
            LightningModule logs.
        best_epoch: Epoch with the lowest loss.
        config: Best configuration of the search, or with ``confirm`` the recommended one. Empty without a search.
        result: Result of the search, or None without a search. It is not saved with the model.

    Example:
        >>> model = TorchModel.load("s3a://bucket/model")  # doctest: +SKIP
        >>> model.transform(df).columns[-2:]
        ['prediction', 'probability']
    """

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            featuresCol=["features"],
            predictionCol="prediction",
            probabilityCol="probability",
            batchSize=_BATCH,
            decode={},
        )
        self.network: nn.Module = nn.Identity()
        self.inputs: tuple[Column, ...] = ()
        self.outputs: dict[str, Kind] = {}
        self.history: list[dict[str, float]] = []
        self.best_epoch: int | None = None
        self.config: dict[str, Any] = {}
        self.result: Result | None = None

    @classmethod
    def _of(cls, fitted: Fitted, estimator: PredictionParams) -> TorchModel:
        """Create the model of an Estimator, with its Params."""
        model = cls()
        model._resetUid(estimator.uid)
        estimator._copyValues(model)
        model._setDefault(batchSize=_BATCH)  # that of the training, unless it was set, is small for predictions
        model.network, model.inputs, model.outputs = fitted.network, fitted.inputs, fitted.outputs
        model.history, model.best_epoch = fitted.history, fitted.best_epoch
        model.config, model.result = fitted.config, fitted.result
        return model

    def setParams(self, **given: Any) -> TorchModel:
        """Set Params by name.

        Raises:
            ConfigError: A Param does not exist, or a value is invalid for it.
        """
        self._take(given)
        return self

    def as_udf(self) -> Callable[..., SparkColumn]:
        """Return the network as a function of its inputs, for ``select`` or, once registered, for SQL.

        The function takes numbers, arrays and bytes in the order of ``featuresCol``. It returns a struct with
        ``label``, ``score``, ``vector`` and ``error``. With several labels, it returns a struct with one of these
        structs for each. Convert vectors to arrays first (``pyspark.ml.functions.vector_to_array``).

        Example:
            >>> churn = spark.udf.register("churn", model.as_udf())
            >>> df.createOrReplaceTempView("customers")
            >>> spark.sql("SELECT id, churn(features).label AS leaves FROM customers").columns
            ['id', 'leaves']
        """
        return as_udf(
            self.network,
            self._inputs(),
            self._kinds(),
            batch_size=self._given("batchSize"),
            decode=self._given("decode"),
        )

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset, "transform")
        made = made_columns(self, self.outputs)
        check_room(dataset, made)
        found = predict(
            dataset,
            self.network,
            self._inputs(),
            self._kinds(),
            into=into(made),
            batch_size=self._given("batchSize"),
            decode=self._given("decode"),
        )
        for_vectors = [it.name for it in made if it.param in ("probabilityCol", "rawPredictionCol")]
        numbers = {name: F.col(quoted(name)).cast("array<double>") for name in for_vectors}
        vectors = {name: F.when(it.isNotNull(), array_to_vector(it)) for name, it in numbers.items()}
        return found.withColumns(vectors) if vectors else found  # Spark Connect takes no empty dict

    def _inputs(self) -> list[Column]:
        """Return the network's inputs under the names of the DataFrame's columns."""
        names = self._given("featuresCol")
        if len(names) != len(self.inputs):
            raise ConfigError(
                f"featuresCol must have one column for each input of the network, {len(self.inputs)} "
                f"({', '.join(it.name for it in self.inputs)}), got {', '.join(names)}"
            )
        return [replace(it, name=name) for it, name in zip(self.inputs, names, strict=True)]

    def _kinds(self) -> Kinds:
        return self.outputs if len(self.outputs) > 1 else next(iter(self.outputs.values()))

    def write(self) -> PartsWriter:
        """Return a writer, as other stages of pyspark.ml do."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader[TorchModel]:
        """Return a reader, as other stages of pyspark.ml do."""
        return _Reader()


class _Writer(PartsWriter):
    def __init__(self, model: TorchModel) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:
        model = self._model
        about = {
            "inputs": [[it.name, it.shape, it.dtype] for it in model.inputs],
            "outputs": model.outputs,
            "history": model.history,
            "bestEpoch": model.best_epoch,
            "config": {name: to_json(value) for name, value in model.config.items()},
        }
        parts = {**network_to_bytes(model.network), "decode": pickled("decode", model._given("decode"))}
        save_metadata(model, path, self.sparkSession, about)
        write_parts(self.sparkSession, path, parts)


class _Reader(MLReader[TorchModel]):
    def load(self, path: str) -> TorchModel:
        model = TorchModel()
        about = load_metadata(model, path, self.sparkSession)
        parts = read_parts(self.sparkSession, path)
        model.network = network_of_bytes(parts)
        model._take({"decode": cloudpickle.loads(parts["decode"])})
        model.inputs = tuple(_column(it) for it in about["inputs"])
        model.outputs, model.history = about["outputs"], about["history"]
        model.best_epoch = about["bestEpoch"]
        model.config = {name: from_json(value) for name, value in about["config"].items()}
        return model


def _column(saved: list[Any]) -> Column:
    name, shape, dtype = saved
    return Column(name, None if shape is None else tuple(shape), dtype)
