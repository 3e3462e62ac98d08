"""A DataFrame as Parquet files: those it was read from, or a copy that is written once and used again."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from maggy_like.errors import ConfigError
from maggy_like.ml.columns.spark_columns import quoted, with_plain_vectors
from maggy_like.ml.data.plans import parquet_files, rows_key
from maggy_like.ml.loader.sources import fsspec_url

VALIDATION = "maggy_validation"
"""The column by which a copy is partitioned where some of its rows are for validation."""

_OWN = uuid.uuid4().hex[:8]
"""Ends the marks of this process's copies, so that no other process reads one that goes with us."""

_FULL_OR_CLOSED = (
    "No space left on device",
    "Disk quota exceeded",
    "Read-only file system",
    "Permission denied",
    "Mkdirs failed",  # Hadoop's word for a folder that cannot be made
)
"""How the systems beneath Spark say that nothing can be written somewhere."""

_lock = threading.Lock()  # as fits may run side by side
_written: dict[str, int] = {}  # the process that wrote each: a fork of it removes nothing


@dataclass(frozen=True)
class PreparedData:
    """Rows in Parquet files.

    Attributes:
        train: URLs of the rows to train on, as fsspec reads them: files, or a folder of some.
        validation: Those of the rows to validate on; none where nothing was set apart.
        is_split: Whether rows were to be set apart.
        columns: The columns that the files have, and may have more.
        copy: URL of the folder that was written; None where the DataFrame was in Parquet files already.
        paths: Where all rows are, as Spark spells it.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    is_split: bool
    columns: tuple[str, ...]
    copy: str | None
    paths: tuple[str, ...]

    def rows(self, df: DataFrame) -> DataFrame:
        """The rows as they are stored, vectors as structs of their parts.

        Args:
            df: The DataFrame that they were prepared from.
        """
        has_vectors = any(isinstance(df.schema[name].dataType, VectorUDT) for name in self.columns)
        return df if self.copy is None and not has_vectors else _read(df, self.columns, self.paths)

    def delete(self) -> None:
        """Remove the copy, if one was made."""
        if self.copy is not None:
            _remove(self.copy)


def schema_of(prepared: PreparedData) -> pa.Schema:
    """The schema of the rows to train on, as the first file has it."""
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

    A DataFrame that just reads Parquet files is left where it is. Any other is computed once and written to a folder of
    its own beneath ``url``. If a copy with the same rows is there already, of this process or of one with ``keep``,
    that one is used, and the new one is removed: only the rows say whether they are the same, as a plan may read a
    clock, a setting or a function's globals.

    Args:
        df: Vectors in it are written as they are, sparse ones sparse.
        columns: Those that are needed, and no others are written.
        url: Path or URL of a folder that Spark and all workers see.
        validation_column: Name of a boolean column: true where the row is to validate on. Setting rows apart
            means a copy.
        validation_fraction: Share of the rows to set apart at random, from 0 to less than 1.
        seed: Which rows those are.
        keep: Leave the copy there. By default it is removed when this Python process ends.

    Raises:
        ConfigError: The URL is a local path where Spark runs elsewhere, or cannot be written.

    Example:
        >>> prepared = prepare_data(df, ["features", "label"], "s3a://bucket/data")  # doctest: +SKIP
        >>> prepared.train  # doctest: +SKIP
        ('s3://bucket/data/5f0c.../part-00000-....parquet',)
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
    folder = f"{_absolute(url)}/{uuid.uuid4().hex}"
    _write(rows, folder, is_split)
    stored = _read(df, columns, (folder,))
    count, key = rows_key(stored if validation_column is not None else stored.drop(VALIDATION))
    if count and not _parts(folder, is_split):
        raise ConfigError(
            f"Spark wrote the DataFrame to {folder}, which this process does not see; name a directory that Spark's "
            "executors and this process share, such as 's3a://bucket/folder'"
        )
    folder = _settled(folder, f"{mark}-{key}", keep)
    parts: dict[bool, list[str]] = {True: [], False: []}
    for part in _parts(folder, is_split):
        parts[f"/{VALIDATION}=true/" in part].append(part)
    return PreparedData(tuple(parts[False]), tuple(parts[True]), is_split, tuple(columns), folder, (folder,))


def _read(df: DataFrame, columns: Sequence[str], paths: Sequence[str]) -> DataFrame:
    """Columns of a DataFrame that are stored in files, vectors as structs of their parts, and the partition's."""
    schema = with_plain_vectors(df.select(*(quoted(name) for name in columns)).schema)
    return df.sparkSession.read.schema(schema.add(VALIDATION, "string")).parquet(*map(_escaped, paths))


def _write(rows: DataFrame, folder: str, is_split: bool) -> None:
    _written[folder] = os.getpid()  # before anything is there: nothing is left behind, however this ends
    try:
        (rows.write.partitionBy(VALIDATION) if is_split else rows.write).parquet(folder)
    except Exception as error:
        with contextlib.suppress(Exception):
            _remove(folder)
        if found := next((reason for reason in _FULL_OR_CLOSED if reason in str(error)), None):
            raise ConfigError(
                f"the DataFrame cannot be written to {folder}: {found}; make room there, or name another directory"
            ) from error
        if "PATH" in type(error).__name__.upper():
            raise ConfigError(
                f"the DataFrame cannot be written to {folder}: {error}; name another directory"
            ) from error
        raise


def _settled(folder: str, mark: str, keep: bool) -> str:
    """The folder of these rows: another that had them before, or else the new one, which is marked.

    Args:
        folder: The new one, all of which is written.
        mark: Name of a file in all folders of just these rows; no reader takes it for rows.
    """
    own = mark if keep else f"{mark}-{_OWN}"
    filesystem, path = fsspec.core.url_to_fs(fsspec_url(folder))
    base, _, name = path.rpartition("/")
    with _lock:
        filesystem.invalidate_cache(base)
        for other in filesystem.ls(base, detail=False):
            if any(filesystem.exists(f"{other.rstrip('/')}/{it}") for it in {mark, own}):  # one that is kept serves all
                _remove(folder)
                return f"{folder.removesuffix(name)}{other.rstrip('/').rpartition('/')[2]}"
        filesystem.pipe_file(f"{path}/{own}", b"")
        if keep:
            _written.pop(folder, None)
    return folder


def _parts(folder: str, is_split: bool) -> tuple[str, ...]:
    """URLs of the files in a folder, in order; none where no row got there."""
    filesystem, path = fsspec.core.url_to_fs(fsspec_url(folder))
    found = filesystem.find(path, maxdepth=2 if is_split else 1) if filesystem.exists(path) else []
    return tuple(sorted(filesystem.unstrip_protocol(part) for part in found if part.endswith(".parquet")))


def _escaped(path: str) -> str:
    """A path as Spark's readers take it, for which some signs stand for others."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)


def _absolute(url: str | Path) -> str:
    """The URL as Spark takes it: a local path is one of this machine, not of Spark's default file system."""
    text = str(url).rstrip("/")
    if "://" in text or text.startswith("file:"):
        return text
    return Path(text).expanduser().absolute().as_uri()


def _remove(folder: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(fsspec_url(folder))
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(path, recursive=True)
    _written.pop(folder, None)


@atexit.register
def _clean_up() -> None:
    """Remove the copies that this process wrote and nobody asked to keep."""
    for folder, process in list(_written.items()):
        with contextlib.suppress(Exception):  # the store may be gone before us
            if process == os.getpid():
                _remove(folder)
