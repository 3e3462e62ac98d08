"""``TorchModel``: what a fit gives, a Transformer that adds predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cloudpickle
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from torch import nn

from maggy_like.ml.columns.column import Column
from maggy_like.ml.estimator.names import Kind
from maggy_like.ml.estimator.network_files import network_of_bytes, network_to_bytes
from maggy_like.ml.estimator.params import PredictionParams
from maggy_like.ml.estimator.persistence import load_metadata, pickled, read_parts, save_metadata, write_parts
from maggy_like.ml.inference.predict import predict

if TYPE_CHECKING:
    from maggy_like.ml.estimator.fit import Fitted
    from maggy_like.results.result import Result


class TorchModel(Model, PredictionParams, MLReadable["TorchModel"], MLWritable):
    """A trained network as a Transformer.

    ``transform`` adds ``predictionCol``: the class as a number for losses over classes, the number for losses over
    numbers, or the output as an array where it is several. For losses over classes it adds ``probabilityCol`` too, a
    vector. A row that the network cannot take stays, with nulls there, and ``errorCol`` says why. It works in batch and
    on streams; each Python worker of Spark loads the network once.

    Attributes:
        network: The network, on the CPU.
        inputs: What its inputs are.
        outputs: What its outputs are, by label: ``classes``, ``binary``, ``probability``, ``values`` or ``other``.
        history: Metrics of each epoch: ``epoch``, ``loss``, ``validation_loss``, ``accuracy``, ...
        best_epoch: The epoch with the lowest loss.
        config: The best configuration of the search, if there was one.
        result: The search's result, if there was one; a saved model does not have it.

    Example:
        >>> model = TorchModel.load("s3a://bucket/model")  # doctest: +SKIP
        >>> model.transform(df)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            featuresCol=["features"],
            predictionCol="prediction",
            probabilityCol="probability",
            batchSize=1024,
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
    def _of(cls, fitted: Fitted) -> TorchModel:
        model = cls()
        model.network, model.inputs, model.outputs = fitted.network, fitted.inputs, fitted.outputs
        model.history, model.best_epoch = fitted.history, fitted.best_epoch
        model.config, model.result = fitted.config, fitted.result
        return model

    def setParams(self, **given: Any) -> TorchModel:
        """Set Params by name.

        Raises:
            ConfigError: A value is none that its Param takes.
        """
        self._take(given)
        return self

    def _transform(self, dataset: DataFrame) -> DataFrame:
        if len(self.outputs) == 1:
            return self._predict(dataset, self.network, next(iter(self.outputs.values())), "")
        for number, (label, kind) in enumerate(self.outputs.items()):
            dataset = self._predict(dataset, _Output(self.network, number), kind, f"_{label}")
        return dataset

    def _predict(self, df: DataFrame, network: nn.Module, kind: Kind, ending: str) -> DataFrame:
        into = {f"{self._given('predictionCol')}{ending}": "vector" if kind == "other" else "label"}
        probability = f"{self._given('probabilityCol')}{ending}"
        if kind in ("classes", "binary", "probability"):
            into[probability] = "vector"
        for param, field in (("errorCol", "error"), ("resultCol", "struct")):
            if self._given(param) is not None:
                into[f"{self._given(param)}{ending}"] = field
        inputs = [replace(it, name=name) for it, name in zip(self.inputs, self._given("featuresCol"), strict=True)]
        found = predict(
            df, network, inputs, kind, into=into, batch_size=self._given("batchSize"), decode=self._given("decode")
        )
        if probability not in into:
            return found
        numbers = F.col(f"`{probability}`").cast("array<double>")
        return found.withColumn(probability, F.when(numbers.isNotNull(), array_to_vector(numbers)))

    def write(self) -> MLWriter:
        """The writer, of pyspark.ml's kind."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader[TorchModel]:
        """The reader, of pyspark.ml's kind."""
        return _Reader()


class _Output(nn.Module):
    """One of several outputs of a network."""

    def __init__(self, network: nn.Module, number: int) -> None:
        super().__init__()
        self._network, self._number = network, number

    def forward(self, *inputs: Any) -> Any:
        """That output."""
        return self._network(*inputs)[self._number]


class _Writer(MLWriter):
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
            "config": model.config,
        }
        parts = {**network_to_bytes(model.network), "decode": pickled("decode", model._given("decode"))}
        save_metadata(model, path, self.sparkSession, "maggy_like.ml.TorchModel", about)
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
        model.best_epoch, model.config = about["bestEpoch"], about["config"]
        return model


def _column(saved: list[Any]) -> Column:
    name, shape, dtype = saved
    return Column(name, None if shape is None else tuple(shape), dtype)
