"""A DataFrame as Parquet files: those that it was read from, or a copy that is used again; and column statistics."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kind
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DoubleType, FloatType, IntegralType, NumericType, StructType

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import is_bytes, is_list
from maggy_like.ml.loader.sources import FileSource, fsspec_url
from maggy_like.ml.spark_columns import quoted, with_plain_vectors

VALIDATION = "maggy_validation"
"""Name of the column by which a copy with validation rows is partitioned."""

_OWN = uuid.uuid4().hex[:8]
"""Suffix of the marks of this process's temporary copies, so that no other process reads them."""

_NO_WRITING = "free space or allow writing there, or use another directory"
_NO_STORE = "add this file system to Spark, for example with spark.jars.packages, or use another directory"
_REMEDIES = {
    "No space left on device": _NO_WRITING,
    "Disk quota exceeded": _NO_WRITING,
    "Read-only file system": _NO_WRITING,
    "Permission denied": _NO_WRITING,
    "Mkdirs failed": _NO_WRITING,  # Hadoop's word for a directory that cannot be created
    "No FileSystem for scheme": _NO_STORE,
    "FileSystem not found": _NO_STORE,  # its class, in a jar that Spark does not have
    "UnknownHostException": "correct the host, or use another directory",
}
"""Messages of file systems to which nothing can be written, and what to do."""

_lock = threading.Lock()  # as fits may run side by side
_written: dict[str, int] = {}  # the process that wrote each: a fork of it removes nothing


@dataclass(frozen=True)
class PreparedData:
    """Rows in Parquet files."""

    train: tuple[str, ...]  # URLs of the training rows, as fsspec reads them: files, or a directory of files
    validation: tuple[str, ...]  # URLs of the validation rows; none if nothing was set apart
    is_split: bool  # whether rows were to be set apart
    columns: tuple[str, ...]  # that were asked for; the files may have more
    copy: str | None  # URL of the directory that was written; None if the DataFrame was in Parquet files already
    paths: tuple[str, ...]  # location of all rows, as Spark spells it

    def rows(self, df: DataFrame) -> DataFrame:
        """Return the rows of the original ``df`` as they are stored, with vectors as structs of their parts."""
        has_vectors = any(isinstance(df.schema[name].dataType, VectorUDT) for name in self.columns)
        return df if self.copy is None and not has_vectors else _read(df, self.columns, self.paths)

    def delete(self) -> None:
        """Remove the copy, if one was made."""
        if self.copy is not None:
            _remove(self.copy)


def schema_of(prepared: PreparedData) -> pa.Schema:
    """Return the schema of the training rows, read from the first file."""
    filesystem, path = fsspec.core.url_to_fs(prepared.train[0])
    with filesystem.open(path) as file:
        return pq.read_schema(file)


def prepare_data(
    df: DataFrame,
    columns: Sequence[str],
    url: str | Path,
    *,
    validation_column: str | None = None,
    validation_fraction: float = 0.0,
    seed: int = 0,
    keep: bool = False,
) -> PreparedData:
    """Make the rows of a DataFrame readable for all workers, as Parquet files.

    A DataFrame that only reads Parquet files is not copied. Of any other, ``columns`` are computed once and written to
    a directory below ``url``, a path or URL that Spark and all workers can access. Vectors are written unchanged,
    sparse ones sparse. Without ``keep``, the copy is removed when this Python process exits. If an equal copy exists,
    of this process or one with ``keep``, it is used and the new one is removed. Only the rows tell whether copies are
    equal, because a plan may read a clock, a setting or a function's globals.

    ``validation_column`` is a boolean column that is true for validation rows; it requires a copy. Instead,
    ``validation_fraction`` of the rows, from 0 to less than 1, is set apart at random, with ``seed``.

    A ``url`` that cannot be written, or that is a local path while Spark runs elsewhere, raises ConfigError.
    """
    is_split = validation_column is not None or validation_fraction > 0
    if not is_split and (files := parquet_files(df, columns)):
        return PreparedData(tuple(map(fsspec_url, files)), (), False, tuple(columns), None, files)
    wanted, mark = [F.col(quoted(name)) for name in columns], "_rows"
    if validation_column is not None:
        wanted.append(F.coalesce(F.col(quoted(validation_column)), F.lit(False)).alias(VALIDATION))
    rows = df.select(*wanted)
    if validation_fraction:
        rows = rows.withColumn(VALIDATION, F.rand(seed) < validation_fraction)
        mark += f"-{validation_fraction:g}-{seed}"
    directory = f"{_absolute(url)}/{uuid.uuid4().hex}"
    _write(rows, directory, is_split)
    stored = _read(df, columns, (directory,))
    count, key = rows_key(stored if validation_column is not None else stored.drop(VALIDATION))
    if count and not _parts(directory, is_split):
        raise ConfigError(
            f"directory must be shared by Spark's executors and this process, got {directory}, which Spark wrote and "
            "this process cannot find; use a URL such as 's3a://bucket/directory'"
        )
    directory = _settled(directory, f"{mark}-{key}", keep)
    parts: dict[bool, list[str]] = {True: [], False: []}
    for part in _parts(directory, is_split):
        parts[f"/{VALIDATION}=true/" in part].append(part)
    return PreparedData(tuple(parts[False]), tuple(parts[True]), is_split, tuple(columns), directory, (directory,))


def _read(df: DataFrame, columns: Sequence[str], paths: Sequence[str]) -> DataFrame:
    """Read stored columns of a DataFrame, with vectors as structs of their parts, and the partition column."""
    schema = with_plain_vectors(df.select(*(quoted(name) for name in columns)).schema)
    return df.sparkSession.read.schema(schema.add(VALIDATION, "string")).parquet(*map(_escaped, paths))


def _write(rows: DataFrame, directory: str, is_split: bool) -> None:
    _written[directory] = os.getpid()  # before anything is there: nothing is left behind, however this ends
    try:
        (rows.write.partitionBy(VALIDATION) if is_split else rows.write).parquet(directory)
    except Exception as error:
        with contextlib.suppress(Exception):
            _remove(directory)
        if found := next((reason for reason in _REMEDIES if reason in str(error)), None):
            raise ConfigError(f"the DataFrame cannot be written to {directory}: {found}; {_REMEDIES[found]}") from error
        raise


def _settled(directory: str, mark: str, keep: bool) -> str:
    """Return the directory of these rows: an earlier one that has them, or the new one, which is marked.

    ``directory`` is the new one, completely written. ``mark`` is the name of a file in all directories of exactly these
    rows; no reader takes it for rows.
    """
    own = mark if keep else f"{mark}-{_OWN}"
    filesystem, path = fsspec.core.url_to_fs(fsspec_url(directory))
    base, _, name = path.rpartition("/")
    with _lock:
        filesystem.invalidate_cache(base)
        for other in filesystem.ls(base, detail=False):
            if any(filesystem.exists(f"{other.rstrip('/')}/{it}") for it in {mark, own}):  # one that is kept serves all
                _remove(directory)
                return f"{directory.removesuffix(name)}{other.rstrip('/').rpartition('/')[2]}"
        filesystem.pipe_file(f"{path}/{own}", b"")
        if keep:
            _written.pop(directory, None)
    return directory


def _parts(directory: str, is_split: bool) -> tuple[str, ...]:
    """Return the URLs of the files in a directory, in order; none if no row was written there."""
    filesystem, path = fsspec.core.url_to_fs(fsspec_url(directory))
    found = filesystem.find(path, maxdepth=2 if is_split else 1) if filesystem.exists(path) else []
    return tuple(sorted(filesystem.unstrip_protocol(part) for part in found if part.endswith(".parquet")))


def _escaped(path: str) -> str:
    """Escape a path for Spark's readers, to which some characters are patterns."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)


def _absolute(url: str | Path) -> str:
    """Return the URL as Spark takes it: a local path is on this machine, not in Spark's default file system."""
    text = str(url).rstrip("/")
    if "://" in text or text.startswith("file:"):
        return text
    return f"file://{Path(text).expanduser().absolute()}"  # neither Spark nor fsspec decode an encoded path


def _remove(directory: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(fsspec_url(directory))
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(path, recursive=True)
    _written.pop(directory, None)


@atexit.register
def _clean_up() -> None:
    """Remove the temporary copies that this process wrote."""
    for directory, process in list(_written.items()):
        with contextlib.suppress(Exception):  # the store may be gone before us
            if process == os.getpid():
                _remove(directory)


_FILE_SCAN = re.compile(r"FileScan parquet .*PartitionFilters: \[\],.*ReadSchema: struct<", re.DOTALL)
_PASSES_ALONG = re.compile(r"(\*\(\d+\) )?ColumnarToRow$")


def parquet_files(df: DataFrame, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the Parquet files with exactly the rows and columns of ``df``; none if its plan does more than read them.

    A plan that filters, computes, renames, joins or unions must be written before others can read its rows. So must
    files that other readers would read differently: if their types are not the DataFrame's (unsigned numbers, or a
    schema given to the reader), or their number of rows differs (a path that was given twice). Only ``columns`` of
    ``df`` count. The names of the files are as Spark spells them.
    """
    selected = df.select(*(quoted(name) for name in columns))
    plan = _explained(selected, "simple").split("== Physical Plan ==", 1)[-1].strip()
    nodes = [line.lstrip("+-: ") for line in plan.splitlines() if line.strip()]
    scans = [node for node in nodes if not _PASSES_ALONG.match(node)]
    if len(scans) != 1 or not _FILE_SCAN.match(scans[0]) or "DataFilters: []" not in scans[0]:
        return ()
    read = scans[0].rsplit("ReadSchema: struct<", 1)[-1]
    there = re.findall(r"(?:^|,)([^:<>,]+):", re.sub(r"<[^<>]*>", "", read))  # without the fields of structs
    if not set(columns).issubset(there):  # of a directory's name (date=2026-01-01), in no file; or cut off
        return ()
    files = tuple(sorted(map(unquote, selected.inputFiles())))  # Spark gives them percent-encoded
    return files if files and _are_read_alike(files, selected) else ()


def rows_key(df: DataFrame) -> tuple[int, str]:
    """Return the number of rows, and a key that two DataFrames share only if their rows are the same, in any order.

    ``df`` must have stored rows, because a plan may yield other rows each time (a clock, a random number, a Python
    function).
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
    return bool(file.equals(wanted)) or (is_bytes(file) and is_bytes(wanted))


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of one column."""

    nulls: int  # number of rows in which it is null, or contains a null at any depth
    not_a_number: int  # number of rows in which it is or contains a NaN or an infinity
    shortest: int | None = None  # smallest length of its arrays; None for a column without arrays
    longest: int | None = None  # largest length of its arrays
    shortest_inner: Sequence[int | None] = ()  # smallest length of the arrays within its arrays, per level
    longest_inner: Sequence[int | None] = ()  # largest length of these
    # smallest number, also in arrays; None for a column without numbers, for vectors, or if all are null
    least: float | None = None
    greatest: float | None = None  # largest number, likewise
    extremes: Sequence[Any] = ()  # for arrays of integers, a row with the smallest number and one with the largest
    total: float | None = None  # sum of its numbers; None for a column of arrays
    fractions: int = 0  # number of rows in which it is not an integer
    # largest absolute value of its numbers, also in arrays; None for a column without numbers
    largest: float | None = None


@dataclass(frozen=True)
class Statistics:
    """Number of rows of a DataFrame, and statistics of each column by name."""

    rows: int
    columns: dict[str, ColumnStatistics]


def statistics_of(df: DataFrame, columns: Sequence[str]) -> Statistics:
    """Compute statistics of columns in one Spark job; vectors are structs of their parts."""
    measured: list[tuple[str, str, Column]] = []
    for name in columns:
        measured += [(name, key, value) for key, value in _measures(df, name).items()]
    row = df.agg(F.count(F.lit(1)), *(value for _, _, value in measured)).first()
    assert row is not None  # an aggregate without groups has one row
    found: dict[str, dict[str, Any]] = {name: {} for name in columns}
    for (name, key, _), value in zip(measured, row[1:], strict=True):
        found[name][key] = value
    return Statistics(int(row[0]), {name: ColumnStatistics(**values) for name, values in found.items()})


def weights_of(df: DataFrame, column: str, weight: str | None) -> dict[int, float]:
    """Return the total weight of the rows for each value of an integer column; their number if rows have no weight."""
    amount = F.sum(F.lit(1.0) if weight is None else F.col(quoted(weight)).cast("double"))
    rows = df.groupBy(F.col(quoted(column)).cast("long").alias("value")).agg(amount.alias("amount")).collect()
    return {int(row["value"]): float(row["amount"]) for row in rows}


def _measures(df: DataFrame, name: str) -> dict[str, Column]:
    kind, column = df.schema[name].dataType, F.col(quoted(name))
    wrong, nan = column.isNull(), F.lit(False)
    measures: dict[str, Column] = {}
    if isinstance(kind, ArrayType):
        inner, numbers = kind.elementType, column
        wrong, lengths = wrong | F.exists(column, lambda value: value.isNull()), list[Column]()
        while isinstance(inner, ArrayType):
            lengths.append(F.transform(numbers, lambda value: F.size(value)))
            inner, numbers = inner.elementType, F.flatten(numbers)
            wrong = wrong | F.exists(numbers, lambda value: value.isNull())
        if lengths:
            measures["shortest_inner"] = F.array(*(F.min(F.array_min(it)) for it in lengths))
            measures["longest_inner"] = F.array(*(F.max(F.array_max(it)) for it in lengths))
        if isinstance(inner, DoubleType | FloatType):
            nan = F.exists(numbers, _is_no_number)
        if isinstance(inner, NumericType):
            least, greatest = F.array_min(numbers).cast("double"), F.array_max(numbers).cast("double")
            measures |= {"least": F.min(least), "greatest": F.max(greatest)}
            measures["largest"] = F.greatest(F.abs(measures["least"]), F.abs(measures["greatest"]))
            if isinstance(inner, IntegralType):
                measures["extremes"] = F.array(F.min_by(column, least), F.max_by(column, greatest))
        measures |= {"shortest": F.min(F.size(column)), "longest": F.max(F.size(column))}
    elif isinstance(kind, StructType):  # a vector's parts: a sparse one has a size, a dense one only values
        numbers = column["values"]
        wrong, nan = wrong | numbers.isNull(), F.exists(numbers, _is_no_number)
        length = F.coalesce(column["size"], F.size(numbers))
        measures |= {"shortest": F.min(length), "longest": F.max(length)}
    elif isinstance(kind, NumericType):
        number = column.cast("double")
        nan = _is_no_number(number)
        measures |= {"least": F.min(number), "greatest": F.max(number), "total": F.sum(number)}
        measures["largest"] = F.max(F.abs(number))
        measures["fractions"] = F.count_if(number != F.rint(number))  # floor has no result for what is past 64 bits
    return {"nulls": F.count_if(wrong), "not_a_number": F.count_if(F.coalesce(nan, F.lit(False)))} | measures


def _is_no_number(value: Column) -> Column:
    """Whether it is NaN or infinite, which makes a network's weights NaN."""
    return F.isnan(value) | (F.abs(value) == float("inf"))
