"""Sources of a loader's rows: Parquet files at URLs, or a table in memory."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import fsspec.core
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.types as kind

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import Column, columns_of_arrow, is_vector, sparse_rows, to_numpy


def fsspec_url(url: str) -> str:
    """Return a URL as fsspec spells it. Spark writes ``s3a://`` or ``s3n://`` for S3, and ``file:/`` for local paths.

    Example:
        >>> fsspec_url("s3a://bucket/rows"), fsspec_url("file:/tmp/rows")
        ('s3://bucket/rows', 'file:///tmp/rows')
    """
    return re.sub(r"^file:/(?!/)", "file:///", re.sub(r"^s3[an]://", "s3://", url))


def find_files(urls: str | Sequence[str]) -> tuple[pafs.FileSystem, bool, list[str]]:
    """Return the file system of Parquet files, whether it is a disk of this machine, and their paths.

    A URL is that of a file, or of a directory, whose files are in the order of their names. Files and directories whose
    names start with ``_`` or ``.`` are ignored, as in Spark. Several URLs must be on one file system. A directory that
    is a Delta or Iceberg table is rejected, because its log decides which files are valid.
    """
    given = [urls] if isinstance(urls, str) else [str(url) for url in ([urls] if hasattr(urls, "__fspath__") else urls)]
    if not given:
        raise ConfigError("data must have at least one URL of Parquet files, got none")
    found = [fsspec.core.url_to_fs(fsspec_url(url)) for url in given]
    system = found[0][0]
    if any(other is not system for other, _ in found):
        raise ConfigError(f"the URLs must be on one file system, got {', '.join(given)}")
    paths = [path for _, root in found for path in _below(system, root)]
    local = "file" in _protocols(system)
    return pafs.LocalFileSystem() if local else pafs.PyFileSystem(pafs.FSSpecHandler(system)), local, paths


def _below(system: Any, root: str) -> list[str]:
    if system.isfile(root):
        return [root]
    if kind := _table_format(system, root):
        raise DataError(
            f"{root} must be a directory of Parquet files, got a {kind} table, whose directory also has outdated "
            "files; pass the DataFrame itself if it is small, or write it: df.write.parquet(url)"
        )
    found = sorted(path for path in system.find(root) if path.endswith((".parquet", ".parq")) and _counts(path, root))
    if not found:
        raise DataError(f"there are no Parquet files at {root}")
    return found


def _table_format(system: Any, root: str) -> str | None:
    """Return the format of a table whose log decides which of its files are valid."""
    if system.exists(f"{root}/_delta_log"):
        return "Delta"
    if system.exists(f"{root}/metadata/version-hint.text") or system.glob(f"{root}/metadata/*.metadata.json"):
        return "Iceberg"
    return None


def _counts(path: str, root: str) -> bool:
    return not any(part.startswith(("_", ".")) for part in path[len(root) :].strip("/").split("/"))


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


_TABLE_ROWS = 4096
"""Rows of a row group of a table in memory: small enough to shuffle well, large enough to read quickly."""

_DISK_BUFFER = 1 << 14  # bytes of a column that are read from a disk at a time: a wide table has many columns

_OPENERS = 16  # footers read at a time: a store at a URL answers each in tens of milliseconds


_FEW = 0.5  # share of a vector's numbers from which on the zeros among them are kept too


@dataclasses.dataclass(frozen=True)
class MeasuredRows:
    """Properties of columns that are known before reading."""

    columns: tuple[Column, ...]  # with the lengths of their rows
    row_bytes: int  # approximate size of a row in memory
    sparse: frozenset[str]  # names of vectors that are mostly zeros and are stored without them


class RowSource(Protocol):
    """Rows in row groups."""

    schema: pa.Schema
    group_rows: list[int]  # number of rows of each row group
    partitions: frozenset[str]  # columns that exist only in names of directories, ``date=2026-11-23/``

    def measured(self, columns: Sequence[Column]) -> MeasuredRows:
        """Return what is known of the columns before reading, and check for nulls."""

    def read(self, groups: Iterator[tuple[int, int, int]], names: list[str], rows: int) -> Generator[pa.RecordBatch]:
        """Yield parts of row groups (group, start, stop) in turn, in batches of at most ``rows`` rows."""


class TableSource:
    """A table in memory, which travels with the loader."""

    partitions = frozenset[str]()

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()
        self.schema = table.schema
        self.group_rows = [min(_TABLE_ROWS, len(table) - start) for start in range(0, len(table), _TABLE_ROWS)]

    def measured(self, columns: Sequence[Column]) -> MeasuredRows:
        """See :class:`RowSource`."""
        for column in columns:
            _check_nulls(column, self._table[column.name].null_count)
        wanted = self._table.select([column.name for column in columns])
        first = wanted.slice(0, 1)
        rows, known, width, sparse = max(len(wanted), 1), list[Column](), 0.0, set[str]()
        for column in columns:
            column = column if column.shape is None else _as_in(first[column.name].combine_chunks(), column)
            stored = wanted[column.name].nbytes / rows
            if is_vector(self.schema.field(column.name).type) and stored < _FEW * row_bytes(column):
                sparse.add(column.name)
            known.append(column)
            width += stored
        return MeasuredRows(tuple(known), int(width), frozenset(sparse))

    def read(self, groups: Iterator[tuple[int, int, int]], names: list[str], rows: int) -> Generator[pa.RecordBatch]:
        """See :class:`RowSource`."""
        wanted = self._table.select(names)
        for group, start, stop in groups:
            yield from wanted.slice(group * _TABLE_ROWS + start, stop - start).to_batches(max_chunksize=rows)


class FileSource:
    """Parquet files, whose footers are read once and are pickled with the loader.

    ``urls`` are one or several files or directories of files, on any file system of fsspec. If there are no files, or
    one is not a Parquet file, DataError is raised.
    """

    def __init__(self, urls: str | Sequence[str]) -> None:
        self._system, self._local, self._paths = find_files(urls)
        with ThreadPoolExecutor(min(_OPENERS, len(self._paths))) as pool:
            self._made = list(pool.map(self._state, self._paths))
            self._footers = list(pool.map(self._footer, self._paths))
        self._groups = [(n, group) for n, footer in enumerate(self._footers) for group in range(footer.num_row_groups)]
        self.group_rows = [self._footers[n].row_group(group).num_rows for n, group in self._groups]
        self.schemas = list[pa.Schema]()  # one per file
        for n, footer in enumerate(self._footers):
            is_like_first = n and footer.schema.equals(self._footers[0].schema)
            self.schemas.append(self.schemas[0] if is_like_first else footer.schema.to_arrow_schema())
        self.schema = self.schemas[0]
        directories = {part for path in self._paths for part in path.split("/")[:-1]}
        self.partitions = frozenset(part.partition("=")[0] for part in directories if "=" in part)

    def _state(self, path: str) -> tuple[int, int | None]:
        """Return what changes when a file is written again."""
        info = self._system.get_file_info(path)
        return info.size, info.mtime_ns

    def _footer(self, path: str) -> pq.FileMetaData:
        try:
            with self._system.open_input_file(path) as file:
                return pq.read_metadata(file)
        except pa.ArrowInvalid as error:
            raise DataError(f"{path} must be a Parquet file: {error}") from error

    def measured(self, columns: Sequence[Column]) -> MeasuredRows:
        """See :class:`RowSource`."""
        self._check_alike(columns)
        rows = max(sum(self.group_rows), 1)
        known, width, sparse = list[Column](), 0.0, set[str]()
        totals = self._totals([column.name for column in columns])
        for column in columns:
            elements, stored, nulls = totals[column.name]
            _check_nulls(column, nulls)
            if column.shape is None:
                width += stored / rows
            elif is_vector(self.schema.field(column.name).type):
                column = self._as_in_first_row(column)
                held = elements / rows * (np.dtype(np.int64).itemsize + np.dtype(column.dtype).itemsize)
                if held < _FEW * row_bytes(column):
                    sparse.add(column.name)
                width += held if column.name in sparse else row_bytes(column)
            else:
                if (column.shape or ()).count(-1) == 1 and elements % rows == 0:
                    column = _with_length(column, elements // rows)
                width += elements / rows * np.dtype(column.dtype).itemsize
            known.append(column)
        return MeasuredRows(tuple(known), int(width), frozenset(sparse))

    def _as_in_first_row(self, column: Column) -> Column:
        """Return a column of vectors with the length of the first one, which no footer tells."""
        group = next((number for number, rows in enumerate(self.group_rows) if rows), None)
        if group is None:
            return column
        with contextlib.closing(self.read(iter([(group, 0, 1)]), [column.name], 1)) as read:
            return _as_in(next(read).column(0), column)

    def _check_alike(self, columns: Sequence[Column]) -> None:
        """Check that all files have the columns of the first one."""
        names = [column.name for column in columns]
        first = columns_of_arrow(self.schema, names)
        for path, schema in zip(self._paths[1:], self.schemas[1:], strict=True):
            if schema.equals(self.schema):
                continue
            try:
                there = columns_of_arrow(schema, names)
            except DataError as error:
                raise DataError(f"{path}: {error}; {self._paths[0]} has it") from error
            for mine, other in zip(there, first, strict=True):
                if mine != other:
                    raise DataError(
                        f"column {mine.name!r} must have one type, got {schema.field(mine.name).type} in {path} and "
                        f"{self.schema.field(mine.name).type} in {self._paths[0]}; write the files with one type"
                    )

    def _totals(self, names: Sequence[str]) -> dict[str, list[int]]:
        """Return for each column its elements in all files, their stored bytes, and the nulls counted in footers."""
        totals = {name: [0, 0, 0] for name in names}
        for footer, schema in zip(self._footers, self.schemas, strict=True):
            leaves = _leaves_of(schema)
            for group in map(footer.row_group, range(footer.num_row_groups)):
                for name, total in totals.items():
                    chunks = [group.column(place) for place in leaves[name]]
                    total[0] += chunks[-1].num_values  # of a vector those of its values, which come last
                    total[1] += sum(chunk.total_uncompressed_size for chunk in chunks)
                    # A vector has several leaves, and nulls in some by its nature.
                    if len(chunks) == 1 and (found := chunks[0].statistics) is not None and found.has_null_count:
                        total[2] += found.null_count
        return totals

    def read(self, groups: Iterator[tuple[int, int, int]], names: list[str], rows: int) -> Generator[pa.RecordBatch]:
        """See :class:`RowSource`."""
        opened, file = -1, None
        try:
            for group, start, stop in groups:
                n, index = self._groups[group]
                if n != opened or file is None:
                    if file is not None:
                        file.close()
                    opened, file = n, self._open(n)
                # A request for a struct "x" also yields a column "x.y" next to it.
                batches = (batch.select(names) for batch in file.iter_batches(rows, [index], names))
                yield from _part(batches, start, stop)
        finally:
            if file is not None:
                file.close()

    def _open(self, n: int) -> Any:
        """Open a file by the footer that was read, unless it was written again since."""
        if self._state(self._paths[n]) != self._made[n]:
            raise DataError(
                f"{self._paths[n]} has changed since the loader was created; write new data to a new directory, or "
                "create the loader again"
            )
        # A store at a URL is asked for whole columns at once; a disk is read as the pages are decoded.
        file, buffer = self._system.open_input_file(self._paths[n]), _DISK_BUFFER if self._local else 0
        return pq.ParquetFile(file, metadata=self._footers[n], buffer_size=buffer, pre_buffer=not self._local)


def source_of(data: Any) -> RowSource:
    """Return the source for the data of a loader: a URL or several, a table, or a DataFrame."""
    if isinstance(data, pa.Table):
        return TableSource(data)
    if hasattr(data, "toArrow"):  # a DataFrame of Spark, which nobody has without pyspark
        from maggy_like.ml.spark_columns import arrays_of_vectors

        return TableSource(arrays_of_vectors(data, dtype="float64").toArrow())
    if hasattr(data, "__dataframe__") or type(data).__module__.startswith("pandas."):
        return TableSource(pa.Table.from_pandas(data, preserve_index=False))
    return FileSource(data)


def _part(batches: Iterator[pa.RecordBatch], start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows from ``start`` to ``stop`` of batches; earlier rows are decoded, because a page has no index."""
    seen = 0
    for batch in batches:
        first, end = max(start - seen, 0), min(stop - seen, len(batch))
        if first < end:
            yield batch.slice(first, end - first)
        seen += len(batch)
        if seen >= stop:
            return


def _leaves_of(schema: pa.Schema) -> dict[str, range]:
    """Map columns to a file's leaves, which are in the order of the schema.

    Paths of leaves would be ambiguous: ``x.y`` is a field of a struct, or a column of this name.
    """
    leaves, start = dict[str, range](), 0
    for field in schema:
        stop = start + _leaf_count(field.type)
        leaves[field.name] = range(start, stop)
        start = stop
    return leaves


def _leaf_count(of: pa.DataType) -> int:
    if isinstance(of, pa.BaseExtensionType):
        return _leaf_count(of.storage_type)
    if kind.is_dictionary(of) or not of.num_fields:
        return 1
    return sum(_leaf_count(of.field(place).type) for place in range(of.num_fields))


def _as_in(values: pa.Array, column: Column) -> Column:
    """Return the column with the shape of some of its rows."""
    is_in_parts = is_vector(values.type)
    return column.with_shape(sparse_rows(values, column).shape if is_in_parts else to_numpy(values, column).shape[1:])


def row_bytes(column: Column) -> int:
    """Return the bytes of a row of a column with all its numbers."""
    return math.prod(max(length, 0) for length in column.shape or ()) * np.dtype(column.dtype).itemsize


def _with_length(column: Column, length: int) -> Column:
    shape = column.shape or ()
    known = 1
    for other in shape:
        known *= max(other, 1)
    if not length or length % known:
        return column
    return dataclasses.replace(column, shape=tuple(length // known if n < 0 else n for n in shape))


def _check_nulls(column: Column, nulls: int) -> None:
    if nulls:
        raise DataError(
            f"column {column.name!r} must not have nulls or empty lists, got {nulls}; fill or drop them first: "
            f"df.na.drop(subset=[{column.name!r}])"
        )
