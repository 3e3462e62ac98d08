"""Whether a DataFrame's rows are those of some Parquet files, and a key of its rows, from Spark's plans.

The text of a plan is available in classic sessions and in Spark Connect, which offers nothing else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.types as kind
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType

from maggy_like.errors import DataError
from maggy_like.ml.columns.column import is_bytes, is_list
from maggy_like.ml.columns.spark_columns import quoted, with_plain_vectors
from maggy_like.ml.loader.sources import FileSource

_FILE_SCAN = re.compile(r"FileScan parquet .*PartitionFilters: \[\],.*ReadSchema: struct<", re.DOTALL)
_PASSES_ALONG = re.compile(r"(\*\(\d+\) )?ColumnarToRow$")


def parquet_files(df: DataFrame, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the Parquet files with exactly the rows and columns of ``df``; none if its plan does more than read them.

    A plan that filters, computes, renames, joins or unions must be written before others can read its rows. So must
    files that other readers would read differently: if their types are not the DataFrame's (unsigned numbers, or a
    schema given to the reader), or their number of rows differs (a path that was given twice).

    Args:
        df: DataFrame; it may have more columns than needed.
        columns: Columns that are needed.

    Returns:
        Their names, as Spark spells them.
    """
    selected = df.select(*(quoted(name) for name in columns))
    plan = _explained(selected, "simple").split("== Physical Plan ==", 1)[-1].strip()
    nodes = [line.lstrip("+-: ") for line in plan.splitlines() if line.strip()]
    scans = [node for node in nodes if not _PASSES_ALONG.match(node)]
    if len(scans) != 1 or not _FILE_SCAN.match(scans[0]) or "DataFilters: []" not in scans[0]:
        return ()
    read = scans[0].rsplit("ReadSchema: struct<", 1)[-1]
    there = re.findall(r"(?:^|,)([^:<>,]+):", re.sub(r"<[^<>]*>", "", read))  # without the fields of structs
    if not set(columns).issubset(there):  # of a folder's name (date=2026-01-01), in no file; or cut off
        return ()
    files = tuple(sorted(map(unquote, selected.inputFiles())))  # Spark gives them percent-encoded
    return files if files and _are_read_alike(files, selected) else ()


def rows_key(df: DataFrame) -> tuple[int, str]:
    """Return the number of rows, and a key that two DataFrames share only if their rows are the same, in any order.

    Args:
        df: Stored rows, because a plan may yield other rows each time (a clock, a random number, a Python function).
    """
    given = [part for name in df.columns for part in _hashed(df, name)]
    sums = [F.sum(F.xxhash64(F.lit(salt), *given).cast("decimal(38,0)")) for salt in (1, 2)]
    rows, *found = df.agg(F.count(F.lit(1)), *sums).first() or (0,)
    return rows, hashlib.sha256(repr([df.schema.json(), rows, *found]).encode()).hexdigest()[:24]


def _hashed(df: DataFrame, name: str) -> Iterator[Column]:
    """Yield a column's parts for the hash of a row, which ignores nulls and the ends of lists."""
    column, of = df[quoted(name)], df.schema[name].dataType
    if isinstance(of, ArrayType) and isinstance(of.elementType, ArrayType):
        yield F.to_json(F.struct(column))
        return
    yield from (column, column.isNull())
    if isinstance(of, ArrayType):
        yield from (F.size(column), F.exists(column, lambda value: value.isNull()))


def _explained(df: DataFrame, mode: str) -> str:
    """Return the text that ``df.explain(mode=mode)`` prints."""
    inner: Any = df  # to catch what is printed would catch what other threads print, too
    if hasattr(df, "_jdf"):
        return str(inner._sc._jvm.PythonSQLUtils.explainString(inner._jdf.queryExecution(), mode))
    return str(inner._explain_string(mode=mode))


def _are_read_alike(files: Sequence[str], df: DataFrame) -> bool:
    """Whether other readers of the files get the DataFrame's types and number of rows."""
    try:
        source = FileSource(files)
    except (DataError, FileNotFoundError):  # Spark may be set to pass over such files
        return False
    wanted = to_arrow_schema(with_plain_vectors(df.schema))
    return (
        all(
            schema.names.count(field.name) == 1 and _is_alike(schema.field(field.name).type, field.type)
            for schema in source.schemas
            for field in wanted
        )
        and sum(source.group_rows) == df.count()
    )


def _is_alike(file: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a file's type can hold a DataFrame's values; the layout of lists and bytes does not matter."""
    if kind.is_dictionary(file):
        file = file.value_type
    if is_list(file) and is_list(wanted):
        return _is_alike(file.value_type, wanted.value_type)
    if kind.is_struct(file) and kind.is_struct(wanted):
        same = [field.name for field in file] == [field.name for field in wanted]
        return same and all(_is_alike(one.type, other.type) for one, other in zip(file, wanted, strict=True))
    return bool(file.equals(wanted)) or (is_bytes(file) and is_bytes(wanted))
