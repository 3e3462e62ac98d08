"""A DataFrame as Parquet files: the files that it was read from, or a copy that is written once and used again."""

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
"""Name of the column by which a copy with validation rows is partitioned."""

_OWN = uuid.uuid4().hex[:8]
"""Suffix of the marks of this process's temporary copies, so that no other process reads them."""

_FULL_OR_CLOSED = (
    "No space left on device",
    "Disk quota exceeded",
    "Read-only file system",
    "Permission denied",
    "Mkdirs failed",  # Hadoop's word for a folder that cannot be made
)
"""Messages of file systems that nothing can be written to a folder."""

_lock = threading.Lock()  # as fits may run side by side
_written: dict[str, int] = {}  # the process that wrote each: a fork of it removes nothing


@dataclass(frozen=True)
class PreparedData:
    """Rows in Parquet files.

    Attributes:
        train: URLs of the training rows, as fsspec reads them: files, or a folder of files.
        validation: URLs of the validation rows; none if nothing was set apart.
        is_split: Whether rows were to be set apart.
        columns: Columns that were asked for; the files may have more.
        copy: URL of the folder that was written; None if the DataFrame was in Parquet files already.
        paths: Location of all rows, as Spark spells it.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    is_split: bool
    columns: tuple[str, ...]
    copy: str | None
    paths: tuple[str, ...]

    def rows(self, df: DataFrame) -> DataFrame:
        """Return the rows as they are stored, with vectors as structs of their parts.

        Args:
            df: DataFrame that they were prepared from.
        """
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

    A DataFrame that only reads Parquet files is not copied. Any other is computed once and written to a folder below
    ``url``. If an equal copy exists, of this process or one with ``keep``, it is used and the new one is removed. Only
    the rows tell whether copies are equal, because a plan may read a clock, a setting or a function's globals.

    Args:
        df: DataFrame. Vectors are written unchanged, sparse ones sparse.
        columns: Columns that are needed; no others are written.
        url: Path or URL of a folder that Spark and all workers can access.
        validation_column: Name of a boolean column that is true for validation rows. It requires a copy.
        validation_fraction: Fraction of the rows to set apart at random, from 0 to less than 1.
        seed: Seed of that choice.
        keep: If True, the copy is kept. Default: it is removed when this Python process exits.

    Raises:
        ConfigError: The URL is a local path but Spark runs elsewhere, or it cannot be written.

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
            f"directory must be shared by Spark's executors and this process, got {folder}, which Spark wrote and this "
            "process cannot find; use a URL such as 's3a://bucket/folder'"
        )
    folder = _settled(folder, f"{mark}-{key}", keep)
    parts: dict[bool, list[str]] = {True: [], False: []}
    for part in _parts(folder, is_split):
        parts[f"/{VALIDATION}=true/" in part].append(part)
    return PreparedData(tuple(parts[False]), tuple(parts[True]), is_split, tuple(columns), folder, (folder,))


def _read(df: DataFrame, columns: Sequence[str], paths: Sequence[str]) -> DataFrame:
    """Read stored columns of a DataFrame, with vectors as structs of their parts, and the partition column."""
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
                f"the DataFrame cannot be written to {folder}: {found}; free space or allow writing there, or use "
                "another directory"
            ) from error
        if "PATH" in type(error).__name__.upper():
            raise ConfigError(f"the DataFrame cannot be written to {folder}: {error}; use another directory") from error
        raise


def _settled(folder: str, mark: str, keep: bool) -> str:
    """Return the folder of these rows: an earlier one that has them, or the new one, which is marked.

    Args:
        folder: New folder, completely written.
        mark: Name of a file in all folders of exactly these rows; no reader takes it for rows.
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
    """Return the URLs of the files in a folder, in order; none if no row was written there."""
    filesystem, path = fsspec.core.url_to_fs(fsspec_url(folder))
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
    return Path(text).expanduser().absolute().as_uri()


def _remove(folder: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(fsspec_url(folder))
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(path, recursive=True)
    _written.pop(folder, None)


@atexit.register
def _clean_up() -> None:
    """Remove the temporary copies that this process wrote."""
    for folder, process in list(_written.items()):
        with contextlib.suppress(Exception):  # the store may be gone before us
            if process == os.getpid():
                _remove(folder)
