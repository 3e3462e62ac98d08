"""What columns are to a model, by the types of a schema, and their values as arrays and tensors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
from maggy_like.ml.columns import Column, columns_of_arrow, to_tensor
from maggy_like.ml.spark_columns import arrays_of_vectors, columns_of_spark

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


VECTOR = pa.struct(
    {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
)


def read(array: pa.Array | pa.ChunkedArray) -> torch.Tensor:
    """The tensor of a column as its type says."""
    return to_tensor(array, columns_of_arrow(pa.schema({"x": array.type}))[0])


@given(
    rows=st.integers(0, 9),
    shape=st.lists(st.integers(0, 3), max_size=3),
    cuts=st.lists(st.integers(0, 9), max_size=2),
    dtype=st.sampled_from(["float32", "int64", "uint8", "bool"]),
)
def test_lists_of_lists_become_the_tensor_that_they_were(
    rows: int, shape: list[int], cuts: list[int], dtype: str
) -> None:
    expected = (np.arange(rows * int(np.prod(shape))) % 7).astype(dtype).reshape(rows, *shape)
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    for _ in shape:
        kind = pa.list_(kind)
    whole = pa.array([row.tolist() for row in expected], kind)
    edges = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    chunked = pa.chunked_array([whole[a:b] for a, b in itertools.pairwise(edges)], kind)
    tensor = to_tensor(chunked, Column("x", tuple(shape), dtype))
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.shape == (rows, *shape)
    assert np.array_equal(tensor.numpy(), expected)


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from([0.0, 1.5, -2.0]), min_size=4, max_size=4)), max_size=6)
)
def test_dense_and_sparse_vectors_become_rows(vectors: list[tuple[bool, list[float]]]) -> None:
    rows: list[dict[str, Any]] = []
    for sparse, values in vectors:
        if sparse:
            places = [place for place, value in enumerate(values) if value]
            rows.append({"type": 0, "size": 4, "indices": places, "values": [values[place] for place in places]})
        else:
            rows.append({"type": 1, "size": None, "indices": None, "values": values})
    tensor = to_tensor(pa.array(rows, VECTOR), Column("x", (4,) if rows else (-1,), "float32"))
    assert tensor.tolist() == [values for _, values in vectors]


def test_a_slice_of_vectors_is_read_from_its_start() -> None:
    rows = [{"type": 0, "size": 2, "indices": [place], "values": [3.0]} for place in (0, 1, 1)]
    assert read(pa.array(rows, VECTOR)[1:]).tolist() == [[0.0, 3.0], [0.0, 3.0]]


def test_a_tensor_owns_its_memory() -> None:
    array = pa.array(np.zeros(3, np.float32))
    read(array).fill_(1)
    assert array.to_pylist() == [0, 0, 0]


def test_bytes_of_a_shape_are_numbers() -> None:
    images = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    array = pa.array([image.tobytes() for image in images], pa.binary())[1:]
    assert np.array_equal(to_tensor(array, Column("x", (2, 3), "uint8")).numpy(), images[1:])
    with pytest.raises(DataError, match=r"column 'x' must be decoded to numbers, got bytes.*decode them"):
        read(array)


def test_a_list_is_given_the_shape_asked_for() -> None:
    array = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert to_tensor(array, Column("x", (2, 2), "int64")).tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert to_tensor(array, Column("x", (-1, 2), "int64")).shape == (2, 2, 2)
    with pytest.raises(DataError, match=r"column 'x' must have rows of shape \(3,\), got \(4,\)"):
        to_tensor(array, Column("x", (3,), "int64"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, None], "column 'x' must not have nulls, got 1 .* row 1; .*na.drop"),
        ([[1.0], None], "column 'x' must not have nulls, got 1 .* row 1"),
        ([[1.0, 2.0], [3.0, None]], "column 'x' must not have nulls, got 1 .* row 1"),
        ([[1.0, 2.0], [3.0]], "column 'x' must have rows of one length, got 2 in row 0 and 1 in row 1"),
        ([[[1.0], [2.0]], [[1.0, 2.0], [3.0]]], "column 'x' must have rows of one length"),
    ],
)
def test_what_is_no_tensor_is_told_with_column_and_row(values: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(pa.array(values))


@pytest.mark.parametrize(("value", "dtype"), [(0.5, "int64"), (300, "uint8"), (float("nan"), "int32")])
def test_a_value_that_the_type_cannot_hold_is_named(value: float, dtype: str) -> None:
    with pytest.raises(DataError, match=f"column 'x' must have values that {dtype} can hold, got {value}"):
        to_tensor(pa.array([1, value]), Column("x", (), dtype))
