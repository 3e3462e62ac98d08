"""Find the rows that a network can take, and the reason why it cannot take the others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from maggy_like.ml.columns.arrays import vector_lengths
from maggy_like.ml.columns.column import Column, is_bytes, is_list, is_vector

Mask = npt.NDArray[np.bool_]


def usable_rows(values: pa.Array, column: Column) -> Mask:
    """Return which rows have all values of the column's shape and no null, without a loop over rows.

    Example:
        >>> usable_rows(pa.array([[1.0, 2.0], None, [3.0], [4.0, None]]), Column("x", (2,), "float32")).tolist()
        [True, False, False, False]
    """
    if column.shape is not None and is_bytes(values.type):
        length = math.prod(column.shape) * np.dtype(column.dtype).itemsize
        return np.array(pc.fill_null(pc.equal(pc.binary_length(values), length), False).to_numpy(zero_copy_only=False))
    if is_vector(values.type):
        is_there = np.array(values.is_valid().to_numpy(zero_copy_only=False))
        (length,) = _lengths(values.type, column)
        return is_there if length < 0 else is_there & (vector_lengths(values) == length)
    return _usable(values, _lengths(values.type, column))


def fault(value: pa.Scalar, column: Column) -> str | None:
    """Return why a row's value cannot be used, by the rules of :func:`usable_rows`; None if it can be.

    Example:
        >>> fault(pa.scalar([3.0]), Column("x", (2,), "float32"))
        "column 'x' has 1 elements where 2 are expected"
    """
    plain = value.as_py()
    if plain is not None and is_vector(value.type):
        plain = range(len(plain["values"]) if plain["size"] is None else plain["size"])
    found = _fault(plain, _lengths(value.type, column))
    if found is None and column.shape is not None and is_bytes(value.type):
        found = f"has {len(value.as_py())} bytes, which do not fill the shape {column.shape} of {column.dtype}"
    return found and f"column {column.name!r} {found}"


def _lengths(kind: pa.DataType, column: Column) -> tuple[int, ...]:
    """Return the required lengths of nested lists; flat ones have all values of a shape."""
    depth = 1 if is_vector(kind) else 0
    while is_list(kind):
        depth, kind = depth + 1, kind.value_type
    shape = column.shape or ()
    return shape if depth == len(shape) else (math.prod(shape),) * depth


def _usable(values: pa.Array, lengths: tuple[int, ...]) -> Mask:
    usable: Mask = np.array(values.is_valid().to_numpy(zero_copy_only=False))
    if not lengths:
        return usable
    if lengths[0] >= 0:
        usable &= pc.fill_null(pc.list_value_length(values), -1).to_numpy() == lengths[0]
    inner = values.flatten()
    if len(lengths) > 1 or inner.null_count:
        of_inner = _usable(inner, lengths[1:])
        usable[pc.list_parent_indices(values).to_numpy()[~of_inner]] = False
    return usable


def _fault(value: Any, lengths: tuple[int, ...]) -> str | None:
    if value is None:
        return "is null"
    if not lengths:
        return None
    if lengths[0] not in (-1, len(value)):
        return f"has {len(value)} elements where {lengths[0]} are expected"
    inner = next((found for part in value if (found := _fault(part, lengths[1:]))), None)
    return "holds a null" if inner == "is null" else inner
