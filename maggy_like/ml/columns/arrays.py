"""The values of an Arrow column as arrays and tensors, without a Python loop over rows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind
import torch
from torch import nn

from maggy_like.errors import DataError
from maggy_like.ml.columns.column import Column, is_bytes, is_list, is_vector

Values = npt.NDArray[Any]


def to_tensor(array: pa.Array | pa.ChunkedArray, column: Column) -> torch.Tensor:
    """Convert the values of a column to a tensor that owns its memory.

    Args:
        array: Values of the column.
        column: Shape and type. Bytes of equal length become a tensor if they are given a shape.

    Returns:
        A tensor ``[rows, *shape]`` on the CPU.

    Raises:
        DataError: There are nulls, rows of different lengths, or values that the type cannot hold. The message has the
            column, the row and the remedy.

    Example:
        >>> to_tensor(pa.array([[1.0, 2.0], [3.0, 4.0]]), Column("x", (2,), "float32")).shape
        torch.Size([2, 2])
    """
    values = to_numpy(array, column)
    return torch.from_numpy(values if values.flags.owndata and values.flags.writeable else values.copy())


def precision_of(network: nn.Module) -> torch.dtype:
    """Return the type in which a network computes floats: that of its parameters."""
    return next((it.dtype for it in network.parameters() if it.is_floating_point()), torch.get_default_dtype())


def fractions_of(network: nn.Module) -> str:
    """Return the type for a network's float columns, which rounds them no more than the network does."""
    return "float64" if precision_of(network) == torch.float64 else "float32"


def to_numpy(array: pa.Array | pa.ChunkedArray, column: Column) -> Values:
    """Convert the values of a column to an array, possibly a read-only view of Arrow's memory.

    Args:
        array: Values of the column.
        column: Shape and type.

    Returns:
        An array ``[rows, *shape]``.

    Raises:
        DataError: As in :func:`to_tensor`.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if kind.is_dictionary(array.type):
        array = array.dictionary_decode()
    check_nulls(array, column)
    rows = len(array)
    if is_vector(array.type):
        return sparse_rows(array, column).filled()
    if is_bytes(array.type):
        return _shaped(_of_bytes(array, column), column, rows)
    lengths: tuple[int, ...] = ()
    while is_list(array.type):
        array, length = _flat(array, column)
        lengths += (length,)
        check_nulls(array, column, math.prod(lengths))
    if kind.is_decimal(array.type):
        array = array.cast(pa.float64())
    values = _converted(array.to_numpy(zero_copy_only=False), column)
    return _shaped(values.reshape(rows, *_known(lengths, column)), column, rows)


def alike_columns(schema: pa.Schema, columns: Sequence[Column]) -> list[list[int]]:
    """Return the places of columns that :func:`values_together` can convert: plain numbers, grouped by type.

    Args:
        schema: Types of the columns.
        columns: Shape and type of each in a batch.
    """
    groups: dict[pa.DataType, list[int]] = {}
    for place, (of, column) in enumerate(zip(schema.types, columns, strict=True)):
        is_plain = kind.is_float32(of) or kind.is_float64(of) or kind.is_signed_integer(of)
        if is_plain and column.shape == () and np.dtype(of.to_pandas_dtype()) == column.dtype:
            groups.setdefault(of, []).append(place)
    return list(groups.values())


def values_together(batch: pa.RecordBatch, groups: Sequence[Sequence[int]]) -> dict[int, Values]:
    """Return the values of columns by place, converted at once, which is quicker for a wide table.

    A group with nulls is left out.
    """
    found: dict[int, Values] = {}
    for places in groups:
        with contextlib.suppress(pa.ArrowTypeError):  # there are nulls
            matrix = batch.select(places).to_tensor(row_major=False).to_numpy()
            found |= zip(places, matrix.T, strict=True)
    return found


def check_nulls(array: pa.Array, column: Column, per_row: int = 1) -> None:
    """Check that there are no nulls, neither rows nor elements of lists."""
    if array.null_count:
        first = pc.index(pc.is_null(array), True).as_py() // max(per_row, 1)
        raise DataError(
            f"column {column.name!r} must not have nulls, got {array.null_count} in the rows read together, the first "
            f"in row {first}; fill or drop them first: df.na.drop(subset=[{column.name!r}])"
        )


def _flat(array: pa.Array, column: Column) -> tuple[pa.Array, int]:
    """Return the concatenated elements of lists, and the length that all lists have."""
    if kind.is_fixed_size_list(array.type):
        return array.flatten(), array.type.list_size
    offsets = array.offsets.to_numpy()
    return array.values.slice(offsets[0], offsets[-1] - offsets[0]), _common(np.diff(offsets), column)


def _common(lengths: Values, column: Column) -> int:
    """Return the length that all rows have; -1 if there are no rows.

    Raises:
        DataError: They differ.
    """
    if not len(lengths):
        return -1
    if len(odd := np.flatnonzero(lengths != lengths[0])):
        raise DataError(
            f"column {column.name!r} must have rows of one length, got {lengths[0]} in row 0 and {lengths[odd[0]]} in "
            f"row {odd[0]} of those read together; pad or cut them first"
        )
    return int(lengths[0])


class SparseRows(NamedTuple):
    """Rows of which only some values are stored; the others are 0.

    Attributes:
        counts: Number of values of each row.
        places: Position of each value in its flattened row, row after row.
        values: Values.
        shape: Shape of a row.
    """

    counts: Values
    places: Values
    values: Values
    shape: tuple[int, ...]

    def filled(self) -> Values:
        """Return the rows with all their values, ``[rows, *shape]``."""
        rows, width = len(self.counts), math.prod(self.shape)
        if len(self.values) == rows * width and (self.places.reshape(rows, width) == np.arange(width)).all():
            return self.values.reshape(rows, *self.shape)
        filled = np.zeros((rows, width), self.values.dtype)
        filled[np.repeat(np.arange(rows), self.counts), self.places] = self.values
        return filled.reshape(rows, *self.shape)

    def taken(self, rows: Values) -> SparseRows:
        """Return some of the rows, in this order."""
        starts, counts = (np.cumsum(self.counts) - self.counts)[rows], self.counts[rows]
        among = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return SparseRows(counts, self.places[among], self.values[among], self.shape)


def sparse_rows(array: pa.StructArray, column: Column) -> SparseRows:
    """Return Spark's vectors without their zeros: dense ones have only values, sparse ones also a size and positions.

    Raises:
        DataError: As in :func:`to_tensor`.
    """
    check_nulls(array, column)
    is_sparse = array.field("type").to_numpy(zero_copy_only=False) == 0
    counts = pc.fill_null(pc.list_value_length(array.field("values")), 0).to_numpy(zero_copy_only=False)
    width = max(_common(vector_lengths(array), column), 0)
    values = _converted(array.field("values").flatten().to_numpy(), column)
    starts = np.cumsum(counts) - counts  # of each row among all values
    places = np.arange(len(values)) - np.repeat(starts, counts)
    if is_sparse.any():
        places[np.repeat(is_sparse, counts)] = array.field("indices").flatten().to_numpy()  # null in dense rows
    return SparseRows(counts, places, values, _shaped(np.empty((0, width)), column, 0).shape[1:])


def vector_lengths(array: pa.StructArray) -> Values:
    """Return the number of elements of each of Spark's vectors; 0 for nulls."""
    lengths = pc.if_else(
        pc.equal(array.field("type"), 0), array.field("size"), pc.list_value_length(array.field("values"))
    )
    return np.asarray(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False))


def _of_bytes(array: pa.Array, column: Column) -> Values:
    """Interpret bytes of equal length as numbers of the column's type."""
    if column.shape is None:
        raise DataError(
            f"column {column.name!r} must be decoded to numbers, got bytes; decode them, or, if the bytes are an array "
            f"in memory, use Column({column.name!r}, (3, 32, 32), 'uint8') with its shape and type"
        )
    lengths = pc.binary_length(array).to_numpy(zero_copy_only=False)
    length = max(_common(lengths, column), 0)
    joined = array.cast(pa.large_binary())
    first = np.frombuffer(joined.buffers()[1], np.int64)[joined.offset] if len(array) else 0
    data = joined.buffers()[2] if length else b""
    found = np.frombuffer(data, np.uint8, len(array) * length, first).reshape(len(array), length)
    wanted = np.dtype(column.dtype)
    if length % wanted.itemsize:
        raise DataError(f"column {column.name!r} must have a whole number of {wanted} per row, got {length} bytes")
    return np.ascontiguousarray(found).view(wanted)


def _converted(values: Values, column: Column) -> Values:
    """Convert the values to the column's type.

    Raises:
        DataError: An integer type cannot hold one of them.
    """
    if values.dtype == np.dtype(object) or values.dtype.kind not in "fiub":
        raise DataError(f"column {column.name!r} must have numbers for a tensor, got values of the type {values.dtype}")
    if values.dtype == column.dtype:
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        converted = values.astype(column.dtype)
    if converted.dtype.kind in "iub" and len(odd := np.flatnonzero(converted != values)):
        raise DataError(
            f"column {column.name!r} must have values that {column.dtype} can hold, got {values.ravel()[odd[0]]}; use "
            "another dtype, or convert the values first"
        )
    return converted


def _known(lengths: tuple[int, ...], column: Column) -> tuple[int, ...]:
    """Return the lengths that were read, or those of the column if there were no rows."""
    told = column.shape or ()
    return tuple(
        length if length >= 0 else max(told[place] if place < len(told) else 0, 0)
        for place, length in enumerate(lengths)
    )


def _shaped(values: Values, column: Column, rows: int) -> Values:
    """Reshape the values to the column's shape.

    Raises:
        DataError: A row's values do not fill it.
    """
    told = column.shape or ()
    found = values.shape[1:]
    if len(found) == len(told) and all(want in (-1, have) for want, have in zip(told, found, strict=True)):
        return values
    have, want = math.prod(found), math.prod(length for length in told if length >= 0)
    free = told.count(-1)
    if column.shape is None or free > 1 or (have % want if free and want else have != want):
        raise DataError(
            f"column {column.name!r} must have rows of shape {column.shape}, got {found}; use that shape, or one with "
            "the same number of values"
        )
    return values.reshape(rows, *(have // max(want, 1) if length < 0 else length for length in told))
