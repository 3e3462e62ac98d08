"""``TorchFeaturizer``: what a layer of a trained network gives, as features for other models."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import cloudpickle
from pyspark.ml import Transformer
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import MLReadable, MLReader, MLWritable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # as all of Spark's documentation calls it
from torch import nn

from maggy_like.errors import ConfigError
from maggy_like.ml.columns.spark_columns import columns_of_spark, quoted
from maggy_like.ml.estimator.network import network_of_bytes, network_to_bytes
from maggy_like.ml.estimator.params import PartsWriter, load_metadata, read_parts, save_metadata, write_parts
from maggy_like.ml.inference.layer import LayerOutput
from maggy_like.ml.inference.predict import predict
from maggy_like.processes.pickles import dumps


class TorchFeaturizer(Transformer, MLReadable["TorchFeaturizer"], MLWritable):
    """Adds what a layer of a network gives for each row, flattened; the layers after it are not computed.

    Rows that the network cannot take stay, with null. Nothing is downloaded: the network comes with its weights.

    Args:
        model: The network.
        layer: Name of a module in it, as ``model.named_modules()`` gives it.
        inputCol: Column that the network takes: numbers, arrays, vectors, or bytes.
        outputCol: Column to be made.
        outputType: ``"array"`` of floats, or ``"vector"`` for estimators of pyspark.ml.
        inputShape: Shape of a row's value, to which flat arrays are reshaped; that of the column if omitted.
        batchSize: Rows that the network gets at once, at most.
        decode: Makes a tensor or array of a row's bytes, such as one of an image file.

    Raises:
        ConfigError: There is no such layer, or an argument is none that its Param takes.

    Example:
        >>> featurizer = TorchFeaturizer(network, "body.pool", inputCol="image", decode=read_image)  # doctest: +SKIP
        >>> Pipeline(stages=[featurizer, TorchEstimator(featuresCol="embedding", ...)]).fit(df)  # doctest: +SKIP
    """

    inputCol = Param(Params._dummy(), "inputCol", "column that the network takes", TypeConverters.toString)
    outputCol = Param(Params._dummy(), "outputCol", "column to be made", TypeConverters.toString)
    layer = Param(Params._dummy(), "layer", "name of the module whose output is taken", TypeConverters.toString)
    outputType = Param(Params._dummy(), "outputType", "'array' or 'vector'", TypeConverters.toString)
    inputShape: Param[Any] = Param(Params._dummy(), "inputShape", "shape of a row's value", TypeConverters.toListInt)
    batchSize = Param(Params._dummy(), "batchSize", "rows of a batch, at most", TypeConverters.toInt)

    def __init__(
        self,
        model: nn.Module | None = None,
        layer: str | None = None,
        *,
        inputCol: str = "features",
        outputCol: str = "embedding",
        outputType: str = "array",
        inputShape: list[int] | None = None,
        batchSize: int = 256,
        decode: Callable[[bytes], Any] | None = None,
    ) -> None:
        super().__init__()
        defaults = inspect.signature(TorchFeaturizer.__init__).parameters
        self._setDefault(
            **{name: defaults[name].default for name in ("inputCol", "outputCol", "outputType", "batchSize")}
        )
        self.model = nn.Identity() if model is None else model
        self.decode = decode
        if model is not None:
            if layer is None:
                raise ConfigError("layer is missing; give the name of a module, as model.named_modules() has it")
            LayerOutput(model, layer)  # checks that it is there
        self.setParams(
            layer=layer,
            inputCol=inputCol,
            outputCol=outputCol,
            outputType=outputType,
            inputShape=inputShape,
            batchSize=batchSize,
        )

    def setParams(self, **given: Any) -> TorchFeaturizer:
        """Set Params by name; those that are None stay as they are.

        Raises:
            ConfigError: A value is none that its Param takes.
        """
        if given.get("outputType", "array") not in ("array", "vector"):
            raise ConfigError(f"outputType must be 'array' or 'vector', got {given['outputType']!r}")
        try:
            self._set(**{name: value for name, value in given.items() if value is not None})
        except TypeError as error:
            raise ConfigError(str(error)) from None
        return self

    def _transform(self, dataset: DataFrame) -> DataFrame:
        name, made = self.getOrDefault(self.inputCol), self.getOrDefault(self.outputCol)
        (column,) = columns_of_spark(dataset.schema, [name])
        if self.isDefined(self.inputShape):
            column = column.with_shape(tuple(self.getOrDefault(self.inputShape)))
        found = predict(
            dataset,
            LayerOutput(self.model, self.getOrDefault(self.layer)),
            [column],
            into={made: "vector"},
            batch_size=self.getOrDefault(self.batchSize),
            decode={name: self.decode} if self.decode else None,
        )
        if self.getOrDefault(self.outputType) == "array":
            return found
        numbers = F.col(quoted(made)).cast("array<double>")
        return found.withColumn(made, F.when(numbers.isNotNull(), array_to_vector(numbers)))  # which fails on nulls

    def write(self) -> PartsWriter:
        """The writer, of pyspark.ml's kind."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader[TorchFeaturizer]:
        """The reader, of pyspark.ml's kind."""
        return _Reader()


class _Writer(PartsWriter):
    def __init__(self, featurizer: TorchFeaturizer) -> None:
        super().__init__()
        self._featurizer = featurizer

    def saveImpl(self, path: str) -> None:
        featurizer = self._featurizer
        save_metadata(featurizer, path, self.sparkSession, {})
        parts = {**network_to_bytes(featurizer.model), "decode": dumps(featurizer.decode)}
        write_parts(self.sparkSession, path, parts)


class _Reader(MLReader[TorchFeaturizer]):
    def load(self, path: str) -> TorchFeaturizer:
        featurizer = TorchFeaturizer()
        load_metadata(featurizer, path, self.sparkSession)
        parts = read_parts(self.sparkSession, path)
        featurizer.model, featurizer.decode = network_of_bytes(parts), cloudpickle.loads(parts["decode"])
        return featurizer
