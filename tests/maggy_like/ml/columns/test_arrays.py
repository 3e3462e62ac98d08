"""Values of Arrow columns as tensors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.errors import DataError
from maggy_like.ml.columns.arrays import to_tensor
from maggy_like.ml.columns.column import Column, columns_of_arrow

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
