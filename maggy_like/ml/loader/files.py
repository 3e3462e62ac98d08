"""The Parquet files at URLs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fsspec.core
import pyarrow.fs as pafs

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.loader.spark_urls import fsspec_url


def find_files(urls: str | Sequence[str]) -> tuple[pafs.FileSystem, bool, list[str]]:
    """The Parquet files of a folder, or the files themselves.

    Files and folders whose names start with ``_`` or ``.`` are none of a table, as in Spark.

    Args:
        urls: A file or a folder, or several of one file system.

    Returns:
        The file system; whether it is a disk of this machine; the paths, in the order of their names.

    Raises:
        ConfigError: There are no URLs, or they are of several file systems.
        DataError: There are no files, or a folder is a Delta or Iceberg table, whose log says which files count.
    """
    given = [urls] if isinstance(urls, str) else [str(url) for url in ([urls] if hasattr(urls, "__fspath__") else urls)]
    if not given:
        raise ConfigError("no URL of Parquet files was given")
    found = [fsspec.core.url_to_fs(fsspec_url(url)) for url in given]
    system = found[0][0]
    if any(other is not system for other, _ in found):
        raise ConfigError(f"the URLs are of several file systems, and must be of one: {', '.join(given)}")
    paths = [path for _, root in found for path in _below(system, root)]
    local = "file" in _protocols(system)
    return pafs.LocalFileSystem() if local else pafs.PyFileSystem(pafs.FSSpecHandler(system)), local, paths


def _below(system: Any, root: str) -> list[str]:
    if system.isfile(root):
        return [root]
    if kind := _table_format(system, root):
        raise DataError(
            f"{root} is a table of {kind}, whose folder has files that count no more; give the DataFrame itself if it "
            "is small, or write it: df.write.parquet(url)"
        )
    found = sorted(path for path in system.find(root) if path.endswith((".parquet", ".parq")) and _counts(path, root))
    if not found:
        raise DataError(f"there are no Parquet files at {root}")
    return found


def _table_format(system: Any, root: str) -> str | None:
    """The format of a table whose log says which of its files count."""
    if system.exists(f"{root}/_delta_log"):
        return "Delta"
    if system.exists(f"{root}/metadata/version-hint.text") or system.glob(f"{root}/metadata/*.metadata.json"):
        return "Iceberg"
    return None


def _counts(path: str, root: str) -> bool:
    return not any(part.startswith(("_", ".")) for part in path[len(root) :].strip("/").split("/"))


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)
