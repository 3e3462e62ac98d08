"""What columns are to a model, by the types of a schema."""

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

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns.arrays import to_tensor
from maggy_like.ml.columns.column import Column, columns_of_arrow
from maggy_like.ml.columns.spark_columns import arrays_of_vectors, columns_of_spark

VECTOR = pa.struct(
    {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
)


@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [
        (pa.float64(), (), "float32"),
        (pa.decimal128(9, 2), (), "float32"),
        (pa.float16(), (), "float16"),
        (pa.int64(), (), "int64"),
        (pa.int8(), (), "int8"),
        (pa.bool_(), (), "bool"),
        (pa.list_(pa.float32()), (-1,), "float32"),
        (pa.list_(pa.large_list(pa.int32()), 4), (4, -1), "int32"),
        (pa.fixed_shape_tensor(pa.uint8(), (2, 3)), (2, 3), "uint8"),
        (pa.dictionary(pa.int32(), pa.int64()), (), "int64"),
        (VECTOR, (-1,), "float32"),
        (pa.binary(), None, "uint8"),
    ],
)
def test_a_type_says_shape_and_dtype(kind: pa.DataType, shape: tuple[int, ...] | None, dtype: str) -> None:
    assert columns_of_arrow(pa.schema({"x": kind})) == (Column("x", shape, dtype),)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.string(), "StringIndexer"),
        (pa.list_(pa.string()), "StringIndexer"),
        (pa.timestamp("us"), "unix_timestamp"),
        (pa.map_(pa.int8(), pa.int8()), "select or compute"),
    ],
)
def test_a_type_without_tensors_is_named_with_a_remedy(kind: pa.DataType, remedy: str) -> None:
    with pytest.raises(DataError, match=rf"column 'x' must have a type that tensors can have, got .*; .*{remedy}"):
        columns_of_arrow(pa.schema({"x": kind}))


def test_columns_come_in_the_order_asked_for() -> None:
    schema = pa.schema({"a": pa.int8(), "b": pa.int8(), "c": pa.int8()})
    assert [column.name for column in columns_of_arrow(schema, ["c", "a"])] == ["c", "a"]


def test_a_missing_column_is_named_with_those_that_there_are() -> None:
    schema = pa.schema({"price": pa.int8(), "label": pa.int8()})
    with pytest.raises(DataError, match="there is no column 'lable'; did you mean 'label'"):
        columns_of_arrow(schema, ["lable"])
    with pytest.raises(DataError, match="there is no column 'xyz'; the columns are: price, label"):
        columns_of_arrow(schema, ["xyz"])


def test_two_columns_of_one_name_are_refused() -> None:
    schema = pa.schema([("x", pa.int8()), ("x", pa.int8())])
    with pytest.raises(DataError, match="the column 'x' must exist once, got 2"):
        columns_of_arrow(schema, ["x"])


def test_a_column_checks_itself() -> None:
    with pytest.raises(ConfigError, match=r"column 'x': dtype must be one of float16.*got 'double'"):
        Column("x", (), "double")
    with pytest.raises(ConfigError, match=r"column 'x'.*-2"):
        Column("x", (-2,), "float32")


# -- columns of Spark DataFrames ------------------------------------------------------------------


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
