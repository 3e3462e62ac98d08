"""The Params of the Estimator and its Model: their values, their storage, and the columns in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import cloudpickle
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWriter
from pyspark.sql import SparkSession

from maggy_like.driver.settings import Confirmation, read_confirmation
from maggy_like.errors import ConfigError, DataError, PlatformError
from maggy_like.ml.inference.predictor import RAW, Kind
from maggy_like.ml.spark_columns import as_told_apart
from maggy_like.processes.pickles import dumps
from maggy_like.version import __version__
from optimizers.checks import as_int, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OBJECTS = (
    "model",
    "modelParams",
    "loss",
    "optimizer",
    "optimizerParams",
    "lrScheduler",
    "lrSchedulerParams",
    "callbacks",
    "trainerParams",
    "decode",
    "search",
    "confirm",
    "engine",
    "runOptions",
)
"""Params that may hold Python objects: they are saved as pickles, next to the JSON of the others."""


def names(value: Any) -> list[str]:
    """Return one name or several as a list."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not found or not all(isinstance(it, str) for it in found):
        raise TypeError(f"must be the name of a column, or a list of names, got {value!r}")
    if len(set(found)) < len(found):
        raise TypeError(f"must have different columns, got {value!r}")
    return list(found)


def whole(least: int) -> Callable[[Any], int]:
    """Return a converter to integers of at least ``least``."""

    def convert(value: Any) -> int:
        try:
            number = TypeConverters.toInt(value)
        except TypeError:
            hint = as_int(value, least) or f"use {least} or more"
            raise TypeError(f"must be an integer of at least {least}, got {value!r}; {hint}") from None
        if number < least:
            raise TypeError(f"must be at least {least}, got {value!r}")
        return number

    return convert


def fraction(value: Any) -> float:
    """Check a fraction of the rows, from 0 to less than 1."""
    number = TypeConverters.toFloat(value)
    if not 0 <= number < 1:
        raise TypeError(f"must be from 0 to less than 1, got {value!r}")
    return number


def positive(value: Any) -> float:
    """Check a number above 0."""
    number = TypeConverters.toFloat(value)
    if not 0 < number < float("inf"):
        raise TypeError(f"must be a number above 0, got {value!r}")
    return number


def not_negative(value: Any) -> float:
    """Check a number of at least 0."""
    number = TypeConverters.toFloat(value)
    if not 0 <= number < float("inf"):
        raise TypeError(f"must be a number of at least 0, got {value!r}")
    return number


def choice(*options: str) -> Callable[[Any], str]:
    """Return a converter that takes only certain words."""

    def convert(value: Any) -> str:
        if value not in options:
            raise TypeError(f"must be one of {', '.join(map(repr, options))}, got {value!r}")
        return str(value)

    return convert


def class_weights(value: Any) -> str | list[float]:
    """Check ``"balanced"``, or a weight for each class."""
    if value == "balanced":
        return "balanced"
    weights = TypeConverters.toListFloat(value)
    if not weights or not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise TypeError(f"must be 'balanced' or a list of finite numbers, none of them negative, got {value!r}")
    return weights


def mapping(value: Any) -> dict[str, Any]:
    """Check a dict with names as keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        names = [key.name for key in value if isinstance(key, Param)] if isinstance(value, Mapping) else []
        raise TypeError(f"must be a dict with names as keys, got {value!r}{f'; use {names[0]!r}' if names else ''}")
    return dict(value)


def confirmation(value: Any) -> bool | Confirmation:
    """Check True, False or a :class:`~maggy_like.Confirmation`."""
    read_confirmation(value)
    return value  # type: ignore[no-any-return]


def functions(value: Any) -> list[Callable[..., Any]]:
    """Check a list of functions."""
    if not isinstance(value, list | tuple) or not all(callable(it) for it in value):
        raise TypeError(f"must be a list of functions, got {value!r}")
    return list(value)


def _param(name: str, doc: str, convert: Callable[[Any], Any] = TypeConverters.identity) -> Any:
    return Param(Params._dummy(), name, doc, convert)


class PredictionParams(Params):
    """Params of a network's inputs and predictions."""

    featuresCol = _param("featuresCol", "input column, or a list with one column for each input of the network", names)
    predictionCol = _param("predictionCol", "name of the new column of predictions", TypeConverters.toString)
    probabilityCol = _param("probabilityCol", "name of the new column of class probabilities", TypeConverters.toString)
    rawPredictionCol = _param(
        "rawPredictionCol", "name of a new column: the output before it became probabilities", TypeConverters.toString
    )
    errorCol = _param("errorCol", "name of a new column: why a row has no prediction", TypeConverters.toString)
    resultCol = _param("resultCol", "name of a new column: structs of the whole result", TypeConverters.toString)
    decode = _param("decode", "functions from the bytes of a row to a tensor, by column", mapping)
    batchSize = _param("batchSize", "number of rows of a batch, over all workers", whole(1))

    def _given(self, name: str) -> Any:
        """Return the value of a Param, its default, or None."""
        param = self.getParam(name)
        return self.getOrDefault(param) if self.isDefined(param) else None

    def _take(self, given: Mapping[str, Any]) -> None:
        """Set Params by name; those that are None are not changed."""
        known = [param.name for param in self.params]
        for name, value in given.items():
            if name not in known:
                kind, meant = type(self).__name__, did_you_mean(name, known) or f"; use one of {', '.join(known)}"
                raise ConfigError(f"{kind} has no Param {name!r}, got {name}={value!r}{meant}")
            if value is None:
                continue
            param = self.getParam(name)
            try:
                self._set(**{param.name: value})
            except TypeError as error:
                raise ConfigError(
                    f"{name} {error}".replace(f'Invalid param value given for param "{name}". ', "")
                ) from None


class TrainingParams(PredictionParams):
    """Params of a training."""

    model = _param(
        "model", "network: a torch module, a function that makes one from modelParams, or a Lightning module"
    )
    modelParams = _param("modelParams", "arguments of the function that makes the network", mapping)
    loss = _param("loss", "loss: a name such as 'cross_entropy', an object of torch.nn, or loss(output, label)")
    outputKind = _param(
        "outputKind",
        "kind of the network's output: 'classes' (logits), 'binary' (a logit), 'probability', 'values' or 'other'; by "
        "default the kind that the loss takes",
        choice(*get_args(Kind)),
    )
    optimizer = _param("optimizer", "optimizer: a name such as 'adam', a class of torch.optim, or f(parameters)")
    optimizerParams = _param("optimizerParams", "further arguments of the optimizer", mapping)
    learningRate = _param("learningRate", "step size of the optimizer", positive)
    lrScheduler = _param(
        "lrScheduler",
        "learning rate schedule: a name such as 'OneCycleLR', a class of torch.optim.lr_scheduler, or f(optimizer)",
    )
    lrSchedulerParams = _param("lrSchedulerParams", "further arguments of the schedule", mapping)
    lrSchedulerInterval = _param(
        "lrSchedulerInterval", "when the schedule advances: after each 'epoch' or 'step'", choice("epoch", "step")
    )
    gradientClipVal = _param("gradientClipVal", "largest norm of the gradients of a step", positive)
    accumulateGradBatches = _param(
        "accumulateGradBatches", "number of batches whose gradients are averaged for one step", whole(1)
    )
    precision = _param(
        "precision",
        "number format of the training: '32', or 'bf16' or 'fp16' for autocast",
        choice("32", "bf16", "fp16"),
    )
    labelCol = _param("labelCol", "label column, or a list with one column for each output", names)
    weightCol = _param("weightCol", "column with the weight of each row", TypeConverters.toString)
    classWeights = _param("classWeights", "weight of each class, or 'balanced'", class_weights)
    validationIndicatorCol = _param(
        "validationIndicatorCol", "boolean column that is true for validation rows", TypeConverters.toString
    )
    validationFraction = _param("validationFraction", "fraction of the rows for validation, drawn with seed", fraction)
    dropLast = _param(
        "dropLast", "whether to leave out the last batch of an epoch if it has fewer rows", TypeConverters.toBoolean
    )
    epochs = _param("epochs", "maximum number of passes over the rows", whole(1))
    patience = _param("patience", "number of epochs without a better metric after which the training ends", whole(1))
    minDelta = _param("minDelta", "minimum decrease of the metric that counts as better", not_negative)
    keepWeights = _param("keepWeights", "weights to keep: 'best' by the metric, or 'last'", choice("best", "last"))
    freeze = _param("freeze", "patterns of names of modules that are not trained", TypeConverters.toListString)
    callbacks = _param(
        "callbacks", "functions f(epoch, metrics, network), called on rank 0 after each epoch", functions
    )
    trainerParams = _param(
        "trainerParams", "further arguments of Lightning's Trainer, which trains a LightningModule", mapping
    )
    seed = _param("seed", "seed of all random numbers", whole(0))
    workers = _param("workers", "number of workers; by default all slots of the engine", whole(1))
    engine = _param("engine", "engine: 'auto', 'spark', 'local', 'inline', or an engine object")
    directory = _param(
        "directory",
        "path or URL of a directory for data, checkpoints and logs that all workers can access",
        TypeConverters.toString,
    )
    keepData = _param("keepData", "whether to keep the copy of the data for later processes", TypeConverters.toBoolean)
    search = _param("search", "search space over names of Params and of the function that makes the network", mapping)
    confirm = _param(
        "confirm", "whether to train the best configurations of the search again, or a Confirmation", confirmation
    )
    runOptions = _param("runOptions", "further arguments of maggy_like.lagom, or of run without a search", mapping)

    def _set_defaults(self) -> None:
        self._setDefault(
            featuresCol=["features"],
            labelCol=["label"],
            predictionCol="prediction",
            probabilityCol="probability",
            modelParams={},
            optimizer="adam",
            optimizerParams={},
            learningRate=1e-3,
            lrSchedulerParams={},
            lrSchedulerInterval="epoch",
            accumulateGradBatches=1,
            precision="32",
            dropLast=False,
            batchSize=32,
            epochs=10,
            validationFraction=0.0,
            minDelta=0.0,
            keepWeights="best",
            freeze=[],
            decode={},
            callbacks=[],
            trainerParams={},
            seed=0,
            engine="auto",
            directory="maggy_runs",
            keepData=False,
            confirm=False,
            runOptions={},
        )


FORMAT = 1
"""Version of the files; increased when older versions cannot read them. Readers know all formats up to this one."""

_CHUNK = 32 << 20  # bytes of a row: Spark refuses rows near 2 GB, and large ones are slow to send

T = TypeVar("T", bound=MLReadable[Any])


def write_parts(spark: SparkSession, path: str, parts: dict[str, bytes]) -> None:
    """Write named bytes to a directory, in rows of limited size."""
    rows = [
        (name, start // _CHUNK, bytearray(content[start : start + _CHUNK]))
        for name, content in parts.items()
        for start in range(0, max(len(content), 1), _CHUNK)
    ]
    frame = spark.createDataFrame(rows, "name string, part int, content binary")
    frame.coalesce(1).write.parquet(f"{path}/data")


def read_parts(spark: SparkSession, path: str) -> dict[str, bytes]:
    """Read what :func:`write_parts` wrote."""
    rows = sorted(spark.read.parquet(f"{path}/data").collect(), key=lambda row: (row["name"], row["part"]))
    parts: dict[str, bytes] = {}
    for row in rows:
        parts[row["name"]] = parts.get(row["name"], b"") + bytes(row["content"])
    return parts


def pickled(name: str, value: Any) -> bytes:
    """Pickle a value; the error has its name."""
    try:
        return dumps(value)
    except Exception as error:
        raise ConfigError(f"{name} of type {type(value).__name__} cannot be saved: {error}") from error


def save_metadata(instance: Any, path: str, spark: SparkSession, more: Mapping[str, Any]) -> None:
    """Write the Params that are plain values, and further entries, as JSON."""
    plain = {param.name: value for param, value in instance._paramMap.items() if param.name not in OBJECTS}
    about = {"class": _name_of(type(instance)), "format": FORMAT, "version": __version__, **more}
    DefaultParamsWriter.saveMetadata(instance, path, spark, extraMetadata=about, paramMap=plain)


def load_metadata(instance: Any, path: str, spark: SparkSession) -> dict[str, Any]:
    """Read the metadata, and set the Params in it.

    An object of another class raises ConfigError, and one in a newer format of a later version raises PlatformError.
    """
    metadata: dict[str, Any] = DefaultParamsReader.loadMetadata(path, spark)
    if metadata["class"] not in map(_name_of, type(instance).__mro__):
        raise ConfigError(
            f"{path} must have a saved {type(instance).__name__}, got {metadata['class']}; load it with that class"
        )
    if metadata.get("format", 0) > FORMAT:
        raise PlatformError(
            f"{path} must have a format up to {FORMAT} for maggy_like {__version__}, got {metadata['format']}; install "
            f"maggy_like {metadata.get('version')} or later"
        )
    instance._resetUid(metadata["uid"])
    DefaultParamsReader.getAndSetParams(instance, metadata)
    return metadata


def _name_of(kind: type) -> str:
    """Return the public name of a class, by which pyspark loads the stages of a pipeline."""
    is_ours = kind.__module__.partition(".")[0] == "maggy_like"
    return f"{'maggy_like.ml' if is_ours else kind.__module__}.{kind.__qualname__}"


class PartsWriter(MLWriter):
    """A writer that overwrites through Spark's DataFrames, because Spark Connect has no JVM on this side."""

    def _handleOverwrite(self, path: str) -> None:
        # Of no rows, a writer that partitions writes no file: what is left is an empty directory, marked as complete.
        nothing = self.sparkSession.range(0).selectExpr("id", "id AS part")
        # In dynamic mode, a setting of many clusters, it would remove nothing.
        writer = nothing.write.mode("overwrite").option("partitionOverwriteMode", "static")
        writer.partitionBy("part").parquet(path)


class ObjectsWriter(PartsWriter):
    """Writes an instance whose Params may hold objects."""

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:
        """Write it to a directory."""
        values = {param.name: value for param, value in self._instance._paramMap.items() if param.name in OBJECTS}
        parts = {name: pickled(name, value) for name, value in values.items()}
        save_metadata(self._instance, path, self.sparkSession, {})
        write_parts(self.sparkSession, path, parts)


class ObjectsReader(MLReader[T]):
    """Reads what :class:`ObjectsWriter` wrote."""

    def __init__(self, kind: type[T]) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> T:
        """Read it from a directory."""
        instance: Any = self._kind()
        load_metadata(instance, path, self.sparkSession)
        for name, content in read_parts(self.sparkSession, path).items():
            instance._take({name: cloudpickle.loads(content)})
        return instance  # type: ignore[no-any-return]


@dataclass(frozen=True)
class MadeColumn:
    """A column that a model adds."""

    name: str
    param: str  # Param that has the name, or the beginning of it
    output: str | None  # label of the output; None if the network has one output
    field: str  # of the output, as in ``predict``


def made_columns(params: PredictionParams, outputs: Mapping[str, Kind]) -> list[MadeColumn]:
    """Return the new columns, in order; their names must differ.

    ``params`` are those of the model, or of the Estimator that makes it. ``outputs`` are kinds by label.
    """
    made = []
    for label, kind in outputs.items():
        fields = [("predictionCol", "vector" if kind == "other" else "label")]
        if kind in ("classes", "binary", "probability"):
            fields += [("rawPredictionCol", RAW), ("probabilityCol", "vector")]
        fields += [(param, field) for param, field in (("errorCol", "error"), ("resultCol", "struct"))]
        output, ending = (label, f"_{label}") if len(outputs) > 1 else (None, "")
        made += [
            MadeColumn(f"{params._given(param)}{ending}", param, output, field)
            for param, field in fields
            if params._given(param) is not None
        ]
    params_by_name: dict[str, str] = {}
    for column in made:
        if column.name in params_by_name:
            raise ConfigError(
                f"{params_by_name[column.name]} and {column.param} must have different names, got {column.name!r} "
                "twice; rename one of them"
            )
        params_by_name[column.name] = column.param
    return made


def into(made: Sequence[MadeColumn]) -> dict[str, str | tuple[str, str]]:
    """Return the columns as ``predict`` takes them."""
    return {it.name: it.field if it.output is None else (it.output, it.field) for it in made}


def check_room(df: DataFrame, made: Sequence[MadeColumn]) -> None:
    """Check that the DataFrame lacks the new columns, as all of pyspark.ml does, and that Spark tells them apart."""
    there, added = as_told_apart(df, df.columns), as_told_apart(df, [column.name for column in made])
    for place, (column, name) in enumerate(zip(made, added, strict=True)):
        if name in there:
            raise DataError(
                f"{column.param} must be a new column, got {column.name!r}, which the DataFrame has already; drop that "
                "column, or use another name"
            )
        if name in added[:place]:
            other = made[added.index(name)]
            raise ConfigError(
                f"{other.param} and {column.param} must have different names, got {other.name!r} and {column.name!r}, "
                "which Spark does not tell apart; rename one of them"
            )
