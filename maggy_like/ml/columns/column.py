"""What a column of a table is to a model: the shape and type of a row's value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.types as kind

from maggy_like.errors import ConfigError, DataError

DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
"""The types of torch that a column can have."""

_DIMENSIONS = 8  # more lists within lists than any tensor of a model has


@dataclass(frozen=True)
class Column:
    """A column as a model reads it.

    Attributes:
        name: The column's name in the table.
        shape: Shape of one row's value: ``()`` of a number, ``(3, 32, 32)`` of an image. A ``-1`` is a length that the
            schema does not say; all rows must have the same one. ``None`` are bytes, which are handed out as they are.
        dtype: Type of torch by its name, one of :data:`DTYPES`.

    Raises:
        ConfigError: The shape or the type is none.

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
            raise ConfigError(f"column {self.name!r}: a shape has lengths, and -1 for unknown ones, got {self.shape!r}")

    def with_shape(self, shape: tuple[int, ...]) -> Column:
        """The same column, with the lengths that its rows turned out to have."""
        return replace(self, shape=shape)


def columns_of_arrow(
    schema: pa.Schema, names: Iterable[str] | None = None, fractions: str = "float32"
) -> tuple[Column, ...]:
    """What the columns of an Arrow schema are to a model.

    Floats, doubles and decimals become ``float32``, the type of most models' parameters; integers and booleans keep
    their type; so do lists of them. Spark's vectors have the shape ``(-1,)``. Give a :class:`Column` of your own where
    another type is wanted.

    Args:
        schema: Of a table, or of a Parquet file.
        names: The columns that are wanted, in order; all if omitted.
        fractions: What floats, doubles and decimals become: ``"float32"``, or ``"float64"``, which rounds no double.

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
    """Check that columns are there, each once.

    Raises:
        DataError: One is missing or ambiguous; it names those that there are.
    """
    for name in wanted:
        count = list(there).count(name)
        if count > 1:
            raise DataError(f"there are {count} columns named {name!r}; rename all but one")
        if count == 0:
            meant = get_close_matches(name, there, 1)
            hint = f"did you mean {meant[0]!r}?" if meant else f"there are: {', '.join(there) or 'none'}"
            raise DataError(f"there is no column {name!r}; {hint}")


def column_of_type(name: str, kind_of: pa.DataType) -> Column:
    """What a column of an Arrow type is to a model.

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
    """Whether this is how Spark writes its vectors: a struct of a kind, a size, indices and values."""
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
        remedy = "turn its values into numbers first, with pyspark.ml.feature.StringIndexer, say"
    elif kind.is_temporal(inner):
        remedy = "turn its values into numbers first, with unix_timestamp or datediff, say"
    else:
        remedy = "select or compute columns of numbers, arrays of numbers, vectors or bytes from it"
    raise DataError(f"column {name!r} has the type {whole}, of which there are no tensors; {remedy}")
