from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.ml.columns.column import Column
from maggy_like.ml.inference.rows import fault, usable_rows

NUMBER = st.none() | st.floats(-1, 1, width=32)
PAIRS = Column("x", (2, 2), "float32")


def filled(value: object, shape: tuple[int, ...]) -> bool:
    """What usable_rows is to tell, value by value."""
    if value is None:
        return False
    if not shape:
        return True
    assert isinstance(value, list)
    return len(value) == shape[0] and all(filled(it, shape[1:]) for it in value)


@given(
    st.lists(st.none() | st.lists(st.none() | st.lists(NUMBER, max_size=3), max_size=3), max_size=8), st.integers(0, 3)
)
def test_usable_rows_are_those_of_the_shape_without_nulls(rows: list[object], skipped: int) -> None:
    array = pa.array(rows, pa.list_(pa.list_(pa.float32()))).slice(skipped)
    usable = usable_rows(array, PAIRS)
    assert usable.tolist() == [filled(it, (2, 2)) for it in rows[skipped:]]
    assert [fault(it, PAIRS) is None for it in array] == usable.tolist()


def test_usable_rows_of_numbers_open_lengths_and_flat_arrays() -> None:
    assert usable_rows(pa.array([1, None]), Column("x", (), "int64")).tolist() == [True, False]
    arrays = pa.array([[1.0], [1.0, 2.0, 3.0, 4.0], [None], None, []])
    assert usable_rows(arrays, Column("x", (-1,), "float32")).tolist() == [True, True, False, False, True]
    assert usable_rows(arrays, PAIRS).tolist() == [False, True, False, False, False]


def test_usable_rows_of_bytes() -> None:
    images = pa.array([np.zeros(12, np.uint8).tobytes(), b"abc", None])
    assert usable_rows(images, Column("x", (3, 2, 2), "uint8")).tolist() == [True, False, False]
    assert usable_rows(images, Column("x", None, "uint8")).tolist() == [True, True, False]


def test_usable_rows_of_vectors() -> None:
    kind = pa.struct(
        {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
    )
    dense, long = {"type": 1, "values": [1.0, 2.0]}, {"type": 0, "size": 3, "indices": [0, 2], "values": [1.0, 2.0]}
    vectors = pa.array([dense, long, None, {"type": 0, "size": 2, "indices": [], "values": []}], kind)
    column, open_ended = Column("x", (2,), "float32"), Column("x", (-1,), "float32")
    assert usable_rows(vectors, column).tolist() == [True, False, False, True]
    assert usable_rows(vectors, open_ended).tolist() == [True, True, False, True]
    assert [fault(it, column) for it in vectors] == [
        None,
        "column 'x' has 3 elements where 2 are expected",
        "column 'x' is null",
        None,
    ]


@pytest.mark.parametrize(
    ("value", "column", "told"),
    [
        (pa.scalar(None, pa.list_(pa.float32())), Column("x", (2,), "float32"), "column 'x' is null"),
        (pa.scalar([1.0, None]), Column("x", (2,), "float32"), "column 'x' holds a null"),
        (pa.scalar([1.0]), Column("x", (2,), "float32"), "column 'x' has 1 elements where 2 are expected"),
        (
            pa.scalar(b"abc"),
            Column("x", (2,), "uint8"),
            "column 'x' has 3 bytes, which do not fill the shape (2,) of uint8",
        ),
    ],
)
def test_fault_says_why(value: pa.Scalar, column: Column, told: str) -> None:
    assert fault(value, column) == told
