"""``TorchFeaturizer``: the output of a layer of a trained network, as features for other models."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import torch
from pyspark.ml import Transformer
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import MLReadable, MLReader, MLWritable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # as all of Spark's documentation calls it
from torch import nn

from maggy_like.errors import ConfigError
from maggy_like.ml.columns import precision_of
from maggy_like.ml.estimator.network import network_of_bytes, network_to_bytes
from maggy_like.ml.estimator.objective import is_fraction
from maggy_like.ml.estimator.params import PartsWriter, load_metadata, read_parts, save_metadata, write_parts
from maggy_like.ml.inference.predict import predict
from maggy_like.ml.inference.predictor import check_network
from maggy_like.ml.spark_columns import columns_of_spark, quoted
from maggy_like.processes.pickles import dumps
from optimizers.checks import did_you_mean


class LayerOutput(nn.Module):
    """A network that ends at one of its modules: the output is that of the module, and later ones are not computed.

    ``layer`` is the name of the module, as in ``network.named_modules()``. Integers become fractions if the network
    fails with integers only. This is tried with each batch, because the length of arrays is unknown before.
    """

    def __init__(self, network: nn.Module, layer: str) -> None:
        super().__init__()
        names = [name for name, _ in network.named_modules() if name]
        if layer not in names:
            near = did_you_mean(layer, names)
            raise ConfigError(
                f"layer must be a module of the network, got {layer!r}{near}; use one of {', '.join(names) or 'none'}"
            )
        self.network, self.layer = network, layer

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The module's output."""
        try:
            return self._computed(inputs)
        except RuntimeError:
            if all(map(is_fraction, inputs)):
                raise
            with contextlib.suppress(RuntimeError):
                return self._computed([it.to(precision_of(self.network)) for it in inputs])
            raise

    def _computed(self, inputs: Sequence[torch.Tensor]) -> Any:
        def leave(_module: nn.Module, _given: Any, output: Any) -> None:
            raise _Reached(output)

        hook = self.network.get_submodule(self.layer).register_forward_hook(leave)
        try:
            self.network(*inputs)
        except _Reached as reached:
            return reached.output
        finally:
            hook.remove()
        raise ConfigError(f"layer must be a module that the network calls, got {self.layer!r}; use another one")


class _Reached(BaseException):
    """Ends the network's forward. A ``BaseException``, because the network may catch errors."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


class TorchFeaturizer(Transformer, MLReadable["TorchFeaturizer"], MLWritable):
    """Add the flattened output of a network's layer to each row. The layers after it are not computed.

    A row that the network cannot take is kept, with null as its features. Nothing is downloaded: the network brings
    its weights.

    Args:
        model: Trained network.
        layer: Name of a module of the network, as in ``model.named_modules()``.
        inputCol: Input column of numbers, arrays, vectors or bytes. Integers stay integers, as an embedding needs them,
            unless the network takes only fractions.
        outputCol: Name of the new column.
        outputType: ``"array"`` of floats, or ``"vector"`` for estimators of pyspark.ml.
        inputShape: Shape of a row's value, to which flat arrays are reshaped. Default: the shape of the column.
        batchSize: Maximum number of rows that the network computes at once.
        decode: Function from the bytes of a row, such as an image file, to a tensor or array.

    Raises:
        ConfigError: The layer does not exist, or an argument is invalid.

    Example:
        >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> featurizer = TorchFeaturizer(network, layer="1", inputCol="features", outputCol="embedding")
        >>> len(featurizer.transform(df).first().embedding)
        8
    """

    inputCol = Param(Params._dummy(), "inputCol", "input column of the network", TypeConverters.toString)
    outputCol = Param(Params._dummy(), "outputCol", "name of the new column", TypeConverters.toString)
    layer = Param(
        Params._dummy(), "layer", "name of the module whose output becomes the features", TypeConverters.toString
    )
    outputType = Param(Params._dummy(), "outputType", "'array' or 'vector'", TypeConverters.toString)
    inputShape: Param[Any] = Param(Params._dummy(), "inputShape", "shape of a row's value", TypeConverters.toListInt)
    batchSize = Param(Params._dummy(), "batchSize", "maximum number of rows of a batch", TypeConverters.toInt)

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
            check_network(model)
            if layer is None:
                raise ConfigError("layer must be the name of a module, got None; use a name of model.named_modules()")
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
        """Set Params by name. Those that are None are not changed.

        Raises:
            ConfigError: A Param does not exist, or a value is invalid for it.
        """
        known = [param.name for param in self.params]
        for name, value in given.items():
            if name not in known:
                meant = did_you_mean(name, known) or f"; use one of {', '.join(known)}"
                raise ConfigError(f"TorchFeaturizer has no Param {name!r}, got {name}={value!r}{meant}")
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
        """Return a writer, as other stages of pyspark.ml do."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader[TorchFeaturizer]:
        """Return a reader, as other stages of pyspark.ml do."""
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
