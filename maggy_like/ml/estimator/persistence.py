"""Saving and loading, as pyspark.ml does it: Params as JSON in ``metadata``, pickles and weights in ``data``.

Everything is written and read through Spark, so that a path means the same as for other stages of a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWriter
from pyspark.sql import SparkSession

from maggy_like.errors import ConfigError, PlatformError
from maggy_like.ml.estimator.params import OBJECTS
from maggy_like.processes.pickles import dumps
from maggy_like.version import __version__

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
