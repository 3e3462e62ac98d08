"""File systems by URL. fsspec is loaded at the first use: it takes a sixth of a second, and brings asyncio."""

from __future__ import annotations

import os
from typing import Any

from maggy_like.processes.working_folder import working_folder

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss"})
"""Protocols of stores without folders, in which a put takes effect whole or not at all."""


def open_url(url: str | os.PathLike[str]) -> tuple[Any, str]:
    """The file system of a path or URL, and the path in it.

    Raises:
        ConfigError: It is a relative path, and the working folder was deleted.
        ValueError: The URL's file system is not known.
        ImportError: Its package is not installed.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    scheme, separator, _ = os.fspath(url).partition("://")
    if not separator or scheme in ("file", "local"):  # a folder of this machine may be called "a::b": no chain of URLs
        local = LocalFileSystem()
        try:
            return local, str(local._strip_protocol(url))
        except FileNotFoundError:  # a relative path was given, and there is nothing that it is relative to
            working_folder()
            raise
    fs, path = url_to_fs(url)
    return fs, path


def is_local(fs: Any) -> bool:
    """Whether a file system is that of this machine."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def puts_whole(fs: Any) -> bool:
    """Whether a file that is written to a file system appears there whole or not at all."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return not OBJECT_STORES.isdisjoint(protocols)


def try_local_path(folder: str) -> str | None:
    """The path on this machine of a folder given by its path or URL; None where it is another file system's."""
    if "://" not in folder:
        return folder
    try:
        fs, path = open_url(folder)
    except Exception:  # of whatever file system it is; its package may be missing
        return None
    return path if is_local(fs) else None


def put(url: str, data: bytes) -> None:
    """Write a file and make its folder."""
    fs, path = open_url(url)
    write_file(fs, path, data)


def remove_folder(url: str) -> None:
    """Remove a folder with all that is in it, if it is there."""
    fs, path = open_url(url)
    if fs.exists(path):
        fs.rm(path, recursive=True)


def write_file(fs: Any, path: str, data: bytes) -> None:
    """Write a file and make its folder; on this machine's disks, for the user alone."""
    if is_local(fs):
        os.makedirs(fs._parent(path), 0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    else:
        fs.makedirs(fs._parent(path), exist_ok=True)
    fs.pipe_file(path, data)
