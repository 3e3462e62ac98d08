"""Describe the columns of a Spark DataFrame for a model."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from maggy_like.errors import DataError
from maggy_like.ml.columns import Column, check_names, columns_of_arrow


def check_frame(df: object, method: str) -> None:
    """Check that it is a DataFrame of Spark, and for ``fit`` one that ends."""
    if not isinstance(df, DataFrame):
        kind = f"{type(df).__module__.partition('.')[0]}.{type(df).__name__}"
        raise DataError(f"{method} must get a Spark DataFrame, got {kind}; use spark.createDataFrame(...)")
    if method == "fit" and df.isStreaming:
        raise DataError(
            "fit must get a DataFrame that is read once, got a stream; read the files or the table by spark.read, and "
            "apply the model to the stream by transform"
        )


def columns_of_spark(schema: StructType, names: Iterable[str] | None = None) -> tuple[Column, ...]:
    """Describe the columns of a DataFrame for a model: all, or those in ``names`` in this order.

    Vectors have the shape ``(-1,)``. A type that no tensor can have raises DataError.
    """
    wanted = list(schema.names if names is None else names)
    check_names(wanted, schema.names)
    plain = with_plain_vectors(StructType([schema[name] for name in wanted]))
    return columns_of_arrow(pa.schema([_as_arrow(field) for field in plain]))


def _as_arrow(field: StructField) -> pa.Field:
    try:
        return to_arrow_schema(StructType([field])).field(0)
    except (AssertionError, PySparkTypeError) as error:  # timestamps need a time zone, some intervals have no type
        raise DataError(
            f"column {field.name!r} must have a type that tensors can have, got {field.dataType.simpleString()}; "
            "convert its values to numbers first, for example with unix_timestamp or datediff"
        ) from error


def arrays_of_vectors(df: DataFrame, names: Iterable[str] | None = None, dtype: str = "float32") -> DataFrame:
    """Convert the vectors of a DataFrame, dense and sparse, to arrays, and keep its other columns.

    Only columns in ``names`` are converted, if it is given. ``dtype`` is ``"float32"`` or ``"float64"``. Spark computes
    it on executors, in classic sessions and through Spark Connect.
    """
    wanted = list(df.columns if names is None else names)
    check_names(wanted, df.columns)
    vectors = [name for name in wanted if isinstance(df.schema[name].dataType, VectorUDT)]
    return df.withColumns({name: _as_array(df[quoted(name)], dtype) for name in vectors}) if vectors else df


def _as_array(vector: SparkColumn, dtype: str) -> SparkColumn:
    """Convert a vector to an array, and null to null, at which ``vector_to_array`` fails."""
    return F.when(vector.isNotNull(), vector_to_array(vector, dtype))


def quoted(name: str) -> str:
    """Quote the name of a column for Spark's expressions: dots and backticks in it are literal."""
    return "`" + name.replace("`", "``") + "`"


def as_told_apart(df: DataFrame, names: Iterable[str]) -> list[str]:
    """Return the names in the way that Spark compares them: by default, it ignores their case."""
    is_exact = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    return [name if is_exact else name.lower() for name in names]


def check_one(df: DataFrame, name: str) -> None:
    """Check that a name stands for only one column of Spark."""
    (wanted,) = as_told_apart(df, [name])
    alike = [there for there, it in zip(df.columns, as_told_apart(df, df.columns), strict=True) if it == wanted]
    if len(alike) > 1:
        raise DataError(
            f"names of columns must differ in more than case, got {', '.join(map(repr, alike))}; rename all but one"
        )


def with_plain_vectors(schema: StructType) -> StructType:
    """Return the schema with vectors as the structs that store them, whose parts Spark's functions can access."""
    return StructType(
        [
            StructField(field.name, VectorUDT.sqlType() if isinstance(field.dataType, VectorUDT) else field.dataType)
            for field in schema
        ]
    )
