"""The Params of the Estimator and its Model: what each takes, how they are saved, and the columns they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import cloudpickle
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWriter
from pyspark.sql import SparkSession

from maggy_like.errors import ConfigError, DataError, PlatformError
from maggy_like.ml.columns.spark_columns import as_told_apart
from maggy_like.ml.estimator.objective import Kind
from maggy_like.processes.pickles import dumps
from maggy_like.version import __version__
from optimizers.checks.near_names import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OBJECTS = ("model", "loss", "optimizer", "optimizerParams", "callbacks", "decode", "search", "engine", "runOptions")
"""Params that may hold objects of Python: they are saved as pickles, beside the others' JSON."""


def names(value: Any) -> list[str]:
    """One name or several, as a list."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not found or not all(isinstance(it, str) for it in found):
        raise TypeError(f"must be the name of a column, or a list of names, got {value!r}")
    if len(set(found)) < len(found):
        raise TypeError(f"names a column twice: {value!r}")
    return list(found)


def whole(least: int) -> Callable[[Any], int]:
    """A converter to whole numbers that are not too small."""

    def convert(value: Any) -> int:
        number = TypeConverters.toInt(value)
        if number < least:
            raise TypeError(f"must be at least {least}, got {value!r}")
        return number

    return convert


def fraction(value: Any) -> float:
    """A share of the rows, from 0 to less than 1."""
    number = TypeConverters.toFloat(value)
    if not 0 <= number < 1:
        raise TypeError(f"must be from 0 to less than 1, got {value!r}")
    return number


def positive(value: Any) -> float:
    """A number above 0."""
    number = TypeConverters.toFloat(value)
    if not 0 < number < float("inf"):
        raise TypeError(f"must be a number above 0, got {value!r}")
    return number


def not_negative(value: Any) -> float:
    """A number of at least 0."""
    number = TypeConverters.toFloat(value)
    if not 0 <= number < float("inf"):
        raise TypeError(f"must be a number of at least 0, got {value!r}")
    return number


def choice(*options: str) -> Callable[[Any], str]:
    """A converter that takes some words alone."""

    def convert(value: Any) -> str:
        if value not in options:
            raise TypeError(f"must be one of {', '.join(map(repr, options))}, got {value!r}")
        return str(value)

    return convert


def class_weights(value: Any) -> str | list[float]:
    """``"balanced"``, or a weight for each class."""
    if value == "balanced":
        return "balanced"
    weights = TypeConverters.toListFloat(value)
    if not weights or not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise TypeError(f"must be 'balanced' or a list of finite numbers, none of them negative, got {value!r}")
    return weights


def mapping(value: Any) -> dict[str, Any]:
    """A dict with names as keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"must be a dict with names as keys, got {value!r}")
    return dict(value)


def functions(value: Any) -> list[Callable[..., Any]]:
    """Functions, as a list."""
    if not isinstance(value, list | tuple) or not all(callable(it) for it in value):
        raise TypeError(f"must be a list of functions, got {value!r}")
    return list(value)


def _param(name: str, doc: str, convert: Callable[[Any], Any] = TypeConverters.identity) -> Any:
    return Param(Params._dummy(), name, doc, convert)


class PredictionParams(Params):
    """Params of what a network reads and gives."""

    featuresCol = _param("featuresCol", "column that the network takes, or a list of them, one for each input", names)
    predictionCol = _param("predictionCol", "column of predictions, to be made", TypeConverters.toString)
    probabilityCol = _param(
        "probabilityCol", "column of the probabilities of classes, to be made", TypeConverters.toString
    )
    errorCol = _param("errorCol", "column of why a row has no prediction, to be made if named", TypeConverters.toString)
    resultCol = _param("resultCol", "column of structs with all of it, to be made if named", TypeConverters.toString)
    decode = _param("decode", "functions from bytes to a tensor, by columns of bytes", mapping)
    batchSize = _param("batchSize", "rows of a batch, over all workers together", whole(1))

    def _given(self, name: str) -> Any:
        """Value of a Param, of its default if it was not set, or None."""
        param = self.getParam(name)
        return self.getOrDefault(param) if self.isDefined(param) else None

    def _take(self, given: Mapping[str, Any]) -> None:
        """Set Params by name; those that are None stay as they are.

        Raises:
            ConfigError: There is no Param of that name, or a value is none that its Param takes.
        """
        known = [param.name for param in self.params]
        for name, value in given.items():
            if name not in known:
                kind, meant = type(self).__name__, did_you_mean(name, known) or f"; there are {', '.join(known)}"
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

    model = _param("model", "network: a torch module, a function that makes one of modelParams, or a Lightning module")
    modelParams = _param("modelParams", "arguments of the function that makes the network", mapping)
    loss = _param("loss", "loss: a name such as 'cross_entropy', an object of torch.nn, or loss(output, label)")
    outputKind = _param(
        "outputKind",
        "what the network gives: 'classes' (logits), 'binary' (a logit), 'probability', 'values' or 'other'; by "
        "default what the loss takes",
        choice(*get_args(Kind)),
    )
    optimizer = _param("optimizer", "optimizer: a name such as 'adam', a class of torch.optim, or f(parameters)")
    optimizerParams = _param("optimizerParams", "further arguments of the optimizer", mapping)
    learningRate = _param("learningRate", "step size of the optimizer", positive)
    labelCol = _param("labelCol", "column of labels, or a list of them, one for each output", names)
    weightCol = _param("weightCol", "column with a weight for each row", TypeConverters.toString)
    classWeights = _param("classWeights", "weight of each class, or 'balanced'", class_weights)
    validationIndicatorCol = _param(
        "validationIndicatorCol", "boolean column: true where a row is to validate on", TypeConverters.toString
    )
    validationFraction = _param("validationFraction", "share of the rows to validate on, chosen by seed", fraction)
    epochs = _param("epochs", "passes over the rows, at most", whole(1))
    patience = _param("patience", "epochs without a better metric after which the training ends", whole(1))
    minDelta = _param("minDelta", "by how much the metric must fall to be better", not_negative)
    keepWeights = _param(
        "keepWeights", "which weights the model gets: 'best' by the metric, or 'last'", choice("best", "last")
    )
    freeze = _param("freeze", "globs of names of modules that are not trained", TypeConverters.toListString)
    callbacks = _param(
        "callbacks", "functions f(epoch, metrics, network), called on rank 0 after each epoch", functions
    )
    seed = _param("seed", "source of all randomness", whole(0))
    workers = _param("workers", "number of workers; by default all slots of the engine", whole(1))
    engine = _param("engine", "where to train: 'auto', 'spark', 'local', 'inline', or an engine with options")
    directory = _param(
        "directory", "path or URL of a folder for data, states and logs, which all workers see", TypeConverters.toString
    )
    keepData = _param("keepData", "leave the copy of the data for later processes", TypeConverters.toBoolean)
    search = _param("search", "search space over names of Params and of the function that makes the network", mapping)
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
            batchSize=32,
            epochs=10,
            validationFraction=0.0,
            minDelta=0.0,
            keepWeights="best",
            freeze=[],
            decode={},
            callbacks=[],
            seed=0,
            engine="auto",
            directory="maggy_runs",
            keepData=False,
            runOptions={},
        )


FORMAT = 1
"""Raised when what is written cannot be read as before; readers know all formats up to theirs."""

_CHUNK = 32 << 20  # bytes of a row: Spark refuses rows near 2 GB, and large ones are slow to send

T = TypeVar("T", bound=MLReadable[Any])


def write_parts(spark: SparkSession, path: str, parts: dict[str, bytes]) -> None:
    """Write named bytes to a folder, in rows that are not too large."""
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
    """A value as bytes.

    Raises:
        ConfigError: It cannot be pickled.
    """
    try:
        return dumps(value)
    except Exception as error:
        raise ConfigError(f"{name} of type {type(value).__name__} cannot be saved: {error}") from error


def save_metadata(instance: Any, path: str, spark: SparkSession, more: Mapping[str, Any]) -> None:
    """Write the Params that are plain values, and what else there is to say, as JSON."""
    plain = {param.name: value for param, value in instance._paramMap.items() if param.name not in OBJECTS}
    about = {"class": _name_of(type(instance)), "format": FORMAT, "version": __version__, **more}
    DefaultParamsWriter.saveMetadata(instance, path, spark, extraMetadata=about, paramMap=plain)


def load_metadata(instance: Any, path: str, spark: SparkSession) -> dict[str, Any]:
    """Read the metadata, and set the Params in it.

    Raises:
        ConfigError: Something of another class was saved there.
        PlatformError: A later version wrote it in a format of its own.
    """
    metadata: dict[str, Any] = DefaultParamsReader.loadMetadata(path, spark)
    if metadata["class"] not in map(_name_of, type(instance).__mro__):
        raise ConfigError(f"{path} has a saved {metadata['class']}, and no {type(instance).__name__}; load it as that")
    if metadata.get("format", 0) > FORMAT:
        raise PlatformError(
            f"{path} was written by maggy_like {metadata.get('version')} in format {metadata['format']}, and this "
            f"version, {__version__}, reads formats up to {FORMAT}; install that one or a later one"
        )
    instance._resetUid(metadata["uid"])
    DefaultParamsReader.getAndSetParams(instance, metadata)
    return metadata


def _name_of(kind: type) -> str:
    """The public name of a class, by which pyspark loads the stages of a pipeline."""
    is_ours = kind.__module__.partition(".")[0] == "maggy_like"
    return f"{'maggy_like.ml' if is_ours else kind.__module__}.{kind.__qualname__}"


class PartsWriter(MLWriter):
    """A writer that overwrites through Spark's DataFrames, as Spark Connect has no JVM to ask."""

    def _handleOverwrite(self, path: str) -> None:
        # Of no rows, a writer that partitions writes no file: what is left is an empty folder, marked as complete.
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
        """Write it to a folder."""
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
        """Read it from a folder."""
        instance: Any = self._kind()
        load_metadata(instance, path, self.sparkSession)
        for name, content in read_parts(self.sparkSession, path).items():
            instance._take({name: cloudpickle.loads(content)})
        return instance  # type: ignore[no-any-return]


@dataclass(frozen=True)
class MadeColumn:
    """A column that a model adds.

    Attributes:
        name: The column's.
        param: The Param that names it, or the beginning of its name.
        output: The label whose output it is of; None where the network has one output.
        field: What of the output it gets, as ``predict`` calls it.
    """

    name: str
    param: str
    output: str | None
    field: str


def made_columns(params: PredictionParams, outputs: Mapping[str, Kind]) -> list[MadeColumn]:
    """The columns, in order.

    Args:
        params: Those of the model, or of the Estimator that is to make it.
        outputs: What the network's outputs are, by label.

    Raises:
        ConfigError: Two have one name.
    """
    made = []
    for label, kind in outputs.items():
        fields = [("predictionCol", "vector" if kind == "other" else "label")]
        if kind in ("classes", "binary", "probability"):
            fields.append(("probabilityCol", "vector"))
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
                f"{params_by_name[column.name]} and {column.param} both name the column {column.name!r}; "
                "name one of them otherwise"
            )
        params_by_name[column.name] = column.param
    return made


def into(made: Sequence[MadeColumn]) -> dict[str, str | tuple[str, str]]:
    """The same as ``predict`` takes it."""
    return {it.name: it.field if it.output is None else (it.output, it.field) for it in made}


def check_room(df: DataFrame, made: Sequence[MadeColumn]) -> None:
    """Refuse a DataFrame that has a column of a name that is to be made, as all of pyspark.ml does.

    Raises:
        DataError: It has one.
        ConfigError: Spark takes two of the names for one.
    """
    there, added = as_told_apart(df, df.columns), as_told_apart(df, [column.name for column in made])
    for place, (column, name) in enumerate(zip(made, added, strict=True)):
        if name in there:
            raise DataError(
                f"{column.param}: the DataFrame has a column {column.name!r} already, and the model could not add it; "
                "drop it, or name the new one otherwise"
            )
        if name in added[:place]:
            other = made[added.index(name)]
            raise ConfigError(
                f"{other.param} names the column {other.name!r} and {column.param} {column.name!r}, which Spark takes "
                "for one; name one of them otherwise"
            )
