"""The columns of a table for a model: the shape and type of a row's value, and the values as tensors."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind
import torch
from torch import nn

from maggy_like.errors import ConfigError, DataError

DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
"""Data types of torch that a column can have."""

_DIMENSIONS = 8  # more lists within lists than any tensor of a model has


@dataclass(frozen=True)
class Column:
    """Describe a column for a model: its name, and the shape and type of a row's value.

    Attributes:
        name: Name of the column in the table.
        shape: Shape of one row's value: ``()`` for a number, ``(3, 32, 32)`` for an image. A ``-1`` is a length that
            the schema does not tell; it must be the same in all rows. ``None`` stands for bytes, which are passed on
            unchanged.
        dtype: Name of a torch data type, one of :data:`DTYPES`.

    Raises:
        ConfigError: The shape or the type is invalid.

    Example:
        >>> Column("label", (), "int64")
        Column(name='label', shape=(), dtype='int64')
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"column {self.name!r}: dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.shape is not None and any(length < -1 for length in self.shape):
            raise ConfigError(
                f"column {self.name!r}: shape must have lengths, or -1 for unknown ones, got {self.shape!r}"
            )

    def with_shape(self, shape: tuple[int, ...]) -> Column:
        """Return the same column with the lengths found in its rows."""
        return replace(self, shape=shape)


def columns_of_arrow(
    schema: pa.Schema, names: Iterable[str] | None = None, fractions: str = "float32"
) -> tuple[Column, ...]:
    """Describe the columns of an Arrow schema for a model: all, or those in ``names`` in this order.

    Floats, doubles and decimals become ``float32``, the type of most models' parameters; ``fractions="float64"`` does
    not round doubles. Integers and booleans keep their type. Lists of them are treated in the same way. Spark's vectors
    have the shape ``(-1,)``. If you need another type, create the :class:`Column` yourself. A type that no tensor can
    have raises DataError.
    """
    wanted = list(schema.names if names is None else names)
    check_names(wanted, schema.names)
    return with_fractions((column_of_type(name, schema.field(name).type) for name in wanted), fractions)


def with_fractions(columns: Iterable[Column], fractions: str) -> tuple[Column, ...]:
    """Return the columns with ``fractions`` as the type of those that would be ``float32``."""
    return tuple(replace(it, dtype=fractions) if it.dtype == "float32" else it for it in columns)


def check_names(wanted: Sequence[str], there: Sequence[str]) -> None:
    """Check that columns exist, each once."""
    counts = Counter(there)
    for name in wanted:
        if counts[name] > 1:
            raise DataError(f"the column {name!r} must exist once, got {counts[name]} of that name; rename the others")
        if name not in counts:
            meant = get_close_matches(name, there, 1)
            hint = f"did you mean {meant[0]!r}?" if meant else f"the columns are: {', '.join(there) or 'none'}"
            raise DataError(f"there is no column {name!r}; {hint}")


def column_of_type(name: str, kind_of: pa.DataType) -> Column:
    """Describe a column of an Arrow type for a model; a type that no tensor can have raises DataError."""
    shape: tuple[int, ...] = ()
    inner = kind_of
    if isinstance(inner, pa.FixedShapeTensorType):
        return column_of_type(name, inner.value_type).with_shape(tuple(inner.shape))
    if kind.is_dictionary(inner):
        inner = inner.value_type
    if is_vector(inner):
        return Column(name, (-1,), "float32")
    while len(shape) < _DIMENSIONS and is_list(inner):
        shape += (inner.list_size if kind.is_fixed_size_list(inner) else -1,)
        inner = inner.value_type
    if not shape and is_bytes(inner):
        return Column(name, None, "uint8")
    return Column(name, shape, _dtype(name, kind_of, inner))


def is_vector(of: pa.DataType) -> bool:
    """Whether this is Spark's storage of vectors: a struct of a kind, a size, indices and values."""
    return kind.is_struct(of) and [field.name for field in of] == ["type", "size", "indices", "values"]


def is_list(of: pa.DataType) -> bool:
    """Whether rows are lists of values, of a fixed or any length."""
    return bool(kind.is_list(of) or kind.is_large_list(of) or kind.is_fixed_size_list(of))


def is_bytes(of: pa.DataType) -> bool:
    """Whether rows are bytes."""
    return bool(kind.is_binary(of) or kind.is_large_binary(of) or kind.is_fixed_size_binary(of))


def _dtype(name: str, whole: pa.DataType, inner: pa.DataType) -> str:
    if kind.is_float64(inner) or kind.is_float32(inner) or kind.is_decimal(inner):
        return "float32"
    if kind.is_float16(inner):
        return "float16"
    if kind.is_boolean(inner):
        return "bool"
    if kind.is_integer(inner) and str(inner) in DTYPES:
        return str(inner)
    if kind.is_string(inner) or kind.is_large_string(inner):
        remedy = "convert its values to numbers first, for example with pyspark.ml.feature.StringIndexer"
    elif kind.is_temporal(inner):
        remedy = "convert its values to numbers first, for example with unix_timestamp or datediff"
    else:
        remedy = "select or compute columns of numbers, arrays of numbers, vectors or bytes from it"
    raise DataError(f"column {name!r} must have a type that tensors can have, got {whole}; {remedy}")


Values = npt.NDArray[Any]


def to_tensor(array: pa.Array | pa.ChunkedArray, column: Column) -> torch.Tensor:
    """Convert the values of a column to a tensor ``[rows, *shape]`` on the CPU that owns its memory.

    Bytes of equal length become a tensor if they are given a shape. Nulls, rows of different lengths and values that
    the type cannot hold raise DataError, whose message has the column, the row and the remedy.
    """
    values = to_numpy(array, column)
    return torch.from_numpy(values if values.flags.owndata and values.flags.writeable else values.copy())


def decoded_tensor(value: Any) -> torch.Tensor:
    """Return what a function has made of a row's bytes as a tensor; arrays are copied, because PIL's are read-only."""
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def precision_of(network: nn.Module) -> torch.dtype:
    """Return the type in which a network computes floats: that of its parameters."""
    return next((it.dtype for it in network.parameters() if it.is_floating_point()), torch.get_default_dtype())


def fractions_of(network: nn.Module) -> str:
    """Return the type for a network's float columns, which rounds them no more than the network does."""
    return "float64" if precision_of(network) == torch.float64 else "float32"


def to_numpy(array: pa.Array | pa.ChunkedArray, column: Column) -> Values:
    """Convert the values of a column to an array ``[rows, *shape]``, possibly a read-only view of Arrow's memory.

    It raises DataError as :func:`to_tensor` does.
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
    """Return the places of columns that :func:`values_together` can convert: plain numbers, grouped by type."""
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
    """Return the length that all rows must have; -1 if there are no rows."""
    if not len(lengths):
        return -1
    if len(odd := np.flatnonzero(lengths != lengths[0])):
        raise DataError(
            f"column {column.name!r} must have rows of one length, got {lengths[0]} in row 0 and {lengths[odd[0]]} in "
            f"row {odd[0]} of those read together; pad or cut them first"
        )
    return int(lengths[0])


class SparseRows(NamedTuple):
    """Rows of which only some values are stored; the others are 0."""

    counts: Values  # number of values of each row
    places: Values  # position of each value in its flattened row, row after row
    values: Values
    shape: tuple[int, ...]  # of one row

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

    It raises DataError as :func:`to_tensor` does.
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
        raise DataError(f"column {column.name!r} must have an integer number of {wanted} per row, got {length} bytes")
    return np.ascontiguousarray(found).view(wanted)


def _converted(values: Values, column: Column) -> Values:
    """Convert the values to the column's type; a value that an integer type cannot hold raises DataError."""
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
    """Reshape the values to the column's shape, which each row must fill."""
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
