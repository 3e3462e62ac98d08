"""A DataFrame as Parquet files: those it was read from, or a copy that is written once and used again."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from maggy_like.errors import ConfigError
from maggy_like.ml.columns.spark_columns import arrays_of_vectors, quoted
from maggy_like.ml.data.plans import content_key, parquet_files
from maggy_like.ml.loader.spark_urls import fsspec_url

VALIDATION = "maggy_validation"
"""The column by which a copy is partitioned where some of its rows are for validation."""

_OWN = uuid.uuid4().hex[:8]
"""Ends the names of this process's copies, so that no other process writes to them, or reads one that goes with us."""

_FULL_OR_CLOSED = (
    "No space left on device",
    "Disk quota exceeded",
    "Read-only file system",
    "Permission denied",
    "Mkdirs failed",  # Hadoop's word for a folder that cannot be made
)
"""How the systems beneath Spark say that nothing can be written somewhere."""

_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # of each folder, as fits may run side by side
_written: dict[str, int] = {}  # the process that wrote each: a fork of it removes nothing


@dataclass(frozen=True)
class PreparedData:
    """Rows in Parquet files.

    Attributes:
        train: URLs of the rows to train on, as fsspec reads them: files, or a folder of some.
        validation: Those of the rows to validate on; none where nothing was set apart.
        columns: The columns that the files have, and may have more.
        copy: URL of the folder that was written; None where the DataFrame was in Parquet files already.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    columns: tuple[str, ...]
    copy: str | None

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

    A DataFrame that just reads Parquet files is left where it is. Any other is written to a folder of its own beneath
    ``url``, once: the same rows by the same plan are found there again, by this process, and by others with ``keep``.

    Args:
        df: Vectors in it are written as arrays.
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
        return PreparedData(tuple(map(fsspec_url, files)), (), tuple(columns), None)
    wanted = [F.col(quoted(name)) for name in columns]
    if validation_column is not None:
        wanted.append(F.coalesce(F.col(quoted(validation_column)), F.lit(False)).alias(VALIDATION))
    rows = arrays_of_vectors(df.select(*wanted), columns)  # which are read without a loop over rows
    folder = f"{_absolute(url)}/{content_key(rows)}"
    if validation_fraction:
        folder += f"-{validation_fraction:g}-{seed}"
        rows = rows.withColumn(VALIDATION, F.rand(seed) < validation_fraction)
    if not keep and not _is_complete(folder):  # one that is kept serves all
        folder += f"-{_OWN}"
    with _locks[folder]:
        if not _is_complete(folder):
            _write(rows, folder, is_split)
            if not keep:
                _written[folder] = os.getpid()
    if not is_split:
        return PreparedData(_parts(folder), (), tuple(columns), folder)
    parts = [_parts(f"{folder}/{VALIDATION}={value}") for value in ("false", "true")]
    return PreparedData(parts[0], parts[1], tuple(columns), folder)


def _write(rows: DataFrame, folder: str, is_split: bool) -> None:
    writer = rows.write.mode("overwrite")
    try:
        (writer.partitionBy(VALIDATION) if is_split else writer).parquet(folder)
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
    if not _is_complete(folder):
        raise ConfigError(
            f"Spark wrote the DataFrame to {folder}, which this process does not see; name a directory that Spark's "
            "executors and this process share, such as 's3a://bucket/folder'"
        )


def _is_complete(folder: str) -> bool:
    filesystem, path = fsspec.core.url_to_fs(fsspec_url(folder))
    return bool(filesystem.exists(f"{path}/_SUCCESS"))


def _parts(folder: str) -> tuple[str, ...]:
    """URLs of the files in a folder, in order; none where no row got there."""
    filesystem, path = fsspec.core.url_to_fs(fsspec_url(folder))
    if not filesystem.exists(path):
        return ()
    return tuple(sorted(filesystem.unstrip_protocol(part) for part in filesystem.glob(f"{path}/*.parquet")))


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
