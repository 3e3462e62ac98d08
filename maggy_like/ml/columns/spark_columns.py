"""The columns of a Spark DataFrame as a model reads them."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from maggy_like.errors import DataError
from maggy_like.ml.columns.column import Column, check_names, columns_of_arrow


def columns_of_spark(schema: StructType, names: Iterable[str] | None = None) -> tuple[Column, ...]:
    """What the columns of a DataFrame are to a model; vectors have the shape ``(-1,)``.

    Args:
        schema: Of the DataFrame.
        names: The columns that are wanted, in order; all if omitted.

    Raises:
        DataError: A column is missing, or has a type that no tensor can have.

    Example:
        >>> columns_of_spark(StructType().add("x", VectorUDT()).add("y", "integer"), ["x"])
        (Column(name='x', shape=(-1,), dtype='float32'),)
    """
    wanted = list(schema.names if names is None else names)
    check_names(wanted, schema.names)
    return columns_of_arrow(to_arrow_schema(with_plain_vectors(StructType([schema[name] for name in wanted]))))


def arrays_of_vectors(df: DataFrame, names: Iterable[str] | None = None, dtype: str = "float32") -> DataFrame:
    """A DataFrame whose vectors, dense and sparse, are arrays; the other columns as they are.

    Spark computes it, on executors, in classic sessions and through Spark Connect.

    Args:
        df: The DataFrame.
        names: Which columns to look at; all if omitted.
        dtype: ``"float32"`` or ``"float64"``.

    Raises:
        DataError: A column is missing.
    """
    wanted = list(df.columns if names is None else names)
    check_names(wanted, df.columns)
    vectors = [name for name in wanted if isinstance(df.schema[name].dataType, VectorUDT)]
    return df.withColumns({name: _as_array(df[quoted(name)], dtype) for name in vectors}) if vectors else df


def _as_array(vector: SparkColumn, dtype: str) -> SparkColumn:
    """A vector as an array, and null as null, which ``vector_to_array`` fails at."""
    return F.when(vector.isNotNull(), vector_to_array(vector, dtype))


def quoted(name: str) -> str:
    """The name of a column as Spark's expressions take it: dots and backticks in it mean themselves."""
    return "`" + name.replace("`", "``") + "`"


def as_told_apart(df: DataFrame, names: Iterable[str]) -> list[str]:
    """Return the names in the way that Spark compares them: by default, it ignores their case."""
    is_exact = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    return [name if is_exact else name.lower() for name in names]


def check_one(df: DataFrame, name: str) -> None:
    """Refuse a name that Spark takes for several columns.

    Raises:
        DataError: It does.
    """
    (wanted,) = as_told_apart(df, [name])
    alike = [there for there, it in zip(df.columns, as_told_apart(df, df.columns), strict=True) if it == wanted]
    if len(alike) > 1:
        raise DataError(f"Spark takes the columns {', '.join(map(repr, alike))} for one; rename all but one")


def with_plain_vectors(schema: StructType) -> StructType:
    """The schema with vectors as the structs that they are stored as, of which Spark's functions see the parts."""
    return StructType(
        [
            StructField(field.name, VectorUDT.sqlType() if isinstance(field.dataType, VectorUDT) else field.dataType)
            for field in schema
        ]
    )
