"""The shape and type of a row's value in a column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.types as kind

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
    """Describe the columns of an Arrow schema for a model.

    Floats, doubles and decimals become ``float32``, the type of most models' parameters. Integers and booleans keep
    their type. Lists of them are treated in the same way. Spark's vectors have the shape ``(-1,)``. If you need
    another type, create the :class:`Column` yourself.

    Args:
        schema: Schema of a table or a Parquet file.
        names: Columns to describe, in order. Default: all.
        fractions: Type for floats, doubles and decimals: ``"float32"``, or ``"float64"``, which does not round
            doubles.

    Raises:
        DataError: A column is missing, or has a type that no tensor can have.

    Example:
        >>> columns_of_arrow(pa.schema({"x": pa.list_(pa.float64()), "y": pa.int64()}), ["y"])
        (Column(name='y', shape=(), dtype='int64'),)
    """
    wanted = list(schema.names if names is None else names)
    check_names(wanted, schema.names)
    found = (column_of_type(name, schema.field(name).type) for name in wanted)
    return tuple(replace(it, dtype=fractions) if it.dtype == "float32" else it for it in found)


def check_names(wanted: Sequence[str], there: Sequence[str]) -> None:
    """Check that columns exist, each once.

    Raises:
        DataError: A column is missing or ambiguous; the message has the existing ones.
    """
    for name in wanted:
        count = list(there).count(name)
        if count > 1:
            raise DataError(f"the column {name!r} must exist once, got {count} of that name; rename the others")
        if count == 0:
            meant = get_close_matches(name, there, 1)
            hint = f"did you mean {meant[0]!r}?" if meant else f"the columns are: {', '.join(there) or 'none'}"
            raise DataError(f"there is no column {name!r}; {hint}")


def column_of_type(name: str, kind_of: pa.DataType) -> Column:
    """Describe a column of an Arrow type for a model.

    Raises:
        DataError: No tensor can have the type.
    """
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
