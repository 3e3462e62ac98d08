"""Columns of Spark DataFrames."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DoubleType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from maggy_like.errors import DataError
from maggy_like.ml.columns.arrays import to_tensor
from maggy_like.ml.columns.column import Column
from maggy_like.ml.columns.spark_columns import arrays_of_vectors, columns_of_spark


def test_a_schema_says_what_its_columns_are() -> None:
    schema = (
        StructType().add("x", VectorUDT()).add("y", "integer").add("z", ArrayType(DoubleType())).add("image", "binary")
    )
    assert columns_of_spark(schema) == (
        Column("x", (-1,), "float32"),
        Column("y", (), "int32"),
        Column("z", (-1,), "float32"),
        Column("image", None, "uint8"),
    )
    with pytest.raises(DataError, match="there is no column 'w'"):
        columns_of_spark(schema, ["w"])


@pytest.mark.parametrize(
    "kind",
    [
        TimestampType(),
        TimestampNTZType(),
        DateType(),
        DayTimeIntervalType(),
        YearMonthIntervalType(),
        StringType(),
        NullType(),
        ArrayType(TimestampType()),
        ArrayType(BinaryType()),
        StructType().add("a", LongType()),
        MapType(StringType(), LongType()),
    ],
    ids=lambda kind: kind.simpleString(),
)
def test_a_type_that_no_tensor_has_is_refused_with_the_column_and_what_to_do(kind: DataType) -> None:
    schema = StructType().add("x", LongType()).add("when", kind)
    with pytest.raises(DataError, match=r"column 'when' must have a type that tensors can have, .*; (convert|select)"):
        columns_of_spark(schema)
    assert columns_of_spark(schema, ["x"]) == (Column("x", (), "int64"),)


@pytest.mark.spark
def test_vectors_become_arrays_and_tensors(spark_local: SparkSession) -> None:
    df = spark_local.createDataFrame([(Vectors.dense(1, 2), 0), (Vectors.sparse(2, [1], [3.0]), 1)], ["a.b", "y"])
    arrow = arrays_of_vectors(df).toArrow()
    assert arrow.schema.field("a.b").type == pa.list_(pa.field("element", pa.float32(), nullable=False))
    assert to_tensor(arrow["a.b"], columns_of_spark(df.schema, ["a.b"])[0]).tolist() == [[1, 2], [0, 3]]
